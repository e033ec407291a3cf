// Endpoints of several ranks of one process: both ends of every connection see the same memory.
#include "transport/endpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <thread>

#include "gpu/virtual/driver.h"
#include "planner/form.h"

namespace niccolite::transport {
namespace {

using executor::PortAddress;
using executor::Protocol;
using std::chrono::seconds;

constexpr int kRanks = 4;
constexpr Shapes kShapes{.shared = {{{2, 4, 1024}, {2, 2, 4096}, {2, 4, 64 << 10}}},
                         .of_messages = {{{2, 4, 128}, {2, 2, 256}, {2, 4, 512}}}};

gpu::Machine& machine() { return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion); }

struct Rank {
  Rank() = default;
  Rank(Rank&&) = default;
  ~Rank() {
    if (member != nullptr) member->leave();  // nothing is served any more
  }

  executor::Program program;
  std::unique_ptr<bootstrap::Member> member;
  std::unique_ptr<Endpoint> endpoint;
  size_t reserved_bytes = 0;
  std::vector<PortAddress> ports;
};

// With `reserves`, every rank makes its own ends before any connects.
std::vector<Rank> connected_ranks(const char* algorithm, Protocol protocol, bool reserves = false) {
  const bootstrap::UniqueId id = bootstrap::create_unique_id().take();
  std::vector<Rank> ranks(kRanks);
  std::barrier all_reserved(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      Rank& rank = ranks[static_cast<size_t>(r)];
      const auto* found = planner::find_form(schedule::Collective::AllReduce, algorithm);
      rank.program = executor::compile(found->build(kRanks, {}).value(), r).take();
      rank.member =
          bootstrap::Member::join(
              {.id = id, .nranks = kRanks, .rank = r, .deadline = Deadline::after(seconds(30))})
              .take();
      rank.endpoint = std::make_unique<Endpoint>(
          machine(), r, *rank.member, kShapes,
          Reach{.out = std::vector<bool>(kRanks),
                .in = std::vector<bool>(kRanks),
                .windows = {false, true, true, true}},
          [member = rank.member.get()](auto queries, const Deadline& deadline) {
            return member->request(queries, deadline);
          });
      rank.member->serve([endpoint = rank.endpoint.get()](int from, auto request) {
        return endpoint->answer(from, request);
      });
      if (reserves) {
        EXPECT_TRUE(rank.endpoint->reserve(rank.program, protocol).is_ok());
        rank.reserved_bytes = rank.endpoint->allocated_bytes();
        all_reserved.arrive_and_wait();
      }
      rank.ports =
          rank.endpoint->connect(rank.program, protocol, Deadline::after(seconds(30))).take();
    });
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

TEST(Endpoint, BothEndsOfAConnectionSeeTheSameMemory) {
  for (const char* algorithm : {"ring", "two_shot"})
    for (Protocol protocol : {Protocol::LL, Protocol::Simple}) {
      std::vector<Rank> ranks = connected_ranks(algorithm, protocol);
      int pairs = 0;
      for (int r = 0; r < kRanks; ++r) {
        const Rank& sender = ranks[static_cast<size_t>(r)];
        for (size_t p = 0; p < sender.ports.size(); ++p) {
          const executor::Port& port = sender.program.ports[p];
          if (!port.is_send) continue;
          const Rank& receiver = ranks[static_cast<size_t>(port.peer)];
          for (size_t q = 0; q < receiver.ports.size(); ++q) {
            const executor::Port& other = receiver.program.ports[q];
            if (other.is_send || other.peer != r || other.tag != port.tag) continue;
            EXPECT_EQ(sender.ports[p].slots, receiver.ports[q].slots);
            EXPECT_EQ(sender.ports[p].remote_control, receiver.ports[q].control);
            EXPECT_EQ(sender.ports[p].control, receiver.ports[q].remote_control);
            EXPECT_NE(sender.ports[p].control, receiver.ports[q].control);
            ++pairs;
          }
        }
      }
      EXPECT_EQ(pairs, algorithm == std::string("ring") ? kRanks : 2 * kRanks * (kRanks - 1));
    }
}

TEST(Endpoint, ConnectingAgainGivesTheSameMemoryAndAllocatesNothing) {
  std::vector<Rank> ranks = connected_ranks("two_shot", Protocol::Simple);
  Rank& rank = ranks[1];
  const size_t bytes = rank.endpoint->allocated_bytes();
  EXPECT_GT(bytes, 0u);
  const auto again =
      rank.endpoint->connect(rank.program, Protocol::Simple, Deadline::after(seconds(30))).take();
  for (size_t p = 0; p < again.size(); ++p) EXPECT_EQ(again[p].slots, rank.ports[p].slots);
  EXPECT_EQ(rank.endpoint->allocated_bytes(), bytes);
}

TEST(Endpoint, ServesAdvertisementsOfMemoryInWindowsOnceThereAreSome) {
  for (const Protocol protocol : {Protocol::LL, Protocol::Simple}) {
    std::vector<Rank> ranks = connected_ranks("two_shot", protocol);
    Rank& rank = ranks[1];
    for (const PortAddress& port : rank.ports) EXPECT_FALSE(port.can_put || port.can_get);
    rank.endpoint->open_windows();
    const auto again =
        rank.endpoint->connect(rank.program, protocol, Deadline::after(seconds(30))).take();
    for (size_t p = 0; p < again.size(); ++p) {
      // Rank 0 does not reach windows.
      const bool serves = protocol == Protocol::Simple && rank.program.ports[p].peer != 0;
      EXPECT_EQ(again[p].can_put, serves);
      EXPECT_EQ(again[p].can_get, serves);
      EXPECT_FALSE(again[p].opens_buffers);
      EXPECT_TRUE(again[p].fills_slots_first) << "a virtual GPU's, of one process";
    }
  }
}

TEST(Endpoint, ThatHasReservedHasItsEndsInOnePieceAndMakesNothingMore) {
  for (const char* algorithm : {"ring", "two_shot"})
    for (const Rank& rank : connected_ranks(algorithm, Protocol::Simple, /*reserves=*/true)) {
      EXPECT_EQ(rank.endpoint->allocated_bytes(), rank.reserved_bytes);
      std::vector<const void*> own;
      for (size_t p = 0; p < rank.ports.size(); ++p) {
        own.push_back(rank.ports[p].control);
        if (!rank.program.ports[p].is_send) own.push_back(rank.ports[p].slots);
      }
      const auto [first, last] = std::minmax_element(own.begin(), own.end());
      EXPECT_LT(static_cast<const std::byte*>(*last) - static_cast<const std::byte*>(*first),
                static_cast<std::ptrdiff_t>(rank.reserved_bytes));
    }
}

// Its works have ports of their own, which share the connections.
TEST(Endpoint, MakesTheEndsOfAJoinedProgramOnce) {
  std::vector<Rank> ranks = connected_ranks("two_shot", Protocol::LL);
  const executor::Program joined =
      executor::join({&ranks[1].program, &ranks[1].program, &ranks[1].program}).take();
  ASSERT_EQ(joined.ports.size(), 3 * ranks[0].program.ports.size());
  ASSERT_TRUE(ranks[0].endpoint->reserve(ranks[0].program, Protocol::Simple).is_ok());
  ASSERT_TRUE(ranks[1].endpoint->reserve(joined, Protocol::Simple).is_ok());
  EXPECT_EQ(ranks[1].endpoint->allocated_bytes(), ranks[0].endpoint->allocated_bytes());
}

}  // namespace
}  // namespace niccolite::transport
