// A queue of events with a descriptor that polls readable while one waits.
// Thread safety: any thread may push and pop.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <deque>
#include <mutex>

namespace vverbs {

template <typename Event>
struct EventQueue {
  int fd = -1;  // an eventfd that counts down by one at each read
  std::mutex mutex;
  std::deque<Event> waiting;
};

template <typename Event>
void push_event(EventQueue<Event>& queue, const Event& event) {
  const std::lock_guard lock(queue.mutex);
  queue.waiting.push_back(event);
  const uint64_t one = 1;
  (void)!write(queue.fd, &one, sizeof one);
}

// Waits unless the descriptor is set not to; an event that was withdrawn leaves a count behind,
// which is passed over. `taken` is called before others may withdraw.
template <typename Event, typename Taken>
int pop_event(EventQueue<Event>& queue, Event& event, Taken taken) {
  for (;;) {
    uint64_t one = 0;
    if (read(queue.fd, &one, sizeof one) != sizeof one) return -1;
    const std::lock_guard lock(queue.mutex);
    if (queue.waiting.empty()) continue;
    event = queue.waiting.front();
    queue.waiting.pop_front();
    taken(event);
    return 0;
  }
}

}  // namespace vverbs
