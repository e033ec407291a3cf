#include "base/thread.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>

namespace niccolite {
namespace {

// A mutex that another thread holds for a moment.
class HeldMutex {
 public:
  HeldMutex() {
    std::promise<void> held;
    holder_ = Thread::start("holder", [this, &held] {
                std::lock_guard lock(mutex);
                held.set_value();
                released_.get_future().wait();
              }).take();
    held.get_future().wait();
  }
  ~HeldMutex() { holder_.join(); }

  void release_in(std::chrono::milliseconds pause) {
    releaser_ = Thread::start("releaser", [this, pause] {
                  std::this_thread::sleep_for(pause);
                  released_.set_value();
                }).take();
  }

  std::mutex mutex;

 private:
  std::promise<void> released_;
  Thread holder_;
  Thread releaser_;
};

// What a process must still do at its exit is done also while another thread is at it.
TEST(LockAtExit, WaitsForAThreadOfTheOwnProcess) {
  HeldMutex held;
  held.release_in(std::chrono::milliseconds(20));
  EXPECT_TRUE(lock_at_exit(held.mutex, getpid()).owns_lock());
}

TEST(LockAtExit, NeverWaitsInAForkedChild) {
  HeldMutex held;
  EXPECT_FALSE(lock_at_exit(held.mutex, getppid()).owns_lock());
  held.release_in(std::chrono::milliseconds(0));
}

TEST(RunWithin, ReturnsTheStatusOfACallThatEnds) {
  const auto hour = std::chrono::hours(1);
  EXPECT_TRUE(run_within("call", hour, [] { return Status(); })->is_ok());
  const auto refused = run_within("call", hour, [] { return Status::invalid_usage("refused"); });
  EXPECT_EQ(refused->message(), "refused");
  const auto thrown = run_within("call", hour, []() -> Status { throw std::bad_alloc(); });
  EXPECT_FALSE(thrown->is_ok());
}

TEST(RunWithin, LeavesACallThatHangsWithAllThatItOwns) {
  auto owned = std::make_shared<std::promise<void>>();
  const std::weak_ptr<std::promise<void>> seen = owned;
  std::promise<void>& released = *owned;
  const auto status = run_within("call", std::chrono::milliseconds(10), [owned = std::move(owned)] {
    owned->get_future().wait();
    return Status();
  });
  EXPECT_FALSE(status.has_value());
  ASSERT_FALSE(seen.expired());
  released.set_value();
  while (!seen.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace
}  // namespace niccolite
