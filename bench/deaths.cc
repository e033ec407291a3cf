// How long a death goes unnoticed: one process a rank, one of them is killed while the others wait
// for it in an all-reduce, and each of these notes when its asynchronous error comes, and how long
// its abort then takes. Prints JSON.
//   deaths [ranks, default 8] [kills, default 50]
#include <cuda_runtime.h>
#include <nccl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;  // the same for all processes of a machine

int64_t now() { return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

/// What the processes of one round share.
struct Round {
  ncclUniqueId id;
  std::atomic<bool> has_id;
  std::atomic<int> waiting;
  std::atomic<int64_t> noticed[1024], aborted[1024];  // by rank; ns
};

#define CHECK(call)                             \
  if ((call) != 0) {                            \
    std::fprintf(stderr, "%s failed\n", #call); \
    std::_Exit(1);                              \
  }

void be_rank(Round& round, int rank, int nranks) {
  if (rank == 0) {
    CHECK(ncclGetUniqueId(&round.id));
    round.has_id = true;
  }
  while (!round.has_id) usleep(100);
  CHECK(cudaSetDevice(rank));
  ncclComm_t comm = nullptr;
  CHECK(ncclCommInitRank(&comm, nranks, round.id, rank));
  float* buffer = nullptr;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&buffer), 4096));
  if (rank == nranks - 1) {
    ++round.waiting;
    while (true) pause();
  }
  CHECK(ncclAllReduce(buffer, buffer, 1024, ncclFloat, ncclSum, comm, nullptr));
  ++round.waiting;
  ncclResult_t error = ncclSuccess;
  while (error == ncclSuccess) {
    CHECK(ncclCommGetAsyncError(comm, &error));
    usleep(200);
  }
  round.noticed[rank] = now();
  CHECK(ncclCommAbort(comm));
  CHECK(cudaDeviceSynchronize());
  round.aborted[rank] = now();
  std::_Exit(0);
}

double milliseconds(std::vector<int64_t>& times, double share) {
  std::sort(times.begin(), times.end());
  const auto place = static_cast<size_t>(share * static_cast<double>(times.size() - 1));
  return static_cast<double>(times[place]) / 1e6;
}

}  // namespace

int main(int argc, char** argv) {
  const int nranks = argc > 1 ? std::atoi(argv[1]) : 8;
  const int kills = argc > 2 ? std::atoi(argv[2]) : 50;
  setenv("NICCOLITE_DEVICES", ("virtual:" + std::to_string(nranks)).c_str(), 0);
  setenv("NCCL_DEBUG", "VERSION", 0);
  std::vector<int64_t> noticed, aborted;
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    void* const shared =
        mmap(nullptr, sizeof(Round), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto& round = *new (shared) Round{};
    std::vector<pid_t> processes;
    for (int rank = 0; rank < nranks; ++rank) {
      const pid_t process = fork();
      if (process == 0) {
        if (freopen("/dev/null", "w", stdout) == nullptr) return 1;
        be_rank(round, rank, nranks);
      }
      processes.push_back(process);
    }
    while (round.waiting < nranks) usleep(1000);
    usleep(20'000);  // the operation is under way
    const int64_t killed = now();
    kill(processes.back(), SIGKILL);
    for (const pid_t process : processes) waitpid(process, nullptr, 0);
    for (int rank = 0; rank + 1 < nranks; ++rank) {
      noticed.push_back(round.noticed[rank] - killed);
      aborted.push_back(round.aborted[rank] - round.noticed[rank]);
    }
    munmap(shared, sizeof(Round));
  }
  std::printf(
      "{\"ranks\": %d, \"kills\": %d, \"noticed_ms\": {\"p50\": %.2f, \"p99\": %.2f, \"most\": "
      "%.2f}, "
      "\"abort_ms\": {\"p50\": %.2f, \"p99\": %.2f, \"most\": %.2f}}\n",
      nranks, kills, milliseconds(noticed, 0.5), milliseconds(noticed, 0.99),
      milliseconds(noticed, 1), milliseconds(aborted, 0.5), milliseconds(aborted, 0.99),
      milliseconds(aborted, 1));
  return 0;
}
