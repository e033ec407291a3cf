// Lists: lists over buffers that all ranks reach (Launch::list_access), with their connections and
// data, for the tests of all executors.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "executor/list_access.h"
#include "executor/protocol/advertisement.h"
#include "planner/form.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"

namespace niccolite::executor::host {

using schedule::Collective;

inline constexpr uint32_t kListSlotBytes = 640;  // addresses of 20 operations
inline constexpr uint32_t kListChannels = 3;

struct ListCase {
  Collective collective;
  const char* algorithm;  // of the schedule that results are held against
};
inline constexpr ListCase kListCases[] = {{Collective::AllReduce, "one_shot"},
                                          {Collective::Reduce, "direct"},
                                          {Collective::Broadcast, "direct"},
                                          {Collective::ReduceScatter, "direct"},
                                          {Collective::AllGather, "direct"}};

/// Where ranks see buffers: of each rank a table for the peers.
enum class Sight : uint8_t {
  Open,      // at their own addresses
  Tables,    // by tables, whose distances are 0 here
  Sometimes  // some buffers of some ranks are seen by some peers only
};

class Lists {
 public:
  Lists(const ListCase& c, int nranks, uint32_t depth = 4)
      : case_(c),
        root_(nranks / 2),
        connections_(
            planner::find_form(Collective::AllReduce, "one_shot")->build(nranks, {}).take(),
            Protocol::LL,
            {.channels = kListChannels, .depth = depth, .slot_bytes = kListSlotBytes}),
        results_(schedule_of(c, nranks, root_), Protocol::LL,
                 {.channels = 1, .depth = 1, .slot_bytes = kListSlotBytes}) {
    tables_.assign(static_cast<size_t>(nranks) + 1, std::vector<uint64_t>(8, 0));
    for (size_t unseen = 0; unseen + 1 < tables_.size(); ++unseen)
      tables_[unseen][unseen] = advertisement::kUnseen;
  }

  Cluster& connections() { return connections_; }
  const Cluster& connections() const { return connections_; }

  /// Each rank's, of operations of one element up to several tiles.
  std::vector<Launch> draw(DataType type, const Reduction& reduction, size_t works,
                           uint32_t channels, Sight sight, uint32_t seed, uint64_t most_bytes) {
    std::mt19937 random(seed);
    operands_.clear();
    std::vector<Part> parts;
    for (size_t w = 0; w < works; ++w) {
      const uint64_t most = most_bytes / size_of(type);
      const uint64_t count = 1 + random() % (random() % 2 == 0 ? 8 : most);
      OperandOptions options{.is_in_place = random() % 2 == 0,
                             .is_misaligned = random() % 3 == 0,
                             .reduction = reduction};
      // Each buffer begins somewhere else in its vec16.
      if (!options.is_misaligned && random() % 2 == 0)
        for (int i = 0; i < 7; ++i) options.starts.push_back(random() % 16);
      operands_.emplace_back(results_.schedule(), type, std::vector{count}, options);
      parts.push_back({.counts = {count},
                       .buffers = operands_.back().addresses(),
                       .tag = static_cast<uint16_t>(64 * seed + w)});
    }
    connections_.open_ranks = sight == Sight::Open ? ~0u : 0;
    auto launches = connections_.launches_in_a_list(parts, type, reduction, channels);
    for (Launch& launch : launches) {
      launch.list_operation = {.collective = case_.collective,
                               .nranks = connections_.nranks(),
                               .root = schedule::has_root(case_.collective) ? root_ : 0};
      launch.list_access = list_access_of(launch.list_operation);
      if (sight == Sight::Open) continue;
      for (Work& work : launch.works) {
        work.buffers.input_shifts = table(sight, random);
        work.buffers.output_shifts = table(sight, random);
      }
    }
    return launches;
  }

  void check() {
    for (const Operands& operands : operands_) ASSERT_NO_FATAL_FAILURE(operands.check());
    ASSERT_TRUE(connections_.guards_intact());
    ASSERT_TRUE(connections_.counters_consistent(/*has_advertisements=*/true));
    ASSERT_EQ(connections_.control.report, 0u);
  }

  /// Steps of a channel so far.
  uint64_t steps(uint32_t channel) {
    return connections_.connections().front()->sender(channel).step;
  }

 private:
  static schedule::Schedule schedule_of(const ListCase& c, int nranks, int root) {
    algorithms::Options options;
    if (schedule::has_root(c.collective)) options.root = root;
    return planner::find_form(c.collective, c.algorithm)->build(nranks, options).take();
  }
  const uint64_t* table(Sight sight, std::mt19937& random) const {
    const bool all_see = sight == Sight::Tables || random() % 4 != 0;
    return all_see ? tables_.back().data() : tables_[random() % (tables_.size() - 1)].data();
  }

  const ListCase case_;
  const int root_;
  Cluster connections_;
  const Cluster results_;
  std::deque<Operands> operands_;
  std::vector<std::vector<uint64_t>> tables_;  // by the rank that does not see; the last: all do
};

// What every executor must do with lists. Run: bool(Lists&, std::vector<Launch>, uint32_t seed),
// true when all ranks have come to an end.

inline constexpr uint64_t kFewTiles = 5000;  // bytes

inline DataType type_of(const ListCase& c) {
  return schedule::reduces(c.collective) ? DataType::Float32 : DataType::Uint8;
}

/// `most_hidden`: bytes of an operation where some rank does not see a buffer.
template <typename Run>
void expect_all_operations(Run run, uint64_t most_hidden) {
  for (const ListCase& c : kListCases) {
    for (const int nranks : {2, 3, 4, 5, 8}) {
      Lists lists(c, nranks);
      lists.connections().start_at((uint64_t{1} << 15) - 4);  // flags begin anew on the way
      uint32_t seed = 0;
      for (const size_t works : {1u, 3u, 11u}) {
        for (const Sight sight : {Sight::Open, Sight::Tables, Sight::Sometimes}) {
          SCOPED_TRACE(testing::Message() << name_of(c.collective) << " of " << nranks << ", "
                                          << works << " works, sight " << static_cast<int>(sight));
          ++seed;
          const uint64_t most = sight == Sight::Sometimes ? most_hidden : kFewTiles;
          const auto channels = std::min(kListChannels, static_cast<uint32_t>(works));
          const auto launches = lists.draw(type_of(c), {}, works, channels, sight, seed, most);
          const uint64_t before = lists.steps(0);
          ASSERT_TRUE(run(lists, launches, seed));
          ASSERT_NO_FATAL_FAILURE(lists.check());
          if (sight != Sight::Sometimes) {
            ASSERT_EQ(lists.steps(0), before + 1) << "data went through slots";
          }
        }
      }
    }
  }
}

/// All-reduces and reduce-scatters, whose executors have ways of their own for sums of two ranks.
template <typename Run>
void expect_every_type(Run run, uint64_t most_bytes) {
  uint32_t seed = 100;
  const auto expect = [&](DataType type, const Reduction& reduction, const ListCase& c) {
    ++seed;
    SCOPED_TRACE(testing::Message()
                 << name_of(c.collective) << ", " << name_of(type) << ", reduction "
                 << static_cast<int>(reduction.op) << ", divided by " << reduction.finish_divisor);
    Lists lists(c, seed % 3 == 0 ? 5 : 2);
    const Sight sight = seed % 5 == 0 ? Sight::Sometimes : Sight::Open;
    const auto launches = lists.draw(type, reduction, 4, 2, sight, seed, most_bytes);
    ASSERT_TRUE(run(lists, launches, seed));
    ASSERT_NO_FATAL_FAILURE(lists.check());
  };
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOps; ++op) {
      const Reduction reduction{.op = static_cast<ReduceOp>(op)};
      Reduction average = reduction;
      average.finish_scale = 0.25;
      average.finish_divisor = 4;
      for (const ListCase& c : {kListCases[0], kListCases[3]}) {
        ASSERT_NO_FATAL_FAILURE(expect(static_cast<DataType>(type), reduction, c));
        if (reduction.op != ReduceOp::Sum) continue;
        ASSERT_NO_FATAL_FAILURE(expect(static_cast<DataType>(type), average, c));
      }
    }
  }
}

template <typename Run>
void expect_as_many_operations(Run run) {
  Lists lists(kListCases[0], 2);
  const auto launches =
      lists.draw(DataType::Int8, {}, 20 * kListChannels, kListChannels, Sight::Open, 7, 9);
  ASSERT_TRUE(run(lists, launches, 1));
  ASSERT_NO_FATAL_FAILURE(lists.check());
}

/// Prepare: Status(Launch&).
template <typename Prepare>
void expect_refusals(Prepare prepare) {
  Lists two(kListCases[0], 2);
  const auto refusal = [&](size_t works, uint32_t channels, const Reduction& reduction = {}) {
    auto launches = two.draw(DataType::Int8, reduction, works, channels, Sight::Open, 1, 9);
    launches[0].control_device = &two.connections().control;
    return prepare(launches[0]).message();
  };
  EXPECT_NE(refusal(kMostDirectListWorks + 1, 3), "");
  EXPECT_NE(refusal(21, 1), "") << "more addresses than a slot holds";
  EXPECT_NE(refusal(9, kListChannels + 1), "");
  EXPECT_NE(refusal(2, 3), "") << "a channel without a tile";
  EXPECT_NE(refusal(20, 1, {.input_factor = 2}), "") << "inputs that are scaled";
  EXPECT_EQ(refusal(20, 1), "");
}

}  // namespace niccolite::executor::host
