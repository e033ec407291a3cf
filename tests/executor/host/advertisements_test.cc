// Data that are put in the receiver's output, and inputs that are exposed to a reduction
// (protocol/advertisement.h): all that is right is right with them (collectives_test.cc has the
// matrix); here is what they alone must keep.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "executor/protocol/advertisement.h"
#include "executor/report.h"
#include "planner/form.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Progress;
using schedule::Collective;

constexpr FifoShape kShape{.channels = 2, .depth = 2, .slot_bytes = 512};
constexpr uint64_t kCount = 1503;  // of several rounds

struct Case {
  Collective collective;
  const char* algorithm;
};
// Whatever their connections carry may be put, or be exposed.
constexpr Case kCases[] = {{Collective::AllGather, "direct_workers"},
                           {Collective::AllToAll, "direct_workers"},
                           {Collective::Broadcast, "direct"},
                           {Collective::Gather, "direct_workers"},
                           {Collective::Scatter, "direct_workers"},
                           {Collective::Reduce, "direct"},
                           {Collective::ReduceScatter, "direct_workers"},
                           {Collective::AllReduce, "two_shot_workers"},
                           {Collective::Reduce, "two_shot_workers"},
                           {Collective::Broadcast, "scatter_gather_workers"},
                           // What is put is passed on from where it has been put.
                           {Collective::Broadcast, "ring"},
                           {Collective::Broadcast, "ring_halves"}};

Cluster cluster_of(const Case& c, int nranks) {
  return Cluster(planner::find_form(c.collective, c.algorithm)->build(nranks, {}).take(),
                 Protocol::Simple, kShape);
}

bool used_slots(Cluster& cluster) {
  return std::ranges::any_of(cluster.connections(), [](const auto& connection) {
    const std::byte* slots = connection->slots.data();
    return std::any_of(slots, slots + kShape.slots_bytes(),
                       [](std::byte value) { return value != std::byte{0}; });
  });
}

// Every rank's answer is its own, and another one each time.
TEST(Advertisements, TakeNoSlotsWhereBuffersAreOpen) {
  for (const Case& c : kCases) {
    for (const int nranks : {3, 4}) {
      SCOPED_TRACE(testing::Message() << schedule::name_of(c.collective) << " " << c.algorithm);
      Cluster cluster = cluster_of(c, nranks);
      for (const uint32_t open : {~0u, 0u, ~0u, 0b0101u, 0b0010u, ~0u}) {
        for (const bool is_in_place : {false, true}) {
          for (const auto& connection : cluster.connections())
            std::fill_n(connection->slots.data(), kShape.slots_bytes(), std::byte{0});
          cluster.open_ranks = open;
          const Operands operands(cluster.schedule(), DataType::Int32, {kCount},
                                  {.is_in_place = is_in_place});
          auto tasks = cluster.tasks(
              cluster.launches({.count = kCount, .type = DataType::Int32}, operands.addresses()));
          ASSERT_TRUE(Cluster::run(std::move(tasks), open + 7)) << "all ranks wait for each other";
          ASSERT_NO_FATAL_FAILURE(operands.check());
          EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
          if (open == ~0u || open == 0) {
            EXPECT_EQ(used_slots(cluster), open == 0);
          }
        }
      }
    }
  }
}

// One thread may drive a rank to the end of its program, and then the next.
TEST(Advertisements, LetASenderEndBeforeItsPeersBeginWhereSlotsHoldItsData) {
  struct Sender {
    Case of;
    size_t rank;
  };
  for (const Sender& sender :
       {Sender{{Collective::Broadcast, "direct"}, 0}, Sender{{Collective::Broadcast, "ring"}, 0},
        Sender{{Collective::Scatter, "direct_workers"}, 0},
        Sender{{Collective::Gather, "direct_workers"}, 2},
        Sender{{Collective::Reduce, "direct"}, 1}}) {
    SCOPED_TRACE(testing::Message() << schedule::name_of(sender.of.collective));
    for (const uint64_t count : {uint64_t{200}, kCount}) {
      Cluster cluster = cluster_of(sender.of, 3);
      cluster.fills_slots_first = true;
      const Operands operands(cluster.schedule(), DataType::Int32, {count}, {});
      auto tasks = cluster.tasks(
          cluster.launches({.count = count, .type = DataType::Int32}, operands.addresses()));
      Progress progress = Progress::Advanced;
      while (progress == Progress::Advanced) progress = tasks[sender.rank]->step();
      EXPECT_EQ(progress == Progress::Done, count < kCount) << "count " << count;
      if (progress == Progress::Done)
        tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(sender.rank));
      ASSERT_TRUE(Cluster::run(std::move(tasks), 11)) << "all ranks wait for each other";
      ASSERT_NO_FATAL_FAILURE(operands.check());
      EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
      EXPECT_EQ(used_slots(cluster), count < kCount);
    }
  }
}

// What is reduced is asked for, and comes through slots.
TEST(Advertisements, LetReductionsPullWhatTheyReduce) {
  for (const Case& c : kCases) {
    if (!schedule::reduces(c.collective)) continue;
    for (const int nranks : {2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << schedule::name_of(c.collective) << " " << c.algorithm);
      Cluster cluster = cluster_of(c, nranks);
      uint32_t turn = 0;
      for (const uint64_t count : {uint64_t{1}, uint64_t{300}, kCount, 9 * kCount}) {
        for (const uint32_t open : {~0u, 0b0010u}) {
          ++turn;
          cluster.open_ranks = open;
          cluster.pull_bytes = turn % 4 == 0 ? 0 : 512;  // an operation after the other
          const Operands operands(cluster.schedule(), DataType::Int32, {count},
                                  {.is_in_place = turn % 2 == 0, .is_misaligned = turn % 3 == 0});
          auto tasks = cluster.tasks(
              cluster.launches({.count = count, .type = DataType::Int32}, operands.addresses()));
          if (turn % 2 == 0) {
            Cluster::run_threaded(std::move(tasks), 2);
          } else {
            ASSERT_TRUE(Cluster::run(std::move(tasks), turn)) << "all ranks wait for each other";
          }
          ASSERT_NO_FATAL_FAILURE(operands.check());
          EXPECT_TRUE(cluster.guards_intact());
          EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
        }
      }
      EXPECT_TRUE(used_slots(cluster));
      for (const auto& connection : cluster.connections())
        for (uint32_t channel = 0; channel < kShape.channels; ++channel) {
          EXPECT_EQ(connection->receiver(channel).delivered, 0u) << "outlives the operation";
          for (const uint32_t pull : connection->sender(channel).pulls)
            EXPECT_EQ(pull, 0u) << "outlives the operation";
        }
    }
  }
}

TEST(Advertisements, PullThroughSlotsWhatTheyWouldRead) {
  // All is open, and only pulls go through slots.
  Cluster cluster = cluster_of({Collective::Reduce, "direct"}, 3);
  cluster.pull_bytes = 512;
  const Operands operands(cluster.schedule(), DataType::Int32, {kCount}, {});
  ASSERT_TRUE(Cluster::run(cluster.tasks(cluster.launches(
                               {.count = kCount, .type = DataType::Int32}, operands.addresses())),
                           5));
  ASSERT_NO_FATAL_FAILURE(operands.check());
  EXPECT_TRUE(used_slots(cluster));
}

TEST(Advertisements, AreNotMadeOfInputsThatAreScaled) {
  Cluster cluster = cluster_of({Collective::Reduce, "direct"}, 3);
  const Reduction scaled{.op = ReduceOp::Sum, .input_scale = 0.5, .input_factor = 3};
  const Operands operands(cluster.schedule(), DataType::Int32, {kCount}, {.reduction = scaled});
  ASSERT_TRUE(Cluster::run(
      cluster.tasks(cluster.launches(
          {.count = kCount, .type = DataType::Int32, .reduction = scaled}, operands.addresses())),
      3));
  ASSERT_NO_FATAL_FAILURE(operands.check());
  EXPECT_TRUE(used_slots(cluster));
}

// Two ranks: the first sends, or gets, one block of the other.
class AdvertisementsOfTwo : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 4096;
  AdvertisementsOfTwo() : cluster_(cluster_of({Collective::Broadcast, "direct"}, 2)) {
    for (size_t i = 0; i < kBytes; ++i) input_[i] = static_cast<std::byte>(i * 7 + 1);
    launches_ = cluster_.launches(
        {.count = kBytes, .type = DataType::Uint8},
        {.inputs = {input_.data(), nullptr}, .outputs = {own_.data(), output_.data()}});
  }
  static Progress step_all(Cluster::Tasks& tasks, size_t rank) {
    Progress progress = tasks[rank]->step();
    while (progress == Progress::Advanced) progress = tasks[rank]->step();
    return progress;
  }

  std::vector<std::byte> input_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> own_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> output_ = std::vector<std::byte>(kBytes);
  Cluster cluster_;
  std::vector<Launch> launches_;
};

// A window: the sender sees the output elsewhere.
TEST_F(AdvertisementsOfTwo, NameTheAddressesThatThePeerSees) {
  std::vector<std::byte> seen(kBytes);
  uint64_t shifts[2] = {
      reinterpret_cast<uint64_t>(seen.data()) - reinterpret_cast<uint64_t>(output_.data()),
      advertisement::kUnseen};
  launches_[1].works[0].buffers.output_shifts = shifts;
  ASSERT_TRUE(Cluster::run(cluster_.tasks(launches_), 1));
  EXPECT_EQ(seen, input_);
  EXPECT_EQ(output_, std::vector<std::byte>(kBytes));
  EXPECT_FALSE(used_slots(cluster_));
  // The window has ended.
  shifts[0] = advertisement::kUnseen;
  ASSERT_TRUE(Cluster::run(cluster_.tasks(launches_), 2));
  EXPECT_EQ(output_, input_);
  EXPECT_TRUE(used_slots(cluster_));
}

// Channels share tiles. Channel 1 of the sender has not heard where the output is: channel 0 moves
// all but the first of its tiles, which is kept for it.
TEST_F(AdvertisementsOfTwo, LetWhicheverChannelIsFreeTakeTiles) {
  const Partition& partition = launches_[0].works[0].partition;
  ASSERT_EQ(partition.channels, 2u);
  ASSERT_GT(partition.rounds, 2u);
  auto tasks = cluster_.tasks(launches_);
  EXPECT_EQ(step_all(tasks, 1), Progress::WouldBlock);
  uint64_t& advertisement = cluster_.connections()[0]->sender(1).advertisement;
  const uint64_t made = std::exchange(advertisement, advertisement::kNone);
  EXPECT_NE(made, advertisement::kNone);
  EXPECT_EQ(step_all(tasks, 0), Progress::WouldBlock);
  const auto has_tile = [&](uint32_t channel, uint32_t round) {
    const Range range = partition.range(0, channel, round);
    return std::equal(output_.begin() + static_cast<ptrdiff_t>(range.offset),
                      output_.begin() + static_cast<ptrdiff_t>(range.offset + range.count),
                      input_.begin() + static_cast<ptrdiff_t>(range.offset));
  };
  for (uint32_t round = 0; round < partition.rounds; ++round) {
    EXPECT_TRUE(has_tile(0, round)) << round;
    EXPECT_EQ(has_tile(1, round), round > 0) << round;
  }
  advertisement = made;
  ASSERT_TRUE(Cluster::run(std::move(tasks), 1));
  EXPECT_EQ(output_, input_);
  EXPECT_TRUE(cluster_.counters_consistent(/*has_advertisements=*/true));
}

TEST_F(AdvertisementsOfTwo, OfAnotherCallAreNotTaken) {
  launches_[1].works[0].tag = static_cast<uint16_t>(launches_[0].works[0].tag + 1);
  auto tasks = cluster_.tasks(launches_);
  EXPECT_EQ(step_all(tasks, 1), Progress::WouldBlock);
  EXPECT_EQ(step_all(tasks, 0), Progress::WouldBlock);
  EXPECT_EQ(output_, std::vector<std::byte>(kBytes));
  const Report report = decode_report(cluster_.control.report);
  EXPECT_EQ(report.kind, ReportKind::Mismatch);
  EXPECT_EQ(report.peer_tag, launches_[1].works[0].tag);
}

TEST_F(AdvertisementsOfTwo, AreTakenBackWhenTheOperationEnds) {
  auto tasks = cluster_.tasks(launches_);
  EXPECT_EQ(step_all(tasks, 1), Progress::WouldBlock);
  cluster_.control.abort = static_cast<uint32_t>(Command::End);
  EXPECT_EQ(tasks[1]->step(), Progress::Done);
  // Nobody finds it.
  cluster_.control.abort = static_cast<uint32_t>(Command::GoOn);
  EXPECT_EQ(step_all(tasks, 0), Progress::WouldBlock);
  EXPECT_EQ(output_, std::vector<std::byte>(kBytes));
}

TEST_F(AdvertisementsOfTwo, ThatAreTakenKeepTheirRankUntilThePeerHasLeft) {
  // The sender is in the middle: a part of its data is moved in one step.
  constexpr uint64_t kMany = 24 << 20;
  std::vector<std::byte> input(kMany, std::byte{5});
  std::vector<std::byte> output(kMany);
  launches_ = cluster_.launches(
      {.count = kMany, .type = DataType::Uint8},
      {.inputs = {input.data(), nullptr}, .outputs = {input.data(), output.data()}});
  ControlWords receivers{};
  launches_[1].control = &receivers;
  auto tasks = cluster_.tasks(launches_);
  EXPECT_EQ(step_all(tasks, 1), Progress::WouldBlock);
  EXPECT_EQ(tasks[0]->step(), Progress::Advanced);
  receivers.abort = static_cast<uint32_t>(Command::End);
  EXPECT_EQ(tasks[1]->step(), Progress::WouldBlock);
  EXPECT_EQ(tasks[0]->step(), Progress::Advanced);
  EXPECT_EQ(tasks[1]->step(), Progress::WouldBlock);
  cluster_.control.abort = static_cast<uint32_t>(Command::Leave);
  EXPECT_EQ(tasks[0]->step(), Progress::WouldBlock);
  EXPECT_EQ(tasks[1]->step(), Progress::Done);
  EXPECT_EQ(output.back(), std::byte{0});
}

}  // namespace
}  // namespace niccolite::executor::host
