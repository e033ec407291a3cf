// epoll sets whose descriptors are known by numbers, and waits that are shorter than a millisecond.
#pragma once

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <span>

#include "base/fd.h"

namespace niccolite {

/// `operation`: EPOLL_CTL_ADD or EPOLL_CTL_MOD. Events of `fd` carry `number`. False: errno says
/// why.
inline bool epoll_control(int set, int operation, int fd, uint32_t events, uint64_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  return epoll_ctl(set, operation, fd, &event) == 0;
}
inline bool epoll_control(const Fd& set, int operation, int fd, uint32_t events, uint64_t number) {
  return epoll_control(set.get(), operation, fd, events, number);
}

/// Waits as epoll_wait() does, at most for `limit`: to the nanosecond where the kernel can (Linux
/// 5.11), else in milliseconds, rounded up. C libraries before 2.35 have no function for it.
inline int epoll_wait_for(int set, std::span<epoll_event> events, std::chrono::nanoseconds limit) {
  const auto most = static_cast<int>(events.size());
#ifdef SYS_epoll_pwait2
  constexpr int64_t kSecond = 1'000'000'000;
  const timespec time{.tv_sec = limit.count() / kSecond, .tv_nsec = limit.count() % kSecond};
  const auto count = syscall(SYS_epoll_pwait2, set, events.data(), most, &time, nullptr, 0);
  // Any other error means that the call is not available: sandboxes give different errors for it.
  if (count >= 0 || errno == EINTR) return static_cast<int>(count);
#endif
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  return epoll_wait(set, events.data(), most,
                    static_cast<int>(std::min<int64_t>(milliseconds, 60'000)));
}

}  // namespace niccolite
