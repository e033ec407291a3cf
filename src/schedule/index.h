// Indexing containers by rank, channel, worker and instruction numbers, which are `int` everywhere.
#pragma once

#include <cstddef>

namespace niccolite::schedule {

template <typename Container>
constexpr auto& at(Container& container, int index) {
  return container[static_cast<size_t>(index)];
}

template <typename Container>
constexpr int length(const Container& container) {
  return static_cast<int>(container.size());
}

constexpr bool is_within(int value, int bound) { return value >= 0 && value < bound; }

}  // namespace niccolite::schedule
