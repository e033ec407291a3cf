// Which of the user's buffers a launch offers to peers, and what ranks that must agree on direct
// plans are told of that.
#include <algorithm>

#include "base/log.h"
#include "gpu/machine.h"
#include "operations/launcher.h"
#include "operations/message_agreement.h"
#include "operations/operation_queue.h"
#include "operations/plan_agreement.h"
#include "operations/plans.h"
#include "registry/buffer_exports.h"
#include "registry/windows.h"

namespace niccolite::operations {
namespace {

using executor::Buffers;

constexpr std::chrono::seconds kExportTime{10};  // peers' processes map memory on their own threads

/// The longest message, of powers of two, up to which all go by LL or LL128 where they are planned
/// for direct buffers, too. Longer ones go by Simple then, and would be advertised.
size_t most_by_lines(Plans& plans) {
  if (!plans.most_message_by_lines) {
    const auto goes_by_lines = [&](size_t bytes) {
      const Result<executor::Protocol> protocol =
          plans.planner.protocol_of_message(bytes, /*goes_direct=*/true);
      return protocol.is_ok() && protocol.value() != executor::Protocol::Simple;
    };
    constexpr size_t kMost = size_t{1} << 40;
    size_t longer = 1;
    while (longer < kMost && goes_by_lines(longer)) longer *= 2;
    plans.most_message_by_lines = longer / 2;
  }
  return *plans.most_message_by_lines;
}

}  // namespace

const uint64_t* OperationQueue::shifts_of(const void* pointer, size_t bytes) {
  if (pointer == nullptr) return nullptr;
  if (windows_ != nullptr)
    if (const uint64_t* shifts = windows_->shifts_of(pointer, bytes)) return shifts;
  if (exports_ == nullptr) return nullptr;
  // In the same call it need not be looked for again. A list's buffers lie in few allocations.
  constexpr std::ptrdiff_t kMostLooks = 8;
  const auto end = used_.rbegin() + std::min(kMostLooks, std::ssize(used_));
  const auto known = std::find_if(used_.rbegin(), end, [&](const auto& used) {
    return used->is_allocation_of(pointer, bytes);
  });
  if (known != end) return (*known)->shifts();
  using Use = registry::BufferExports::Use;
  auto found = exports_->find(pointer, bytes, order_.is_captured() ? Use::Captured : Use::Plain,
                              Deadline::after(kExportTime));
  if (found == nullptr) return nullptr;
  const uint64_t* const shifts = found->shifts();
  used_.push_back(std::move(found));
  return shifts;
}

// Each launch anew: windows end, and memory is freed and comes back as other memory.
Buffers OperationQueue::with_shifts(Buffers buffers) {
  buffers.input_shifts = shifts_of(buffers.input, buffers.input_bytes);
  buffers.output_shifts = shifts_of(buffers.output, buffers.output_bytes);
  return buffers;
}

// Of a launch that makes offers.
Buffers OperationQueue::advertise(Buffers buffers, const calls::Call& call) {
  buffers = with_shifts(buffers);
  if (buffers.input_shifts != nullptr || buffers.output_shifts != nullptr)
    LOG(Trace, Reg, "{}: peers are offered {}", describe(call),
        buffers.output_shifts == nullptr  ? "the input"
        : buffers.input_shifts == nullptr ? "the output"
                                          : "input and output");
  if (order_.is_captured()) return buffers;
  if (call.is_message()) {
    note_message(call, buffers);
  } else if (agreement_ != nullptr && exports_ != nullptr) {
    note_use(buffers);
  }
  return buffers;
}

// Nobody reaches it; but plans for buffers that are reached suit it, since they take chunks where
// those for slots take lines, and a GPU reads its host's memory three times as fast by chunks.
bool OperationQueue::is_of_host(const void* buffer) const {
  const Result<gpu::PointerInfo> info = machine_.pointer_info(buffer);
  return info.is_ok() && info.value().kind == gpu::PointerKind::Host;
}

const registry::BufferExport* OperationQueue::export_of(const uint64_t* shifts) const {
  const auto found = std::find_if(used_.rbegin(), used_.rend(),
                                  [&](const auto& used) { return used->shifts() == shifts; });
  return found == used_.rend() ? nullptr : found->get();
}

ReachHistory::Use OperationQueue::use_of(const void* buffer, size_t bytes, const uint64_t* shifts,
                                         int by) {
  using Use = ReachHistory::Use;
  if (buffer == nullptr || bytes == 0) return {};
  if (shifts != nullptr) {
    const registry::BufferExport* const of = export_of(shifts);
    const bool is_reached =
        of == nullptr || (by == kByAll ? of->is_mapped_by_all() : of->is_mapped_by(by));
    return {is_reached ? Use::Reached : Use::Missed};
  }
  if (is_of_host(buffer)) return {};
  const uint64_t number = exports_ == nullptr ? 0 : exports_->number_of(buffer, bytes);
  return number == 0 ? Use{Use::Missed} : Use{Use::Awaited, number};
}

void OperationQueue::note_use(const Buffers& buffers) {
  agreement_->note_use(
      kind_, std::max(use_of(buffers.input, buffers.input_bytes, buffers.input_shifts, kByAll),
                      use_of(buffers.output, buffers.output_bytes, buffers.output_shifts, kByAll)));
}

// Of a live one. Its receiver decides for both ends.
void OperationQueue::note_message(const calls::Call& call, const Buffers& buffers) {
  if (message_agreement_ == nullptr || call.is_send || call.request.count == 0) return;
  if (!message_agreement_->notes_use_of(call.peer)) return;
  message_agreement_->note_use(
      call.peer, use_of(buffers.output, call.request.bytes(), buffers.output_shifts, call.peer));
}

// Of ranks of one process, whose buffers are open to each other or not.
void OperationQueue::note_openness(const Launcher& launcher, std::span<const calls::Call> calls,
                                   std::span<const Buffers> buffers) {
  if (!launcher.advertises() && plans_ != plain_.get()) return;
  const auto is_open = [&](const void* buffer, uint64_t bytes) {
    return buffer == nullptr || bytes == 0 || machine_.is_open(device_, buffer, bytes) ||
           is_of_host(buffer);
  };
  for (size_t i = 0; i < calls.size() && i < buffers.size(); ++i) {
    const Buffers& of = buffers[i];
    if (calls[i].is_message()) continue;
    const bool is_reached =
        is_open(of.input, of.input_bytes) && is_open(of.output, of.output_bytes);
    agreement_->note_use(kind_,
                         {is_reached ? ReachHistory::Use::Reached : ReachHistory::Use::Missed});
  }
}

// A root to which peers offer their buffers has none that must be reached. Where the plan for slots
// makes no offers at all, that for direct buffers may: it counts what would be offered.
void OperationQueue::note_without_advertisements(const Launcher& launcher,
                                                 std::span<const calls::Call> calls,
                                                 std::span<const Buffers> buffers) {
  for (size_t i = 0; message_agreement_ != nullptr && i < calls.size() && i < buffers.size(); ++i)
    if (calls[i].is_message() && calls[i].request.bytes() > most_by_lines(*plans_))
      note_message(calls[i], with_shifts(buffers[i]));
  // Collectives by lines, too, that a plan for direct buffers might list with others of their
  // group.
  constexpr size_t kLeastListed = 512 << 10;
  if (launcher.advertisements() == Launcher::Advertisements::None) {
    size_t bytes = 0;
    for (const calls::Call& call : calls) bytes += call.is_message() ? 0 : call.request.bytes();
    if (plans_ != plain_.get() || bytes < kLeastListed) return;
  }
  for (size_t i = 0; i < calls.size() && i < buffers.size(); ++i) {
    if (calls[i].is_message()) continue;
    if (launcher.advertisements() == Launcher::Advertisements::Taken) {
      agreement_->note_use(kind_, {ReachHistory::Use::Reached});
    } else {
      note_use(with_shifts(buffers[i]));
    }
  }
}

}  // namespace niccolite::operations
