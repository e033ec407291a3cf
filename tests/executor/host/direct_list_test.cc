// Lists over buffers that all ranks reach (Launch::list_access) on virtual GPUs: that every
// operation is right, wherever its buffers begin and whoever sees them, in any order of the ranks'
// steps; that only what some rank does not see goes through slots; that calls that do not match are
// told apart; and that who is aborted keeps its buffers until others are done with them.
#include <gtest/gtest.h>

#include <algorithm>

#include "executor/report.h"
#include "tests/executor/host/lists.h"

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Progress;

bool run(Lists& lists, const std::vector<Launch>& launches, uint32_t seed) {
  return Cluster::run(lists.connections().tasks(launches), seed);
}

TEST(DirectList, CarriesOutAllItsOperations) {
  ASSERT_NO_FATAL_FAILURE(expect_all_operations(run, kFewTiles));
}

TEST(DirectList, ReducesEveryType) { ASSERT_NO_FATAL_FAILURE(expect_every_type(run, kFewTiles)); }

TEST(DirectList, TakesAsManyOperationsAsItSays) {
  ASSERT_NO_FATAL_FAILURE(expect_as_many_operations(run));
}

// One list after the other on the same connections, so that late ranks are still in the first.
TEST(DirectList, AreRunByThreads) {
  for (const ListCase& c : kListCases) {
    Lists lists(c, 3);
    for (uint32_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(testing::Message() << name_of(c.collective) << ", seed " << seed);
      const Sight sight = static_cast<Sight>(seed % 3);
      const auto launches =
          lists.draw(type_of(c), {}, 1 + seed % 7, 1 + seed % 7 / 3, sight, seed, kFewTiles);
      Cluster::run_threaded(lists.connections().tasks(launches), 3);
      ASSERT_NO_FATAL_FAILURE(lists.check());
    }
  }
}

// In pieces: more bytes than a task moves in one step.
TEST(DirectList, GoesOnWhereItStopped) {
  Lists lists(kListCases[0], 4);
  const auto launches = lists.draw(DataType::Float32, {}, 8, 2, Sight::Open, 5, 512 << 10);
  auto tasks = lists.connections().tasks(launches);
  ASSERT_TRUE(Cluster::run(std::move(tasks), 1));
  ASSERT_NO_FATAL_FAILURE(lists.check());
}

TEST(DirectList, RefusesWhatItCannotCarryOut) {
  expect_refusals([](const Launch& launch) { return make_kernel(launch).status().copy(); });
  Lists two(kListCases[0], 2);
  auto in_slots = two.draw(DataType::Int8, {}, 2, 1, Sight::Open, 1, 9);
  in_slots[0].list_access.reset();
  EXPECT_NE(make_kernel(in_slots[0]).status().message(), "");
}

// Rank 1 has called something else: the others neither read nor store what is not theirs.
TEST(DirectList, IsToldApartFromAnotherCall) {
  Lists lists(kListCases[0], 3);
  auto launches = lists.draw(DataType::Int8, {}, 2, 1, Sight::Open, 3, 100);
  for (Work& work : launches[1].works) work.tag ^= 0x1000;
  auto tasks = lists.connections().tasks(launches);
  for (int steps = 0; steps < 20; ++steps)
    for (auto& task : tasks) ASSERT_NE(task->step(), Progress::Done);
  EXPECT_EQ(decode_report(lists.connections().control.report).kind, ReportKind::Mismatch);
  lists.connections().control.abort = static_cast<uint32_t>(Command::End);
  ASSERT_TRUE(Cluster::run(std::move(tasks), 1));
}

// Rank 1 is not there: the others take back what it could use, and end.
TEST(DirectList, EndsWhenAborted) {
  for (const ListCase& c : kListCases) {
    Lists lists(c, 3);
    auto tasks = lists.connections().tasks(lists.draw(DataType::Int8, {}, 6, 2, Sight::Open, 3, 9));
    tasks.erase(tasks.begin() + 1);
    for (int steps = 0; steps < 8; ++steps)
      for (auto& task : tasks) ASSERT_NE(task->step(), Progress::Done);
    lists.connections().control.abort = static_cast<uint32_t>(Command::End);
    EXPECT_TRUE(Cluster::run(std::move(tasks), 1)) << name_of(c.collective);
    int stand = 0;
    for (const auto& connection : lists.connections().connections())
      for (uint32_t channel = 0; channel < 2; ++channel)
        stand += connection->receiver(channel).advertisement != 0 ? 1 : 0;
    EXPECT_EQ(stand, 0) << "advertisements stand";
  }
}

// Whoever has taken an advertisement is waited for: rank 0 does not end before rank 1, which is
// late, says that it touches its buffers no more.
TEST(DirectList, WaitsForWhoeverUsesItsBuffers) {
  Lists lists(kListCases[0], 2);
  auto launches = lists.draw(DataType::Float32, {}, 16, 1, Sight::Open, 6, 2 << 20);
  ControlWords control_of_late{};
  launches[1].control = &control_of_late;
  auto tasks = lists.connections().tasks(launches);
  // Both have taken the other's, and neither has moved all.
  for (int steps = 0; steps < 2; ++steps)
    for (auto& task : tasks) ASSERT_NE(task->step(), Progress::Done);
  lists.connections().control.abort = static_cast<uint32_t>(Command::End);
  EXPECT_EQ(tasks[0]->step(), Progress::WouldBlock) << "its buffers are in use";
  control_of_late.abort = static_cast<uint32_t>(Command::Leave);
  EXPECT_EQ(tasks[1]->step(), Progress::WouldBlock) << "it has not been told to end";
  EXPECT_EQ(tasks[0]->step(), Progress::Done);
  control_of_late.abort = static_cast<uint32_t>(Command::End);
  EXPECT_EQ(tasks[1]->step(), Progress::Done);
}

// Whenever the abort comes: all end.
TEST(DirectList, EndsWheneverItIsAborted) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    Lists lists(kListCases[seed % std::size(kListCases)], 3);
    const Sight sight = seed % 2 == 0 ? Sight::Open : Sight::Sometimes;
    auto tasks = lists.connections().tasks(
        lists.draw(DataType::Int8, {}, 6, 2, sight, seed, seed % 12 == 0 ? 1 << 20 : 900));
    std::mt19937 random(seed);
    for (uint32_t steps = 0; steps < seed / 3 && !tasks.empty(); ++steps) {
      const size_t i = random() % tasks.size();
      if (tasks[i]->step() == Progress::Done)
        tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(i));
    }
    lists.connections().control.abort = static_cast<uint32_t>(Command::End);
    EXPECT_TRUE(Cluster::run(std::move(tasks), seed));
  }
}

}  // namespace
}  // namespace niccolite::executor::host
