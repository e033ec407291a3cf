#include "comm/lifetime.h"

#include <gtest/gtest.h>

#include <atomic>

namespace niccolite::comm {
namespace {

Status lost(int rank) { return Status::remote_error("rank {} is gone", rank).with_peer(rank); }

Lifetime::News fail(Lifetime& lifetime, const Status& status) {
  return lifetime.fail(status, [] {});
}

TEST(Lifetime, IsUsableOnceItIsReady) {
  Lifetime lifetime(3);
  EXPECT_EQ(lifetime.state(), State::InProgress);
  EXPECT_NE(lifetime.check_usable().message().find("rank 3 is still in progress"),
            std::string::npos);
  EXPECT_TRUE(lifetime.change(State::InProgress, State::Ready));
  EXPECT_TRUE(lifetime.check_ready().is_ok());
  EXPECT_TRUE(lifetime.change(State::Ready, State::Finalized));
  EXPECT_TRUE(lifetime.check_usable().is_ok());
  EXPECT_EQ(lifetime.check_ready().code(), Code::InvalidArgument);
}

TEST(Lifetime, TheFirstFailureStays) {
  Lifetime lifetime(0);
  lifetime.change(State::InProgress, State::Ready);
  bool was_failed = true;
  EXPECT_EQ(lifetime.fail(lost(1), [&] { was_failed = lifetime.has_failed(); }),
            Lifetime::News::Failed);
  EXPECT_FALSE(was_failed) << "the state is seen before before_seen() has run";
  EXPECT_EQ(fail(lifetime, lost(2)), Lifetime::News::None);
  EXPECT_EQ(lifetime.failure().peer(), 1);
  EXPECT_EQ(lifetime.state(), State::Failed);
  EXPECT_EQ(lifetime.check_ready().peer(), 1);
  EXPECT_FALSE(lifetime.change(State::Ready, State::Finalized));
  EXPECT_EQ(lifetime.gone().peer(), 1);
}

TEST(Lifetime, BackgroundWorkIsInProgressUntilItSettles) {
  Lifetime lifetime(0);
  lifetime.change(State::InProgress, State::Ready);
  lifetime.begin_background();
  EXPECT_EQ(lifetime.state(), State::InProgress);
  lifetime.settle(/*is_ok=*/true);
  EXPECT_EQ(lifetime.state(), State::Ready);
  lifetime.begin_background();
  EXPECT_FALSE(lifetime.keep_background_failure(lost(1)));
  EXPECT_EQ(fail(lifetime, lost(1)), Lifetime::News::Failed);
  lifetime.settle(/*is_ok=*/false);
  EXPECT_EQ(lifetime.state(), State::Failed);
}

TEST(Lifetime, OutlivesTheLossOfARankThatAShrinkLeavesOut) {
  Lifetime lifetime(0);
  lifetime.change(State::InProgress, State::Ready);
  fail(lifetime, lost(1));
  lifetime.begin_background();  // the shrink
  EXPECT_EQ(lifetime.state(), State::InProgress);
  lifetime.leave_out({1});
  lifetime.settle(/*is_ok=*/true);
  EXPECT_EQ(lifetime.state(), State::Failed);
  EXPECT_TRUE(lifetime.has_outlived_failure());
  EXPECT_TRUE(lifetime.check_ready().is_ok());
  EXPECT_EQ(lifetime.check_takes_operations().peer(), 1) << "operations end for ever";
}

TEST(Lifetime, TellsOfWorkThatFailsAfterTheLossIsOutlived) {
  Lifetime lifetime(0);
  lifetime.change(State::InProgress, State::Ready);
  lifetime.leave_out({1});
  lifetime.begin_background();
  EXPECT_EQ(fail(lifetime, lost(1)), Lifetime::News::Outlived);
  EXPECT_EQ(lifetime.state(), State::InProgress) << "the work goes on";
  EXPECT_TRUE(lifetime.keep_background_failure(lost(2))) << "nobody else prints it";
  EXPECT_EQ(fail(lifetime, lost(2)), Lifetime::News::None);
  lifetime.settle(/*is_ok=*/false);
  EXPECT_FALSE(lifetime.has_outlived_failure());
  EXPECT_EQ(lifetime.failure().peer(), 2);
  lifetime.leave_out({2});  // the next shrink succeeds
  EXPECT_TRUE(lifetime.has_outlived_failure());
}

TEST(Lifetime, JoinsTheThreadOfItsBackgroundWork) {
  Lifetime lifetime(0);
  std::atomic<int> ended{0};
  for (int i = 0; i < 2; ++i) {
    Result<Thread> thread = Thread::start("work", [&] { ++ended; });
    ASSERT_TRUE(thread.is_ok());
    lifetime.keep_thread(std::make_shared<Thread>(std::move(thread).take()));
    EXPECT_GE(ended.load(), i) << "the thread before is joined";
  }
  lifetime.join_thread();
  EXPECT_EQ(ended.load(), 2);
}

}  // namespace
}  // namespace niccolite::comm
