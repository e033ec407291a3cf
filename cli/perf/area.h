// Area: the expected content of a stretch of device memory after an operation, element by element:
// parts of the ranks' inputs, parts of the reduced result, and poison that nobody may have touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cli/perf/pattern.h"

namespace niccolite::perf {

class Area {
 public:
  static constexpr uint8_t kPoison = 0xa5;

  struct Segment {
    size_t first = 0;
    size_t count = 0;
    int source = kPoisoned;   // a rank's input, Pattern::kReduced, or poison
    size_t source_first = 0;  // element of the source that lies at `first`
  };

  /// `count` elements of poison.
  explicit Area(size_t count);

  /// Replaces the segments at the place of `segment`, which lies inside the area.
  void put(const Segment& segment);

  /// How many of `count` elements at `got`, the area's from `first` on, are wrong. Element i of the
  /// ranks' buffers has the value of element i + shift of `pattern`.
  uint64_t count_wrong(const Pattern& pattern, size_t shift, const std::byte* got, size_t first,
                       size_t count) const;

 private:
  static constexpr int kPoisoned = -2;
  std::vector<Segment> segments_;  // ascending, without gaps
};

/// How many of `bytes` at `data` are not poison.
uint64_t count_unpoisoned(const std::byte* data, size_t bytes);

}  // namespace niccolite::perf
