#include "planner/plan.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>

#include "executor/protocol/pull.h"
#include "lowering/routes.h"

namespace niccolite::planner {
namespace {

using executor::DataType;
using executor::Protocol;
using testing::AllOf;
using testing::HasSubstr;

Settings settings_for(gpu::Kind machine, int nranks, const Limits& limits = {}) {
  return make_settings(machine, nranks, limits).value();
}

Request all_reduce(size_t count, DataType type, Operation operation) {
  return {.collective = Collective::AllReduce,
          .count = count,
          .type = type,
          .op = {.operation = operation}};
}

void allow_only(Settings& settings, Collective collective, const char* algorithm) {
  settings.forms[static_cast<size_t>(collective)].reset().set(
      index_of(*find_form(collective, algorithm)));
}

TEST(Plan, EveryRankChoosesAlike) {
  for (gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual})
    for (int nranks : {1, 2, 3, 4, 8, 16, 33, 200})
      for (int c = 0; c < static_cast<int>(Collective::PointToPoint); ++c)
        for (size_t count = 1; count < (size_t{1} << 28); count = count * 5 + 1) {
          const Settings settings = settings_for(machine, nranks);
          Planner first(settings, 0), last(settings, nranks - 1);
          const Request request{.collective = static_cast<Collective>(c),
                                .count = count,
                                .type = DataType::Float32,
                                .root = nranks / 2};
          SCOPED_TRACE(testing::Message() << function_name(request.collective) << " of " << count
                                          << " over " << nranks << " ranks");
          const Plan a = first.collective(request).value();
          const Plan b = last.collective(request).value();
          ASSERT_EQ(a.choice, b.choice);
          const executor::Partition &left = a.partitions[0], &right = b.partitions[0];
          ASSERT_EQ(left.channels, right.channels);
          ASSERT_EQ(left.chunk, right.chunk);
          ASSERT_LE(left.channels, settings.shapes[static_cast<size_t>(a.protocol)].channels);
          ASSERT_GT(a.microseconds, 0);
        }
}

/// Settings of ranks with a team, by which alone operations may go.
Settings by_team_alone(gpu::Kind machine, int nranks, const Limits& limits = {}) {
  Settings settings = settings_for(machine, nranks, limits);
  set_team(settings, nranks);
  for (FormSet& allowed : settings.forms) allowed.reset().set(kNvlsBit);
  return settings;
}

TEST(Plan, GoesByATeamWhereOneRankSendsToAllOrReducesOfAll) {
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual})
    for (const int nranks : {2, 3, 8, 16}) {
      const Settings settings = by_team_alone(machine, nranks);
      EXPECT_LE(settings.team_slots.bytes(nranks), kMostTeamBytes);
      for (const Collective collective :
           {Collective::AllReduce, Collective::Reduce, Collective::Broadcast, Collective::AllGather,
            Collective::ReduceScatter})
        for (const size_t count : {size_t{1}, size_t{1} << 16, size_t{1} << 24}) {
          // Direct algorithms connect so many real GPUs.
          if (machine == gpu::Kind::Cuda && nranks > 8) continue;
          const Request request{.collective = collective,
                                .count = count,
                                .type = DataType::Float32,
                                .root = nranks - 1};
          const Plan plan = Planner(settings, 0).collective(request).value();
          EXPECT_TRUE(plan.choice.by_team);
          EXPECT_EQ(plan.team_ranks, nranks);
          EXPECT_EQ(plan.choice, Planner(settings, nranks - 1).collective(request).value().choice);
          const executor::Partition& partition = plan.partitions[0];
          EXPECT_LE(partition.channels, plan.team_shape.channels);
          EXPECT_LE(partition.chunk * executor::size_of(plan.type),
                    executor::data_bytes(plan.protocol, plan.team_shape.slot_bytes));
          EXPECT_TRUE(std::ranges::any_of(plan.program->ports, [](const executor::Port& port) {
            return lowering::is_team_tag(port.tag) && lowering::uses_team(port.route.way);
          }));
        }
      Planner planner(settings, 0);
      // Two ranks send to all others whatever they send.
      EXPECT_EQ(planner.collective({.collective = Collective::AllToAll, .count = 8}).is_ok(),
                nranks == 2);
      // Beside other operations.
      EXPECT_FALSE(planner.collective(all_reduce(8, DataType::Float32, Operation::Sum), 1).is_ok());
    }
  const Settings few = by_team_alone(gpu::Kind::Cuda, 8, {.nvls_ctas = 3});
  EXPECT_EQ(few.team_slots.chunks.channels, 3u);
  EXPECT_EQ(few.team_slots.words.channels, 3u);
}

TEST(Plan, StoresWordsByATeamWhereDataAreShort) {
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual})
    for (const int nranks : {3, 8}) {
      Planner planner(by_team_alone(machine, nranks), 0);
      const auto protocol_of = [&](Collective collective, size_t count) {
        const Request request{.collective = collective, .count = count, .type = DataType::Float32};
        return planner.collective(request).value().protocol;
      };
      for (const Collective collective :
           {Collective::AllReduce, Collective::AllGather, Collective::Broadcast}) {
        // Virtual GPUs move chunks as fast.
        if (machine == gpu::Kind::Virtual && collective != Collective::AllReduce) continue;
        SCOPED_TRACE(testing::Message() << function_name(collective) << " of " << nranks);
        for (const size_t count : {size_t{1}, size_t{64}})
          EXPECT_EQ(protocol_of(collective, count), Protocol::LL);
        EXPECT_EQ(protocol_of(collective, size_t{1} << 24), Protocol::Simple);
      }
      // Words are not reduced on their way.
      EXPECT_EQ(protocol_of(Collective::Reduce, 1), Protocol::Simple);
    }
}

TEST(Plan, GoesByATeamIfSwitchesReduceTheTypeByTheOperation) {
  using enum Operation;
  Settings settings = by_team_alone(gpu::Kind::Virtual, 4);
  const auto is_possible = [&](DataType type, Operation operation) {
    const Result<Plan> plan = Planner(settings, 0).collective(all_reduce(1000, type, operation));
    if (!plan.is_ok()) {
      EXPECT_THAT(plan.status().message(),
                  HasSubstr(fmt::format("NVLS does not reduce {} by {}, as switches do not",
                                        executor::name_of(type), name_of(operation))));
    }
    return plan.is_ok();
  };
  for (const DataType type : {DataType::Float16, DataType::Bfloat16, DataType::Int32,
                              DataType::Uint32, DataType::Int64, DataType::Uint64}) {
    for (const Operation operation : {Sum, Min, Max}) EXPECT_TRUE(is_possible(type, operation));
    for (const Operation operation : {Product, Average, PreMulSum})
      EXPECT_FALSE(is_possible(type, operation));
  }
  for (const DataType type : {DataType::Float32, DataType::Float64}) {
    EXPECT_TRUE(is_possible(type, Sum));
    for (const Operation operation : {Min, Max, Product, Average})
      EXPECT_FALSE(is_possible(type, operation));
  }
  for (const DataType type : {DataType::Int8, DataType::Uint8})
    EXPECT_FALSE(is_possible(type, Sum));
  // The order in which a switch reduces is its own.
  settings.is_invariant = true;
  EXPECT_THAT(
      Planner(settings, 0).collective(all_reduce(1000, DataType::Float32, Sum)).status().message(),
      HasSubstr("in the switch's order, which NICCOLITE_INVARIANT forbids"));
  EXPECT_TRUE(Planner(settings, 0)
                  .collective({.collective = Collective::AllGather, .count = 1000})
                  .is_ok());
}

TEST(Plan, GoesByATeamOnlyIfItIsAskedToWhereNobodyKnowsTheSwitch) {
  Settings settings = settings_for(gpu::Kind::Virtual, 8);
  set_team(settings, 8);
  for (size_t count = 1; count < (size_t{1} << 26); count *= 8)
    EXPECT_FALSE(Planner(settings, 0)
                     .collective(all_reduce(count, DataType::Float32, Operation::Sum))
                     .value()
                     .choice.by_team);
}

TEST(Plan, BothEndsOfAMessageChooseAlikeWhateverElseTheyDo) {
  for (const int nranks : {2, 4}) {
    const Settings settings = settings_for(gpu::Kind::Cuda, nranks);
    const int last = nranks - 1;
    Planner sender(settings, 1 % last), receiver(settings, last);
    for (size_t bytes = 0; bytes < (size_t{1} << 30); bytes = bytes * 3 + 1) {
      const executor::Protocol protocol = sender.protocol_of_message(bytes, false).value();
      ASSERT_EQ(protocol, receiver.protocol_of_message(bytes, false).value());
      const std::vector<Message> sent{{.peer = last, .is_send = true, .bytes = bytes}};
      std::vector<Message> received{{.peer = 0, .is_send = true, .bytes = 77}};
      if (nranks > 2) received.push_back({.peer = 2, .is_send = false, .bytes = 1 << 20});
      received.push_back({.peer = sender.rank(), .is_send = false, .bytes = bytes});
      const Plan a = sender.messages({&sent, 1}, protocol).value();
      const Plan b = receiver.messages({&received, 1}, protocol).value();
      ASSERT_EQ(a.partitions.size(), 1u);
      ASSERT_EQ(b.partitions.size(), received.size());
      ASSERT_EQ(a.partitions[0].channels, b.partitions.back().channels);
      ASSERT_EQ(a.partitions[0].rounds, b.partitions.back().rounds);
      ASSERT_EQ(a.partitions[0].chunk, b.partitions.back().chunk);
    }
  }
}

// What a rank sends to itself no link bounds: it is cut up for as many CTAs as pay, whatever others
// would make of a message of its length.
TEST(Plan, CopiesHaveTheChannelsThatTheyPayFor) {
  Settings settings = settings_for(gpu::Kind::Cuda, 2);
  const auto channels_of = [&](int peer, size_t bytes) {
    const std::vector<Message> sent{{.peer = peer, .is_send = true, .bytes = bytes}};
    return Planner(settings, 0)
        .messages({&sent, 1}, Protocol::Simple)
        .value()
        .partitions[0]
        .channels;
  };
  const size_t most = settings.shapes[static_cast<size_t>(Protocol::Simple)].channels;
  EXPECT_EQ(channels_of(0, size_t{8} << 20), most);
  EXPECT_LT(channels_of(1, size_t{8} << 20), most);
  EXPECT_EQ(channels_of(0, 1000), channels_of(1, 1000));
  settings.policy = CtaPolicy::Efficiency;
  EXPECT_EQ(channels_of(0, size_t{8} << 20), channels_of(1, size_t{8} << 20));
}

TEST(Plan, MessagesOfAPairTakeTurns) {
  const Settings settings = settings_for(gpu::Kind::Cuda, 3);
  Planner planner(settings, 1);
  // Two layers to and from rank 2, one to rank 0 and to itself.
  const std::vector<Message> layers[] = {{{.peer = 2, .is_send = true, .bytes = 8},
                                          {.peer = 0, .is_send = true, .bytes = 8},
                                          {.peer = 1, .is_send = true, .bytes = 8},
                                          {.peer = 2, .is_send = false, .bytes = 8}},
                                         {{.peer = 2, .is_send = true, .bytes = 100},
                                          {.peer = 1, .is_send = true, .bytes = 8},
                                          {.peer = 2, .is_send = false, .bytes = 100}}};
  const Plan plan = planner.messages(layers, executor::Protocol::LL).value();
  ASSERT_EQ(plan.turns.size(), 7u);
  ASSERT_EQ(plan.program->works.size(), 7u);
  EXPECT_EQ(plan.program->nchannels, 1);
  EXPECT_EQ(plan.program->workers.size(), 7u);
  const std::vector<bool> followed{true, false, false, true, false, false, false};
  const std::vector<uint32_t> first{0, 0, 0, 0, 1, 0, 1};
  for (size_t work = 0; work < 7; ++work) {
    EXPECT_EQ(plan.turns[work].is_followed, followed[work]) << work;
    EXPECT_EQ(plan.turns[work].first_step, first[work]) << work;
    EXPECT_EQ(plan.partitions[work].rounds, 1u) << work;
  }
}

TEST(Plan, CutsChunksAsTheChoiceSays) {
  for (const int nranks : {2, 4})
    for (const Protocol protocol : {Protocol::LL, Protocol::LL128, Protocol::Simple}) {
      Settings settings = settings_for(gpu::Kind::Cuda, nranks);
      allow_only(settings, Collective::Broadcast, "ring_halves");
      auto& protocols = settings.protocols[static_cast<size_t>(Collective::Broadcast)];
      protocols.fill(false);
      protocols[static_cast<size_t>(protocol)] = true;
      const auto slot = static_cast<uint32_t>(executor::data_bytes(
          protocol, settings.shapes[static_cast<size_t>(protocol)].slot_bytes));
      const int most = protocol == Protocol::Simple ? 4 : 1;
      EXPECT_EQ(most_parts(protocol), most);
      for (const int asked : {1, 2, 4}) {
        settings.chunk_parts = asked;
        const Request request{.collective = Collective::Broadcast, .count = size_t{1} << 30};
        const Plan plan = Planner(settings, 0).collective(request).value();
        const int parts = std::min(asked, most);
        EXPECT_EQ(plan.choice.parts, parts);
        EXPECT_LE(plan.partitions[0].chunk, slot / static_cast<uint32_t>(parts));
        EXPECT_GT(plan.partitions[0].chunk, slot / static_cast<uint32_t>(2 * parts));
      }
    }
}

TEST(Plan, LargeCommunicatorsDoNotConnectEveryoneToEveryone) {
  Planner planner(settings_for(gpu::Kind::Virtual, 256), 7);
  for (size_t count : {1u, 1u << 20}) {
    const Plan plan =
        planner.collective(all_reduce(count, DataType::Float32, Operation::Sum)).value();
    EXPECT_LE(plan.program->ports.size(), 18u) << plan.choice.form->name;
  }
}

TEST(Plan, ScalesAveragesWhereNothingCanOverflow) {
  Settings settings = settings_for(gpu::Kind::Virtual, 4);
  const auto reduction_of = [&](const char* algorithm, DataType type) {
    allow_only(settings, Collective::AllReduce, algorithm);
    Planner planner(settings, 0);
    return planner.collective(all_reduce(100, type, Operation::Average)).value().reduction;
  };
  const auto in_ring = reduction_of("ring", DataType::Float16);
  EXPECT_EQ(in_ring.input_scale, 0.25);
  EXPECT_EQ(in_ring.finish_scale, 1);
  const auto direct = reduction_of("two_shot", DataType::Float16);
  EXPECT_EQ(direct.input_scale, 1);
  EXPECT_EQ(direct.finish_scale, 0.25);
  EXPECT_EQ(reduction_of("two_shot", DataType::Int32).finish_divisor, 4);
}

TEST(Plan, SaysWhatAnEmptySelectionLeavesOut) {
  Settings settings = settings_for(gpu::Kind::Virtual, 4);
  settings.forms[static_cast<size_t>(Collective::AllReduce)].reset();
  const auto plan =
      Planner(settings, 0).collective(all_reduce(100, DataType::Float32, Operation::Sum));
  ASSERT_FALSE(plan.is_ok());
  EXPECT_EQ(plan.status().code(), Code::InvalidUsage);
  EXPECT_THAT(plan.status().message(), HasSubstr("NCCL_ALGO"));
}

// Both ends of a connection count tiles and places alike, and there are places for several.
TEST(Plan, PullsForLargeReducesOfSeveralGpus) {
  const auto bytes_of = [](const Settings& settings, Collective collective, size_t bytes) {
    return pull_bytes(settings,
                      {.collective = collective, .nranks = settings.nranks, .bytes = bytes});
  };
  Settings four = settings_for(gpu::Kind::Cuda, 4);
  const uint32_t tile = bytes_of(four, Collective::AllReduce, size_t{1} << 30);
  ASSERT_NE(tile, 0u);
  EXPECT_EQ(tile % 512, 0u);
  EXPECT_GE(executor::pull::most_of(four.shapes[static_cast<size_t>(Protocol::Simple)], tile), 4u);
  EXPECT_EQ(bytes_of(four, Collective::AllReduce, 1 << 20), 0u);
  EXPECT_NE(bytes_of(four, Collective::ReduceScatter, size_t{1} << 30), 0u);
  EXPECT_EQ(bytes_of(four, Collective::AllGather, size_t{1} << 30), 0u);
  EXPECT_EQ(bytes_of(settings_for(gpu::Kind::Cuda, 2), Collective::AllReduce, size_t{1} << 30), 0u);
  EXPECT_EQ(bytes_of(settings_for(gpu::Kind::Virtual, 4), Collective::AllReduce, size_t{1} << 30),
            0u);
  four.pull_block = 1 << 20;
  EXPECT_EQ(bytes_of(four, Collective::AllReduce, 4 << 20), tile);
  EXPECT_EQ(bytes_of(four, Collective::AllReduce, (4 << 20) - 4), 0u);
  set_reach(four, /*reaches_users=*/false);
  EXPECT_EQ(bytes_of(four, Collective::AllReduce, size_t{1} << 30), 0u);
}

// ---- networks that reduce

Settings with_reducer(const Limits& limits = {}) {
  Settings settings = settings_for(gpu::Kind::Virtual, 4, limits);
  span_machines(settings, {0, 0, 1, 1});
  settings.reducible = {.bits = Reductions::bit(DataType::Float32, executor::ReduceOp::Sum),
                        .gathers = true};
  for (const Collective collective : {Collective::AllReduce, Collective::AllGather})
    allow_only(settings, collective, "collnetdirect");
  return settings;
}

TEST(PlanOfReducer, IsOfTheTypesAndOperationsThatTheNetworkKnows) {
  Settings settings = with_reducer();
  settings.forms[static_cast<size_t>(Collective::AllReduce)].set(
      index_of(*find_form(Collective::AllReduce, "ring")));
  Planner planner(settings, 0);
  const auto is_reduced = [&](DataType type, Operation operation) {
    return planner.collective(all_reduce(1000, type, operation))
        ->choice.form->traits()
        .through_network;
  };
  EXPECT_TRUE(is_reduced(DataType::Float32, Operation::Sum));
  EXPECT_TRUE(is_reduced(DataType::Float32, Operation::Average)) << "a scaled sum";
  EXPECT_FALSE(is_reduced(DataType::Float32, Operation::Max));
  EXPECT_FALSE(is_reduced(DataType::Float16, Operation::Sum));
  const Plan gathered =
      planner
          .collective(
              {.collective = Collective::AllGather, .count = 1000, .type = DataType::Float16})
          .value();
  EXPECT_STREQ(gathered.choice.form->algorithm->name, "collnetdirect") << "only bytes";
}

// NCCL_ALGO=CollnetDirect, and with NVLS or NVLSTree beside it, on machines with and without a
// team.
TEST(PlanOfReducer, ListsThatSuitNoOperationAreRefusedWithTheirRemedy) {
  for (const int team : {0, 2})
    for (const size_t bit : {size_t{0}, kNvlsBit, kNvlsTreeBit}) {
      SCOPED_TRACE(fmt::format("teams of {}, bit {}", team, bit));
      Settings settings = with_reducer();
      if (bit != 0) settings.forms[static_cast<size_t>(Collective::AllReduce)].set(bit);
      set_team(settings, team);
      const auto plan = [&](DataType type, Operation operation, int most_channels) {
        return Planner(settings, 0).collective(all_reduce(1000, type, operation), most_channels);
      };
      for (const int most_channels : {0, 2}) {  // alone, and beside others in a launch
        EXPECT_TRUE(plan(DataType::Float32, Operation::Sum, most_channels).is_ok());
        const Result<Plan> refused = plan(DataType::Float16, Operation::Product, most_channels);
        ASSERT_FALSE(refused.is_ok());
        EXPECT_EQ(refused.status().code(), Code::InvalidUsage);
        EXPECT_THAT(
            refused.status().message(),
            AllOf(HasSubstr("NCCL_ALGO of rank 0 leaves none"),
                  HasSubstr(fmt::format("CollNet does not reduce {} by prod, as its plug-in says",
                                        executor::name_of(DataType::Float16))),
                  HasSubstr("as in NCCL_ALGO=CollnetDirect,ring")));
      }
    }
}

TEST(PlanOfReducer, HasSeveralChannelsAndIsOfOneOperation) {
  Planner planner(with_reducer({.min_ctas = 4, .max_ctas = 4}), 0);
  const Request large = all_reduce(size_t{64} << 20, DataType::Float32, Operation::Sum);
  const Plan alone = planner.collective(large).value();
  EXPECT_EQ(alone.partitions[0].channels, 4u);
  EXPECT_EQ(alone.protocol, Protocol::Simple);
  // Operations that share a launch have channels of their own.
  EXPECT_FALSE(
      planner.collective(large, /*most_channels=*/2)->choice.form->traits().through_network);
}

TEST(PlanOfReducer, IsNoneWithoutOne) {
  Settings settings = with_reducer();
  settings.reducible = {};
  EXPECT_THAT(Planner(settings, 0)
                  .collective(all_reduce(1000, DataType::Float32, Operation::Sum))
                  .status()
                  .message(),
              HasSubstr("NCCL_ALGO"));
  settings = with_reducer();
  settings.reducible.gathers = false;
  EXPECT_FALSE(Planner(settings, 0)
                   .collective({.collective = Collective::AllGather, .count = 1000})
                   .is_ok());
}

}  // namespace
}  // namespace niccolite::planner
