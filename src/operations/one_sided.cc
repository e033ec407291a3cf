#include "operations/one_sided.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>

#include "executor/cuda/patterns/one_sided.h"
#include "executor/host/one_sided.h"

namespace niccolite::operations {
namespace {

template <typename Operation>
Status launch(gpu::Machine& machine, int device, gpu::StreamHandle stream,
              const Operation& operation) {
  if (machine.kind() == gpu::Kind::Cuda)
    return executor::cuda::launch(machine, device, stream, operation);
  auto& virtual_machine = static_cast<gpu::virtual_::VirtualMachine&>(machine);
  return executor::host::launch(virtual_machine, device, stream, operation);
}

}  // namespace

OneSided::OneSided(Options options)
    : options_(std::move(options)),
      machine_(options_.machine),
      signals_(machine_, options_.device, options_.member, options_.ask),
      in_flight_(machine_, options_.device, options_.graphs) {}

Status OneSided::run(const OneSidedCall& call, const Deadline& deadline) {
  TRY(in_flight_.before(call.stream));
  TRY(call.is_wait() ? wait(call) : put(call, deadline));
  return in_flight_.after(call.stream);
}

Status OneSided::put(const OneSidedCall& call, const Deadline& deadline) {
  if (options_.is_remote(call.peer)) return put_remote(call, deadline);
  executor::SignalLine* const remote = TRY(signals_.remote_line(call.peer, deadline));
  executor::Put put{.source = static_cast<const std::byte*>(call.source),
                    .target = call.target,
                    .bytes = call.bytes,
                    .own = TRY(signals_.line_of(call.peer)),
                    .arrived = &remote->arrived};
  if (put.bytes > executor::kMostPutBytes) {
    TRY(machine_.copy_async(put.target, put.source, put.bytes, options_.device, call.stream));
    put.bytes = 0;
  }
  return launch(machine_, options_.device, call.stream, put);
}

Status OneSided::put_remote(const OneSidedCall& call, const Deadline& deadline) {
  note_peer(call.peer);
  const executor::RelayedPut put{.source = static_cast<const std::byte*>(call.source),
                                 .bytes = call.bytes,
                                 .window = call.window,
                                 .offset = call.offset,
                                 .own = TRY(signals_.line_of(call.peer)),
                                 .port = TRY(options_.connect(call.peer, deadline)),
                                 .control = options_.control};
  return launch(machine_, options_.device, call.stream, put);
}

// The header is not trusted: the peer may be broken, or its program may have deregistered the
// window on this rank alone.
Status OneSided::land(int from, std::span<const std::byte> chunk) {
  using executor::kPutDataAt;
  executor::PutHeader header{};
  if (chunk.size() < kPutDataAt)
    return Status::remote_error("a put of rank {} has a chunk of {} bytes, with a header of {}",
                                from, chunk.size(), kPutDataAt);
  std::memcpy(&header, chunk.data(), sizeof header);
  if (header.bytes != chunk.size() - kPutDataAt || header.is_last > 1)
    return Status::remote_error("a put of rank {} says {} bytes of a chunk that has {}", from,
                                header.bytes, chunk.size() - kPutDataAt);
  if (header.bytes > 0) {
    const std::shared_ptr<const registry::Window> window = options_.find_window(header.window);
    if (window == nullptr || !window->is_symmetric())
      return Status::remote_error(
          "rank {} puts into window number {} of rank {}, which is not registered here: deregister "
          "a window only after the signals of all puts into it have been waited for",
          from, header.window, signals_.rank());
    if (header.offset > window->bytes() || header.bytes > window->bytes() - header.offset)
      return Status::remote_error(
          "rank {} puts {} bytes at offset {} into window number {} of rank {}, which has {} bytes",
          from, header.bytes, header.offset, header.window, signals_.rank(), window->bytes());
    // The window keeps this mapping, whatever the user does meanwhile.
    TRY(machine_.upload(options_.device, window->copy_of(window->rank()) + header.offset,
                        chunk.data() + kPutDataAt, header.bytes));
  }
  return header.is_last == 0 ? Status() : raise(from);
}

Status OneSided::raise(int from) {
  executor::SignalLine* const line = TRY(signals_.line_of(from));
  const uint64_t raised = ++raised_[from];
  if (machine_.kind() == gpu::Kind::Cuda)
    return machine_.upload(options_.device, &line->arrived, &raised, sizeof raised);
  // [publish] the data, to the wait's [consume].
  std::atomic_ref(line->arrived).store(raised, std::memory_order_release);
  return {};
}

void OneSided::note_peer(int peer) {
  std::lock_guard lock(mutex_);
  peers_.insert(peer);
}

Result<executor::SignalLine> OneSided::read(int peer) {
  executor::SignalLine* const line = TRY(signals_.line_of(peer));
  executor::SignalLine copy{};
  if (machine_.kind() == gpu::Kind::Cuda) {
    TRY(machine_.download(options_.device, &copy, line, sizeof copy));
    return copy;
  }
  // relaxed: only numbers are compared.
  const auto load = [](uint64_t& word) {
    return std::atomic_ref(word).load(std::memory_order_relaxed);
  };
  copy.arrived = load(line->arrived);
  copy.begun = load(line->begun);
  copy.raised = load(line->raised);
  copy.claimed = load(line->claimed);
  return copy;
}

std::optional<std::pair<int, std::string_view>> OneSided::awaited(
    const std::function<bool(int peer)>& is_gone) {
  std::vector<int> gone;
  {
    std::lock_guard lock(mutex_);
    std::ranges::copy_if(peers_, std::back_inserter(gone), is_gone);
  }
  for (const int peer : gone) {
    Result<executor::SignalLine> line = read(peer);
    if (!line.is_ok()) continue;
    if (!executor::has_arrived(line->arrived, line->claimed)) return {{peer, "ncclWaitSignal"}};
    // Inside a machine a put waits for nobody.
    if (line->begun != line->raised && options_.is_remote(peer)) return {{peer, "ncclPutSignal"}};
  }
  return std::nullopt;
}

Status OneSided::wait(const OneSidedCall& call) {
  for (const auto& each : call.waits) note_peer(each.peer);
  for (size_t first = 0; first < call.waits.size(); first += executor::kMostSignalWaits) {
    executor::SignalWait wait{.items = {}, .control = options_.control};
    const size_t end = std::min(first + executor::kMostSignalWaits, call.waits.size());
    for (size_t i = first; i < end; ++i)
      wait.items.push_back(
          {TRY(signals_.line_of(call.waits[i].peer)), static_cast<uint64_t>(call.waits[i].count)});
    TRY(launch(machine_, options_.device, call.stream, wait));
  }
  return {};
}

}  // namespace niccolite::operations
