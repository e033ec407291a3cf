// How the command ends.
#pragma once

namespace niccolite::perf {

enum ExitCode : int { kExitFine = 0, kExitWrong = 1, kExitUsage = 2, kExitFailed = 3 };

}  // namespace niccolite::perf
