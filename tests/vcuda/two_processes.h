// Tests with two processes: the other one is this program again, which runs one disabled test. A
// Unix socket joins the two.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace vcuda_test {

/// The number of the other process's end of the socket.
inline constexpr const char* kSocketVariable = "NICCOLITE_TEST_SOCKET";

/// Starts the process that runs `test`; `socket` is this process's end. -1: it cannot be started.
inline pid_t run_other_process(const std::string& test, int* socket) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return -1;
  fcntl(sockets[1], F_SETFD, 0);
  setenv(kSocketVariable, std::to_string(sockets[1]).c_str(), 1);
  std::string self = "/proc/self/exe", also = "--gtest_also_run_disabled_tests",
              only = "--gtest_filter=" + test;
  char* arguments[] = {self.data(), also.data(), only.data(), nullptr};
  pid_t child = -1;
  if (posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments, environ) != 0) child = -1;
  close(sockets[1]);
  unsetenv(kSocketVariable);
  *socket = sockets[0];
  return child;
}

inline void send_descriptor(int socket, int descriptor) {
  char byte = 'd';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  ASSERT_EQ(sendmsg(socket, &message, 0), 1);
}
/// -1: none came.
inline int receive_descriptor(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  int descriptor = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message) == nullptr)
    return -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
  return descriptor;
}

}  // namespace vcuda_test
