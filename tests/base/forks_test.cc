// A child made by fork(), and its parent's connections and calls.
#include "base/forks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/fd.h"

namespace niccolite {
namespace {

// The connection ends with the parent's descriptor, however long the child lives.
TEST(Forks, AChildHoldsNoWithheldConnectionOpen) {
  std::array<int, 2> ends{};
  std::array<int, 2> stay{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  ASSERT_EQ(pipe(stay.data()), 0);
  Fd withheld(ends[0]);
  const Fd peer(ends[1]);
  withheld.withhold();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  char byte = 0;
  if (child == 0) {
    close(stay[1]);
    const bool is_taken = fcntl(withheld.get(), F_GETFD) >= 0;  // nobody else gets the number
    (void)!read(stay[0], &byte, 1);
    _exit(is_taken ? 0 : 1);
  }
  withheld.reset();
  EXPECT_EQ(read(peer.get(), &byte, 1), 0);
  for (const int end : stay) close(end);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace niccolite
