// Puts, signals and waits between all ranks of a communicator, with every byte checked; for roles
// of tests with several processes or machines.
#pragma once

#include <string>

#include "tests/multi_process/ranks.h"

namespace niccolite::test {

/// The ranks of this process are `first`, first + 1, ...
struct PutProgram {
  int nranks = 0;
  int first = 0;
  size_t large_bytes = (2 << 20) - 1;
  int replays = 100;  // of a graph
};

/// All ranks call it; false, and a line, when something was wrong.
bool perform_puts(LocalRanks& ranks, const PutProgram& program);

}  // namespace niccolite::test
