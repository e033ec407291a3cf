// FullDescriptors: for its lifetime the process has as many descriptors open as it may have.
// A descriptor that is closed meanwhile makes room for another one. Thread safety: one at a time.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/fd.h"

namespace niccolite::test {

class FullDescriptors {
 public:
  FullDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    // The lowest free number: with it as the limit none can be had.
    const Fd lowest(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const rlimit now{.rlim_cur = static_cast<rlim_t>(lowest.get()), .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  ~FullDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  FullDescriptors(const FullDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace niccolite::test
