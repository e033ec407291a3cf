// What the form of a schedule says about its connections.
#include "lowering/routes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "algorithms/point_to_point.h"
#include "planner/form.h"
#include "schedule/builder.h"

namespace niccolite::lowering {
namespace {

using schedule::Builder;
using schedule::Collective;
using schedule::Connections;
using schedule::input;
using schedule::output;
using schedule::Schedule;
using schedule::scratch;
using schedule::WorkerBuilder;

/// "0 get, 1 put final": the tags that do not have slots.
std::string text_of(const Routes& routes) {
  std::string text;
  for (const auto& [tag, route] : routes.of_tags()) {
    if (route.way == Way::Slot) continue;
    text += fmt::format("{}{} {}{}{}", text.empty() ? "" : ", ", tag, name_of(route.way),
                        route.is_final ? " final" : "", route.allows_windows ? " windows" : "");
  }
  return text;
}

struct Row {
  Collective collective;
  const char* algorithm;
  std::string two, three, four, eight;  // ranks
};
// clang-format off: a table
const Row kRows[] = {
    {Collective::AllReduce, "ring", "", "", "", ""},
    {Collective::AllReduce, "one_shot", "", "", "", ""},
    {Collective::AllReduce, "two_shot", "0 get, 1 put final", "", "", ""},
    {Collective::AllReduce, "two_shot_workers", "0 get, 1 put final", "0 get, 1 put final",
     "0 get, 1 put final", "0 get, 1 put final"},
    {Collective::Reduce, "ring", "", "", "", ""},
    {Collective::Reduce, "ring_halves", "", "", "", ""},
    {Collective::Reduce, "direct", "0 get", "0 get", "0 get", "0 get"},
    {Collective::Reduce, "two_shot", "0 get, 1 put final", "", "", ""},
    {Collective::Reduce, "two_shot_workers", "0 get, 1 put final", "0 get, 1 put final",
     "0 get, 1 put final", "0 get, 1 put final"},
    {Collective::Broadcast, "ring", "0 put final", "0 put", "0 put", "0 put"},
    {Collective::Broadcast, "ring_halves", "0 put final, 1 put final", "0 put, 1 put",
     "0 put, 1 put", "0 put, 1 put"},
    {Collective::Broadcast, "direct", "0 put final", "0 put final", "0 put final", "0 put final"},
    {Collective::Broadcast, "scatter_gather", "0 put final", "0 put, 1 put", "0 put", "0 put"},
    {Collective::Broadcast, "scatter_gather_workers", "0 put final", "0 get, 1 put final",
     "0 get, 1 put final", "0 get, 1 put final"},
    {Collective::AllGather, "ring", "", "", "", ""},
    {Collective::AllGather, "direct", "0 put final", "", "", ""},
    {Collective::AllGather, "direct_workers", "0 put final", "0 put final", "0 put final",
     "0 put final"},
    {Collective::AllGather, "pat", "", "", "", ""},
    {Collective::ReduceScatter, "ring", "", "", "", ""},
    {Collective::ReduceScatter, "direct", "0 get", "", "", ""},
    {Collective::ReduceScatter, "direct_workers", "0 get", "0 get", "0 get", "0 get"},
    {Collective::ReduceScatter, "pat", "", "", "", ""},
    {Collective::AllToAll, "direct", "0 put final", "", "", ""},
    {Collective::AllToAll, "direct_workers", "0 put final", "0 put final", "0 put final",
     "0 put final"},
    {Collective::AllToAll, "pat", "", "", "", ""},
    {Collective::Gather, "direct", "", "", "", ""},
    {Collective::Gather, "direct_workers", "0 put final", "0 put final", "0 put final",
     "0 put final"},
    {Collective::Gather, "pat", "", "", "", ""},
    {Collective::Scatter, "direct", "0 put final", "0 put final", "0 put final", "0 put final"},
    {Collective::Scatter, "direct_workers", "0 put final", "0 put final", "0 put final",
     "0 put final"},
    {Collective::Scatter, "pat", "0 put final", "0 put final", "", ""},
};
// clang-format on

TEST(Routes, GoByATeamWhereOneRankSendsToAllOrReducesOfAll) {
  const std::pair<std::pair<Collective, const char*>, std::string> rows[] = {
      {{Collective::AllReduce, "ring"}, ""},
      {{Collective::AllReduce, "one_shot"}, "0 team store"},
      {{Collective::AllReduce, "two_shot"}, "0 team load, 1 team store"},
      {{Collective::AllReduce, "recursive_doubling"}, ""},
      {{Collective::Reduce, "direct"}, "0 team load windows"},
      {{Collective::Broadcast, "direct"}, "0 team store windows"},
      {{Collective::AllGather, "direct"}, "0 team store"},
      {{Collective::AllGather, "pat"}, ""},
      {{Collective::ReduceScatter, "direct"}, "0 team load"},
      {{Collective::AllToAll, "direct"}, ""},
      {{Collective::Scatter, "direct"}, "0 put final"},
  };
  for (const auto& [algorithm, expected] : rows) {
    const algorithms::Algorithm& of = *algorithms::find(algorithm.first, algorithm.second);
    for (const int nranks : {4, 8}) {
      const Routes whole = routes_of(of.build(nranks, {}).take(), {}, true);
      EXPECT_EQ(text_of(whole), expected)
          << schedule::name_of(algorithm.first) << " " << algorithm.second;
      // A rank's own part excludes no more than the whole.
      for (int rank = 0; rank < nranks; ++rank) {
        const Routes part = routes_of(of.build(nranks, {.only_rank = rank}).take(), {}, true);
        for (const auto& [tag, route] : whole.of_tags())
          EXPECT_TRUE(!uses_team(route.way) || uses_team(part.of(tag).way) ||
                      !part.of_tags().contains(tag))
              << algorithm.second << ", rank " << rank << ", tag " << tag;
      }
    }
  }
}

// Words bring flags, which no reduction keeps, to slots.
TEST(Routes, OfWordsGoByATeamWhereOneRankSendsToAll) {
  const std::pair<std::pair<Collective, const char*>, std::string> rows[] = {
      {{Collective::AllReduce, "one_shot"}, "0 team store"},
      {{Collective::AllReduce, "two_shot_workers"}, "0 get, 1 team store"},
      {{Collective::Reduce, "direct"}, "0 get"},
      {{Collective::Broadcast, "direct"}, "0 team store"},
      {{Collective::AllGather, "direct"}, "0 team store"},
      {{Collective::ReduceScatter, "direct_workers"}, "0 get"},
  };
  for (const auto& [algorithm, expected] : rows)
    for (const int nranks : {3, 8}) {
      const planner::Form* const form = planner::find_form(algorithm.first, algorithm.second);
      const Schedule schedule = form->build(nranks, {}).take();
      const Routes routes = routes_of(schedule, {}, true, /*publishes_chunks=*/false);
      EXPECT_EQ(text_of(routes), expected) << algorithm.second << " " << nranks;
      // Without a team there is one answer for all protocols.
      EXPECT_EQ(routes_of(schedule), routes_of(schedule, {}, false, /*publishes_chunks=*/false));
    }
}

TEST(Routes, OfTwoRanksGoByALoadOfWindowsRatherThanByAStoreToSlots) {
  const Schedule schedule =
      planner::find_form(Collective::AllReduce, "two_shot_workers")->build(2, {}).take();
  EXPECT_EQ(text_of(routes_of(schedule, {}, true)), "0 team load windows, 1 team store windows");
}

// Workers of several instructions advertise nothing.
TEST(Routes, AllowWindowsWhereWorkersHaveOneInstruction) {
  const std::pair<std::pair<Collective, const char*>, std::string> rows[] = {
      {{Collective::AllReduce, "two_shot_workers"}, "0 team load windows, 1 team store windows"},
      {{Collective::AllReduce, "one_shot"}, "0 team store"},
      {{Collective::Reduce, "direct"}, "0 team load windows"},
      {{Collective::Broadcast, "direct"}, "0 team store windows"},
      {{Collective::AllGather, "direct_workers"}, "0 team store windows"},
      {{Collective::ReduceScatter, "direct_workers"}, "0 team load windows"},
  };
  for (const auto& [algorithm, expected] : rows)
    for (const int nranks : {3, 8}) {
      const planner::Form* const form = planner::find_form(algorithm.first, algorithm.second);
      ASSERT_NE(form, nullptr) << algorithm.second;
      EXPECT_EQ(text_of(routes_of(form->build(nranks, {.root = 1}).take(), {}, true)), expected)
          << schedule::name_of(algorithm.first) << " " << algorithm.second << " " << nranks;
    }
}

TEST(Routes, AreDirectWhereverTheFormOfAnAlgorithmAllowsIt) {
  for (const auto& [collective, algorithm, two, three, four, eight] : kRows) {
    for (const auto& [nranks, expected] :
         {std::pair{2, two}, std::pair{3, three}, std::pair{4, four}, std::pair{8, eight}}) {
      for (const int root : {0, 1}) {
        const Schedule schedule =
            planner::find_form(collective, algorithm)->build(nranks, {.root = root}).take();
        EXPECT_EQ(text_of(routes_of(schedule)), expected)
            << schedule::name_of(collective) << " " << algorithm << " " << nranks;
      }
    }
  }
}

TEST(Routes, OfMessagesAreFinalPuts) {
  const std::vector<algorithms::Envelope> messages{{0, 1}, {1, 2}, {2, 0}};
  EXPECT_EQ(text_of(routes_of(algorithms::point_to_point(3, messages).take())), "0 put final");
  // Also where a rank knows of its own ends alone.
  const Schedule part = algorithms::point_to_point(
                            3, messages, {.only_rank = 1, .message_tag = schedule::kMessageTag})
                            .take();
  EXPECT_EQ(text_of(routes_of(part)), "2 put final");
}

/// What a part excludes, the whole does.
TEST(Routes, OfAPartAreSlotsOnlyWhereThoseOfTheWholeAre) {
  for (const planner::Form& algorithm : planner::forms()) {
    for (const int nranks : {2, 3, 8, 12}) {
      if (nranks > algorithm.max_ranks) continue;
      for (const bool has_machines : {false, true}) {
        algorithms::Options options{.root = 1};
        for (int rank = 0; has_machines && rank < nranks; ++rank)
          options.machines.push_back(rank * 3 % nranks / 2);
        const Routes whole = routes_of(algorithm.build(nranks, options).take(), options.machines);
        for (int rank = 0; rank < nranks; ++rank) {
          options.only_rank = rank;
          const Schedule part = algorithm.build(nranks, options).take();
          const Routes routes = routes_of(part, options.machines);
          for (const auto& [tag, route] : routes.of_tags()) {
            if (route.way == Way::Slot) {
              EXPECT_EQ(whole.of(tag).way, Way::Slot) << algorithm.name << " rank " << rank;
            }
          }
        }
      }
    }
  }
}

/// Two machines of two ranks each.
struct RowOfMachines {
  Collective collective;
  const char* algorithm;
  const char* expected;
};
// clang-format off: a table
const RowOfMachines kRowsOfMachines[] = {
    {Collective::AllGather, "hierarchical", "0 put final, 1 put final"},
    {Collective::AllReduce, "tree", "0 get, 1 get, 3 put final, 4 put final"},
    {Collective::Broadcast, "hierarchical", "0 put, 1 put"},
    {Collective::Broadcast, "tree", "0 put final, 1 put final"},
    {Collective::Reduce, "tree", "0 get, 1 get"},
    {Collective::AllReduce, "one_shot", ""},
    {Collective::AllReduce, "two_shot_workers", "0 get, 1 put final"},
    {Collective::AllReduce, "hierarchical", ""},
    {Collective::AllReduce, "rail_trees_workers", "0 get, 1 put final"},
};
// clang-format on

TEST(RoutesOfMachines, AreDirectInsideThem) {
  const std::vector<int> machines{0, 0, 1, 1};
  for (const auto& [collective, algorithm, expected] : kRowsOfMachines) {
    const Schedule schedule =
        planner::find_form(collective, algorithm)->build(4, {.machines = machines}).take();
    EXPECT_EQ(text_of(routes_of(schedule, machines)), expected)
        << schedule::name_of(collective) << " " << algorithm;
    // Between machines there is nothing else than slots.
    const std::vector<int> apart{0, 1, 2, 3};
    EXPECT_EQ(text_of(routes_of(schedule, apart)), "");
  }
}

// The steps inside machines, though the partial sums go on to other machines.
TEST(RoutesOfMachines, AllowWindowsOfTeamsInsideThem) {
  for (const std::vector<int>& machines :
       {std::vector{0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 0, 0, 1, 1, 1, 2, 2}}) {
    const int nranks = static_cast<int>(machines.size());
    const auto routes_by = [&](const char* algorithm) {
      const planner::Form* const form = planner::find_form(Collective::AllReduce, algorithm);
      return text_of(routes_of(form->build(nranks, {.machines = machines}).take(), machines, true));
    };
    EXPECT_EQ(routes_by("rail_trees_workers"), "0 team load windows, 1 team store windows");
    if (nranks > 4) {
      EXPECT_EQ(routes_by("rail_trees"), "0 team load, 1 team store");
    }
  }
}

Builder builder_of(Collective collective, int nranks, int nblocks = 1) {
  return Builder({.collective = collective,
                  .algorithm = "sketch",
                  .nranks = nranks,
                  .nblocks = nblocks,
                  .scratch_blocks = 1});
}

TEST(Gets, AreOfInputsThatAreOnlySent) {
  // A worker that sends elsewhere, too, says by it that its input was read.
  for (const bool sends_twice : {false, true}) {
    Builder builder = builder_of(Collective::Reduce, 2);
    WorkerBuilder push = builder.add_worker(1);
    Connections to = push.to(0, 0);
    WorkerBuilder reduce = builder.add_worker(0);
    reduce.add({.receive_from = reduce.from(1, 0),
                .source = input(0),
                .reduce = true,
                .target = output(0),
                .finish = true});
    if (sends_twice) {
      to.push_back(push.to(0, 1).front());
      WorkerBuilder other = builder.add_worker(0);
      other.add({.receive_from = other.from(1, 1), .target = scratch(0)});
    }
    push.add({.source = input(0), .send_to = to});
    EXPECT_EQ(text_of(routes_of(std::move(builder).take())), sends_twice ? "" : "0 get");
  }
}

TEST(Gets, AreNotOfPartialSums) {
  Builder builder({.collective = Collective::Reduce,
                   .algorithm = "sketch",
                   .nranks = 2,
                   .nblocks = 1,
                   .partial_sums = true});
  WorkerBuilder first = builder.add_worker(1);
  first.add({.source = input(0), .send_to = first.to(0)});
  WorkerBuilder last = builder.add_worker(0);
  last.add({.receive_from = last.from(1),
            .source = input(0),
            .reduce = true,
            .target = output(0),
            .finish = true});
  EXPECT_EQ(text_of(routes_of(std::move(builder).take())), "");
}

TEST(Puts, AreOfWhatIsStoredAsItIsByAWorkerOfItsOwn) {
  // What is passed on is put, and not final: not at the last hop, either.
  Builder chain = builder_of(Collective::Broadcast, 3);
  WorkerBuilder root = chain.add_worker(0);
  root.add({.source = input(0), .target = output(0), .send_to = root.to(1)});
  WorkerBuilder middle = chain.add_worker(1);
  middle.add({.receive_from = middle.from(0), .target = output(0), .send_to = middle.to(2)});
  WorkerBuilder last = chain.add_worker(2);
  last.add({.receive_from = last.from(1), .target = output(0)});
  EXPECT_EQ(text_of(routes_of(std::move(chain).take())), "0 put");

  // Rank 0 sends both blocks: to one worker, or to two, of which each stores a block.
  for (const bool has_worker_for_each : {false, true}) {
    Builder builder = builder_of(Collective::Broadcast, 2, 2);
    std::optional<WorkerBuilder> receiver;
    for (int block = 0; block < 2; ++block) {
      WorkerBuilder sender = builder.add_worker(0);
      sender.add({.source = input(block), .target = output(block), .send_to = sender.to(1, block)});
      if (!receiver || has_worker_for_each) receiver.emplace(builder.add_worker(1));
      receiver->add({.receive_from = receiver->from(0, block), .target = output(block)});
    }
    EXPECT_EQ(text_of(routes_of(std::move(builder).take())),
              has_worker_for_each ? "0 put final, 1 put final" : "");
  }
}

}  // namespace
}  // namespace niccolite::lowering
