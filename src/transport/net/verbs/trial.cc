#include "transport/net/verbs/trial.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>
#include <span>

namespace niccolite::transport::net::verbs {

Status Trial::store(std::byte* to, std::span<const std::byte> from) const {
  if (of_gpu_ != nullptr) return of_gpu_->store(to, from.data(), from.size());
  std::ranges::copy(from, to);
  return {};
}

Result<std::byte*> Trial::make_pattern(size_t number) {
  // No pattern of before, and no other queue pair's, passes for this one.
  std::random_device device;
  std::mt19937 random(device());
  const std::span made = std::span(made_).subspan(number * kBytes, kBytes);
  std::ranges::generate(made, [&] { return static_cast<std::byte>(random()); });
  std::vector<std::byte> wrong(kBytes);
  std::ranges::transform(made, wrong.begin(), [](std::byte byte) { return ~byte; });
  TRY(store(pattern(number), made));
  TRY(store(echo(number), wrong));
  return pattern(number);
}

Result<std::optional<std::string>> Trial::difference(size_t number) {
  const std::span made = std::span(made_).subspan(number * kBytes, kBytes);
  std::vector<std::byte> of_gpu(of_gpu_ != nullptr ? kBytes : 0);
  if (of_gpu_ != nullptr) TRY(of_gpu_->load(of_gpu.data(), echo(number), kBytes));
  const std::span<const std::byte> came = of_gpu_ != nullptr
                                              ? std::span<const std::byte>(of_gpu)
                                              : std::span<const std::byte>(echo(number), kBytes);
  const auto [as_made, as_came] = std::ranges::mismatch(made, came);
  if (as_made == made.end()) return std::optional<std::string>();
  size_t wrong = 0;
  for (size_t i = 0; i < kBytes; ++i) wrong += made[i] != came[i] ? 1 : 0;
  return std::optional(fmt::format(
      "{} of {} bytes that were written to the peer's memory came back wrong, the first one at {} "
      "(0x{:02x} in the place of 0x{:02x})",
      wrong, kBytes, as_made - made.begin(), static_cast<int>(*as_came),
      static_cast<int>(*as_made)));
}

}  // namespace niccolite::transport::net::verbs
