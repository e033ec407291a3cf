#include "transport/net/verbs/trial.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>
#include <span>

namespace niccolite::transport::net::verbs {

std::byte* Trial::make_pattern(size_t number) {
  // No pattern of before, and no other queue pair's, passes for this one.
  std::random_device device;
  std::mt19937 random(device());
  const std::span made(pattern(number), kBytes);
  std::ranges::generate(made, [&] { return static_cast<std::byte>(random()); });
  std::ranges::transform(made, echo(number), [](std::byte byte) { return ~byte; });
  return made.data();
}

std::optional<std::string> Trial::difference(size_t number) {
  const std::span made(pattern(number), kBytes);
  const std::span came(echo(number), kBytes);
  const auto [as_made, as_came] = std::ranges::mismatch(made, came);
  if (as_made == made.end()) return std::nullopt;
  size_t wrong = 0;
  for (size_t i = 0; i < kBytes; ++i) wrong += made[i] != came[i] ? 1 : 0;
  return fmt::format(
      "{} of {} bytes that were written to the peer's memory came back wrong, the first one at {} "
      "(0x{:02x} in the place of 0x{:02x})",
      wrong, kBytes, as_made - made.begin(), static_cast<int>(*as_came),
      static_cast<int>(*as_made));
}

}  // namespace niccolite::transport::net::verbs
