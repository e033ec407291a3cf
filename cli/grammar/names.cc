#include "cli/nearest.h"

#include <algorithm>
#include <vector>

namespace niccolite {
namespace {

/// Damerau and Levenshtein's distance, of strings aligned once.
size_t distance(std::string_view from, std::string_view to) {
  const size_t width = to.size() + 1;
  std::vector<size_t> table((from.size() + 1) * width);
  const auto cell = [&](size_t i, size_t k) -> size_t& { return table[i * width + k]; };
  for (size_t i = 0; i <= from.size(); ++i)
    for (size_t k = 0; k <= to.size(); ++k) {
      if (i == 0 || k == 0) {
        cell(i, k) = i + k;
        continue;
      }
      const size_t replaced = cell(i - 1, k - 1) + (from[i - 1] == to[k - 1] ? 0 : 1);
      cell(i, k) = std::min({cell(i - 1, k) + 1, cell(i, k - 1) + 1, replaced});
      if (i > 1 && k > 1 && from[i - 1] == to[k - 2] && from[i - 2] == to[k - 1])
        cell(i, k) = std::min(cell(i, k), cell(i - 2, k - 2) + 1);
    }
  return table.back();
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> names) {
  std::string best;
  size_t least = word.size() / 2 + 1;
  for (const std::string& name : names)
    if (const size_t changes = distance(word, name); changes < least) {
      best = name;
      least = changes;
    }
  return best;
}

}  // namespace niccolite
