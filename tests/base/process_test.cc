// Which process a number means, and whether it runs.
#include "base/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace niccolite {
namespace {

/// A child that has been stopped, and what it says that it is.
class StoppedChild : public testing::Test {
 protected:
  StoppedChild() {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      const ProcessId self = this_process();
      if (write(ends[1], &self, sizeof self) != sizeof self) _exit(1);
      while (true) pause();
    }
    EXPECT_EQ(read(ends[0], &child, sizeof child), ssize_t{sizeof child});
    for (const int end : ends) close(end);
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }
  ~StoppedChild() override {
    kill_hard();
    reap();
  }
  void kill_hard() const {
    if (pid_ > 0) kill(pid_, SIGKILL);
  }
  void reap() {
    if (pid_ > 0) waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

  ProcessId child;

 private:
  pid_t pid_ = 0;
};

TEST_F(StoppedChild, IsSeenByItsIdentity) {
  EXPECT_EQ(run_state(child), RunState::Stopped);
  EXPECT_EQ(run_state(this_process()), RunState::Runs);
}

TEST_F(StoppedChild, IsNotTakenForAnotherOfItsNumber) {
  for (uint64_t ProcessId::*part :
       {&ProcessId::kernel, &ProcessId::pid_namespace, &ProcessId::started}) {
    ProcessId other = child;
    other.*part += 1;
    EXPECT_EQ(run_state(other), RunState::Unknown);
    other.*part = 0;
    EXPECT_EQ(run_state(other), RunState::Unknown) << "what is not known fits nobody";
  }
}

bool is_readable(const Fd& fd, int milliseconds) {
  pollfd ready{.fd = fd.get(), .events = POLLIN, .revents = 0};
  return poll(&ready, 1, milliseconds) == 1;
}

TEST_F(StoppedChild, CanBeWatchedUntilItsEnd) {
  const ProcessEnd end = end_of(child);
  ASSERT_FALSE(end.has_come);
  ASSERT_TRUE(end.to_come.valid());
  EXPECT_FALSE(is_readable(end.to_come, 0));
  kill_hard();
  EXPECT_TRUE(is_readable(end.to_come, 5000));
  const ProcessEnd before_the_parent_knows = end_of(child);
  EXPECT_TRUE(before_the_parent_knows.has_come ||
              is_readable(before_the_parent_knows.to_come, 5000));
  reap();
  EXPECT_TRUE(end_of(child).has_come);
}

TEST_F(StoppedChild, IsNotWatchedInThePlaceOfAnotherOfItsNumber) {
  for (uint64_t ProcessId::*part :
       {&ProcessId::kernel, &ProcessId::pid_namespace, &ProcessId::started}) {
    ProcessId other = child;
    other.*part += 1;
    const ProcessEnd end = end_of(other);
    EXPECT_FALSE(end.has_come);
    EXPECT_FALSE(end.to_come.valid());
  }
}

TEST(ProcessId, SurvivesTheWire) {
  const ProcessId sent{.number = 1, .kernel = 2, .pid_namespace = 3, .started = 4};
  Writer writer;
  sent.encode(writer);
  const Bytes bytes = std::move(writer).take();
  Reader reader(bytes, "a test");
  EXPECT_EQ(ProcessId::decode(reader), sent);
  EXPECT_TRUE(reader.finish().is_ok());
}

TEST(ProcessId, OfThisProcessIsKnown) {
  const ProcessId self = this_process();
  EXPECT_EQ(self.number, static_cast<uint64_t>(getpid()));
  EXPECT_NE(self.kernel, 0u);
  EXPECT_NE(self.pid_namespace, 0u);
  EXPECT_NE(self.started, 0u);
}

}  // namespace
}  // namespace niccolite
