#include "cli/perf/area.h"

#include <algorithm>
#include <cstring>

namespace niccolite::perf {
namespace {

/// The part of `segment` inside [first, end); empty when they do not meet.
Area::Segment cut(const Area::Segment& segment, size_t first, size_t end) {
  Area::Segment part = segment;
  part.first = std::max(segment.first, first);
  const size_t part_end = std::min(segment.first + segment.count, end);
  part.count = part_end > part.first ? part_end - part.first : 0;
  part.source_first += part.first - segment.first;
  return part;
}

}  // namespace

Area::Area(size_t count) {
  if (count > 0) segments_.push_back({.first = 0, .count = count});
}

void Area::put(const Segment& segment) {
  if (segment.count == 0) return;
  const size_t end = segment.first + segment.count;
  // The segments that it meets lie side by side. They keep at most one part on either side.
  const auto begin = std::partition_point(
      segments_.begin(), segments_.end(),
      [&](const Segment& each) { return each.first + each.count <= segment.first; });
  const auto behind = std::partition_point(begin, segments_.end(),
                                           [&](const Segment& each) { return each.first < end; });
  std::vector<Segment> kept;
  if (const Segment left = cut(*begin, 0, segment.first); left.count > 0) kept.push_back(left);
  kept.push_back(segment);
  if (const Segment right = cut(*(behind - 1), end, SIZE_MAX); right.count > 0)
    kept.push_back(right);
  segments_.insert(segments_.erase(begin, behind), kept.begin(), kept.end());
}

uint64_t Area::count_wrong(const Pattern& pattern, size_t shift, const std::byte* got, size_t first,
                           size_t count) const {
  const size_t bytes = pattern.type().bytes;
  uint64_t wrong = 0;
  auto each = std::partition_point(segments_.begin(), segments_.end(), [&](const Segment& segment) {
    return segment.first + segment.count <= first;
  });
  for (; each != segments_.end() && each->first < first + count; ++each) {
    const Segment part = cut(*each, first, first + count);
    const std::byte* data = got + (part.first - first) * bytes;
    if (part.source != kPoisoned) {
      wrong += pattern.count_wrong(part.source, part.source_first + shift, data, part.count);
    } else if (count_unpoisoned(data, part.count * bytes) > 0) {
      // Elements, as everywhere; their bytes may differ in number.
      for (size_t i = 0; i < part.count; ++i)
        wrong += count_unpoisoned(data + i * bytes, bytes) > 0;
    }
  }
  return wrong;
}

uint64_t count_unpoisoned(const std::byte* data, size_t bytes) {
  // Poison at the beginning and every byte like the next: nothing to count, at memcmp's speed.
  if (bytes == 0 ||
      (data[0] == std::byte{Area::kPoison} && std::memcmp(data, data + 1, bytes - 1) == 0))
    return 0;
  return static_cast<uint64_t>(std::count_if(
      data, data + bytes, [](std::byte byte) { return byte != std::byte{Area::kPoison}; }));
}

}  // namespace niccolite::perf
