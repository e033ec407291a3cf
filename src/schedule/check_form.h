// The form of a schedule: everything the checker must know before it can run one. Checker use only.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace niccolite::schedule {

/// The lane at either end of a connection; both are in the connection's channel.
struct Ends {
  int sending_lane = -1;    // of Connection::sender
  int receiving_lane = -1;  // of Connection::receiver
};

/// Does the receiver send on what comes by `connection`?
bool is_passed_on(const Schedule& schedule, int connection, const Ends& ends);

/// May `connection` be said to land (Connection::lands)?
bool can_land(const Schedule& schedule, int connection, const Ends& ends);

/// May `connection` be said to lend (Connection::lends)?
bool can_lend(const Schedule& schedule, int connection, const Ends& ends);

/// Proves of a schedule whose form is proved: what is said to land, or to lend, may.
Status check_offers(const Schedule& schedule, const std::vector<Ends>& ends);

/// Proves the form (see check.h) and returns the ends of each connection.
Result<std::vector<Ends>> check_form(const Schedule& schedule);

}  // namespace niccolite::schedule
