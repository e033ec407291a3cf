// Every collective and random programs (tests/api/random_program.h), on two communicators of ranks
// in several processes.
#pragma once

#include "tests/multi_process/ranks.h"

namespace niccolite::test {

struct Programs {
  int nranks = 0;
  int first_rank = 0;  // of this process
  uint64_t random = 40;
};

/// False when a byte is wrong; a line says which.
bool perform_programs(const LocalRanks& one, const LocalRanks& two, const Programs& programs);

}  // namespace niccolite::test
