// Which process a number means, and whether it runs.
#include "base/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

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
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
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
