// The exit statuses of `niccolite`, the same for every subcommand.
#pragma once

namespace niccolite::grammar {

enum ExitCode : int {
  kExitFine = 0,    // done, and the answer is good
  kExitWrong = 1,   // done, and the answer is bad: wrong results, a standstill, poor constants
  kExitUsage = 2,   // the command line asks for something that cannot be
  kExitFailed = 3,  // could not be done: a library, a process or a file failed
};

}  // namespace niccolite::grammar
