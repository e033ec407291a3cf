// User memory at connections to other machines (executor/protocol/user_memory.h): whole collectives
// of virtual GPUs, between whose ends the test plays the proxies' and the network's part. Bytes are
// read as late, and written as early, as proxies may: parts of chunks travel in any order and in
// pieces, between any steps of the kernels, and are acknowledged later still.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <tuple>

#include "gpu/virtual/driver.h"
#include "planner/form.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"
#include "tests/executor/host/scratch_schedule.h"
#include "transport/net/incoming.h"
#include "transport/net/outgoing.h"

namespace niccolite::transport::net {
namespace {

using executor::ControlBlock;
using executor::DataType;
using executor::FifoShape;
using executor::Launch;
using executor::Protocol;
using executor::host::Cluster;
using executor::host::Operands;
using executor::host::OperationBuffers;
using gpu::virtual_::Progress;

constexpr uint32_t kPartBytes = 48;  // a chunk comes in several
constexpr uint32_t kSlotBytes = 128;

/// Of one kernel after the other, both ends of all connections that leave a machine.
class Network {
 public:
  Network(const FifoShape& shape, uint64_t least_bytes, uint32_t seed)
      : shape_(shape), least_bytes_(least_bytes), random_(seed) {}

  /// Ranks are on one machine where `machine_of` gives the same.
  template <typename MachineOf>
  void replace_ports(std::vector<Launch>& launches, MachineOf machine_of) {
    for (size_t rank = 0; rank < launches.size(); ++rank) {
      const auto self = static_cast<int>(rank);
      for (size_t p = 0; p < launches[rank].ports.size(); ++p) {
        const executor::Port& port = launches[rank].program->ports[p];
        if (machine_of(self) == machine_of(port.peer)) continue;
        Wire& wire = port.is_send ? wire_of({self, port.peer, port.tag})
                                  : wire_of({port.peer, self, port.tag});
        launches[rank].ports[p] = port.is_send ? wire.from->port() : wire.to->port();
      }
    }
  }

  /// Moves something on. False: there is nothing.
  bool carry() {
    for (auto& [ends, wire] : wires_) collect(wire);
    if (on_the_way_.empty()) return false;
    std::swap(on_the_way_[random_() % on_the_way_.size()], on_the_way_.back());
    if (!move(on_the_way_.back())) on_the_way_.pop_back();
    return true;
  }

  void carry_all() {
    while (carry()) {
    }
  }

  /// Is anything of that rank's user under way, or awaited?
  bool uses_memory_of(int rank) const {
    for (const Piece& piece : on_the_way_) {
      const auto& [sender, receiver, tag] = piece.ends;
      if (piece.part.from == nullptr) continue;
      if (sender == rank && !is_slot(piece.wire->from->port().slots, piece.part.payload()))
        return true;
      if (receiver == rank && piece.is_accepted && piece.moved < piece.part.frame.length &&
          !is_slot(piece.wire->to->port().slots, piece.wire->to->place_of(piece.part.frame)))
        return true;
    }
    for (const auto& [ends, wire] : wires_) {
      if (std::get<1>(ends) != rank) continue;
      const auto* const places = wire.to->places();
      for (size_t i = 0; i < size_t{shape_.channels} * shape_.depth; ++i)
        if (places[i].address != 0) return true;
    }
    return false;
  }

  uint64_t from_users = 0, to_users = 0, bytes = 0;  // that were carried

 private:
  struct Wire {
    std::unique_ptr<Outgoing> from;
    std::unique_ptr<Incoming> to;
  };
  using Ends = std::tuple<int, int, int>;  // sender, receiver, tag
  struct Piece {
    Ends ends;
    Wire* wire;
    Part part;                              // or credit
    std::vector<std::byte> published = {};  // its bytes
    bool is_accepted = false;
    bool has_arrived = false;
    uint32_t moved = 0;
  };

  Wire& wire_of(const Ends& ends) {
    Wire& wire = wires_[ends];
    if (wire.from != nullptr) return wire;
    gpu::Machine& machine = *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion);
    const Key key{.tag = std::get<2>(ends)};
    const UserMemoryOptions options{.loop = loop_.get(), .least_bytes = least_bytes_};
    wire.from = Outgoing::create(machine, key, shape_, bell_, options).take();
    wire.to = Incoming::create(machine, key, shape_, bell_, options).take();
    return wire;
  }

  void collect(Wire& wire) {
    const Ends ends = std::ranges::find_if(wires_, [&](const auto& entry) {
                        return &entry.second == &wire;
                      })->first;
    wire.from->collect({.bytes = kPartBytes}, [&](const Part& part) {
      on_the_way_.push_back({.ends = ends, .wire = &wire, .part = part});
      on_the_way_.back().published.assign(part.payload(), part.payload() + part.frame.length);
    });
    wire.to->collect(Incoming::Credit::All, [&](const Frame& credit) {
      on_the_way_.push_back({.ends = ends, .wire = &wire, .part = {.frame = credit}});
    });
  }

  bool is_slot(const std::byte* slots, const std::byte* at) const {
    return at >= slots && at < slots + shape_.slots_bytes();
  }

  /// One of: the header comes, some bytes do, the last have, they are acknowledged. False: done.
  bool move(Piece& piece) {
    const Frame& frame = piece.part.frame;
    if (frame.kind == FrameKind::Credit) {
      piece.wire->from->grant(frame.channel, frame.step);
      return false;
    }
    if (!piece.is_accepted) {
      const Status status = piece.wire->to->accept(frame);
      EXPECT_TRUE(status.is_ok()) << status.message();
      piece.is_accepted = true;
    } else if (piece.moved < frame.length) {
      const auto some =
          std::min(frame.length - piece.moved, static_cast<uint32_t>(1 + random_() % frame.length));
      const std::byte* const source = piece.part.payload();
      std::byte* const target = piece.wire->to->place_of(frame);
      EXPECT_EQ(std::memcmp(source, piece.published.data(), frame.length), 0)
          << "what was published has changed before it arrived";
      std::memcpy(target + piece.moved, source + piece.moved, some);
      piece.moved += some;
      bytes += some;
      if (!is_slot(piece.wire->from->port().slots, source)) from_users += some;
      if (!is_slot(piece.wire->to->port().slots, target)) to_users += some;
    } else if (!piece.has_arrived) {
      piece.wire->to->arrived(frame);
      piece.has_arrived = true;
    } else {
      piece.part.from->sent(frame);
      return false;
    }
    return true;
  }

  const FifoShape shape_;
  const uint64_t least_bytes_;
  std::mt19937 random_;
  executor::relay::Bell bell_{[](void*, uint64_t) {}, nullptr};
  std::unique_ptr<wire::EventLoop> loop_ = wire::EventLoop::create().take();
  std::map<Ends, Wire> wires_;
  std::vector<Piece> on_the_way_;
};

/// Steps the kernels of all ranks, and the network, in any order. A kernel that has ended has its
/// user's memory for itself. `abort_after` so many steps all are told to end; then the network
/// has what was published.
testing::AssertionResult run(Cluster& cluster, const std::vector<Launch>& launches,
                             Network& network, uint32_t seed, uint64_t abort_after = UINT64_MAX) {
  std::mt19937 random(seed);
  Cluster::Tasks tasks = cluster.tasks(launches);
  size_t left = tasks.size();
  int blocked = 0;  // attempts in a row
  const auto network_share = 1 + random() % 8;
  while (left > 0) {
    if (abort_after-- == 0) cluster.control.abort = static_cast<uint32_t>(executor::Command::End);
    if (random() % 8 < network_share && network.carry()) {
      blocked = 0;
      continue;
    }
    const size_t rank = random() % tasks.size();
    if (tasks[rank] == nullptr) continue;
    const Progress progress = tasks[rank]->step();
    if (progress == Progress::Done) {
      tasks[rank].reset();
      --left;
      if (network.uses_memory_of(static_cast<int>(rank)))
        return testing::AssertionFailure()
               << "rank " << rank << " has ended, and its memory is in use";
    }
    blocked = progress == Progress::WouldBlock ? blocked + 1 : 0;
    if (blocked > 200 && !network.carry())
      return testing::AssertionFailure() << "all ranks wait for each other";
  }
  return testing::AssertionSuccess();
}

struct Case {
  const planner::Form* algorithm;
  int nranks;
};
std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const planner::Form& algorithm : planner::forms())
    for (const int nranks : {2, 3, 5, 8})
      if (nranks >= algorithm.min_ranks && nranks <= algorithm.max_ranks)
        cases.push_back({&algorithm, nranks});
  return cases;
}
std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  return std::string(schedule::name_of(info.param.algorithm->collective)) + "_" +
         info.param.algorithm->name + "_" + std::to_string(info.param.nranks);
}

class UserMemoryOfNetworks : public testing::TestWithParam<Case> {
 protected:
  schedule::Schedule build() const {
    algorithms::Options options;
    if (schedule::has_root(GetParam().algorithm->collective)) options.root = GetParam().nranks - 1;
    return GetParam().algorithm->build(GetParam().nranks, options).take();
  }
};

// Bytes from and to users' memory, of operations in place and not, of the whole schedule.
void carry_out(const schedule::Schedule& schedule, uint32_t seeds) {
  uint64_t used = 0;
  for (uint32_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const FifoShape shape{
        .channels = 1 + seed % 2, .depth = 1u << (1 + seed % 2), .slot_bytes = kSlotBytes};
    Cluster cluster(schedule, Protocol::Simple, shape);
    cluster.open_ranks = seed % 3 == 0 ? ~0u : 0;
    // Of some chunks the last part is too small to stay where it is.
    const uint64_t least = seed % 4 == 0 ? 100 : 1;
    Network network(shape, least, seed);
    const uint64_t full = schedule::cuts_one_buffer(schedule.collective)
                              ? kSlotBytes / 4 * static_cast<uint64_t>(schedule.nblocks)
                              : kSlotBytes / 4;
    for (uint16_t turn = 1; turn <= 2; ++turn) {
      const uint64_t count = 5 * full + seed;
      const executor::Reduction reduction =
          seed % 5 == 0 && schedule::reduces(schedule.collective)
              ? executor::Reduction{.op = executor::ReduceOp::Sum, .input_scale = 0.5}
              : executor::Reduction{};
      const Operands operands(schedule, DataType::Float32, {count},
                              {.is_in_place = (seed / 2 + turn) % 2 == 0, .reduction = reduction});
      std::vector<Launch> launches = cluster.launches({.count = count,
                                                       .type = DataType::Float32,
                                                       .reduction = reduction,
                                                       .tag = static_cast<uint16_t>(16 * turn)},
                                                      operands.addresses());
      // Each on its own, or two and two.
      const int ranks_each = seed % 3 == 0 && schedule.nranks > 2 ? 2 : 1;
      network.replace_ports(launches, [&](int rank) { return rank / ranks_each; });
      ASSERT_TRUE(run(cluster, launches, network, 100 * seed + turn));
      network.carry_all();
      ASSERT_NO_FATAL_FAILURE(operands.check());
    }
    used += network.from_users + network.to_users;
    EXPECT_LE(network.from_users, network.bytes);
  }
  EXPECT_GT(used, 0u) << "all of it went through slots";
}

TEST_P(UserMemoryOfNetworks, ResultsAreRightAndNothingIsUsedAfterKernels) {
  carry_out(build(), /*seeds=*/5);
}

// The input of a block is replaced by the sum, which comes from who has had it.
TEST(UserMemoryOfNetworks, IsWhereRingsInPlaceSendAllFrom) {
  for (const int nranks : {2, 3}) {
    const schedule::Schedule schedule =
        planner::find_form(schedule::Collective::AllReduce, "ring")->build(nranks, {}).take();
    const FifoShape shape{.channels = 1, .depth = 4, .slot_bytes = kSlotBytes};
    Cluster cluster(schedule, Protocol::Simple, shape);
    Network network(shape, /*least_bytes=*/1, /*seed=*/1);
    const uint64_t count = 12 * kSlotBytes * static_cast<uint64_t>(nranks) / sizeof(float);
    const Operands operands(schedule, DataType::Float32, {count}, {.is_in_place = true});
    std::vector<Launch> launches = cluster.launches(
        {.count = count, .type = DataType::Float32, .tag = 16}, operands.addresses());
    network.replace_ports(launches, [](int rank) { return rank; });
    ASSERT_TRUE(run(cluster, launches, network, /*seed=*/1));
    network.carry_all();
    ASSERT_NO_FATAL_FAILURE(operands.check());
    // Partial sums are nowhere but in slots.
    const uint64_t partial = static_cast<uint64_t>(nranks - 2) * nranks * count / nranks;
    EXPECT_EQ(network.from_users, network.bytes - partial * sizeof(float)) << nranks;
  }
}

// What comes next must not overtake who still reads the memory that it goes to.
TEST(UserMemoryOfNetworks, IsGivenToTheNextChunkWhenItIsFree) {
  for (const int nranks : {2, 3})
    carry_out(executor::host::by_way_of_one_scratch_block(nranks), /*seeds=*/40);
}

// Aborted at any moment, kernels end, and from then on buffers are their users': nothing more is
// stored there, and peers get what was published before.
TEST(UserMemoryOfNetworks, IsLetGoByKernelsThatAreAborted) {
  uint64_t used = 0;
  for (const char* name : {"ring", "direct_workers"})
    for (uint32_t seed = 1; seed <= 300; ++seed) {
      SCOPED_TRACE(testing::Message() << name << ", seed " << seed);
      const auto* const algorithm = planner::find_form(schedule::Collective::AllGather, name);
      ASSERT_NE(algorithm, nullptr);
      const schedule::Schedule schedule = algorithm->build(3, {}).take();
      const FifoShape shape{.channels = 2, .depth = 4, .slot_bytes = kSlotBytes};
      Cluster cluster(schedule, Protocol::Simple, shape);
      Network network(shape, /*least_bytes=*/1, seed);
      constexpr size_t kBytes = 9 * kSlotBytes + 12;
      std::vector<std::vector<std::byte>> inputs, outputs;
      OperationBuffers buffers;
      for (int rank = 0; rank < 3; ++rank) {
        inputs.emplace_back(kBytes, std::byte{1});
        outputs.emplace_back(3 * kBytes);
      }
      for (size_t rank = 0; rank < 3; ++rank) {
        buffers.inputs.push_back(inputs[rank].data());
        buffers.outputs.push_back(outputs[rank].data());
      }
      std::vector<Launch> launches =
          cluster.launches({.count = kBytes, .type = DataType::Uint8}, buffers);
      network.replace_ports(launches, [](int rank) { return rank; });
      ASSERT_TRUE(run(cluster, launches, network, seed, /*abort_after=*/seed));
      used += network.from_users + network.to_users;
      for (auto* const all : {&inputs, &outputs})
        for (std::vector<std::byte>& bytes : *all) std::ranges::fill(bytes, std::byte{0xee});
      network.from_users = network.to_users = 0;
      network.carry_all();
      EXPECT_EQ(network.from_users + network.to_users, 0u);
      for (auto* const all : {&inputs, &outputs})
        for (const std::vector<std::byte>& bytes : *all)
          ASSERT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0xee}; }));
    }
  EXPECT_GT(used, 0u) << "all of it went through slots";
}

INSTANTIATE_TEST_SUITE_P(All, UserMemoryOfNetworks, testing::ValuesIn(cases()), name_of_case);

}  // namespace
}  // namespace niccolite::transport::net
