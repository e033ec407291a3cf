// Random programs of groups in one process. A failure prints its seed: NICCOLITE_RANDOM_SEED=<seed>
// replays that program alone, NICCOLITE_RANDOM_PROGRAMS=<n> runs more or fewer, and
// NICCOLITE_RANDOM_RANKS=<n>, at most 8, fixes the number of ranks. With CUDA's libcudart.so.13
// before vcuda's on LD_LIBRARY_PATH the same binary runs on GPUs.

#include <array>
#include <cstdlib>
#include <memory>

#include "tests/api/random_program.h"

namespace niccolite::test {
namespace {

constexpr uint64_t kPrograms = 2000;

struct Theatre {
  explicit Theatre(int nranks) : first(nranks), second(nranks) {
    for (int rank = 0; rank < nranks; ++rank)
      stage.ranks.push_back(
          {{first.comm(rank), second.comm(rank)}, {first.stream(rank), second.stream(rank)}});
  }
  Cluster first, second;
  Stage stage;
};

TEST(RandomGroups, GiveWhatTheirCallsPromise) {
  const char* const seed = std::getenv("NICCOLITE_RANDOM_SEED");
  const char* const count = std::getenv("NICCOLITE_RANDOM_PROGRAMS");
  const uint64_t first = seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1;
  const uint64_t programs = seed != nullptr    ? 1
                            : count != nullptr ? std::strtoull(count, nullptr, 10)
                                               : kPrograms;
  ASSERT_GT(programs, 0u);
  const char* const ranks = std::getenv("NICCOLITE_RANDOM_RANKS");
  const int nranks = ranks != nullptr ? std::atoi(ranks) : 0;
  std::array<std::unique_ptr<Theatre>, 9> theatres;
  ASSERT_LT(nranks, static_cast<int>(theatres.size()));
  for (uint64_t i = 0; i < programs; ++i) {
    const RandomProgram program = generate(first + i, nranks);
    auto& theatre = theatres[static_cast<size_t>(program.nranks)];
    if (theatre == nullptr) theatre = std::make_unique<Theatre>(program.nranks);
    SCOPED_TRACE(testing::Message() << program);
    perform(program, theatre->stage);
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace niccolite::test
