// Algorithms of files: read, proved, refused, and turned to other roots.
#include "algorithms/loaded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "algorithms/registry.h"
#include "schedule/check.h"
#include "schedule/index.h"

namespace niccolite::algorithms {
namespace {

using schedule::Collective;
using schedule::Schedule;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

bool is_ring(Collective, std::string_view name) { return name == "ring"; }

Schedule built(Collective collective, const char* name, int nranks) {
  return find(collective, name)->build(nranks, {}).take();
}

std::string file_of(Schedule schedule, const char* name) {
  schedule.algorithm = name;
  return to_file(schedule);
}

TEST(LoadedAlgorithms, AreOneOfEachNameForAllTheirRanks) {
  LoadedSet set;
  for (const int nranks : {4, 2}) {
    const Status status =
        set.add("x.json", file_of(built(Collective::AllReduce, "ring", nranks), "mine"), is_ring);
    ASSERT_TRUE(status.is_ok()) << status.message();
  }
  ASSERT_EQ(set.all().size(), 1u);
  const Loaded& mine = *set.all().front();
  EXPECT_EQ(mine.describe_ranks(), "2 and 4 ranks");
  EXPECT_EQ(mine.find(4)->least_depth, 2) << "the ring sends once before it receives, and again";
  EXPECT_EQ(mine.find(3), nullptr);
  Schedule expected = built(Collective::AllReduce, "ring", 4);
  expected.algorithm = "mine";
  EXPECT_TRUE(mine.build(4, {}).take() == expected);
  const Result<Schedule> of_three = mine.build(3, {});
  ASSERT_FALSE(of_three.is_ok());
  EXPECT_THAT(of_three.status().message(), HasSubstr("for 2 and 4 ranks, not 3"));
}

TEST(LoadedAlgorithms, AreRefusedWithTheReason) {
  Schedule wrong = built(Collective::AllReduce, "one_shot", 3);
  wrong.ranks[1][0].workers[0].instructions.back().target.reset();
  wrong.ranks[1][0].workers[0].instructions.back().send_to = {};
  Schedule unequal = built(Collective::AllReduce, "ring", 3);
  Schedule huge = built(Collective::AllReduce, "one_shot", 3);
  huge.scratch_blocks = 1 << 20;
  unequal.ranks[2][0].workers[0].instructions.pop_back();
  const Schedule ring = built(Collective::AllReduce, "ring", 3);
  const std::string whole = file_of(ring, "mine");
  LoadedSet set;
  ASSERT_TRUE(set.add("first.json", whole, is_ring).is_ok());
  struct Case {
    std::string text;
    const char* message;
  };
  for (const Case& c : {Case{whole.substr(0, whole.size() / 2), "line "},
                        Case{whole, "x.json and first.json are both all_reduce mine for 3 ranks"},
                        Case{file_of(ring, "ring"), "ring that is built in"},
                        Case{file_of(ring, "My Ring"), "NCCL_ALGO needs a name"},
                        Case{file_of(ring, "a,b"), "NCCL_ALGO needs a name"},
                        Case{file_of(huge, "huge"), "3145731 blocks of all ranks together"},
                        Case{file_of(wrong, "wrong"), "rank 1 channel 0 worker 0 instruction 1"},
                        Case{file_of(unequal, "unequal"), "rank 2"}}) {
    const Status status = set.add("x.json", c.text, is_ring);
    ASSERT_FALSE(status.is_ok()) << c.message;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("x.json"), HasSubstr(c.message)));
    EXPECT_EQ(set.all().size(), 1u);
  }
}

TEST(LoadedAlgorithms, ServeEveryRoot) {
  for (const Collective collective :
       {Collective::Reduce, Collective::Broadcast, Collective::Gather, Collective::Scatter})
    for (const Algorithm& algorithm : of(collective)) {
      const Schedule schedule = algorithm.build(5, {.root = 1}).take();
      for (int root = 0; root < 5; ++root) {
        const Schedule turned = with_root(schedule, root);
        EXPECT_EQ(turned.root, root);
        const Status status = check(turned);
        EXPECT_TRUE(status.is_ok()) << name_of(collective) << " " << algorithm.name << " to "
                                    << root << ": " << status.message();
      }
    }
}

TEST(LoadedAlgorithms, LeaveTheTagOfMessagesToMessages) {
  Schedule schedule = built(Collective::AllReduce, "ring", 3);
  for (schedule::Connection& connection : schedule.connections)
    connection.tag = schedule::kMessageTag;
  LoadedSet set;
  ASSERT_TRUE(set.add("x.json", file_of(schedule, "mine"), is_ring).is_ok());
  for (const auto& connection : set.all().front()->build(3, {}).take().connections)
    EXPECT_NE(connection.tag, schedule::kMessageTag);
}

TEST(LoadedAlgorithms, OfAFolderComeWithoutThoseThatAreWrong) {
  std::string folder = std::filesystem::temp_directory_path() / "algorithms.XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/good.json") << file_of(built(Collective::AllGather, "ring", 2), "good");
  std::ofstream(folder + "/torn.json") << "{\n\"format\": ";
  std::ofstream(folder + "/notes.txt") << "no schedule";
  LoadedSet set;
  set.add_folder(folder, is_ring);
  std::filesystem::remove_all(folder);
  ASSERT_EQ(set.all().size(), 1u);
  EXPECT_EQ(set.all().front()->name, "good");
  EXPECT_THAT(set.failures(), ElementsAre(AllOf(HasSubstr("torn.json"), HasSubstr("line 2"))));
  LoadedSet none;
  none.add_folder(folder, is_ring);
  EXPECT_THAT(none.failures(), ElementsAre(HasSubstr("cannot read the folder " + folder)));
}

// What does not end with FIFOs of any depth is told apart from what needs deeper ones.
TEST(LeastDepth, IsTheFewestSlots) {
  for (const Algorithm& algorithm : all()) {
    const Schedule schedule = algorithm.build(6, {}).take();
    Result<int> depth = schedule::least_depth(schedule);
    ASSERT_TRUE(depth.is_ok()) << algorithm.name << ": " << depth.status().message();
    EXPECT_TRUE(check(schedule, {.depth = *depth}).is_ok());
    if (*depth > 1) {
      EXPECT_FALSE(check(schedule, {.depth = *depth - 1}).is_ok());
    }
  }
  Schedule never = built(Collective::AllReduce, "one_shot", 2);
  for (auto& channels : never.ranks) {
    auto& instructions = channels[0].workers[0].instructions;
    std::swap(instructions.front(), instructions.back());
  }
  const Result<int> depth = schedule::least_depth(never);
  ASSERT_FALSE(depth.is_ok());
  EXPECT_THAT(depth.status().message(), HasSubstr("deadlock"));
}

}  // namespace
}  // namespace niccolite::algorithms
