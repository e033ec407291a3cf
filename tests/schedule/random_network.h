// Random networks of workers, and what becomes of them when workers run in random order over
// several rounds.
#pragma once

#include <random>

#include "schedule/schedule.h"

namespace niccolite::schedule {

/// Two or three ranks with one or two workers each, which pass chunks of one block in an order that
/// may or may not deadlock. Sends and receives are balanced; nothing races; nothing is written to
/// the output.
Schedule random_network(std::mt19937& random);

/// Runs workers of channel 0 one instruction at a time, always a random one of those that can run;
/// false: it got stuck.
bool finishes_in_random_order(const Schedule& schedule, int depth, int rounds,
                              std::mt19937& random);

}  // namespace niccolite::schedule
