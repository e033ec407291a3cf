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

}  // namespace
}  // namespace niccolite
