// The form of a schedule: everything the checker must know before it can run one. Checker use only.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace niccolite::schedule {

/// The worker at either end of a connection; both are in the connection's channel.
struct Ends {
  int sending_worker = -1;    // of Connection::sender
  int receiving_worker = -1;  // of Connection::receiver
};

/// Proves the form (see check.h) and returns the ends of each connection.
Result<std::vector<Ends>> check_form(const Schedule& schedule);

}  // namespace niccolite::schedule
