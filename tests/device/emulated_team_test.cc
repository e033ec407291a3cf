// Programs by a multicast team, by the kernels' own source on the CPU (emulated_gpu.h).
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>

#include "executor/cuda/launch/launch_header.h"
#include "executor/protocol/advertisement.h"
#include "executor/protocol/ll.h"
#include "planner/form.h"
#include "tests/device/emulated_gpu.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::FifoShape;
using executor::Launch;
using executor::Protocol;
using executor::ReduceOp;
using executor::Reduction;
using executor::cuda::KernelLaunch;
using executor::cuda::KernelVariant;
using executor::cuda::Staging;
using executor::host::Cluster;
using executor::host::GuardedMemory;
using executor::host::OperandOptions;
using executor::host::Operands;

constexpr int kThreads = 96;  // three warps, which share workers unevenly

struct Case {
  DataType type = DataType::Int32;
  ReduceOp op = ReduceOp::Sum;
  uint64_t count = 1;
  OperandOptions options{};
  uint64_t seed = 1;
};

/// True: all ranks' launches have ended.
bool run(Cluster& cluster, const std::vector<Launch>& launches, uint64_t seed) {
  std::vector<std::byte*> addresses, members;
  for (const GuardedMemory& memory : cluster.team_addresses()) addresses.push_back(memory.data());
  for (const GuardedMemory& memory : cluster.team_memory()) members.push_back(memory.data());
  emulation::set_team(addresses, members, cluster.team_memory()[0].bytes(), cluster.machines());
  std::deque<KernelLaunch> prepared;
  std::vector<KernelLaunch*> pointers;
  for (Launch launch : launches) {
    launch.control_device = &cluster.control;
    launch.threads = kThreads;
    auto kernel =
        executor::cuda::prepare(launch, executor::cuda::Specialisation::Allowed, Staging::All);
    if (!kernel.is_ok()) {
      ADD_FAILURE() << kernel.status().message();
      return false;
    }
    EXPECT_EQ(kernel->kernel.variant,
              launch.protocol == Protocol::LL ? KernelVariant::TeamWords : KernelVariant::Team);
    prepared.push_back(std::move(kernel).take());
    pointers.push_back(&prepared.back());
    set_advertisements(prepared.back(), executor::cuda::buffers_of(launch),
                       [&](const void*, uint64_t) { return (seed + prepared.size()) % 3 != 0; });
  }
  return emulation::run(pointers, seed);
}

/// Checks the results of an operation that has ended, and all that it had to leave alone.
void check(const Cluster& cluster, const Operands& operands) {
  ASSERT_NO_FATAL_FAILURE(operands.check());
  ASSERT_TRUE(cluster.guards_intact());
  ASSERT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
  ASSERT_EQ(cluster.control.report, 0u);
  // Nothing but multicast instructions uses a team's addresses.
  for (const GuardedMemory& memory : cluster.team_addresses())
    for (size_t i = 0; i < memory.bytes(); ++i) ASSERT_EQ(memory.data()[i], std::byte{0});
}

void run(Cluster& cluster, const Case& of) {
  OperandOptions options = of.options;
  options.reduction = Reduction{.op = of.op};
  const Operands operands(cluster.schedule(), of.type, {of.count}, options);
  const std::vector<Launch> launches = cluster.launches(
      {.count = of.count, .type = of.type, .reduction = options.reduction}, operands.addresses());
  ASSERT_TRUE(run(cluster, launches, of.seed));
  check(cluster, operands);
}

FifoShape shape_of(uint32_t channels) {
  return {.channels = channels, .depth = 2, .slot_bytes = 512};
}

/// Calls function(form, cluster) for each algorithm that has connections by a team.
template <typename Function>
void for_each_by_team(int nranks, Protocol protocol, Function&& function) {
  uint32_t turn = 0;
  for (const planner::Form& form : planner::forms()) {
    if (form.is_of_messages() || nranks > form.max_ranks) continue;
    algorithms::Options options;
    if (schedule::has_root(form.collective)) options.root = static_cast<int>(++turn) % nranks;
    schedule::Schedule schedule = form.build(nranks, options).take();
    const bool publishes_chunks = protocol == Protocol::Simple;
    if (!lowering::routes_of(schedule, {}, /*has_team=*/true, publishes_chunks).use_team())
      continue;
    SCOPED_TRACE(
        fmt::format("{} {} of {} ranks", schedule::name_of(form.collective), form.name, nranks));
    Cluster cluster =
        Cluster::by_team(std::move(schedule), shape_of(2), /*window_bytes=*/0, protocol);
    ASSERT_NO_FATAL_FAILURE(function(form, cluster));
  }
}

void run_every_algorithm(Protocol protocol, int least) {
  int algorithms = 0;
  uint64_t seed = 0;
  for (const int nranks : {2, 3, 4, 5, 9}) {
    if (nranks > 5 && protocol == Protocol::Simple) continue;
    for_each_by_team(nranks, protocol, [&](const planner::Form& form, Cluster& cluster) {
      ++algorithms;
      const bool reduces = schedule::reduces(form.collective);
      for (const uint64_t count :
           {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{129}, uint64_t{1537}}) {
        ++seed;
        SCOPED_TRACE(count);
        ASSERT_NO_FATAL_FAILURE(
            run(cluster, {.type = reduces ? DataType::Int32 : DataType::Uint8,
                          .count = count,
                          .options = {.is_in_place = seed % 2 == 0, .is_misaligned = seed % 3 == 0},
                          .seed = seed}));
      }
    });
  }
  EXPECT_GE(algorithms, least);
}

TEST(EmulatedTeam, RunsEveryAlgorithmThatGoesByOne) {
  run_every_algorithm(Protocol::Simple, 4 * 5);
}

TEST(EmulatedTeam, StoresWordsOfEveryAlgorithmThatSendsToAll) {
  run_every_algorithm(Protocol::LL, 5 * 3);
}

// Each rank reduces words by itself, so that inexact sums have the bits of all other ways.
TEST(EmulatedTeam, ReducesWordsInTheOrderOfRanks) {
  const planner::Form* const form = planner::find_form(schedule::Collective::AllReduce, "one_shot");
  for (const int nranks : {3, 8}) {
    Cluster cluster = Cluster::by_team(form->build(nranks, {}).take(), shape_of(1),
                                       /*window_bytes=*/0, Protocol::LL);
    for (const DataType type : {DataType::Float32, DataType::Float16, DataType::Bfloat16})
      for (const uint64_t count : {uint64_t{5}, uint64_t{700}})
        ASSERT_NO_FATAL_FAILURE(run(cluster, {.type = type, .count = count, .seed = count}));
  }
}

// Words of 2^16 steps ago have the flags of now, so no word may be as old.
TEST(EmulatedTeam, CleansTheSlotsOfAllMembers) {
  const planner::Form* const form = planner::find_form(schedule::Collective::AllReduce, "one_shot");
  Cluster cluster =
      Cluster::by_team(form->build(3, {}).take(), shape_of(1), /*window_bytes=*/0, Protocol::LL);
  const auto are_clean = [&](const GuardedMemory& memory) {
    // Words lie behind the slots of chunks; the ranks store to the first of two places each.
    const executor::TeamSlots& slots = cluster.team_slots();
    const size_t of_rank = slots.words.slots_bytes();
    for (int owner = 0; owner < 3; ++owner) {
      const auto* const words = reinterpret_cast<const uint64_t*>(
          memory.data() + slots.offset(Protocol::LL, 3, owner, lowering::kFirstTeamTag));
      if (std::any_of(words, words + of_rank / executor::ll::kWordBytes, [](uint64_t word) {
            const uint32_t step = executor::ll::flag_in(word) & 0xffff;
            return step < (1u << 15) - 1;  // of the last two steps before the wrap, or later
          }))
        return false;
    }
    return true;
  };
  cluster.start_at((1u << 15) - 4);
  for (int step = 0; step < 6; ++step) {
    ASSERT_NO_FATAL_FAILURE(run(cluster, {.count = 3, .seed = static_cast<uint64_t>(step) + 1}));
    for (const GuardedMemory& memory : cluster.team_memory())
      ASSERT_EQ(are_clean(memory), step >= 3) << step;
  }
}

/// Ranks, a bit each, whose buffers lie elsewhere than other ranks' buffers.
struct Odd {
  uint32_t further = 0;  // by a unit
  uint32_t nowhere = 0;  // they are not known to be in windows
  static bool has(uint32_t ranks, int rank) { return (ranks >> rank & 1) != 0; }
};

/// The ranks' buffers of an operation, in their windows: at one place, but for a rank's own.
class InWindows {
 public:
  static constexpr size_t kBytes = 128 << 10;  // of a window: inputs, then outputs
  InWindows(const Cluster& cluster, const Case& of, const executor::host::OperationBuffers& plain,
            Odd odd)
      : cluster_(cluster),
        plain_(plain),
        buffers_(plain),
        is_in_place_(of.options.is_in_place),
        odd_(odd) {
    const schedule::Collective collective = cluster.schedule().collective;
    const size_t bytes = of.count * executor::size_of(of.type);
    const size_t of_all = bytes * static_cast<size_t>(cluster.nranks());
    const bool is_one = schedule::cuts_one_buffer(collective);
    const bool gathers =
        collective == schedule::Collective::AllGather || collective == schedule::Collective::Gather;
    input_bytes_ = is_one || gathers ? bytes : of_all;
    output_bytes_ = is_one || !gathers ? bytes : of_all;
    for (int rank = 0; rank < cluster.nranks(); ++rank) {
      const auto at = static_cast<size_t>(rank);
      const auto* const input = static_cast<const std::byte*>(plain.inputs[at]);
      auto* const output = static_cast<std::byte*>(plain.outputs[at]);
      std::byte* const window = cluster.window_of(rank);
      std::fill_n(window, kBytes, kPoison);
      // A rank without an input, or without an output, has the other one where all have it.
      const bool is_shared = is_in_place_ && input != nullptr && output != nullptr;
      const size_t further = Odd::has(odd.further, rank) ? executor::advertisement::kAlignment : 0;
      std::byte* inputs = window + kBytes / 4 + further;
      std::byte* outputs = window + kBytes / 2 + further;
      if (is_in_place_ && is_one) outputs = inputs;
      if (is_shared && gathers) inputs = outputs + (input - output);
      if (is_shared && !gathers && !is_one) outputs = inputs + (output - input);
      if (input != nullptr) std::copy_n(input, input_bytes_, inputs);
      buffers_.inputs[at] = input == nullptr ? nullptr : inputs;
      buffers_.outputs[at] = output == nullptr ? nullptr : outputs;
    }
  }
  const executor::host::OperationBuffers& buffers() const { return buffers_; }
  void use_in(std::vector<Launch>& launches) const {
    for (int rank = 0; rank < cluster_.nranks(); ++rank)
      for (executor::Work& work : launches[static_cast<size_t>(rank)].works) {
        if (Odd::has(odd_.nowhere, rank)) continue;
        if (work.buffers.input != nullptr) work.buffers.input_shifts = cluster_.shifts_of(rank);
        if (work.buffers.output != nullptr) work.buffers.output_shifts = cluster_.shifts_of(rank);
      }
  }
  /// Brings the results to the plain buffers; nothing else was written.
  void end() const {
    for (size_t rank = 0; rank < buffers_.outputs.size(); ++rank) {
      if (buffers_.outputs[rank] == nullptr) continue;
      auto* const output = static_cast<std::byte*>(buffers_.outputs[rank]);
      std::copy_n(output, output_bytes_, static_cast<std::byte*>(plain_.outputs[rank]));
      // In place there may be input behind it.
      ASSERT_TRUE(is_in_place_ || output[output_bytes_] == kPoison);
    }
  }

 private:
  static constexpr std::byte kPoison{0xd5};
  const Cluster& cluster_;
  const executor::host::OperationBuffers plain_;
  executor::host::OperationBuffers buffers_;
  size_t input_bytes_ = 0, output_bytes_ = 0;
  const bool is_in_place_;
  const Odd odd_;
};

void run_on_windows(Cluster& cluster, const Case& of, Odd odd = {}) {
  OperandOptions options = of.options;
  options.reduction = Reduction{.op = of.op};
  const Operands operands(cluster.schedule(), of.type, {of.count}, options);
  const InWindows windows(cluster, of, operands.addresses(), odd);
  std::vector<Launch> launches = cluster.launches(
      {.count = of.count, .type = of.type, .reduction = options.reduction}, windows.buffers());
  windows.use_in(launches);
  ASSERT_TRUE(run(cluster, launches, of.seed));
  ASSERT_NO_FATAL_FAILURE(windows.end());
  check(cluster, operands);
}

bool are_slots_untouched(const Cluster& cluster) {
  for (int rank = 0; rank < cluster.nranks(); ++rank) {
    const std::byte* const begin = cluster.team_memory()[static_cast<size_t>(rank)].data();
    if (std::any_of(begin, static_cast<const std::byte*>(cluster.window_of(rank)),
                    [](std::byte byte) { return byte != std::byte{0}; }))
      return false;
  }
  return true;
}

/// Calls function(form, routes, cluster) for each algorithm that goes by windows, among 2 to 4
/// ranks of a machine, and 2 and 3 of each of two.
template <typename Function>
void for_each_on_windows(Function&& function) {
  for (const std::vector<int>& machines :
       {std::vector{0, 0}, {0, 0, 0}, {0, 0, 0, 0}, {0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}}) {
    const int nranks = static_cast<int>(machines.size());
    for (const planner::Form& form : planner::forms()) {
      // The network's reducer is no connection between ranks.
      if (form.is_of_messages() || (form.traits().through_network && machines.back() != 0))
        continue;
      algorithms::Options options{.machines = machines};
      if (schedule::has_root(form.collective)) options.root = 1;
      schedule::Schedule schedule = form.build(nranks, options).take();
      const lowering::Routes routes = lowering::routes_of(schedule, machines, /*has_team=*/true);
      if (!routes.allow_windows()) continue;
      SCOPED_TRACE(fmt::format("{} {} of {} ranks on machines {}",
                               schedule::name_of(form.collective), form.name, nranks,
                               fmt::join(machines, ", ")));
      Cluster cluster = Cluster::by_team(std::move(schedule), shape_of(2), InWindows::kBytes,
                                         Protocol::Simple, machines);
      ASSERT_NO_FATAL_FAILURE(function(form, routes, cluster));
    }
  }
}

TEST(EmulatedTeam, RunsOnWindowsWithoutSlots) {
  int without_slots = 0;
  uint64_t seed = 100;
  for_each_on_windows(
      [&](const planner::Form& form, const lowering::Routes& routes, Cluster& cluster) {
        const bool all = std::all_of(routes.of_tags().begin(), routes.of_tags().end(),
                                     [](const auto& entry) { return entry.second.allows_windows; });
        const bool reduces = schedule::reduces(form.collective);
        // Whole units, of one and of several rounds; then others, which go through slots.
        for (const uint64_t count : {uint64_t{16}, uint64_t{144}, uint64_t{1536}, uint64_t{1537}}) {
          SCOPED_TRACE(count);
          for (const bool is_in_place : {false, true}) {
            ASSERT_NO_FATAL_FAILURE(
                run_on_windows(cluster, {.type = reduces ? DataType::Int32 : DataType::Uint8,
                                         .count = count,
                                         .options = {.is_in_place = is_in_place},
                                         .seed = ++seed}));
          }
          if (!all) continue;
          ASSERT_EQ(are_slots_untouched(cluster), count % 16 == 0);
          without_slots += count % 16 == 0;
        }
      });
  EXPECT_GE(without_slots, 3 * 3 * 5);
}

// Owners refuse the places that others have advertised: some, all, or none.
TEST(EmulatedTeam, GoesThroughSlotsWhereRanksHaveOtherPlaces) {
  uint64_t seed = 1000;
  for_each_on_windows([&](const planner::Form& form, const lowering::Routes& /*routes*/,
                          Cluster& cluster) {
    const bool reduces = schedule::reduces(form.collective);
    const uint32_t last = 1U << (cluster.nranks() - 1);
    for (const Odd odd : {Odd{last, 0}, Odd{1, 0}, Odd{0, last}, Odd{0, 1}, Odd{2, 1},
                          Odd{0, last - 1}, Odd{0, 0}}) {
      for (const uint64_t count : {uint64_t{16}, uint64_t{1536}}) {
        SCOPED_TRACE(
            fmt::format("further {:b}, nowhere {:b}, {}", odd.further, odd.nowhere, count));
        ASSERT_NO_FATAL_FAILURE(run_on_windows(cluster,
                                               {.type = reduces ? DataType::Int32 : DataType::Uint8,
                                                .count = count,
                                                .options = {.is_in_place = seed % 2 == 0},
                                                .seed = ++seed},
                                               odd));
      }
    }
  });
}

// A CTA has no warp for each worker: workers at one end of one connection share some. Whole units
// go without slots, where places do not differ, and others through slots.
TEST(EmulatedTeam, SharesWarpsAmongTheWorkersOfManyRanks) {
  uint64_t seed = 5000;
  for (const auto& [algorithm, machines] :
       {std::pair("rail_trees_workers",
                  std::vector{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}),
        {"two_shot_workers", std::vector(10, 0)}}) {
    const planner::Form* const form =
        planner::find_form(schedule::Collective::AllReduce, algorithm);
    const int nranks = static_cast<int>(machines.size());
    Cluster cluster = Cluster::by_team(form->build(nranks, {.machines = machines}).take(),
                                       shape_of(2), InWindows::kBytes, Protocol::Simple, machines);
    for (const Odd odd : {Odd{}, Odd{.further = 2}, Odd{.nowhere = 1}})
      for (const uint64_t count : {uint64_t{16}, uint64_t{6400}, uint64_t{6401}}) {
        SCOPED_TRACE(fmt::format("{}, further {:b}, nowhere {:b}, {}", algorithm, odd.further,
                                 odd.nowhere, count));
        const bool is_untouched = are_slots_untouched(cluster);
        ASSERT_NO_FATAL_FAILURE(run_on_windows(
            cluster, {.count = count, .options = {.is_in_place = seed % 2 == 0}, .seed = ++seed},
            odd));
        if (is_untouched && odd.further == 0 && odd.nowhere == 0) {
          ASSERT_EQ(are_slots_untouched(cluster), count != 6401);
        }
      }
  }
}

TEST(EmulatedTeam, ReducesEveryTypeThatSwitchesDo) {
  const planner::Form* const form = planner::find_form(schedule::Collective::AllReduce, "two_shot");
  ASSERT_NE(form, nullptr);
  Cluster cluster = Cluster::by_team(form->build(3, {}).take(), shape_of(1));
  int pairs = 0;
  for (int t = 0; t < executor::kDataTypes; ++t) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Product, ReduceOp::Max, ReduceOp::Min}) {
      const auto type = static_cast<DataType>(t);
      if (!executor::switch_reduces(type, op)) continue;
      SCOPED_TRACE(fmt::format("{} {}", executor::name_of(type), static_cast<int>(op)));
      ++pairs;
      for (const uint64_t count : {uint64_t{3}, uint64_t{500}})
        ASSERT_NO_FATAL_FAILURE(
            run(cluster, {.type = type, .op = op, .count = count, .seed = count + pairs}));
    }
  }
  EXPECT_EQ(pairs, 20);
}

TEST(EmulatedTeam, RefusesWhatNoSwitchReduces) {
  const planner::Form* const form = planner::find_form(schedule::Collective::AllReduce, "two_shot");
  Cluster cluster = Cluster::by_team(form->build(2, {}).take(), shape_of(1));
  for (const DataType type : {DataType::Uint8, DataType::Float8e4m3}) {
    const Operands operands(cluster.schedule(), type, {8}, {});
    std::vector<Launch> launches =
        cluster.launches({.count = 8, .type = type}, operands.addresses());
    launches[0].control_device = &cluster.control;
    const auto kernel =
        executor::cuda::prepare(launches[0], executor::cuda::Specialisation::Allowed, Staging::All);
    ASSERT_FALSE(kernel.is_ok());
    EXPECT_NE(kernel.status().message().find("as no switch does"), std::string::npos);
  }
}

// Every wait ends, wherever the abort comes.
TEST(EmulatedTeam, EndsWhenTheHostSaysSo) {
  const planner::Form* const form = planner::find_form(schedule::Collective::AllReduce, "two_shot");
  for (const Protocol protocol : {Protocol::Simple, Protocol::LL})
    for (uint64_t switches = 100; switches < 20'000; switches = switches * 3 / 2) {
      SCOPED_TRACE(switches);
      Cluster cluster =
          Cluster::by_team(form->build(3, {}).take(), shape_of(1), /*window_bytes=*/0, protocol);
      const Operands operands(cluster.schedule(), DataType::Int32, {1000}, {});
      std::vector<Launch> launches =
          cluster.launches({.count = 1000, .type = DataType::Int32}, operands.addresses());
      launches.pop_back();  // whom the others wait for
      emulation::abort_after(switches, &cluster.control.abort);
      ASSERT_TRUE(run(cluster, launches, switches));
      ASSERT_TRUE(cluster.guards_intact());
    }
}

// Waits end so where owners refuse places, and members await the answer, too.
TEST(EmulatedTeam, EndsAmongRefusalsWhenTheHostSaysSo) {
  const planner::Form* const form =
      planner::find_form(schedule::Collective::AllReduce, "two_shot_workers");
  for (uint64_t switches = 100; switches < 20'000; switches = switches * 4 / 3) {
    SCOPED_TRACE(switches);
    Cluster cluster = Cluster::by_team(form->build(3, {}).take(), shape_of(1), InWindows::kBytes);
    const Case of{.count = 1536};
    const Operands operands(cluster.schedule(), of.type, {of.count}, {});
    const InWindows windows(cluster, of, operands.addresses(), {.further = 4});
    std::vector<Launch> launches =
        cluster.launches({.count = of.count, .type = of.type}, windows.buffers());
    windows.use_in(launches);
    emulation::abort_after(switches, &cluster.control.abort);
    ASSERT_TRUE(run(cluster, launches, switches));
    ASSERT_TRUE(cluster.guards_intact());
  }
}

}  // namespace
}  // namespace niccolite::device_test
