#include "host_ranges.h"

#include <algorithm>
#include <iterator>

#include "devices.h"

namespace niccolite::python {
namespace {

void* as_pointer(uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

HostRanges& HostRanges::instance() {
  static auto* const ranges = new HostRanges;  // leaked: buffers may die after static objects
  return *ranges;
}

bool HostRanges::acquire(void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t end = begin + bytes;
  const std::lock_guard lock(mutex_);
  auto segment = segments_.upper_bound(begin);
  if (segment != segments_.begin() && std::prev(segment)->second.end > begin) --segment;
  for (uintptr_t at = begin; at < end; ++segment) {
    const uintptr_t next = segment == segments_.end() ? end : std::min(end, segment->first);
    if (at < next) {  // a gap
      if (!enter(at, next)) {
        release_segments(begin, at);
        return false;
      }
      at = next;
      if (at == end) break;
    }
    ++segment->second.users;
    at = segment->second.end;
  }
  return true;
}

bool HostRanges::enter(uintptr_t begin, uintptr_t end) {
  const bool is_ours = devices().register_host(as_pointer(begin), end - begin);
  if (!is_ours && devices().place_of(as_pointer(begin)).kind != Place::Kind::Host) return false;
  segments_.emplace(begin, Segment{.end = end, .users = 1, .is_ours = is_ours});
  return true;
}

void HostRanges::release(void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const std::lock_guard lock(mutex_);
  release_segments(begin, begin + bytes);
}

// Releases the segments that acquire() found or made: since then none of them has ended, and no
// other has begun among them.
void HostRanges::release_segments(uintptr_t begin, uintptr_t end) {
  auto segment = segments_.upper_bound(begin);
  if (segment != segments_.begin() && std::prev(segment)->second.end > begin) --segment;
  while (segment != segments_.end() && segment->first < end) {
    if (--segment->second.users > 0) {
      ++segment;
      continue;
    }
    if (segment->second.is_ours) devices().unregister_host(as_pointer(segment->first));
    segment = segments_.erase(segment);
  }
}

}  // namespace niccolite::python
