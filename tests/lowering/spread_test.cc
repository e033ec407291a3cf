// Spreading changes which workers hold instructions, and nothing else.
#include "lowering/spread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lowering/routes.h"
#include "planner/form.h"
#include "schedule/builder.h"
#include "schedule/check.h"

namespace niccolite::lowering {
namespace {

using planner::Form;
using schedule::Builder;
using schedule::Collective;
using schedule::input;
using schedule::Instruction;
using schedule::output;
using schedule::Schedule;
using schedule::WorkerBuilder;
using testing::HasSubstr;

std::vector<const Form*> forms_with(Spread workers) {
  std::vector<const Form*> result;
  for (const Form& form : planner::forms())
    if (form.workers == workers) result.push_back(&form);
  return result;
}

std::vector<Instruction> instructions_of(const std::vector<schedule::Channel>& channels) {
  std::vector<Instruction> all;
  for (const schedule::Worker& worker : channels.at(0).workers)
    all.insert(all.end(), worker.instructions.begin(), worker.instructions.end());
  return all;
}

TEST(Spread, ByInstructionKeepsInstructionsAndConnectionsInTheirOrder) {
  for (const Form* form : forms_with(Spread::ByInstruction))
    for (const int nranks : {2, 3, form->max_ranks}) {
      SCOPED_TRACE(
          fmt::format("{} {} of {}", schedule::name_of(form->collective), form->name, nranks));
      const algorithms::Options options{.root = nranks / 2};
      const Schedule workers = form->build(nranks, options).take();
      const Schedule built = form->algorithm->build(nranks, options).take();
      EXPECT_EQ(workers.connections, built.connections);
      for (size_t rank = 0; rank < workers.ranks.size(); ++rank) {
        for (const schedule::Worker& worker : workers.ranks[rank].at(0).workers)
          EXPECT_EQ(worker.instructions.size(), 1u);
        EXPECT_EQ(instructions_of(workers.ranks[rank]), instructions_of(built.ranks[rank]));
      }
    }
}

/// A worker has a warp at least (executor/cuda/launch/launch_args.h).
TEST(Spread, ByInstructionGivesNoMoreWorkersThanACtaHasWarps) {
  constexpr size_t kWarps = 16;  // one of them serves the connections
  for (const Form* form : forms_with(Spread::ByInstruction)) {
    std::vector<int> machines;
    for (int machine = 0; machine < (form->counts_ranks_of_machine ? 3 : 1); ++machine)
      machines.insert(machines.end(), static_cast<size_t>(form->max_ranks), machine);
    const Schedule schedule =
        form->build(static_cast<int>(machines.size()), {.machines = machines}).take();
    for (const auto& channels : schedule.ranks) EXPECT_LT(channels[0].workers.size(), kWarps);
    machines.assign(size_t{lowering::kMostTeamRanks} + 1, 0);
    EXPECT_THAT(std::string(form->build(static_cast<int>(machines.size()), {.machines = machines})
                                .status()
                                .message()),
                HasSubstr("is for 1 to 16 ranks"));
  }
}

TEST(Spread, ByInstructionLetsReductionsWeighAsMuchAsThoseOfAllTheirOperands) {
  for (const Form* form : forms_with(Spread::ByInstruction)) {
    const Schedule schedule = form->build(5, {.weights = {7, 8, 9}}).take();
    for (const auto& channels : schedule.ranks)
      for (const schedule::Worker& worker : channels[0].workers)
        EXPECT_EQ(worker.weight, worker.instructions[0].reduce ? 4 : 1) << form->name;
  }
}

// And for all-reduces of several machines.
TEST(Spread, ByInstructionIsForEveryCollective) {
  std::set<Collective> collectives;
  for (const Form* form : forms_with(Spread::ByInstruction))
    if (!form->counts_ranks_of_machine) {
      EXPECT_TRUE(collectives.insert(form->collective).second) << form->name;
    }
  EXPECT_EQ(collectives.size(), size_t{schedule::kCollectives} - 1);  // all but messages
}

TEST(Spread, ByHalvesGivesEachWorkerHalfOfTheBlocksAndConnectionsOfItsOwn) {
  const std::vector<const Form*> halves = forms_with(Spread::ByHalves);
  EXPECT_EQ(halves.size(), 2u);
  for (const Form* form : halves)
    for (const int nranks : {2, 3, 9}) {
      SCOPED_TRACE(fmt::format("{} of {}", schedule::name_of(form->collective), nranks));
      const Schedule built = form->algorithm->build(nranks, {.root = 1}).take();
      const Schedule schedule = form->build(nranks, {.root = 1}).take();
      EXPECT_EQ(schedule.nblocks, 2 * built.nblocks);
      ASSERT_EQ(schedule.connections.size(), 2 * built.connections.size());
      for (size_t c = 0; c < schedule.connections.size(); ++c) {
        EXPECT_EQ(schedule.connections[c].sender, built.connections[c / 2].sender);
        EXPECT_EQ(schedule.connections[c].receiver, built.connections[c / 2].receiver);
        EXPECT_EQ(schedule.connections[c].tag, static_cast<int>(c % 2));
      }
      for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
        const std::vector<schedule::Worker>& workers = schedule.ranks[rank].at(0).workers;
        ASSERT_EQ(workers.size(), 2 * built.ranks[rank].at(0).workers.size());
        for (size_t w = 0; w < workers.size(); ++w)
          for (const Instruction& each : workers[w].instructions) {
            EXPECT_EQ(chunk_block(each) % 2, static_cast<int>(w % 2));
            for (const int connection : each.receive_from)
              EXPECT_EQ(connection % 2, static_cast<int>(w % 2));
            for (const int connection : each.send_to)
              EXPECT_EQ(connection % 2, static_cast<int>(w % 2));
          }
      }
    }
}

/// (proof_test.cc proves the same schedules of several machines, and lowered.)
TEST(Spread, SchedulesAreRightOfEveryRootAndNumberOfRanks) {
  for (const Spread workers : {Spread::ByInstruction, Spread::ByHalves})
    for (const Form* form : forms_with(workers))
      for (int nranks = 1; nranks <= 8; ++nranks)
        for (int root = 0; root < (schedule::has_root(form->collective) ? nranks : 1); ++root) {
          if (!form->is_for(nranks, {})) continue;
          const Schedule schedule = form->build(nranks, {.root = root}).take();
          EXPECT_EQ(check(schedule, {.depth = 1}).message(), "")
              << schedule::name_of(form->collective) << " " << form->name << " of " << nranks
              << ", root " << root;
        }
}

TEST(Spread, OfOneRanksPartIsThatPartOfTheWhole) {
  for (const Spread workers : {Spread::ByInstruction, Spread::ByHalves})
    for (const Form* form : forms_with(workers)) {
      const Schedule whole = form->build(4, {.root = 1}).take();
      for (int rank = 0; rank < 4; ++rank) {
        const Schedule part = form->build(4, {.only_rank = rank, .root = 1}).take();
        const auto& of_whole = whole.ranks[static_cast<size_t>(rank)].at(0).workers;
        const auto& of_part = part.ranks[static_cast<size_t>(rank)].at(0).workers;
        ASSERT_EQ(of_part.size(), of_whole.size()) << form->name;
        for (size_t w = 0; w < of_part.size(); ++w) {
          EXPECT_EQ(of_part[w].weight, of_whole[w].weight);
          EXPECT_EQ(of_part[w].instructions[0].source, of_whole[w].instructions[0].source);
          EXPECT_EQ(of_part[w].instructions[0].target, of_whole[w].instructions[0].target);
        }
      }
    }
}

/// A rank that sends two blocks over one connection, which the receiver takes in that order.
Schedule two_chunks_on_a_connection() {
  Builder builder(
      {.collective = Collective::Broadcast, .algorithm = "sketch", .nranks = 2, .nblocks = 2});
  WorkerBuilder sender = builder.add_worker(0), receiver = builder.add_worker(1);
  for (const int block : {0, 1}) {
    sender.add({.source = input(block), .target = output(block), .send_to = sender.to(1)});
    receiver.add({.receive_from = receiver.from(0), .target = output(block)});
  }
  return std::move(builder).take();
}

TEST(Spread, RefusesSchedulesThatItWouldChange) {
  EXPECT_TRUE(check(two_chunks_on_a_connection()).is_ok());
  EXPECT_EQ(spread(two_chunks_on_a_connection(), Spread::ByInstruction).status().message(),
            "broadcast sketch: two instructions use one connection, so that they cannot have a "
            "worker each");
  const std::string refused =
      ": only schedules that cut one buffer, and whose connections have tag 0, can be done by "
      "halves";
  const auto halves_of = [](Collective collective, const char* algorithm) {
    const auto built = algorithms::find(collective, algorithm)->build(3, {});
    return std::string(spread(built.value(), Spread::ByHalves).status().message());
  };
  EXPECT_EQ(halves_of(Collective::AllGather, "ring"), "all_gather ring" + refused);
  EXPECT_EQ(halves_of(Collective::AllReduce, "two_shot"), "all_reduce two_shot" + refused);
  EXPECT_EQ(halves_of(Collective::AllReduce, "ring"), "");
}

}  // namespace
}  // namespace niccolite::lowering
