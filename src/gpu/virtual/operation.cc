#include "gpu/virtual/operation.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>

#include "gpu/virtual/graph.h"
#include "gpu/virtual/multicast.h"
#include "gpu/virtual/scheduler.h"

namespace niccolite::gpu::virtual_ {
namespace {

// The bytes that one step of a copy or fill moves: well under a millisecond on any machine.
constexpr size_t kPieceBytes = size_t{2} << 20;

// Calls move(row, offset in the row, bytes) for the next piece of `rows` rows of `width` bytes.
template <typename Move>
Progress move_piece(size_t& position, size_t width, size_t rows, Move&& move) {
  const size_t total = width * rows;
  size_t left = std::min(kPieceBytes, total - position);
  while (left > 0) {
    const size_t column = position % width;
    const size_t bytes = std::min(left, width - column);
    move(position / width, column, bytes);
    position += bytes;
    left -= bytes;
  }
  return position == total ? Progress::Done : Progress::Advanced;
}

void fill(std::byte* target, uint32_t value, size_t element_bytes, size_t bytes) {
  if (element_bytes == 1) {
    std::memset(target, static_cast<int>(value & 0xff), bytes);
  } else if (element_bytes == 2) {
    std::fill_n(reinterpret_cast<uint16_t*>(target), bytes / 2, static_cast<uint16_t>(value));
  } else {
    std::fill_n(reinterpret_cast<uint32_t*>(target), bytes / 4, value);
  }
}

std::optional<size_t> bytes_spanned(size_t width, size_t rows, size_t pitch, size_t slices,
                                    size_t slice) {
  size_t moved = 0, to_last_row = 0, to_last_slice = 0, bytes = 0;
  if (__builtin_mul_overflow(width, rows, &moved) ||
      __builtin_mul_overflow(moved, slices, &moved) ||
      __builtin_mul_overflow(rows - 1, pitch, &to_last_row) ||
      __builtin_mul_overflow(slices - 1, slice, &to_last_slice) ||
      __builtin_add_overflow(to_last_row, to_last_slice, &bytes) ||
      __builtin_add_overflow(bytes, width, &bytes))
    return std::nullopt;
  return bytes;
}

// Loads a word as GPUs do: a reader that has seen the word sees everything that was written before
// it.
template <typename Word>
Word load(const void* address) {
  return std::atomic_ref(*static_cast<Word*>(const_cast<void*>(address)))
      .load(std::memory_order_acquire);
}
template <typename Word>
void store(void* address, Word value) {
  std::atomic_ref(*static_cast<Word*>(address)).store(value, std::memory_order_release);
}

template <typename Word>
bool holds(Word found, Word value, Comparison comparison) {
  switch (comparison) {
    case Comparison::AtLeast:
      return static_cast<std::make_signed_t<Word>>(found - value) >= 0;
    case Comparison::Equal:
      return found == value;
    case Comparison::AnyBit:
      return (found & value) != 0;
    case Comparison::NotAllBits:
      return static_cast<Word>(~(found | value)) != 0;
  }
  return false;
}
bool is_over(const WaitValue& wait) {
  if (wait.bytes == 8) return holds(load<uint64_t>(wait.address), wait.value, wait.comparison);
  return holds(load<uint32_t>(wait.address), static_cast<uint32_t>(wait.value), wait.comparison);
}

/// Calls store(address, offset from `target`, bytes) for each memory that `bytes` at `target` go
/// to: at `target` itself, or in the memory of all GPUs where that is `offset` behind a place in a
/// multicast range. Memory that is bound there no more gets nothing.
template <typename Store>
void store_to_all(const MulticastPlace& place, std::byte* target, size_t offset, size_t bytes,
                  Store&& store) {
  if (place.object == nullptr) return store(target, size_t{0}, bytes);
  const std::shared_ptr<const MulticastMemory> memory = place.object->memory();
  std::vector<std::byte*> members(static_cast<size_t>(memory->devices()));
  for (size_t done = 0; done < bytes;) {
    const size_t found = memory->find(place.offset + offset + done, members);
    const size_t piece = std::min(found, bytes - done);
    if (piece == 0) return;
    for (std::byte* const member : members) store(member, done, piece);
    done += piece;
  }
}

}  // namespace

std::optional<size_t> target_span(const Copy& copy) {
  return bytes_spanned(copy.width, copy.rows, copy.target_pitch, copy.slices, copy.target_slice);
}
std::optional<size_t> source_span(const Copy& copy) {
  return bytes_spanned(copy.width, copy.rows, copy.source_pitch, copy.slices, copy.source_slice);
}
std::optional<size_t> target_span(const Set& set) {
  return bytes_spanned(set.width, set.rows, set.pitch, 1, 0);
}

void Latch::open() {
  std::lock_guard lock(mutex_);
  is_open_ = true;
  opened_.notify_all();
}

bool Latch::is_open() const {
  std::lock_guard lock(mutex_);
  return is_open_;
}

bool Latch::wait(Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (!is_open_) {
    if (deadline.passed()) return false;
    // The clock's last moment would overflow inside wait_until().
    if (deadline.at() == Deadline::Clock::time_point::max()) {
      opened_.wait(lock);
    } else {
      opened_.wait_until(lock, deadline.at());
    }
  }
  return true;
}

void Operation::after(const OperationPtr& self, const OperationPtr& predecessor) {
  if (predecessor == nullptr || predecessor->is_done()) return;
  std::lock_guard lock(predecessor->mutex_);
  // relaxed: the flag is set under the same mutex, here only the decision matters.
  if (predecessor->done_.load(std::memory_order_relaxed)) return;
  // relaxed: the submitting thread still has its own hold, so nobody can see the count reach zero.
  self->holds_.fetch_add(1, std::memory_order_relaxed);
  predecessor->successors_.push_back(self);
}

bool Operation::leads_to(const Operation& later) const {
  constexpr size_t kMost = 8;  // looked at
  std::vector<OperationPtr> found;
  for (size_t i = 0; i <= kMost && i <= found.size(); ++i) {
    const Operation& next = i == 0 ? *this : *found[i - 1];
    if (&next == &later) return true;
    std::lock_guard lock(next.mutex_);
    found.insert(found.end(), next.successors_.begin(), next.successors_.end());
  }
  return false;
}

Runner Operation::runner() const {
  if (std::holds_alternative<HostCall>(work_)) return Runner::CallbackThread;
  const bool moves = std::holds_alternative<Copy>(work_) || std::holds_alternative<Set>(work_) ||
                     std::holds_alternative<KernelLaunch>(work_) ||
                     std::holds_alternative<WaitValue>(work_) ||
                     std::holds_alternative<WriteValue>(work_);
  return moves ? Runner::Worker : Runner::Inline;
}

Progress Operation::step() {
  if (auto* launch = std::get_if<KernelLaunch>(&work_)) {
    // Only now: a task may look at the results of the stream's earlier work.
    if (task_ == nullptr) task_ = launch->kernel->start();
    return task_->step();
  }
  if (const auto* copy = std::get_if<Copy>(&work_)) {
    return move_piece(position_, copy->width, copy->rows * copy->slices,
                      [&](size_t row, size_t column, size_t bytes) {
                        const size_t slice = row / copy->rows;
                        row %= copy->rows;
                        const size_t offset =
                            slice * copy->target_slice + row * copy->target_pitch + column;
                        const std::byte* const source = copy->source + slice * copy->source_slice +
                                                        row * copy->source_pitch + column;
                        store_to_all(copy->place, copy->target + offset, offset, bytes,
                                     [&](std::byte* target, size_t done, size_t piece) {
                                       std::memmove(target, source + done, piece);
                                     });
                      });
  }
  if (const auto* set = std::get_if<Set>(&work_)) {
    return move_piece(position_, set->width, set->rows,
                      [&](size_t row, size_t column, size_t bytes) {
                        const size_t offset = row * set->pitch + column;
                        store_to_all(set->place, set->target + offset, offset, bytes,
                                     [&](std::byte* target, size_t, size_t piece) {
                                       fill(target, set->value, set->element_bytes, piece);
                                     });
                      });
  }
  if (const auto* wait = std::get_if<WaitValue>(&work_))
    return is_over(*wait) ? Progress::Done : Progress::WouldBlock;
  if (const auto* write = std::get_if<WriteValue>(&work_)) {
    store_to_all(write->place, static_cast<std::byte*>(write->address), 0, write->bytes,
                 [&](std::byte* target, size_t, size_t) {
                   if (write->bytes == 8) {
                     store<uint64_t>(target, write->value);
                   } else {
                     store<uint32_t>(target, static_cast<uint32_t>(write->value));
                   }
                 });
  }
  return Progress::Done;
}

void Operation::call_host() {
  const auto& host = std::get<HostCall>(work_);
  if (host.function != nullptr) {
    host.function(host.data);
  } else {
    host.call();
  }
}

void Operation::abandon() {
  std::vector<OperationPtr> successors;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  successors.swap(successors_);
}

void Operation::finish(std::vector<OperationPtr>& ready) {
  std::shared_ptr<Latch> latch;
  if (auto* notify = std::get_if<Notify>(&work_)) latch = std::move(notify->latch);
  // Before anybody can see that the work is done: objects that the kernel kept alive must be gone
  // when a wait returns.
  task_.reset();
  work_ = Nothing{};
  finished_at_ = Clock::now();
  std::vector<OperationPtr> successors;
  {
    std::lock_guard lock(mutex_);
    // [done] publishes the results of the work and finished_at_ to is_done().
    done_.store(true, std::memory_order_release);
    successors.swap(successors_);
  }
  if (latch) {
    latch->open();
    scheduler().sources().wake();  // who waits for the latch may be waiting as the poller
  }
  for (OperationPtr& successor : successors)
    if (successor->release()) ready.push_back(std::move(successor));
}

}  // namespace niccolite::gpu::virtual_
