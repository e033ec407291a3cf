// The words through which an operation and its communicator talk while it runs (ControlWords).
// Thread safety: any thread.
#pragma once

#include "executor/launch.h"
#include "executor/report.h"

namespace niccolite::executor::host {

/// Returns the last command of the communicator to its operations.
Command command_in(ControlWords& control);

/// Tells the communicator of a wait. False: an earlier report has not been taken yet, and stands; a
/// Mismatch replaces one of Waiting.
bool report(ControlWords& control, const Report& news);

}  // namespace niccolite::executor::host
