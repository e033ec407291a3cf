// Communicators from communicators: what a split of all ranks of this machine takes, in one process
// with a group over all ranks, and how much memory of the GPU many communicators over the same
// ranks take, each used once. Prints a line of JSON.
//   communicators [count] [ranks] [libnccl.so.2]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cli/perf/device_memory.h"
#include "cli/perf/library.h"
#include "gpu/machine.h"

namespace niccolite {
namespace {

constexpr int kWarmup = 3;
constexpr size_t kBytes = 1024;

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - start;
  return passed.count();
}

/// One communicator of every rank.
using Ranks = std::vector<ncclComm_t>;

class Bench {
 public:
  static Result<Bench> create(gpu::Machine& machine, const perf::Library& nccl, int nranks) {
    Bench bench(machine, nccl);
    for (int rank = 0; rank < nranks; ++rank) {
      bench.streams_.push_back(TRY(machine.create_stream(rank)));
      bench.buffers_.push_back(TRY(machine.allocate(rank, kBytes, false)));
    }
    bench.parent_.resize(static_cast<size_t>(nranks));
    ncclUniqueId id;
    TRY(nccl.check(nccl.get_unique_id(&id), "ncclGetUniqueId"));
    TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
    for (int rank = 0; rank < nranks; ++rank) {
      TRY(machine.set_current_device(rank));
      TRY(nccl.check(
          nccl.comm_init_rank(&bench.parent_[static_cast<size_t>(rank)], nranks, id, rank),
          "ncclCommInitRank"));
    }
    TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
    TRY(bench.use(bench.parent_));
    return bench;
  }

  /// All ranks into one child.
  Result<Ranks> split() {
    Ranks child(parent_.size());
    TRY(nccl_->check(nccl_->group_start(), "ncclGroupStart"));
    for (size_t rank = 0; rank < parent_.size(); ++rank)
      TRY(nccl_->check(
          nccl_->comm_split(parent_[rank], 0, static_cast<int>(rank), &child[rank], nullptr),
          "ncclCommSplit"));
    TRY(nccl_->check(nccl_->group_end(), "ncclGroupEnd"));
    return child;
  }

  /// An all-reduce, and waits for it.
  Status use(const Ranks& comms) {
    TRY(nccl_->check(nccl_->group_start(), "ncclGroupStart"));
    for (size_t rank = 0; rank < comms.size(); ++rank)
      TRY(nccl_->check(nccl_->all_reduce(buffers_[rank].data(), buffers_[rank].data(),
                                         kBytes / sizeof(float), ncclFloat32, ncclSum, comms[rank],
                                         static_cast<cudaStream_t>(streams_[rank].handle())),
                       "ncclAllReduce"));
    TRY(nccl_->check(nccl_->group_end(), "ncclGroupEnd"));
    for (size_t rank = 0; rank < comms.size(); ++rank)
      TRY(machine_->synchronize_stream(static_cast<int>(rank), streams_[rank].handle()));
    return {};
  }

  Status destroy(const Ranks& comms) {
    for (const ncclComm_t comm : comms)
      TRY(nccl_->check(nccl_->comm_destroy(comm), "ncclCommDestroy"));
    return {};
  }

  Status end() { return destroy(parent_); }

 private:
  Bench(gpu::Machine& machine, const perf::Library& nccl) : machine_(&machine), nccl_(&nccl) {}
  gpu::Machine* machine_;
  const perf::Library* nccl_;
  std::vector<gpu::Stream> streams_;
  std::vector<gpu::Memory> buffers_;
  Ranks parent_;
};

Status run(int count, int nranks, const std::string& path) {
  gpu::Machine* machine = TRY(gpu::machine());
  const std::string library_path = path.empty() ? TRY(perf::default_library_path()) : path;
  const perf::Library nccl = TRY(perf::Library::open(library_path));
  if (nccl.comm_split == nullptr)
    return Status::invalid_argument("{} has no ncclCommSplit", nccl.path());
  if (nranks == 0) nranks = machine->device_count();
  Bench bench = TRY(Bench::create(*machine, nccl, nranks));
  for (int i = 0; i < kWarmup; ++i) {
    const Ranks child = TRY(bench.split());
    TRY(bench.destroy(child));
  }
  const int64_t free_before = TRY(perf::free_device_memory(*machine, 0));
  std::vector<Ranks> children;
  std::vector<double> split_ms;
  double first_use_ms = 0;
  for (int i = 0; i < count; ++i) {
    auto start = std::chrono::steady_clock::now();
    children.push_back(TRY(bench.split()));
    split_ms.push_back(milliseconds_since(start));
    start = std::chrono::steady_clock::now();
    TRY(bench.use(children.back()));
    first_use_ms += milliseconds_since(start);
  }
  const int64_t free_after = TRY(perf::free_device_memory(*machine, 0));
  for (const Ranks& child : children) TRY(bench.destroy(child));
  TRY(bench.end());
  std::sort(split_ms.begin(), split_ms.end());
  double all_splits_ms = 0;
  for (const double ms : split_ms) all_splits_ms += ms;
  std::printf(
      "{\"library\": \"%s\", \"version\": \"%s\", \"ranks\": %d, \"communicators\": %d, "
      "\"split_ms_median\": %.3f, \"split_ms_max\": %.3f, \"split_ms_all\": %.3f, "
      "\"first_use_ms_all\": %.3f, \"mib_of_gpu_0\": %.1f}\n",
      nccl.path().c_str(), nccl.version_text().c_str(), nranks, count,
      split_ms[split_ms.size() / 2], split_ms.back(), all_splits_ms, first_use_ms,
      static_cast<double>(free_before - free_after) / (1 << 20));
  return {};
}

}  // namespace
}  // namespace niccolite

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::max(1, std::atoi(argv[1])) : 64;
  const int nranks = argc > 2 ? std::atoi(argv[2]) : 0;
  const niccolite::Status status = niccolite::run(count, nranks, argc > 3 ? argv[3] : "");
  if (status.is_ok()) return 0;
  std::fprintf(stderr, "communicators: %s\n", status.message().c_str());
  return 3;
}
