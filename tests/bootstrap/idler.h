// Idler: a second process, for tests that look at processes by their identity.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "bootstrap/messages.h"

namespace niccolite::bootstrap {

/// A process of this machine that does nothing.
class Idler {
 public:
  Idler() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const ProcessId self = this_process();
      (void)!write(ends[1], &self, sizeof self);
      while (true) pause();
    }
    origin.host = "idle";
    EXPECT_EQ(read(ends[0], &origin.process, sizeof origin.process),
              static_cast<ssize_t>(sizeof origin.process));
    close(ends[0]);
    close(ends[1]);
  }
  ~Idler() { end(); }
  void end() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  void stop() const { kill(pid_, SIGSTOP); }

  messages::Origin origin;

 private:
  pid_t pid_;
};

}  // namespace niccolite::bootstrap
