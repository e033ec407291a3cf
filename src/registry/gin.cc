#include "registry/gin.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "executor/protocol/call_tag.h"
#include "executor/protocol/relay.h"
#include "gpu/machine.h"

namespace niccolite::registry {

namespace {

constexpr size_t kOfOneQueue = 16;  // operations under way at a time

bool has_signal(const GinDescriptor& descriptor) {
  return descriptor.has(GinDescriptor::kIncrement | GinDescriptor::kAdd);
}
bool copies(const GinDescriptor& descriptor) {
  return descriptor.bytes > 0 && descriptor.has(GinDescriptor::kPut | GinDescriptor::kGet);
}

/// Between looks at memory: yields at first, and sleeps once nothing has come for a millisecond.
class Rest {
 public:
  void take() {
    constexpr std::chrono::milliseconds kAwake{1};
    constexpr std::chrono::microseconds kNap{50};
    if (Clock::now() - last_ < kAwake)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kNap);
  }
  void begin_again() { last_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
};

uint32_t bytes_of_chunk(uint64_t rest) {
  return static_cast<uint32_t>(std::min<uint64_t>(rest, executor::kPutDataBytes));
}

}  // namespace

// ---- GinLink

Result<bool> GinLink::send(const GinChunk& chunk, const std::function<Status(std::byte*)>& fill) {
  constexpr executor::FifoShape kShape = executor::kPutShape;
  std::lock_guard lock(mutex_);
  uint64_t& step = port_.control->step;
  const std::atomic_ref head(port_.control->remote);
  // [credit] acquires: the proxy has read the slot.
  if (head.load(std::memory_order_acquire) + kShape.depth <= step) return false;
  std::byte* const slot = port_.slots + kShape.slot_offset(0, step);
  std::memcpy(slot, &chunk, sizeof chunk);
  if (fill) TRY(fill(slot + executor::kPutDataAt));
  const uint32_t bytes = executor::kPutDataAt + chunk.bytes;
  // relaxed: [publish] releases it.
  std::atomic_ref(port_.notes[step & (kShape.depth - 1)])
      .store(executor::relay::note_of(bytes, /*tag=*/0), std::memory_order_relaxed);
  ++step;
  // [publish] the slot's content, to the proxy's [arrival].
  std::atomic_ref(port_.remote_control->remote)
      .store(executor::call_tag::tail(step, /*tag=*/0), std::memory_order_release);
  port_.bells[0]->announce(bytes);
  return true;
}

// ---- Gin

Gin::Gin(Parts parts, const GinNeeds& needs, std::unique_ptr<GinMemory> memory)
    : parts_(std::move(parts)),
      needs_(needs),
      memory_(std::move(memory)),
      is_given_up_(static_cast<size_t>(parts_.nranks)),
      next_(static_cast<size_t>(needs.contexts) * static_cast<size_t>(parts_.nranks)),
      transfers_(next_.size()) {}

Result<std::shared_ptr<Gin>> Gin::create(Parts parts, const GinNeeds& needs,
                                         bool has_other_processes) {
  std::unique_ptr<GinMemory> memory =
      TRY(GinMemory::create(parts.machine, needs, parts.nranks, has_other_processes));
  std::shared_ptr<Gin> gin(new Gin(std::move(parts), needs, std::move(memory)));
  gin->stream_ = TRY(gin->parts_.machine.create_stream(gin->parts_.device));
  return gin;
}

Gin::~Gin() { stop(); }

Status Gin::start(std::byte* state, std::shared_ptr<const Window> resources, Links links) {
  resources_ = std::move(resources);
  links_ = std::move(links);
  TRY(memory_->write_contexts(parts_.device, state));
  has_ended_.store(false, std::memory_order_relaxed);  // before its thread
  Result<Thread> thread = Thread::start("niccolite gin", [this] {
    serve();
    has_ended_.store(true, std::memory_order_relaxed);  // publishes nothing
  });
  if (!thread.is_ok()) has_ended_.store(true, std::memory_order_relaxed);
  thread_ = TRY(std::move(thread));
  return {};
}

void Gin::ask_to_stop() {
  // relaxed: publishes nothing
  stops_.store(true, std::memory_order_relaxed);
}

void Gin::stop() {
  ask_to_stop();
  thread_.join();
}

// ---- Its thread

void Gin::serve() {
  Rest rest;
  // relaxed: nothing is published with it
  while (!stops_.load(std::memory_order_relaxed)) {
    if (look())
      rest.begin_again();
    else
      rest.take();
  }
  // Kernels have ended, and the queues hold their last operations.
  for (bool has_moved = true; has_moved || !end_if_idle(); has_moved = look()) {
    if (has_moved)
      rest.begin_again();
    else
      rest.take();
  }
}

// One look at all queues. Nothing has come, and nothing could be sent: false.
bool Gin::look() {
  bool has_moved = answer_gets();
  for (size_t queue = 0; queue < next_.size(); ++queue)
    if (is_remote(static_cast<int>(queue) % parts_.nranks)) has_moved |= look_beyond(queue);
  return look_here() || has_moved;
}

// Nothing is under way, and no get comes any more: true.
bool Gin::end_if_idle() {
  return answers_.empty() &&
         std::ranges::all_of(transfers_, [](const auto& of_queue) { return of_queue.empty(); }) &&
         asked_.close_if_empty();
}

// The queues for ranks of this machine.
bool Gin::look_here() {
  batch_.clear();
  for (size_t i = 0; i < next_.size() && batch_.size() < kGinBatch; ++i) {
    const size_t queue = (first_queue_ + i) % next_.size();
    if (is_remote(static_cast<int>(queue) % parts_.nranks)) continue;
    for (size_t taken = 0; taken < kOfOneQueue && batch_.size() < kGinBatch; ++taken) {
      const std::optional<GinDescriptor> next = memory_->take(queue, next_[queue], stops_);
      if (!next) break;
      ++next_[queue];
      batch_.push_back({.queue = queue, .descriptor = *next, .windows = {}});
    }
  }
  if (batch_.empty()) return false;
  first_queue_ = (batch_.back().queue + 1) % next_.size();
  bool has_copied = false;
  for (size_t i = 0; i < batch_.size(); ++i) {
    if (is_over()) break;
    Item& item = batch_[i];
    Status status = check(item);
    if (status.is_ok()) status = copy_here(item, i, has_copied);
    report(item, std::move(status));
  }
  if (has_copied)
    report(batch_.front(), parts_.machine.synchronize_stream(parts_.device, stream_.handle()));
  for (const Item& item : batch_) {
    if (!is_over()) report(item, complete(item));
    memory_->give_back(item.queue);
  }
  return true;
}

Status Gin::check(const Item& item) const {
  const GinDescriptor& asked = item.descriptor;
  constexpr uint32_t kKnown = GinDescriptor::kFlush * 2 - 1;
  constexpr uint32_t kKinds =
      GinDescriptor::kPut | GinDescriptor::kGet | GinDescriptor::kFlush | GinDescriptor::kInMemory;
  if (!asked.has(kKinds) || (asked.operation & ~kKnown) != 0)
    return Status::invalid_argument("operation 0x{:x} is not known", asked.operation);
  if (asked.has(GinDescriptor::kInline) && asked.bytes > sizeof asked.value)
    return Status::invalid_argument("a value of {} bytes", asked.bytes);
  if (has_signal(asked) && !asked.has(GinDescriptor::kInMemory) &&
      asked.signal >= static_cast<uint64_t>(needs_.signals))
    return Status::invalid_argument("signal {} of {}", asked.signal, needs_.signals);
  if (asked.has(GinDescriptor::kInMemory) && asked.source_offset % sizeof(uint64_t) != 0)
    return Status::invalid_argument("offset {} is not one of a word of 8 bytes",
                                    asked.source_offset);
  if (asked.has(GinDescriptor::kCounter) && asked.counter >= static_cast<uint64_t>(needs_.counters))
    return Status::invalid_argument("counter {} of {}", asked.counter, needs_.counters);
  return {};
}

// `data` is null where the window's copy of `peer` is on another machine.
Result<Gin::Place> Gin::find(uint64_t window, uint64_t offset, uint64_t bytes, int peer) const {
  std::shared_ptr<const Window> found = parts_.find_window(reinterpret_cast<const void*>(window));
  if (found == nullptr)
    return Status::invalid_argument("0x{:x} is no live window of this communicator", window);
  const uint64_t whole = found->bytes_of(peer);
  if (offset > whole || bytes > whole - offset)
    return Status::invalid_argument(
        "{} bytes at offset {} go beyond the window of rank {}, {} bytes", bytes, offset, peer,
        whole);
  std::byte* const copy = found->copy_of(peer);
  return Place{std::move(found), copy == nullptr ? nullptr : copy + offset};
}

// Queues the copy of an item for a rank of this machine. All else is done when it has come.
Status Gin::copy_here(Item& item, size_t place, bool& has_copied) {
  const GinDescriptor& asked = item.descriptor;
  if (!copies(asked)) return {};
  const bool is_get = asked.has(GinDescriptor::kGet);
  const int peer = peer_of(item);
  Place target =
      TRY(find(asked.target_window, asked.target_offset, asked.bytes, is_get ? parts_.rank : peer));
  item.windows[0] = std::move(target.window);
  const void* source = nullptr;
  if (asked.has(GinDescriptor::kInline)) {
    uint64_t* const staged = memory_->at<uint64_t>(memory_->layout().staging) + place;
    *staged = asked.value;
    source = staged;
  } else {
    Place from = TRY(
        find(asked.source_window, asked.source_offset, asked.bytes, is_get ? peer : parts_.rank));
    item.windows[1] = std::move(from.window);
    source = from.data;
  }
  TRY(parts_.machine.copy_async(target.data, source, asked.bytes, parts_.device, stream_.handle()));
  has_copied = true;
  return {};
}

// A queue for a rank of another machine. Operations are sent one after the other, and done in their
// order; one that has been sent may still wait for its bytes. Nothing has changed: false.
bool Gin::look_beyond(size_t queue) {
  std::deque<Transfer>& transfers = transfers_[queue];
  bool has_moved = false;
  while (transfers.size() < kOfOneQueue) {
    const std::optional<GinDescriptor> next = memory_->take(queue, next_[queue], stops_);
    if (!next) break;
    ++next_[queue];
    Transfer& transfer = transfers.emplace_back();
    transfer.item = {.queue = queue, .descriptor = *next, .windows = {}};
    if (!is_over()) report(transfer.item, begin(transfer));
    has_moved = true;
  }
  bool awaits_bytes = false;  // of a get
  for (Transfer& transfer : transfers) {
    // A signal says that all operations before it have been done. The peer may then overwrite the
    // source of gets.
    if (!transfer.is_sent && awaits_bytes && has_signal(transfer.item.descriptor) && !is_over())
      break;
    awaits_bytes |= transfer.is_sent && is_awaited(transfer);
    if (transfer.is_sent) continue;
    const Result<bool> is_sent = is_over() ? Result<bool>(true) : go_on(transfer);
    if (!is_sent.is_ok()) report(transfer.item, is_sent.status().copy());
    transfer.is_sent = is_over() || is_sent.value();
    if (!transfer.is_sent) break;
    awaits_bytes |= is_awaited(transfer);
    has_moved = true;
  }
  while (!transfers.empty() && transfers.front().is_sent) {
    Transfer& oldest = transfers.front();
    if (!is_over() && !has_come(oldest)) break;
    if (is_over())
      drop(oldest);
    else
      report(oldest.item, complete(oldest.item));
    transfers.pop_front();
    memory_->give_back(queue);
    has_moved = true;
  }
  return has_moved;
}

// Finds the places of a transfer, before any of it is sent.
Status Gin::begin(Transfer& transfer) {
  const GinDescriptor& asked = transfer.item.descriptor;
  const int peer = peer_of(transfer.item);
  TRY(check(transfer.item));
  if (!copies(asked)) return {};
  const bool is_get = asked.has(GinDescriptor::kGet);
  transfer.target =
      TRY(find(asked.target_window, asked.target_offset, asked.bytes, is_get ? parts_.rank : peer));
  if (!asked.has(GinDescriptor::kInline))
    transfer.source = TRY(
        find(asked.source_window, asked.source_offset, asked.bytes, is_get ? peer : parts_.rank));
  if (!is_get) return {};
  transfer.request = requests_++;
  std::lock_guard lock(gets_mutex_);
  gets_.emplace(*transfer.request,
                Get{.target = transfer.target, .bytes = asked.bytes, .missing = asked.bytes});
  return {};
}

// Nobody takes chunks of a peer that has left: they are as good as sent. Behind the first that had
// no room nothing goes there any more, because a signal must not come without the data before it.
Result<bool> Gin::send(int peer, const GinChunk& chunk,
                       const std::function<Status(std::byte*)>& fill) {
  const auto at = static_cast<size_t>(peer);
  if (is_given_up_[at] != 0) return true;
  if (TRY(links_[at]->send(chunk, fill))) return true;
  is_given_up_[at] = parts_.has_left(peer) ? 1 : 0;
  return is_given_up_[at] != 0;
}

bool Gin::is_awaited(const Transfer& transfer) {
  if (!transfer.request) return false;
  std::lock_guard lock(gets_mutex_);
  return gets_.contains(*transfer.request);
}

// Sends the rest of a transfer, as far as there is room. All is sent: true.
Result<bool> Gin::go_on(Transfer& transfer) {
  const GinDescriptor& asked = transfer.item.descriptor;
  const int peer = peer_of(transfer.item);
  if (transfer.request && !transfer.is_asked) {
    transfer.is_asked = TRY(send(peer, {.kind = GinChunk::Kind::Get,
                                        .communicator = parts_.number,
                                        .window = transfer.source.window->number(),
                                        .offset = asked.source_offset,
                                        .amount = asked.bytes,
                                        .request = *transfer.request}));
    if (!transfer.is_asked) return false;
  }
  if (transfer.request && has_signal(asked) && !has_come(transfer)) return false;
  while (copies(asked) && !transfer.request && transfer.sent < asked.bytes) {
    const GinChunk chunk{.kind = GinChunk::Kind::Data,
                         .bytes = bytes_of_chunk(asked.bytes - transfer.sent),
                         .communicator = parts_.number,
                         .window = transfer.target.window->number(),
                         .offset = asked.target_offset + transfer.sent};
    const auto fill = [&](std::byte* slot) -> Status {
      if (transfer.source.data != nullptr)
        return fetch(slot, transfer.source.data + transfer.sent, chunk.bytes);
      std::memcpy(slot, &asked.value, chunk.bytes);
      return {};
    };
    if (!TRY(send(peer, chunk, fill))) return false;
    transfer.sent += chunk.bytes;
  }
  return !has_signal(asked) || TRY(send_signal(transfer.item));
}

Result<bool> Gin::send_signal(const Item& item) {
  const GinDescriptor& asked = item.descriptor;
  GinChunk chunk{.communicator = parts_.number, .amount = asked.amount};
  if (asked.has(GinDescriptor::kInMemory)) {
    const Place word =
        TRY(find(asked.source_window, asked.source_offset, sizeof(uint64_t), peer_of(item)));
    chunk.kind = GinChunk::Kind::SignalInMemory;
    chunk.window = word.window->number();
    chunk.offset = asked.source_offset;
  } else {
    chunk.kind = GinChunk::Kind::Signal;
    chunk.context = static_cast<uint32_t>(context_of(item));
    chunk.signal = asked.signal;
  }
  return send(peer_of(item), chunk);
}

// Have the bytes of a get come? A peer that has left answers no more; the failure for which it left
// is the better reason, and may still be on its way.
bool Gin::has_come(Transfer& transfer) {
  constexpr std::chrono::seconds kReasonTime{1};
  if (!is_awaited(transfer)) return true;
  const int peer = peer_of(transfer.item);
  if (!parts_.has_left(peer)) return false;
  if (!transfer.gives_up_at) transfer.gives_up_at = Deadline::after(kReasonTime);
  if (!transfer.gives_up_at->passed()) return false;
  has_failed_ = true;
  parts_.fail(Status::remote_error(
      "rank {}: a kernel's get from rank {}: that rank has left the communicator", parts_.rank,
      peer));
  return true;
}

void Gin::drop(Transfer& transfer) {
  if (!transfer.request) return;
  std::lock_guard lock(gets_mutex_);
  gets_.erase(*transfer.request);  // bytes that come later find no place
}

// Sends bytes that ranks of other machines have asked for, as far as there is room. Nothing was
// sent: false.
bool Gin::answer_gets() {
  for (Request& asked : asked_.take()) answers_.push_back(std::move(asked));
  bool has_moved = false;
  for (auto request = answers_.begin(); request != answers_.end();) {
    const Result<bool> is_answered = is_over() ? Result<bool>(true) : answer(*request, has_moved);
    if (!is_answered.is_ok()) {
      has_failed_ = true;
      parts_.fail(is_answered.status().copy().with_context(
          "rank {}: the bytes of a get by a kernel of rank {}", parts_.rank, request->from));
    }
    request = is_over() || is_answered.value() ? answers_.erase(request) : std::next(request);
  }
  return has_moved;
}

Result<bool> Gin::answer(Request& request, bool& has_moved) {
  while (request.sent < request.bytes) {
    const GinChunk chunk{.kind = GinChunk::Kind::GetData,
                         .bytes = bytes_of_chunk(request.bytes - request.sent),
                         .communicator = parts_.number,
                         .offset = request.sent,
                         .request = request.number};
    const auto fill = [&](std::byte* slot) {
      return fetch(slot, request.source.data + request.sent, chunk.bytes);
    };
    if (!TRY(send(request.from, chunk, fill))) return false;
    request.sent += chunk.bytes;
    has_moved = true;
  }
  return true;
}

// Signals and counts, when the item's data are on their way, or there.
Status Gin::complete(const Item& item) {
  const GinDescriptor& asked = item.descriptor;
  const auto context = static_cast<uint64_t>(context_of(item));
  const int peer = peer_of(item);
  if (has_signal(asked) && !is_remote(peer)) {
    if (asked.has(GinDescriptor::kInMemory)) {
      const Place word =
          TRY(find(asked.source_window, asked.source_offset, sizeof(uint64_t), peer));
      TRY(add_in_memory(peer, word.data, asked.amount));
    } else {
      TRY(add(peer, context, asked.signal, asked.amount));
    }
  }
  if (!asked.has(GinDescriptor::kCounter)) return {};
  const auto count = static_cast<uint64_t>(needs_.counters);
  // [release] pairs with the kernel's acquire: the source has been read.
  std::atomic_ref(
      memory_->at<uint64_t>(memory_->layout().counters)[context * count + asked.counter])
      .fetch_add(1, std::memory_order_release);
  return {};
}

// The peer is a rank of this machine.
Status Gin::add(int peer, uint64_t context, uint64_t signal, uint64_t amount) {
  const auto count = static_cast<uint64_t>(needs_.signals);
  std::byte* const memory = memory_->of(peer);
  auto* const signals = reinterpret_cast<uint64_t*>(memory + memory_->layout().signals);
  // [release] pairs with the acquire of the kernel that waits: earlier puts have come.
  std::atomic_ref(signals[context * count + signal]).fetch_add(amount, std::memory_order_release);
  return {};
}

// No copy engine adds. The word is read, and written back, by whoever holds the lock of the rank
// that it belongs to, in memory that all ranks of the machine map.
Status Gin::add_in_memory(int peer, std::byte* word, uint64_t amount) {
  if (parts_.machine.kind() == gpu::Kind::Virtual) {
    // [release] as in add().
    std::atomic_ref(*reinterpret_cast<uint64_t*>(word))
        .fetch_add(amount, std::memory_order_release);
    return {};
  }
  std::byte* const memory = memory_->of(peer);
  const std::atomic_ref lock(*reinterpret_cast<uint32_t*>(memory));
  // [acquire] pairs with the release below: the value before is in the word.
  while (lock.exchange(1, std::memory_order_acquire) != 0) {
    if (parts_.is_over()) return {};
    std::this_thread::yield();
  }
  uint64_t value = 0;
  Status status = fetch(&value, word, sizeof value);
  value += amount;
  if (status.is_ok()) status = parts_.machine.upload(parts_.device, word, &value, sizeof value);
  lock.store(0, std::memory_order_release);
  return status;
}

Status Gin::fetch(void* target, const void* source, size_t bytes) {
  return parts_.machine.download(parts_.device, target, source, bytes);
}

void Gin::report(const Item& item, Status status) {
  if (status.is_ok() || is_over()) return;
  has_failed_ = true;
  parts_.fail(std::move(status).with_context("rank {}: a kernel's {} to rank {}, context {}",
                                             parts_.rank, item.descriptor.name(), peer_of(item),
                                             context_of(item)));
}

// ---- Chunks that come

// The header is not trusted, as in OneSided::land().
Result<Gin::Place> Gin::find_for(int from, const GinChunk& chunk, uint64_t bytes) const {
  std::shared_ptr<const Window> window =
      chunk.window == resources_->number() ? resources_ : parts_.find_numbered(chunk.window);
  if (window == nullptr)
    return Status::remote_error(
        "a kernel of rank {} uses window number {} of rank {}, which is not registered here: "
        "deregister a window only after the last operation on it",
        from, chunk.window, parts_.rank);
  if (chunk.offset > window->bytes() || bytes > window->bytes() - chunk.offset)
    return Status::remote_error(
        "a kernel of rank {} uses {} bytes at offset {} of window number {} of rank {}, which has "
        "{} bytes",
        from, bytes, chunk.offset, chunk.window, parts_.rank, window->bytes());
  std::byte* const data = window->copy_of(parts_.rank) + chunk.offset;
  return Place{std::move(window), data};
}

Status Gin::too_late(int from) {
  return Status::remote_error(
      "a kernel of rank {} gets from a rank that has destroyed the device communicator", from);
}

Status Gin::land(int from, const GinChunk& chunk, const std::byte* data) {
  switch (chunk.kind) {
    case GinChunk::Kind::Data: {
      const Place target = TRY(find_for(from, chunk, chunk.bytes));
      return parts_.machine.upload(parts_.device, target.data, data, chunk.bytes);
    }
    case GinChunk::Kind::Signal:
      if (chunk.context >= static_cast<uint64_t>(needs_.contexts) ||
          chunk.signal >= static_cast<uint64_t>(needs_.signals))
        return Status::remote_error("a kernel of rank {} names signal {} of context {}", from,
                                    chunk.signal, chunk.context);
      return add(parts_.rank, chunk.context, chunk.signal, chunk.amount);
    case GinChunk::Kind::SignalInMemory: {
      if (chunk.offset % sizeof(uint64_t) != 0)
        return Status::remote_error("a kernel of rank {} names a signal at offset {}", from,
                                    chunk.offset);
      const Place word = TRY(find_for(from, chunk, sizeof(uint64_t)));
      return add_in_memory(parts_.rank, word.data, chunk.amount);
    }
    case GinChunk::Kind::Get: {
      Place source = TRY(find_for(from, chunk, chunk.amount));
      const bool is_taken = asked_.add({.from = from,
                                        .number = chunk.request,
                                        .source = std::move(source),
                                        .bytes = chunk.amount,
                                        .sent = 0});
      return is_taken ? Status() : too_late(from);
    }
    case GinChunk::Kind::GetData: {
      Place target;
      {
        std::lock_guard lock(gets_mutex_);
        const auto found = gets_.find(chunk.request);
        if (found == gets_.end()) return {};  // a failure has ended it
        if (chunk.offset > found->second.bytes || chunk.bytes > found->second.bytes - chunk.offset)
          return Status::remote_error("rank {} answers a get of {} bytes with {} at offset {}",
                                      from, found->second.bytes, chunk.bytes, chunk.offset);
        target = found->second.target;
      }
      TRY(parts_.machine.upload(parts_.device, target.data + chunk.offset, data, chunk.bytes));
      std::lock_guard lock(gets_mutex_);
      const auto found = gets_.find(chunk.request);
      if (found == gets_.end()) return {};
      found->second.missing -= std::min<uint64_t>(chunk.bytes, found->second.missing);
      if (found->second.missing == 0) gets_.erase(found);
      return {};
    }
  }
  return Status::remote_error("rank {} sends a chunk of kind {}", from,
                              static_cast<uint32_t>(chunk.kind));
}

}  // namespace niccolite::registry
