#include "registry/gin.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "gpu/machine.h"

namespace niccolite::registry {
namespace {

constexpr size_t kOfOneQueue = 16;  // operations of a batch

}  // namespace

Gin::Gin(Parts parts, const GinNeeds& needs, std::unique_ptr<GinMemory> memory)
    : parts_(std::move(parts)),
      needs_(needs),
      memory_(std::move(memory)),
      next_(static_cast<size_t>(needs.contexts) * static_cast<size_t>(parts_.nranks)) {}

Result<std::unique_ptr<Gin>> Gin::create(Parts parts, const GinNeeds& needs,
                                         bool has_other_processes) {
  std::unique_ptr<GinMemory> memory =
      TRY(GinMemory::create(parts.machine, needs, parts.nranks, has_other_processes));
  std::unique_ptr<Gin> gin(new Gin(std::move(parts), needs, std::move(memory)));
  gin->stream_ = TRY(gin->parts_.machine.create_stream(gin->parts_.device));
  return gin;
}

Gin::~Gin() {
  // relaxed: publishes nothing
  stops_.store(true, std::memory_order_relaxed);
  thread_.join();
}

Status Gin::start(std::byte* state) {
  TRY(memory_->write_contexts(parts_.device, state));
  thread_ = TRY(Thread::start("niccolite gin", [this] { serve(); }));
  return {};
}

void Gin::serve() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kAwake{1};
  constexpr std::chrono::microseconds kNap{50};
  Clock::time_point last = Clock::now();
  // relaxed: nothing is published with it
  while (!stops_.load(std::memory_order_relaxed)) {
    if (look())
      last = Clock::now();
    else if (Clock::now() - last < kAwake)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kNap);
  }
}

// One look at all queues. Nothing has come: false.
bool Gin::look() {
  batch_.clear();
  for (size_t i = 0; i < next_.size() && batch_.size() < kGinBatch; ++i) {
    const size_t queue = (first_queue_ + i) % next_.size();
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
  for (size_t i = 0; i < batch_.size(); ++i)
    if (!has_failed_) report(batch_[i], issue(batch_[i], i, has_copied));
  if (has_copied)
    report(batch_.front(), parts_.machine.synchronize_stream(parts_.device, stream_.handle()));
  for (const Item& item : batch_) {
    if (!has_failed_) report(item, complete(item));
    memory_->give_back(item.queue);
  }
  return true;
}

Result<std::byte*> Gin::find(uint64_t window, uint64_t offset, uint64_t bytes, int peer,
                             std::shared_ptr<const Window>& keeps) const {
  keeps = parts_.windows.find(reinterpret_cast<const void*>(window));
  if (keeps == nullptr)
    return Status::invalid_argument("0x{:x} is no live window of this communicator", window);
  const uint64_t whole = keeps->bytes_of(peer);
  if (offset > whole || bytes > whole - offset)
    return Status::invalid_argument(
        "{} bytes at offset {} go beyond the window of rank {}, {} bytes", bytes, offset, peer,
        whole);
  return keeps->copy_of(peer) + offset;
}

// Queues the item's copy. All else is done when it has come.
Status Gin::issue(Item& item, size_t place, bool& has_copied) {
  const GinDescriptor& asked = item.descriptor;
  constexpr uint32_t kKnown = GinDescriptor::kFlush * 2 - 1;
  constexpr uint32_t kKinds =
      GinDescriptor::kPut | GinDescriptor::kGet | GinDescriptor::kFlush | GinDescriptor::kInMemory;
  if (!asked.has(kKinds) || (asked.operation & ~kKnown) != 0)
    return Status::invalid_argument("operation 0x{:x} is not known", asked.operation);
  const bool is_get = asked.has(GinDescriptor::kGet);
  if (asked.bytes == 0 || (!is_get && !asked.has(GinDescriptor::kPut))) return {};
  const int peer = peer_of(item);
  std::byte* const target = TRY(find(asked.target_window, asked.target_offset, asked.bytes,
                                     is_get ? parts_.rank : peer, item.windows[0]));
  const void* source = nullptr;
  if (asked.has(GinDescriptor::kInline)) {
    if (asked.bytes > sizeof asked.value)
      return Status::invalid_argument("a value of {} bytes", asked.bytes);
    uint64_t* const staged = memory_->at<uint64_t>(memory_->layout().staging) + place;
    *staged = asked.value;
    source = staged;
  } else {
    source = TRY(find(asked.source_window, asked.source_offset, asked.bytes,
                      is_get ? peer : parts_.rank, item.windows[1]));
  }
  TRY(parts_.machine.copy_async(target, source, asked.bytes, parts_.device, stream_.handle()));
  has_copied = true;
  return {};
}

Status Gin::complete(const Item& item) {
  const GinDescriptor& asked = item.descriptor;
  const auto context = static_cast<uint64_t>(context_of(item));
  if (asked.has(GinDescriptor::kIncrement | GinDescriptor::kAdd)) {
    if (asked.has(GinDescriptor::kInMemory)) {
      TRY(add_in_memory(item));
    } else {
      const auto count = static_cast<uint64_t>(needs_.signals);
      if (asked.signal >= count)
        return Status::invalid_argument("signal {} of {}", asked.signal, count);
      auto* const signals =
          reinterpret_cast<uint64_t*>(memory_->of(peer_of(item)) + memory_->layout().signals);
      // [release] pairs with the acquire of the kernel that waits: earlier puts have come.
      std::atomic_ref(signals[context * count + asked.signal])
          .fetch_add(asked.amount, std::memory_order_release);
    }
  }
  if (asked.has(GinDescriptor::kCounter)) {
    const auto count = static_cast<uint64_t>(needs_.counters);
    if (asked.counter >= count)
      return Status::invalid_argument("counter {} of {}", asked.counter, count);
    // [release] pairs with the kernel's acquire: the source has been read.
    std::atomic_ref(
        memory_->at<uint64_t>(memory_->layout().counters)[context * count + asked.counter])
        .fetch_add(1, std::memory_order_release);
  }
  return {};
}

// No copy engine adds. The word is read, and written back, by whoever holds the lock of the rank
// that it belongs to, in memory that all ranks map.
Status Gin::add_in_memory(const Item& item) {
  const GinDescriptor& asked = item.descriptor;
  const int peer = peer_of(item);
  std::shared_ptr<const Window> keeps;
  std::byte* const word =
      TRY(find(asked.source_window, asked.source_offset, sizeof(uint64_t), peer, keeps));
  if (asked.source_offset % sizeof(uint64_t) != 0)
    return Status::invalid_argument("offset {} is not one of a word of 8 bytes",
                                    asked.source_offset);
  const std::atomic_ref lock(*reinterpret_cast<uint32_t*>(memory_->of(peer)));
  // [acquire] pairs with the release below: the value before is in the word.
  while (lock.exchange(1, std::memory_order_acquire) != 0) {
    if (stops_.load(std::memory_order_relaxed)) return {};
    std::this_thread::yield();
  }
  uint64_t* const staged = memory_->at<uint64_t>(memory_->layout().staging);
  const auto move = [&](void* target, const void* source) -> Status {
    TRY(parts_.machine.copy_async(target, source, sizeof *staged, parts_.device, stream_.handle()));
    return parts_.machine.synchronize_stream(parts_.device, stream_.handle());
  };
  Status status = move(staged, word);
  if (status.is_ok()) {
    *staged += asked.amount;
    status = move(word, staged);
  }
  lock.store(0, std::memory_order_release);
  return status;
}

void Gin::report(const Item& item, Status status) {
  if (status.is_ok() || has_failed_) return;
  has_failed_ = true;
  parts_.fail(std::move(status).with_context("rank {}: a kernel's {} to rank {}, context {}",
                                             parts_.rank, item.descriptor.name(), peer_of(item),
                                             context_of(item)));
}

}  // namespace niccolite::registry
