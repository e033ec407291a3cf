// TeamBuffers where the team reaches no buffer: what ranks compare, and when again. The rest is in
// tests/api/nvls_windows_test.cc.
#include "registry/team_buffers.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "gpu/machine.h"
#include "registry/registrations.h"

namespace niccolite::registry {
namespace {

constexpr int kRanks = 2;
constexpr size_t kBytesOfBuffer = size_t{1} << 20;

/// Calls work(rank, member) on a thread of each rank.
template <typename Work>
void on_each_rank(Work&& work) {
  const bootstrap::UniqueId id = bootstrap::create_unique_id().take();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      auto member =
          bootstrap::Member::join({.id = id,
                                   .nranks = kRanks,
                                   .rank = rank,
                                   .deadline = Deadline::after(std::chrono::seconds(30))});
      ASSERT_TRUE(member.is_ok()) << member.status().message();
      work(rank, *member.value());
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(TeamBuffers, AreComparedOnceWhileTheyAreRegistered) {
  gpu::Machine& machine = *gpu::machine().take();
  on_each_rank([&](int rank, bootstrap::Member& member) {
    const gpu::Memory memory = machine.allocate(rank, kBytesOfBuffer, /*shareable=*/true).take();
    Registrations registrations(machine);
    Windows windows(machine, rank, &member, {.team_ranks = kRanks});
    const auto buffers = std::make_shared<TeamBuffers>(machine, member, windows, registrations, [] {
      return Status::internal("no operation is queued");
    });
    const auto reaches_none = [] { return false; };
    uint64_t key = 0;
    const auto is_to_be_compared = [&] {
      buffers->note(++key, memory.data());
      return buffers->has_noted();
    };
    EXPECT_FALSE(is_to_be_compared());  // it is not registered
    for (int turn = 0; turn < 2; ++turn) {
      const auto handle = registrations.add(memory.data(), kBytesOfBuffer).take();
      EXPECT_TRUE(is_to_be_compared());
      EXPECT_TRUE(buffers->compare_noted(reaches_none).is_ok());
      EXPECT_FALSE(is_to_be_compared());
      EXPECT_EQ(buffers->shifts_of(memory.data(), kBytesOfBuffer), nullptr);
      EXPECT_TRUE(registrations.remove(handle).is_ok());
      buffers->end_unregistered();
    }
    buffers->close();
  });
}

}  // namespace
}  // namespace niccolite::registry
