// Several communicators over the GPUs of this machine, each on streams of its own, in one process:
// do they stand still when their operations do not fit a GPU together, and what
// does a call cost the host? Prints a line of JSON.
//   launch_order [rounds] [communicators] [bytes] [libnccl.so.2]
// In each round the all-reduces are called in another order, the same for all ranks, each behind
// copies of the program's own that take another time on every stream. NCCL_MIN_CTAS=64 makes the
// operations of three communicators wider than 132 multiprocessors; NCCL_LAUNCH_ORDER_IMPLICIT=0 is
// the library without an order. On virtual GPUs NICCOLITE_VIRTUAL_SMS sets the width of a GPU.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "cli/perf/library.h"
#include "gpu/machine.h"

namespace niccolite {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMostOwnWork = 64 << 20;
constexpr auto kPatience = std::chrono::seconds(20);
constexpr int kWarmup = 5;

/// A communicator's rank.
struct Rank {
  int device = 0;
  gpu::Stream stream;
  gpu::Memory buffer;
  gpu::Memory own_work;
  ncclComm_t comm = nullptr;
};
using Ranks = std::vector<Rank>;

Result<Ranks> make_ranks(gpu::Machine& machine, const perf::Library& nccl, size_t bytes) {
  Ranks ranks(static_cast<size_t>(machine.device_count()));
  ncclUniqueId id;
  TRY(nccl.check(nccl.get_unique_id(&id), "ncclGetUniqueId"));
  TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int device = ranks[i].device = static_cast<int>(i);
    ranks[i].stream = TRY(machine.create_stream(device));
    ranks[i].buffer = TRY(machine.allocate(device, bytes, false));
    ranks[i].own_work = TRY(machine.allocate(device, 2 * kMostOwnWork, false));
    TRY(machine.set_current_device(device));
    TRY(nccl.check(nccl.comm_init_rank(&ranks[i].comm, static_cast<int>(ranks.size()), id, device),
                   "ncclCommInitRank"));
  }
  TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
  return ranks;
}

/// Microseconds that the call took.
Result<double> all_reduce(const perf::Library& nccl, const Ranks& ranks, size_t bytes) {
  const auto start = Clock::now();
  TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
  for (const Rank& rank : ranks)
    TRY(nccl.check(
        nccl.all_reduce(rank.buffer.data(), rank.buffer.data(), bytes / sizeof(float), ncclFloat32,
                        ncclSum, rank.comm, static_cast<cudaStream_t>(rank.stream.handle())),
        "ncclAllReduce"));
  TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// False: they are not done in time.
Result<bool> wait_for(gpu::Machine& machine, const std::vector<Ranks>& all) {
  const auto limit = Clock::now() + kPatience;
  for (const Ranks& ranks : all)
    for (const Rank& rank : ranks)
      while (!TRY(machine.query_stream(rank.device, rank.stream.handle()))) {
        if (Clock::now() > limit) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
  return true;
}

Status run(int rounds, int communicators, size_t bytes, const std::string& path) {
  gpu::Machine* const machine = TRY(gpu::machine());
  const std::string library_path = path.empty() ? TRY(perf::default_library_path()) : path;
  const perf::Library nccl = TRY(perf::Library::open(library_path));
  std::vector<Ranks> all;
  for (int i = 0; i < communicators; ++i) all.push_back(TRY(make_ranks(*machine, nccl, bytes)));
  for (int i = 0; i < kWarmup; ++i)
    for (const Ranks& ranks : all) {
      TRY(all_reduce(nccl, ranks, bytes));
      if (!TRY(wait_for(*machine, all))) return Status::system_error("the first stands still");
    }
  std::mt19937 random(7);
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<double> calls;
  int stands_still_in = -1;
  const auto start = Clock::now();
  for (int round = 0; round < rounds && stands_still_in < 0; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      for (const Rank& rank : all[i]) {
        auto* const memory = static_cast<std::byte*>(rank.own_work.data());
        TRY(machine->copy_async(memory, memory + kMostOwnWork, 1 + random() % kMostOwnWork,
                                rank.device, rank.stream.handle()));
      }
      calls.push_back(TRY(all_reduce(nccl, all[i], bytes)));
    }
    if (!TRY(wait_for(*machine, all))) stands_still_in = round;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::sort(calls.begin(), calls.end());
  std::printf(
      "{\"library\": \"%s\", \"version\": \"%s\", \"ranks\": %zu, \"communicators\": %d, "
      "\"bytes\": %zu, \"rounds\": %d, \"stands_still_in_round\": %d, "
      "\"us_of_a_call_median\": %.2f, \"seconds\": %.3f}\n",
      nccl.path().c_str(), nccl.version_text().c_str(), all[0].size(), communicators, bytes, rounds,
      stands_still_in, calls[calls.size() / 2], seconds);
  std::fflush(stdout);
  // Nothing can be destroyed or freed while an operation holds the device.
  if (stands_still_in >= 0) std::_Exit(1);
  for (const Ranks& ranks : all)
    for (const Rank& rank : ranks) TRY(nccl.check(nccl.comm_destroy(rank.comm), "ncclCommDestroy"));
  return {};
}

}  // namespace
}  // namespace niccolite

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 100;
  const int communicators = argc > 2 ? std::max(1, std::atoi(argv[2])) : 3;
  const size_t bytes = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : size_t{4} << 20;
  const niccolite::Status status =
      niccolite::run(rounds, communicators, bytes, argc > 4 ? argv[4] : "");
  if (status.is_ok()) return 0;
  std::fprintf(stderr, "launch_order: %s\n", status.message().c_str());
  return 3;
}
