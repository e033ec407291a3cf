// What a process holds, and that rounds of something leave nothing of it behind.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/api/cluster.h"

namespace niccolite::test {

struct Usage {
  size_t descriptors = 0;
  size_t threads = 0;
  size_t mappings = 0;
  size_t free_bytes = 0;  // of device 0

  static Usage now() {
    const auto entries_of = [](const char* folder) {
      const std::filesystem::directory_iterator entries(folder);
      return static_cast<size_t>(std::distance(begin(entries), end(entries)));
    };
    Usage usage;
    usage.descriptors = entries_of("/proc/self/fd");
    usage.threads = entries_of("/proc/self/task");
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) ++usage.mappings;
    size_t total = 0;
    EXPECT_CUDA(cudaSetDevice(0));
    EXPECT_CUDA(cudaMemGetInfo(&usage.free_bytes, &total));
    return usage;
  }
};

/// Calls `round` `kRounds` times, up to three times over: a leak makes the process hold more after
/// each of these times. The heap, and a sanitizer's heap still more, takes new regions of the
/// address space for some hundred rounds and then has enough.
template <int kRounds = 1000, typename Round>
void expect_nothing_left(Round&& round) {
  constexpr int kWarmUp = kRounds / 10;
  constexpr int kTimes = 3;
  // The heap's arenas, one for a thread: a leak in each round would be hundreds.
  constexpr size_t kSlack = 16;
  // A graph may have captured what says that a window has ended: some bytes a window stay.
  constexpr size_t kBytesARound = 64;
  const auto rounds = [&](int count) {
    for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) round();
  };
  rounds(kWarmUp);
  Usage before = Usage::now();
  for (int time = 1; time <= kTimes; ++time) {
    rounds(kRounds);
    if (testing::Test::HasFailure()) return;
    Usage after = Usage::now();
    // Threads of the library may still be ending.
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while ((after.descriptors > before.descriptors || after.threads > before.threads + kSlack) &&
           std::chrono::steady_clock::now() < limit)
      after = Usage::now();
    if (time < kTimes && after.mappings > before.mappings + 2 * kSlack) {
      before = after;
      continue;
    }
    EXPECT_LE(after.descriptors, before.descriptors + kSlack);
    EXPECT_LE(after.threads, before.threads + kSlack);
    EXPECT_LE(after.mappings, before.mappings + 2 * kSlack);
    EXPECT_GE(after.free_bytes + kRounds * kBytesARound, before.free_bytes);
    return;
  }
}

}  // namespace niccolite::test
