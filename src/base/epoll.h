// epoll sets whose descriptors are known by numbers.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

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

}  // namespace niccolite
