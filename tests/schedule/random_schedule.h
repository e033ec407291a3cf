// Random right schedules of all collectives, and broken copies of them.
#pragma once

#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace niccolite::schedule {

struct RandomSchedule {
  Schedule schedule;
  int least_depth = 1;  // FIFO slots with which it is right, at most kMostRandomDepth
};
inline constexpr int kMostRandomDepth = 16;

/// A schedule of up to six ranks and two pattern channels, proved by check(). Each result comes
/// along trees drawn for it, with relays, sums of any operands, scratch blocks that are used again,
/// and workers side by side.
RandomSchedule random_schedule(std::mt19937& random);

/// Text that the checker's message must contain.
using Reason = std::vector<std::string>;

struct RandomMutation {
  const char* name;
  /// Breaks a right schedule at a random place, so that it is refused with any depth of FIFOs. None
  /// if it has no such place.
  std::optional<Reason> (*apply)(Schedule& schedule, std::mt19937& random);
};
std::span<const RandomMutation> random_mutations();

/// The number of programs of a test: NICCOLITE_RANDOM_PROGRAMS, or `usual`.
uint32_t random_programs(uint32_t usual);
/// The seed of the first one: NICCOLITE_RANDOM_SEED, which replays one program alone, or 1.
uint32_t first_random_seed();

}  // namespace niccolite::schedule
