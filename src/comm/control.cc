#include "comm/control.h"

#include <atomic>
#include <map>
#include <utility>
#include <vector>

namespace niccolite::comm {
namespace {

using executor::Command;
using executor::ControlWords;

constexpr size_t kPageBytes = 4096;

// Thread safety: any thread.
class Pages {
 public:
  static Pages& instance() {
    static auto* const pages = new Pages;  // never destroyed: communicators may outlive main()
    return *pages;
  }

  Result<ControlWords*> take(gpu::Machine& machine) {
    std::lock_guard lock(mutex_);
    std::vector<ControlWords*>& unused = unused_[&machine];
    if (unused.empty()) {
      gpu::Memory page = TRY(machine.allocate_host(kPageBytes));
      auto* const words = static_cast<ControlWords*>(page.data());
      for (size_t i = 0; i < kPageBytes / sizeof(ControlWords); ++i) unused.push_back(words + i);
      pages_.push_back(std::move(page));
    }
    ControlWords* const words = unused.back();
    unused.pop_back();
    *words = {};
    return words;
  }
  void give_back(gpu::Machine& machine, ControlWords* words) {
    std::lock_guard lock(mutex_);
    unused_[&machine].push_back(words);
  }

 private:
  std::mutex mutex_;
  std::vector<gpu::Memory> pages_ GUARDED_BY(mutex_);
  std::map<gpu::Machine*, std::vector<ControlWords*>> unused_ GUARDED_BY(mutex_);
};

}  // namespace

Status Control::allocate(gpu::Machine& machine) {
  ControlWords* const words = TRY(Pages::instance().take(machine));
  std::lock_guard lock(mutex_);
  machine_ = &machine;
  words_ = words;
  return {};
}

void Control::release() {
  std::lock_guard lock(mutex_);
  if (words_ == nullptr) return;
  Pages::instance().give_back(*machine_, std::exchange(words_, nullptr));
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
