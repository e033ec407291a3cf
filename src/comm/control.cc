#include "comm/control.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <new>
#include <utility>
#include <vector>

namespace niccolite::comm {
namespace {

using executor::Command;
using executor::ControlWords;

constexpr size_t kPageBytes = 4096;

// Blocks of a few sizes. Thread safety: any thread.
class Pages {
 public:
  static Pages& instance() {
    static auto* const pages = new Pages;  // never destroyed: communicators may outlive main()
    return *pages;
  }

  /// Zeros; aligned to 64 bytes.
  Result<void*> take(gpu::Allocations& allocations, size_t bytes) {
    const size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    std::lock_guard lock(mutex_);
    std::vector<std::byte*>& unused = unused_[{&allocations, size}];
    if (unused.empty()) {
      gpu::Memory page = TRY(allocations.allocate_host(std::max(size, kPageBytes)));
      auto* const base = static_cast<std::byte*>(page.data());
      for (size_t at = 0; at + size <= std::max(size, kPageBytes); at += size)
        unused.push_back(base + at);
      pages_.push_back(std::move(page));
    }
    std::byte* const block = unused.back();
    unused.pop_back();
    std::memset(block, 0, bytes);
    return block;
  }
  void give_back(gpu::Allocations& allocations, void* block, size_t bytes) {
    const size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    std::lock_guard lock(mutex_);
    unused_[{&allocations, size}].push_back(static_cast<std::byte*>(block));
  }

 private:
  static constexpr size_t kAlignment = 64;
  std::mutex mutex_;
  std::vector<gpu::Memory> pages_ GUARDED_BY(mutex_);
  std::map<std::pair<gpu::Allocations*, size_t>, std::vector<std::byte*>> unused_
      GUARDED_BY(mutex_);
};

}  // namespace

Status Control::allocate(gpu::Allocations& allocations) {
  void* const block = TRY(Pages::instance().take(allocations, sizeof(ControlWords)));
  std::lock_guard lock(mutex_);
  allocations_ = &allocations;
  words_ = new (block) ControlWords{};
  return {};
}

Result<observe::KernelMarks> Control::allocate_marks(uint32_t columns) {
  std::lock_guard lock(mutex_);
  void* const block =
      TRY(Pages::instance().take(*allocations_, observe::KernelMarks::bytes_for(columns)));
  marks_ = observe::KernelMarks(block, columns);
  return marks_;
}

void Control::release() {
  std::lock_guard lock(mutex_);
  if (words_ == nullptr) return;
  Pages::instance().give_back(*allocations_, std::exchange(words_, nullptr), sizeof(ControlWords));
  if (!marks_) return;
  Pages::instance().give_back(*allocations_, marks_.newest(),
                              observe::KernelMarks::bytes_for(marks_.columns()));
  marks_ = {};
}

ControlWords* Control::words() const {
  std::lock_guard lock(mutex_);
  return words_;
}

void Control::tell(Command command) {
  std::lock_guard lock(mutex_);
  if (words_ == nullptr) return;
  const std::atomic_ref word(words_->abort);
  // relaxed: only written under mutex_.
  if (word.load(std::memory_order_relaxed) == static_cast<uint32_t>(Command::End)) return;
  // [release] pairs with the polls of the executors; nothing but the word itself is published.
  word.store(static_cast<uint32_t>(command), std::memory_order_release);
}

}  // namespace niccolite::comm
