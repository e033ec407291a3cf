#include "bootstrap/gathering.h"

#include <bit>

namespace niccolite::bootstrap {

uint32_t Gathering::distance_from(uint32_t process) const {
  const auto nprocesses = static_cast<uint32_t>(parts_.size());
  return (process + nprocesses - self_) % nprocesses;
}

std::vector<uint32_t> Gathering::missing() const {
  std::vector<uint32_t> missing;
  for (uint32_t process = 0; process < parts_.size(); ++process)
    if (!has(process)) missing.push_back(process);
  return missing;
}

std::vector<uint32_t> Gathering::add(uint32_t process, Part part) {
  std::vector<uint32_t> next;
  if (has(process)) return next;
  parts_[process] = std::move(part);
  --missing_;
  const auto nprocesses = static_cast<uint32_t>(parts_.size());
  const uint32_t distance = distance_from(process);
  for (uint32_t step = std::bit_ceil(distance + 1); distance + step < nprocesses; step *= 2)
    next.push_back((self_ + nprocesses - step) % nprocesses);
  return next;
}

std::vector<uint32_t> Gathering::missing_through(uint32_t neighbor) const {
  std::vector<uint32_t> missing;
  for (uint32_t process = 0; process < parts_.size(); ++process) {
    const uint32_t distance = distance_from(process);
    // The last hop to distance j is its highest power of two.
    if (distance != 0 && !has(process) && std::bit_floor(distance) == distance_from(neighbor))
      missing.push_back(process);
  }
  return missing;
}

}  // namespace niccolite::bootstrap
