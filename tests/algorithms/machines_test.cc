// Algorithms that look at which ranks share a machine: right for every layout, and with no more
// bytes between machines than they claim.
#include "algorithms/machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>

#include "algorithms/registry.h"
#include "schedule/check.h"
#include "schedule/load.h"
#include "schedule/timeline.h"

namespace niccolite::algorithms {
namespace {

using schedule::Collective;
using schedule::Schedule;
using testing::HasSubstr;

using Layout = std::vector<int>;

/// `ranks` of each of `machines`, one machine after the other.
Layout even(int machines, int ranks) {
  Layout layout;
  for (int machine = 0; machine < machines; ++machine)
    layout.insert(layout.end(), static_cast<size_t>(ranks), machine);
  return layout;
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{even(2, 1),
                                       even(2, 2),
                                       even(3, 2),
                                       even(5, 1),
                                       even(2, 4),
                                       even(4, 4),
                                       even(5, 3),
                                       {0, 1, 1, 1},              // uneven
                                       {0, 0, 0, 1, 2, 2},        // uneven
                                       {7, 7, 7, 7, 7, 3, 3, 5},  // any numbers
                                       {0, 1, 0, 1, 0, 1},        // in turns
                                       {1, 0, 2, 2, 0, 1, 1, 0, 1}};
  return all;
}

std::string text_of(const Layout& layout) {
  std::string text;
  for (const int machine : layout) text += std::to_string(machine);
  return text;
}

template <typename Check>
void for_each(const Check& check) {
  int checked = 0;
  for (const Algorithm& algorithm : all()) {
    if (!algorithm.traits.follows_machines) continue;
    for (const Layout& layout : layouts()) {
      const int nranks = static_cast<int>(layout.size());
      const int roots = schedule::has_root(algorithm.collective) ? nranks : 1;
      for (int root = 0; root < roots; ++root) {
        SCOPED_TRACE(fmt::format("{} {} on machines {}, root {}",
                                 schedule::name_of(algorithm.collective), algorithm.name,
                                 text_of(layout), root));
        check(algorithm, Options{.root = root, .window = 1, .machines = layout});
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 200);
}

Schedule built(const Algorithm& algorithm, const Options& options) {
  return algorithm.build(static_cast<int>(options.machines.size()), options).take();
}

/// Of each machine, what it sends to others: bytes for each byte of a block.
std::vector<int> blocks_out(const Schedule& schedule, const Machines& machines) {
  std::vector<int> blocks(static_cast<size_t>(machines.count()));
  for (const auto& channels : schedule.ranks)
    for (const schedule::Worker& worker : channels[0].workers)
      for (const schedule::Instruction& instruction : worker.instructions)
        for (const int to : instruction.send_to) {
          const schedule::Connection& c = schedule.connections[static_cast<size_t>(to)];
          if (machines.of(c.sender) != machines.of(c.receiver))
            ++blocks[static_cast<size_t>(machines.of(c.sender))];
        }
  return blocks;
}

TEST(Machines, EveryAlgorithmIsRightForEveryLayoutAtDepthOne) {
  for_each([](const Algorithm& algorithm, const Options& options) {
    const Schedule schedule = built(algorithm, options);
    for (const int depth : {1, 2}) {
      const Status status = check(schedule, {.depth = depth});
      EXPECT_TRUE(status.is_ok()) << status.message();
    }
  });
}

TEST(Machines, ARanksPartIsThatOfTheWhole) {
  for_each([](const Algorithm& algorithm, const Options& options) {
    const Schedule whole = built(algorithm, options);
    for (int rank = 0; rank < whole.nranks; ++rank) {
      Options only = options;
      only.only_rank = rank;
      const Schedule part = built(algorithm, only);
      const auto& a = part.ranks[static_cast<size_t>(rank)].at(0).workers;
      const auto& b = whole.ranks[static_cast<size_t>(rank)].at(0).workers;
      ASSERT_EQ(a.size(), b.size());
      for (size_t worker = 0; worker < a.size(); ++worker)
        EXPECT_EQ(a[worker].instructions.size(), b[worker].instructions.size());
      EXPECT_EQ(part.nblocks, whole.nblocks);
    }
  });
}

/// Of S bytes over N machines each sends 2 (N - 1)/N S, all rails together and in equal parts.
TEST(HierarchicalAllReduce, SendsNoMoreThanItMustBetweenMachines) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    const Options options{.machines = layout};
    const Schedule schedule = built(*find(Collective::AllReduce, "hierarchical"), options);
    const Machines machines(schedule.nranks, options);
    const int n = machines.count();
    EXPECT_EQ(schedule.nblocks, n * machines.rails());
    for (const int blocks : blocks_out(schedule, machines))
      EXPECT_EQ(blocks * n, 2 * (n - 1) * schedule.nblocks);
    std::map<int, int> of_rank;
    for (const schedule::Connection& c : schedule.connections)
      if (machines.of(c.sender) != machines.of(c.receiver)) ++of_rank[c.sender];
    EXPECT_EQ(of_rank.size(), static_cast<size_t>(n * machines.rails()));
    for (const auto& [rank, connections] : of_rank) EXPECT_EQ(connections, 2 * (n - 1));
  }
}

/// However many machines there are, a rank has two instructions for each rail, and no connection
/// carries two blocks.
TEST(RailTrees, HaveTwoInstructionsForEachRail) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    const Options options{.machines = layout};
    const Schedule schedule = built(*find(Collective::AllReduce, "rail_trees"), options);
    const Machines machines(schedule.nranks, options);
    EXPECT_EQ(schedule.nblocks, machines.rails());
    std::vector<int> uses(2 * schedule.connections.size());
    for (const auto& channels : schedule.ranks) {
      int instructions = 0;
      for (const schedule::Worker& worker : channels[0].workers)
        for (const schedule::Instruction& instruction : worker.instructions) {
          ++instructions;
          for (const int to : instruction.send_to) ++uses[2 * static_cast<size_t>(to)];
          for (const int from : instruction.receive_from) ++uses[2 * static_cast<size_t>(from) + 1];
        }
      EXPECT_LE(instructions, 2 * machines.rails());
    }
    EXPECT_TRUE(std::ranges::all_of(uses, [](int times) { return times == 1; }));
    // Up and down each rail's tree.
    int sent = 0;
    for (const int blocks : blocks_out(schedule, machines)) {
      EXPECT_LE(blocks, 3 * machines.rails());
      sent += blocks;
    }
    EXPECT_EQ(sent, machines.count() == 1 ? 0 : 2 * (machines.count() - 1) * machines.rails());
  }
}

TEST(RailTrees, TakeTheDepthOfATreeEachWay) {
  for (const auto& [machines, depth] : {std::pair(2, 1), {3, 2}, {5, 3}, {9, 4}}) {
    const Options options{.machines = even(machines, 2)};
    const Schedule schedule = built(*find(Collective::AllReduce, "rail_trees"), options);
    EXPECT_EQ(timeline(schedule).take().latencies, 2 + 2 * depth) << machines;
  }
}

TEST(Hierarchical, SendsEachBlockOverAWireOnce) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    const Options options{.root = static_cast<int>(layout.size()) / 2, .machines = layout};
    const Machines machines(static_cast<int>(layout.size()), options);
    const int n = machines.count(), nranks = static_cast<int>(layout.size());
    const auto out = [&](Collective collective) {
      return blocks_out(built(*find(collective, "hierarchical"), options), machines);
    };
    int sent = 0;
    for (int machine = 0; machine < n; ++machine) {
      const auto m = static_cast<size_t>(machine);
      const int own = static_cast<int>(machines.ranks(machine).size());
      EXPECT_EQ(out(Collective::AllGather)[m], own * (n - 1));
      EXPECT_EQ(out(Collective::ReduceScatter)[m], nranks - own);
      EXPECT_EQ(out(Collective::AllToAll)[m], own * (nranks - own));
      EXPECT_LE(out(Collective::Broadcast)[m], machines.rails());
      EXPECT_EQ(out(Collective::Reduce)[m],
                machine == machines.of(options.root) ? 0 : machines.rails());
      sent += out(Collective::Broadcast)[m];
    }
    EXPECT_EQ(sent, (n - 1) * machines.rails());
  }
}

TEST(Hierarchical, TakesFewLatencies) {
  for (const int machines : {2, 3, 5}) {
    const Options options{.machines = even(machines, 4)};
    const auto latencies = [&](Collective collective) {
      return timeline(built(*find(collective, "hierarchical"), options)).take().latencies;
    };
    EXPECT_EQ(latencies(Collective::AllReduce), 4);
    EXPECT_EQ(latencies(Collective::AllGather), 2);
    EXPECT_EQ(latencies(Collective::ReduceScatter), 2);
    EXPECT_EQ(latencies(Collective::AllToAll), 2);
    EXPECT_EQ(latencies(Collective::Broadcast), machines + 1);
    EXPECT_EQ(latencies(Collective::Reduce), machines + 1);
  }
}

/// Half of what a ring among many machines sends: the network reduces.
TEST(Collnet, EachMachineSendsAndReceivesTheDataOnce) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    const Options options{.machines = layout};
    const Machines machines(static_cast<int>(layout.size()), options);
    for (const char* name : {"collnetdirect", "collnetchain"}) {
      const Schedule schedule = built(*find(Collective::AllReduce, name), options);
      EXPECT_EQ(schedule.nblocks, machines.rails());
      EXPECT_DOUBLE_EQ(load_of(schedule, layout).wire, 1) << name;
      EXPECT_EQ(blocks_out(schedule, machines),
                std::vector<int>(static_cast<size_t>(machines.count()), machines.rails()));
    }
  }
}

TEST(Collnet, TakesOneLatencyOfTheNetwork) {
  for (const int machines : {2, 3, 5}) {
    const Options options{.machines = even(machines, 4)};
    const auto latencies = [&](Collective collective, const char* name) {
      return timeline(built(*find(collective, name), options)).take().latencies;
    };
    EXPECT_EQ(latencies(Collective::AllReduce, "collnetdirect"), 3);
    EXPECT_EQ(latencies(Collective::AllGather, "collnetdirect"), 2);
    EXPECT_EQ(latencies(Collective::ReduceScatter, "collnetdirect"), 2);
  }
}

// ---- what the checker refuses

struct Broken {
  const char* what;
  void (*mutate)(Schedule&);
  const char* said;
};

schedule::Connection& first_of_reducer(Schedule& schedule) {
  return *std::ranges::find_if(schedule.connections, [](const schedule::Connection& c) {
    return schedule::through_of(c.tag) != schedule::Through::Nothing;
  });
}

const Broken kBroken[] = {
    {"a member is left out of the round",
     [](Schedule& schedule) { first_of_reducer(schedule).receiver = 1; },
     "does not go round its members"},
    {"members in groups of their own",
     [](Schedule& schedule) {
       first_of_reducer(schedule).tag = schedule::reducer_tag(schedule::Through::Reduction, 99);
     },
     "does not go round its members"},
    {"the network gathers what is to be reduced",
     [](Schedule& schedule) {
       for (schedule::Connection& c : schedule.connections)
         if (schedule::through_of(c.tag) != schedule::Through::Nothing)
           c.tag = schedule::reducer_tag(schedule::Through::Gathering,
                                         (c.tag - schedule::kReducerTag) / 4);
     },
     "the blocks of all_reduce differ in size"},
    {"a member hands in less than its machine's sum",
     [](Schedule& schedule) {
       for (schedule::Worker& worker : schedule.ranks[1][0].workers)
         for (schedule::Instruction& instruction : worker.instructions)
           if (instruction.reduce) {
             instruction.reduce = false;
             instruction.source.reset();
             instruction.source_position = 0;
             instruction.chunk_of = 1;
           }
     },
     "rank 1 missing"},
    {"the order of the blocks differs between members",
     [](Schedule& schedule) {
       for (schedule::Worker& worker : schedule.ranks[2][0].workers)
         for (schedule::Instruction& instruction : worker.instructions)
           if (instruction.reduce) instruction.source = schedule::input(1);
     },
     "block"},
    {"the claim that no partial sums exist",
     [](Schedule& schedule) { schedule.partial_sums = false; }, "though the schedule claims"},
};

TEST(CollnetMutants, AreRefused) {
  for (const Broken& broken : kBroken) {
    Schedule schedule =
        built(*find(Collective::AllReduce, "collnetdirect"), {.machines = even(2, 2)});
    ASSERT_TRUE(check(schedule, {.depth = 1}).is_ok());
    broken.mutate(schedule);
    const Status status = check(schedule, {.depth = 1});
    EXPECT_FALSE(status.is_ok()) << broken.what;
    EXPECT_THAT(status.message(), HasSubstr(broken.said)) << broken.what;
  }
}

/// A tree crosses wires as a tree of machines does, and not as one of ranks.
TEST(Tree, HasOneRankOfEachMachineOnTheWires) {
  const Options options{.machines = even(8, 4)};
  const Machines machines(32, options);
  for (const Collective collective : {Collective::Broadcast, Collective::Reduce}) {
    int sent = 0;
    for (const int blocks : blocks_out(built(*find(collective, "tree"), options), machines))
      sent += blocks;
    EXPECT_EQ(sent, 2 * 7);
  }
  int sent = 0;
  for (const int blocks :
       blocks_out(built(*find(Collective::AllReduce, "tree"), options), machines))
    sent += blocks;
  EXPECT_EQ(sent, 2 * 2 * 7);
}

TEST(Pat, IsRightOnManyMachinesWithAsManySlotsAsItsWindow) {
  std::vector<Layout> all = layouts();
  all.insert(all.end(), {even(7, 2), even(8, 3), even(13, 1), even(9, 2)});
  for (const Collective collective : {Collective::AllGather, Collective::ReduceScatter})
    for (const Layout& layout : all)
      for (const int window : {2, 4, 8}) {
        SCOPED_TRACE(fmt::format("{} on {}, window {}", schedule::name_of(collective),
                                 text_of(layout), window));
        const Options options{.window = window, .machines = layout};
        const Status status = check(built(*find(collective, "pat"), options), {.depth = window});
        EXPECT_TRUE(status.is_ok()) << status.message();
      }
}

/// Of N machines and their ranks' blocks: what is sent over all wires is the least possible, in
/// log2 N latencies, and one inside machines.
TEST(Pat, HasTreesOverMachines) {
  for (const int machines : {2, 3, 5, 8, 16}) {
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("{} machines of {}", machines, ranks));
      const Options options{.window = machines, .machines = even(machines, ranks)};
      const Machines of(machines * ranks, options);
      const int depth = static_cast<int>(std::bit_width(static_cast<unsigned>(machines))) - 1;
      for (const Collective collective : {Collective::AllGather, Collective::ReduceScatter}) {
        const Schedule schedule = built(*find(collective, "pat"), options);
        EXPECT_THAT(blocks_out(schedule, of), testing::Each((machines - 1) * ranks));
        EXPECT_EQ(timeline(schedule).take().latencies, depth + (ranks > 1 ? 1 : 0));
        std::map<int, int> peers;  // of each rank, on other machines
        for (const schedule::Connection& c : schedule.connections)
          if (of.of(c.sender) != of.of(c.receiver)) ++peers[c.sender];
        for (const auto& [rank, count] : peers)
          EXPECT_EQ(count, static_cast<int>(std::bit_width(static_cast<unsigned>(machines - 1))));
        EXPECT_EQ(peers.size(), static_cast<size_t>(machines * ranks));
      }
    }
  }
}

/// Where a machine has more ranks than can reduce together, each rank counts as a machine.
TEST(Pat, IsOverRanksWhereAMachineHasTooMany) {
  const Options options{.only_rank = 3, .machines = even(2, 129)};
  const Schedule of_machines = find(Collective::ReduceScatter, "pat")->build(258, options).take();
  const Schedule flat = find(Collective::ReduceScatter, "pat")->build(258, {.only_rank = 3}).take();
  EXPECT_EQ(of_machines.connections.size(), flat.connections.size());
}

TEST(Machines, AreOfAllRanksOrOfNone) {
  for (const Algorithm& algorithm : all()) {
    const Result<Schedule> built = algorithm.build(4, {.machines = {0, 0, 1}});
    ASSERT_FALSE(built.is_ok()) << algorithm.name;
    EXPECT_THAT(built.status().message(), HasSubstr("machines of 3 ranks"));
  }
}

}  // namespace
}  // namespace niccolite::algorithms
