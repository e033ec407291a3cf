#include "cli/grammar/machines.h"

#include <charconv>
#include <optional>

namespace niccolite::grammar {
namespace {

constexpr int kMostRanks = 32768;

/// A number from 1 on at `next`, which then is behind it.
std::optional<int> read_number(const char*& next, const char* end) {
  int number = 0;
  const auto [behind, error] = std::from_chars(next, end, number);
  if (error != std::errc() || number < 1 || number > kMostRanks) return std::nullopt;
  next = behind;
  return number;
}

/// Ranks of each machine; empty: `text` is no such list.
std::vector<int> read_sizes(const std::string& text) {
  const char *next = text.data(), *const end = next + text.size();
  std::vector<int> sizes;
  while (true) {
    const std::optional<int> number = read_number(next, end);
    if (!number) return {};
    if (next < end && *next == 'x' && sizes.empty()) {
      const std::optional<int> ranks = read_number(++next, end);
      if (!ranks || next != end) return {};
      return std::vector<int>(static_cast<size_t>(*number), *ranks);
    }
    sizes.push_back(*number);
    if (next == end) return sizes;
    if (*next++ != ',') return {};
  }
}

}  // namespace

Result<std::vector<int>> parse_machines(const std::string& text) {
  const std::vector<int> sizes = read_sizes(text);
  if (sizes.empty())
    return Status::invalid_argument(
        "--machines: \"{}\" is neither MACHINESxRANKS, such as 2x4, nor a list of ranks, such as "
        "3,1",
        text);
  std::vector<int> machines;
  for (size_t machine = 0; machine < sizes.size(); ++machine) {
    if (machines.size() + static_cast<size_t>(sizes[machine]) > kMostRanks)
      return Status::invalid_argument("--machines: {} are more than {} ranks", text, kMostRanks);
    machines.insert(machines.end(), static_cast<size_t>(sizes[machine]), static_cast<int>(machine));
  }
  return machines;
}

}  // namespace niccolite::grammar
