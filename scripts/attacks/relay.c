// Preloaded into the ranks of a cell of the fault matrix (matrix.py): TCP connections that they
// make go through the relay (relay.py), which listens at FAULT_RELAY. Says first, in 32 bytes,
// whose connection it is, whether a proxy's, and where it goes.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

struct preamble {
  int32_t rank, is_proxy;
  uint32_t address;
  uint16_t port;
  char rest[18];
};

static int system_connect(int fd, const struct sockaddr* address, socklen_t length) {
  return (int)syscall(SYS_connect, fd, address, length);
}

int connect(int fd, const struct sockaddr* address, socklen_t length) {
  const char* relay = getenv("FAULT_RELAY");
  if (relay == NULL || address->sa_family != AF_INET) return system_connect(fd, address, length);
  const struct sockaddr_in* target = (const struct sockaddr_in*)address;
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  struct preamble first = {.rank = atoi(getenv("FAULT_RANK")),
                           .is_proxy = strncmp(name, "nccl-proxy", 10) == 0,
                           .address = target->sin_addr.s_addr,
                           .port = ntohs(target->sin_port)};
  struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(relay))};
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  const int failed = system_connect(fd, (const struct sockaddr*)&own, sizeof own) != 0 ||
                     send(fd, &first, sizeof first, MSG_NOSIGNAL) != (ssize_t)sizeof first;
  fcntl(fd, F_SETFL, flags);
  if (failed) return -1;
  if ((flags & O_NONBLOCK) == 0) return 0;
  errno = EINPROGRESS;  // epoll says at once that it is done
  return -1;
}
