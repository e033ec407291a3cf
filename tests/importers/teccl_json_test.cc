// TE-CCL's solutions: our own are read and proved, whole and with chunks that come on several
// paths, and broken ones are refused with the reason and its line.
#include "importers/teccl_json.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "importers/import.h"
#include "schedule/check.h"
#include "tests/importers/broken.h"

namespace niccolite::importers {
namespace {

using schedule::Collective;
using testing::HasSubstr;

// Nodes are the switch 0 and the gpus 1 to n. The solver names paths alone where chunks are whole.
int node(int rank) { return rank + 1; }

std::string solution(const std::string& demands) {
  return fmt::format(
      "{{\n\"4-Collective_Finish_Time\": 1.5e-05,\n\"7-Flows\": [],\n\"8-Chunk paths\": "
      "{{\n{}}},\n\"Solver_Time\": 1\n}}\n",
      demands.substr(0, demands.size() - 2) + "\n");
}
std::string demand(int target, int chunk, int source, const std::string& met) {
  return fmt::format("\"Demand at {} for chunk {} from {} met by epoch 9\": [{}],\n", node(target),
                     chunk, node(source), met);
}

/// Each chunk goes around a ring.
std::string gather(int n, int chunks) {
  std::string demands;
  for (int target = 0; target < n; ++target)
    for (int source = 0; source < n; ++source)
      for (int chunk = 0; chunk < chunks && source != target; ++chunk) {
        std::string path;
        for (int place = source, epoch = 0; place != target; place = (place + 1) % n, ++epoch)
          path += fmt::format("{}\"{}->{} in epoch {}{}\"", epoch == 0 ? "" : ", ", node(place),
                              node((place + 1) % n), epoch, epoch == 0 ? " via switches 0" : "");
        demands += demand(target, chunk, source, path);
      }
  return solution(demands);
}

/// A share of each chunk goes straight, the rest over the rank before the target. Chunks of a
/// source are numbered by target, its own among them.
std::string exchange(int n, int chunks, double share) {
  std::string demands;
  for (int source = 0; source < n; ++source)
    for (int target = n - 1; target >= 0; --target)
      for (int chunk = 0; chunk < chunks && source != target; ++chunk) {
        const int between = (target + n - 1) % n;
        const bool is_one_path = between == source || share == 1;
        std::string paths = fmt::format("[[0, \"{}->{} with volume {} in epoch 0\"]]", node(source),
                                        node(target), is_one_path ? 1.0 : share);
        if (!is_one_path)
          paths += fmt::format(
              ", [[0, \"{}->{} with volume {:.6f} in epoch 0\"],"
              " [1, \"{}->{} with volume {:.6f} in epoch 1 via switches 0\"]]",
              node(source), node(between), 1 - share, node(between), node(target), 1 - share);
        demands += demand(target, target * chunks + chunk, source, paths);
      }
  return solution(demands);
}

void expect_proved(const std::string& text, Collective collective, int n, const char* about) {
  ASSERT_TRUE(is_foreign(text));
  EXPECT_FALSE(says_no_collective(text));
  const Result<Foreign> read = import(text);
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  EXPECT_THAT(read.value().about, HasSubstr(about));
  const schedule::Schedule& schedule = read.value().file.schedule;
  EXPECT_EQ(schedule.collective, collective);
  EXPECT_EQ(schedule.nranks, n);
  const Result<int> depth = schedule::least_depth(schedule);
  ASSERT_TRUE(depth.is_ok()) << depth.status().message();
  EXPECT_LE(depth.value(), 2);
}

TEST(TecclJson, WholeChunksAreGatheredAndExchanged) {
  for (const int n : {2, 3, 5, 12})
    for (const int chunks : {1, 3}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} chunks", n, chunks));
      expect_proved(gather(n, chunks), Collective::AllGather, n,
                    "TE-CCL solution that predicts 15 us: ");
      if (n > 2)  // else each chunk has one taker, as in an all-gather
        expect_proved(exchange(n, chunks, 1), Collective::AllToAll, n,
                      "TE-CCL solution that predicts 15 us: ");
    }
}

TEST(TecclJson, ChunksOfSeveralPathsAreSplit) {
  const std::pair<double, const char*> shares[]{
      {0.5, "chunks split into 2 parts: "},
      {0.25, "chunks split into 4 parts: "},
      {0.333333, "chunks split into 3 parts: "},
      {0.9375, "chunks split into 16 parts: "},
      {0.123456, "chunks split into 16 parts, to which its volumes are rounded: "}};
  for (const auto& [share, about] : shares) {
    SCOPED_TRACE(share);
    expect_proved(exchange(5, 1, share), Collective::AllToAll, 5, about);
  }
  expect_proved(exchange(4, 2, 0.5), Collective::AllToAll, 4, "2 parts");
}

// A share that is less than a part goes with the others.
TEST(TecclJson, APathOfATinyShareIsLeftOut) {
  expect_proved(exchange(4, 1, 0.005), Collective::AllToAll, 4, "rounded");
}

TEST(TecclJson, BrokenSolutionsAreRefusedWithTheirLine) {
  const std::string text = exchange(3, 1, 0.5);
  for (const Broken& c :
       {Broken{"8-Chunk paths", "8-Chunk ways",
               "line 1: the solution has no object \"Chunk paths\""},
        Broken{"Demand at 3", "Wish at 3",
               "line 5: \"Wish at 3 for chunk 2 from 1 met by epoch 9\""},
        Broken{"for chunk 2", "for chunk 99999", "line 5: chunk 99999 is not from 0 to 4095"},
        Broken{"Demand at 3", "Demand at 1", "line 5: gpu 1 demands its own chunk"},
        Broken{"[0, \"1->3 with volume 0.5 in epoch 0\"]", "[0, 7]",
               "line 5: a hop must be a text"},
        Broken{"1->3 with volume 0.5", "1=>3 with volume 0.5", "line 5: \"1=>3 with volume 0.5 in"},
        Broken{"1->3 with volume 0.5", "1->3 with volume 0.25",
               "line 5: the volumes of its paths add up to 0.75, not 1"},
        Broken{"1->3 with volume 0.5", "1->3 with volume -0.5",
               "line 5: volume -0.5 is not above 0"},
        Broken{"1->3 with volume 0.5", "2->3 with volume 0.5",
               "line 5: the chunk is at 1, and leaves 2"},
        Broken{"1->3 with volume 0.5", "1->2 with volume 0.5",
               "line 5: the path ends at 2, and 3 demands the chunk"},
        Broken{"for chunk 2 from 1", "for chunk 1 from 1", "line 4: neither an all-gather nor an"},
        Broken{"1->3 with volume 0.5 in epoch 0\"]",
               "1->0 with volume 0.5 in epoch 0\"], [1, \"0->3 with volume 0.5 in epoch 1\"]",
               "line 5: node 0 has no chunk of its own: it is a switch"}}) {
    const Result<Foreign> read = import(broken(text, c));
    ASSERT_FALSE(read.is_ok()) << c.reason;
    EXPECT_THAT(read.status().message(), HasSubstr(c.reason));
  }
  const Result<Foreign> empty = import("{\"7-Flows\": [], \"8-Chunk paths\": {}}");
  ASSERT_FALSE(empty.is_ok());
  EXPECT_THAT(empty.status().message(), HasSubstr("line 1: nobody demands a chunk"));
}

}  // namespace
}  // namespace niccolite::importers
