#include "comm/exclusive_use.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace niccolite::comm {
namespace {

using std::chrono::milliseconds;

TEST(ExclusiveUse, IsOfOneThreadAtATime) {
  constexpr int kThreads = 4, kTimes = 2000;
  ExclusiveUse use;
  int count = 0;  // not atomic
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < kTimes; ++k) {
        // Some wait with a deadline, which they never come to.
        if (k % 3 == 0) {
          ASSERT_TRUE(use.lock_until(Deadline::after(std::chrono::minutes(5))));
        } else {
          use.lock();
        }
        if (++count % 16 == 0) std::this_thread::yield();  // others come and wait
        use.unlock();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, kThreads * kTimes);
}

TEST(ExclusiveUse, IsNotHadBeforeItIsFree) {
  ExclusiveUse use;
  use.lock();
  std::thread([&] {
    EXPECT_FALSE(use.lock_until(Deadline::after(milliseconds(0))));
    EXPECT_FALSE(use.lock_until(Deadline::after(milliseconds(5))));
  }).join();
  use.unlock();  // which wakes nobody: the other has gone
  EXPECT_TRUE(use.lock_until(Deadline::after(milliseconds(0))));
  std::thread waits([&] {
    use.lock();
    use.unlock();
  });
  use.unlock();
  waits.join();
}

}  // namespace
}  // namespace niccolite::comm
