#include "tests/multi_process/programs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/api/random_program.h"

namespace niccolite::test {
namespace {

// NICCOLITE_PROCESS_PROGRAMS: fewer, where each takes long.
uint64_t most_random_programs() {
  const char* const most = std::getenv("NICCOLITE_PROCESS_PROGRAMS");
  return most == nullptr ? ~uint64_t{0} : std::strtoull(most, nullptr, 10);
}

}  // namespace

bool perform_programs(const LocalRanks& one, const LocalRanks& two, const Programs& programs) {
  Stage stage{.first_rank = programs.first_rank, .ranks = {}};
  for (size_t i = 0; i < one.comms.size(); ++i)
    stage.ranks.push_back({{one.comms[i], two.comms[i]}, {one.streams[i], two.streams[i]}});

  const int nranks = programs.nranks;
  RandomProgram every{
      .seed = 0, .nranks = nranks, .thread_per_rank = false, .as_graph = false, .groups = {}};
  for (Kind kind : kCollectives)
    for (size_t count : {1u, 1000u, 70'001u})
      every.groups.push_back({{{{kind, ncclFloat, ncclSum, count, nranks - 1}, 0, 0}}, true});
  perform(every, stage);
  const uint64_t random = std::min(programs.random, most_random_programs());
  for (uint64_t seed = 1; seed <= random && !testing::Test::HasFailure(); ++seed) {
    const RandomProgram program = generate(seed, nranks);
    SCOPED_TRACE(testing::Message() << program);
    perform(program, stage);
  }
  return !testing::Test::HasFailure();
}

}  // namespace niccolite::test
