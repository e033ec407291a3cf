// Which ranks of which algorithms go through phases, that these are right, and that broken ones are
// refused.
#include "lowering/phases.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/form.h"
#include "schedule/builder.h"

namespace niccolite::lowering {
namespace {

using planner::Form;
using schedule::Collective;
using schedule::Schedule;
using testing::HasSubstr;
using ByRank = std::vector<std::optional<Phases>>;

ByRank phases_of_all(const Schedule& schedule) {
  ByRank all;
  for (const std::vector<schedule::Channel>& channels : schedule.ranks)
    all.push_back(channels.size() == 1 ? phases_of(channels.front().workers) : std::nullopt);
  return all;
}

/// "send 3, copy, reduce 3 > 3, store 3": how many of each.
std::string text_of(const std::optional<Phases>& phases) {
  if (!phases) return "none";
  std::vector<std::string> parts;
  if (!phases->sends.empty())
    parts.push_back(
        fmt::format("send {}{}", phases->sends.size(), sends_one_block(*phases) ? "" : " blocks"));
  if (phases->copy) parts.emplace_back("copy");
  if (phases->reduce)
    parts.push_back(fmt::format("reduce {} > {}", phases->reduce->receives.size(),
                                phases->reduce->sends.size() + phases->reduce->target.has_value()));
  if (!phases->stores.empty()) parts.push_back(fmt::format("store {}", phases->stores.size()));
  return fmt::format("{}", fmt::join(parts, ", "));
}

struct Row {
  Collective collective;
  const char* algorithm;
  const char* root;   // of four ranks, the root is rank 0
  const char* other;  // rank 1
};
// clang-format off: a table
const Row kRows[] = {
    {Collective::AllReduce, "one_shot", "send 3, reduce 3 > 1", "send 3, reduce 3 > 1"},
    {Collective::AllReduce, "two_shot", "send 3 blocks, reduce 3 > 4, store 3",
     "send 3 blocks, reduce 3 > 4, store 3"},
    {Collective::AllReduce, "two_shot_workers", "send 3 blocks, reduce 3 > 4, store 3",
     "send 3 blocks, reduce 3 > 4, store 3"},
    {Collective::AllReduce, "hierarchical", "send 3 blocks, reduce 3 > 4, store 3",
     "send 3 blocks, reduce 3 > 4, store 3"},
    {Collective::AllReduce, "ring", "none", "none"},
    {Collective::AllReduce, "recursive_doubling", "none", "none"},
    {Collective::Reduce, "direct", "reduce 3 > 1", "send 1"},
    {Collective::Reduce, "two_shot", "send 3 blocks, store 3", "send 2 blocks, reduce 3 > 1"},
    {Collective::Broadcast, "direct", "send 3, copy", "store 1"},
    {Collective::Broadcast, "scatter_gather", "none", "none"},
    {Collective::AllGather, "direct", "send 3, copy, store 3", "send 3, copy, store 3"},
    {Collective::ReduceScatter, "direct", "send 3 blocks, reduce 3 > 1",
     "send 3 blocks, reduce 3 > 1"},
    {Collective::AllToAll, "direct", "send 3 blocks, copy, store 3",
     "send 3 blocks, copy, store 3"},
    {Collective::Gather, "direct", "copy, store 3", "send 1"},
    {Collective::Scatter, "direct", "send 3 blocks, copy", "store 1"},
};
// clang-format on

TEST(Phases, AreFoundByTheFormOfARanksWorkers) {
  for (const auto& [collective, algorithm, root, other] : kRows) {
    const ByRank phases =
        phases_of_all(planner::find_form(collective, algorithm)->build(4, {}).take());
    EXPECT_EQ(text_of(phases[0]), root) << schedule::name_of(collective) << " " << algorithm;
    EXPECT_EQ(text_of(phases[1]), other) << schedule::name_of(collective) << " " << algorithm;
  }
}

TEST(Phases, AreNoneOfWorkersThatSendWhatTheyReceiveOrSendBehindIt) {
  for (const bool sends_behind : {false, true}) {
    schedule::Builder builder(
        {.collective = Collective::AllToAll, .algorithm = "sketch", .nranks = 2, .nblocks = 2});
    schedule::WorkerBuilder worker = builder.add_worker(0);
    const schedule::Instruction send{.source = schedule::input(1), .send_to = worker.to(1)};
    const schedule::Instruction store{.receive_from = worker.from(1),
                                      .target = schedule::output(1)};
    worker.add(sends_behind ? store : send);
    worker.add(sends_behind ? send : store);
    EXPECT_EQ(phases_of_all(std::move(builder).take())[0].has_value(), !sends_behind);
  }
}

// ---- that they are right

struct Kernel {
  const char* name;
  Pace pace;
};
const Kernel kKernels[] = {
    {"one_round_after_the_other", Pace::round_by_round()},
    {"staggered", Pace::staggered()},
    {"sends_ahead", Pace::sends_ahead(4)},
};

std::vector<const Form*> algorithms_with_phases() {
  std::vector<const Form*> result;
  for (const Form& algorithm : planner::forms()) {
    const ByRank phases = phases_of_all(algorithm.build(4, {}).take());
    if (std::ranges::any_of(phases, [](const auto& of) { return of.has_value(); }))
      result.push_back(&algorithm);
  }
  return result;
}
std::string name_of(const Form& algorithm) {
  return fmt::format("{}_{}", schedule::name_of(algorithm.collective), algorithm.name);
}

class EveryAlgorithmInPhases : public testing::TestWithParam<const Form*> {};

// All ranks, or some of them, where the others run their workers.
TEST_P(EveryAlgorithmInPhases, ComesToItsResult) {
  for (int nranks = std::max(1, GetParam()->min_ranks); nranks <= 8; ++nranks) {
    if (!GetParam()->is_for(nranks, {})) continue;
    for (const int root : {0, nranks - 1}) {
      const Schedule schedule = GetParam()->build(nranks, {.root = root}).take();
      if (schedule.ranks.front().size() != 1) continue;
      const ByRank all = phases_of_all(schedule);
      for (const uint32_t ranks : {~0u, 1u, 0x55u, 0xfeu}) {
        ByRank some = all;
        for (int rank = 0; rank < nranks; ++rank)
          if ((ranks >> rank & 1) == 0) some[static_cast<size_t>(rank)].reset();
        for (const Kernel& kernel : kKernels) {
          const int depth = kernel.pace.least_depth(schedule::reduces(schedule.collective));
          const Status status = check_phases(schedule, some, {.pace = kernel.pace, .depth = depth});
          EXPECT_TRUE(status.is_ok()) << kernel.name << ", " << nranks << " ranks, root " << root
                                      << ", ranks " << ranks << ": " << status.message();
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryAlgorithmInPhases,
                         testing::ValuesIn(algorithms_with_phases()),
                         [](const auto& test) { return name_of(*test.param); });

TEST(Paces, NeedTheSlotsThatTheySayTheyNeed) {
  const Schedule schedule =
      planner::find_form(Collective::AllReduce, "two_shot")->build(3, {}).take();
  const ByRank phases = phases_of_all(schedule);
  for (const Pace& pace : {Pace::round_by_round(), Pace::staggered(), Pace::sends_ahead(2)}) {
    const int least = pace.least_depth(/*reduces=*/true);
    EXPECT_TRUE(check_phases(schedule, phases, {.pace = pace, .depth = least}).is_ok());
    if (least == 1) continue;
    const Status status = check_phases(schedule, phases, {.pace = pace, .depth = least - 1});
    ASSERT_FALSE(status.is_ok());
    EXPECT_THAT(status.message(), HasSubstr("deadlock: rank 0 waits for credit"));
    // One round has nothing to be ahead of.
    EXPECT_TRUE(
        check_phases(schedule, phases, {.pace = pace, .depth = least - 1, .rounds = 1}).is_ok());
  }
}

// ---- that broken ones are refused

struct Mutation {
  const char* name;
  /// Breaks the phases of a rank; false: they have no place for it.
  bool (*apply)(const Schedule& schedule, Phases& phases);
};

/// The first of the transfers that has another block than the first one.
template <typename Transfers>
auto another_block(Transfers& transfers) {
  return std::ranges::find_if(transfers, [&](const Transfer& transfer) {
    return transfer.block != transfers.front().block;
  });
}
bool swap_blocks(std::vector<Transfer>& transfers) {
  const auto other = another_block(transfers);
  if (other == transfers.end()) return false;
  std::swap(transfers.front().block, other->block);
  return true;
}
bool next_block(int& block, int blocks) {
  if (blocks < 2) return false;
  block = (block + 1) % blocks;
  return true;
}
int inputs(const Schedule& schedule) { return schedule::input_blocks(schedule, schedule.root); }
int outputs(const Schedule& schedule) { return schedule::output_blocks(schedule, schedule.root); }

const Mutation kMutations[] = {
    {"a_block_that_is_not_sent",
     [](const Schedule&, Phases& phases) {
       if (phases.sends.empty()) return false;
       phases.sends.pop_back();
       return true;
     }},
    {"a_block_that_is_sent_twice",
     [](const Schedule&, Phases& phases) {
       if (phases.sends.empty()) return false;
       phases.sends.push_back(phases.sends.back());
       return true;
     }},
    {"blocks_that_go_to_each_others_peers",
     [](const Schedule&, Phases& phases) { return swap_blocks(phases.sends); }},
    {"another_block_that_is_sent",
     [](const Schedule& schedule, Phases& phases) {
       return !phases.sends.empty() && next_block(phases.sends.back().block, inputs(schedule));
     }},
    {"a_copy_that_is_not_made",
     [](const Schedule&, Phases& phases) {
       // In place it is not one; out of place it is missed.
       return std::exchange(phases.copy, std::nullopt).has_value();
     }},
    {"a_copy_to_another_block",
     [](const Schedule& schedule, Phases& phases) {
       return phases.copy && next_block(phases.copy->to, outputs(schedule));
     }},
    {"operands_in_another_order",
     [](const Schedule& schedule, Phases& phases) {
       if (!phases.reduce || phases.reduce->receives.size() < 2) return false;
       if (schedule.partial_sums) return false;  // any order is right
       std::swap(phases.reduce->receives[0], phases.reduce->receives[1]);
       return true;
     }},
    {"an_own_operand_at_another_place",
     [](const Schedule& schedule, Phases& phases) {
       if (!phases.reduce || schedule.partial_sums) return false;
       int& place = phases.reduce->source_position;
       place = place == 0 ? 1 : place - 1;
       return true;
     }},
    {"an_operand_that_is_not_awaited",
     [](const Schedule&, Phases& phases) {
       if (!phases.reduce || phases.reduce->source_position != 0) return false;
       phases.reduce->receives.pop_back();
       return true;
     }},
    {"another_own_operand",
     [](const Schedule& schedule, Phases& phases) {
       return phases.reduce && next_block(phases.reduce->source, inputs(schedule));
     }},
    {"a_result_that_is_not_stored",
     [](const Schedule&, Phases& phases) {
       return phases.reduce && std::exchange(phases.reduce->target, std::nullopt).has_value();
     }},
    {"a_result_in_another_block",
     [](const Schedule& schedule, Phases& phases) {
       return phases.reduce && phases.reduce->target &&
              next_block(*phases.reduce->target, outputs(schedule));
     }},
    {"a_result_that_is_not_scaled",
     [](const Schedule&, Phases& phases) {
       return phases.reduce && std::exchange(phases.reduce->finishes, false);
     }},
    {"a_result_that_is_not_sent_to_all",
     [](const Schedule&, Phases& phases) {
       if (!phases.reduce || phases.reduce->sends.empty()) return false;
       phases.reduce->sends.pop_back();
       return true;
     }},
    {"blocks_that_are_stored_in_each_others_places",
     [](const Schedule&, Phases& phases) { return swap_blocks(phases.stores); }},
    {"a_block_that_is_not_stored",
     [](const Schedule&, Phases& phases) {
       if (phases.stores.empty()) return false;
       phases.stores.pop_back();
       return true;
     }},
    {"a_block_that_is_stored_in_anothers_place",
     [](const Schedule& schedule, Phases& phases) {
       return !phases.stores.empty() && next_block(phases.stores.back().block, outputs(schedule));
     }},
};

TEST(BrokenPhases, AreRefused) {
  for (const Mutation& mutation : kMutations) {
    int broken = 0;
    for (const Form* algorithm : algorithms_with_phases())
      for (const int nranks : {2, 3, 4}) {
        const Schedule schedule = algorithm->build(nranks, {.root = 1}).take();
        if (schedule.ranks.front().size() != 1) continue;
        for (int rank = 0; rank < nranks; ++rank) {
          ByRank phases = phases_of_all(schedule);
          std::optional<Phases>& of_rank = phases[static_cast<size_t>(rank)];
          if (!of_rank || !mutation.apply(schedule, *of_rank)) continue;
          ++broken;
          const Status status = check_phases(schedule, phases);
          ASSERT_FALSE(status.is_ok()) << mutation.name << " of rank " << rank << " of " << nranks
                                       << " is accepted: " << name_of(*algorithm);
          EXPECT_EQ(status.code(), Code::InvalidUsage) << status.message();
        }
      }
    EXPECT_GT(broken, 0) << mutation.name;
  }
}

}  // namespace
}  // namespace niccolite::lowering
