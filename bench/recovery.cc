// How long it takes to go on without a process: some processes with some ranks each; one of them is
// killed, and the others shrink the communicator and have the right result of the first all-reduce.
// Prints JSON.
//   recovery [processes, default 8] [ranks of each, default 8] [kills, default 5] [state]
// The communicator is, when the process is killed: `waiting` in an all-reduce that the process has
// not called (default), `running` one all-reduce of 4 MiB after the other in all processes,
// `revoked`, or `suspended`. Where there are fewer GPUs than ranks, some have several: of three
// processes on two GPUs the first and the last, which is killed, share one.
//   nvcc -O2 -std=c++20 -arch=sm_90 -x cu -Iinclude bench/recovery.cc -o recovery
//     -Lbuild/cuda/lib -lnccl
//   LD_LIBRARY_PATH=build/cuda/lib ./recovery 3 1 10 running
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
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;  // the same for all processes of a machine
constexpr size_t kCount = 1024;
constexpr size_t kRunningCount = 1 << 20;
constexpr int kMostProcesses = 64;

int64_t now() { return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

struct Times {  // of one process; ns
  int64_t noticed = 0, shrunk = 0, reduced = 0;
  int64_t longest_abort = 0;  // of one rank
};
/// What the processes of one round share.
struct Round {
  ncclUniqueId id;
  std::atomic<bool> has_id;
  std::atomic<int> waiting;
  Times of[kMostProcesses];
};

#define CHECK(call)                                                                      \
  if (const int check = static_cast<int>(call); check != 0) {                            \
    std::fprintf(stderr, "%s failed: %d %s\n", #call, check, ncclGetLastError(nullptr)); \
    std::_Exit(1);                                                                       \
  }

struct Job {
  int processes, ranks_each;
  std::string state;
  int nranks() const { return processes * ranks_each; }
};

class Process {
 public:
  Process(const Job& job, Round& round, int number)
      : job_(job), round_(round), number_(number), comms_(static_cast<size_t>(job.ranks_each)) {}

  void play() {
    begin();
    reduce(comms_, job_.nranks());  // connections are made
    if (job_.state == "revoked")
      for (ncclComm_t comm : comms_) CHECK(ncclCommRevoke(comm, 0));
    if (job_.state == "suspended") {
      CHECK(ncclGroupStart());
      for (ncclComm_t comm : comms_) CHECK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
      CHECK(ncclGroupEnd());
    }
    const bool is_victim = number_ == job_.processes - 1;
    if (job_.state == "waiting" && !is_victim) CHECK(queue(comms_, kCount));
    ++round_.waiting;
    if (job_.state == "running") run_until_lost();
    while (is_victim) pause();
    while (!is_lost()) usleep(200);
    Times& times = round_.of[number_];
    times.noticed = now();
    const std::vector<ncclComm_t> smaller = shrink();
    times.shrunk = now();
    reduce(smaller, job_.nranks() - job_.ranks_each);
    times.reduced = now();
    for (ncclComm_t comm : comms_) {
      const int64_t before = now();
      CHECK(ncclCommAbort(comm));
      times.longest_abort = std::max(times.longest_abort, now() - before);
    }
    // Others may still connect to this process.
    for (ncclComm_t comm : smaller) CHECK(ncclCommDestroy(comm));
    std::_Exit(0);
  }

 private:
  int number_of(size_t i) const { return number_ * job_.ranks_each + static_cast<int>(i); }
  int device(size_t i) const { return number_of(i) % devices_; }

  bool is_lost() {
    ncclResult_t error = ncclSuccess;
    CHECK(ncclCommGetAsyncError(comms_[0], &error));
    return error == ncclRemoteError;
  }

  void run_until_lost() {
    while (!is_lost()) {
      if (queue(comms_, kRunningCount) != ncclSuccess) continue;
      for (cudaStream_t stream : streams_)
        while (cudaStreamQuery(stream) == cudaErrorNotReady && !is_lost()) usleep(20);
    }
  }

  void begin() {
    if (number_ == 0) {
      CHECK(ncclGetUniqueId(&round_.id));
      round_.has_id = true;
    }
    while (!round_.has_id) usleep(100);
    CHECK(cudaGetDeviceCount(&devices_));
    CHECK(ncclGroupStart());
    for (size_t i = 0; i < comms_.size(); ++i) {
      CHECK(cudaSetDevice(device(i)));
      CHECK(ncclCommInitRank(&comms_[i], job_.nranks(), round_.id, number_of(i)));
    }
    CHECK(ncclGroupEnd());
    const size_t count = job_.state == "running" ? kRunningCount : kCount;
    for (size_t i = 0; i < comms_.size(); ++i) {
      CHECK(cudaSetDevice(device(i)));
      CHECK(cudaMalloc(reinterpret_cast<void**>(&buffers_.emplace_back()), count * sizeof(float)));
      CHECK(cudaStreamCreateWithFlags(&streams_.emplace_back(), cudaStreamNonBlocking));
    }
  }

  ncclResult_t queue(const std::vector<ncclComm_t>& comms, size_t count) {
    ncclResult_t result = ncclGroupStart();
    for (size_t i = 0; i < comms.size() && result == ncclSuccess; ++i)
      result =
          ncclAllReduce(buffers_[i], buffers_[i], count, ncclFloat, ncclSum, comms[i], streams_[i]);
    const ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
  }

  void reduce(const std::vector<ncclComm_t>& comms, int nranks) {
    const std::vector<float> ones(kCount, 1.0f);
    for (size_t i = 0; i < comms.size(); ++i) {
      CHECK(cudaStreamSynchronize(streams_[i]));  // what a shrink has aborted
      CHECK(cudaMemcpy(buffers_[i], ones.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
    }
    CHECK(queue(comms, kCount));
    for (size_t i = 0; i < comms.size(); ++i) {
      CHECK(cudaStreamSynchronize(streams_[i]));
      float last = 0;
      CHECK(cudaMemcpy(&last, buffers_[i] + kCount - 1, sizeof last, cudaMemcpyDeviceToHost));
      CHECK(last != static_cast<float>(nranks));
    }
  }

  std::vector<ncclComm_t> shrink() {
    std::vector<ncclComm_t> smaller(comms_.size());
    std::vector<std::vector<int>> lost(comms_.size());
    CHECK(ncclGroupStart());
    for (size_t i = 0; i < comms_.size(); ++i) {
      for (int rank = job_.nranks() - job_.ranks_each; rank < job_.nranks(); ++rank)
        lost[i].push_back(rank);
      CHECK(ncclCommShrink(comms_[i], lost[i].data(), job_.ranks_each, &smaller[i], nullptr,
                           NCCL_SHRINK_ABORT));
    }
    CHECK(ncclGroupEnd());
    return smaller;
  }

  const Job job_;
  Round& round_;
  const int number_;
  int devices_ = 0;
  std::vector<ncclComm_t> comms_;
  std::vector<float*> buffers_;
  std::vector<cudaStream_t> streams_;
};

/// From the kill to the last process; in milliseconds.
struct Row {
  std::vector<double> noticed, shrunk, reduced, longest_abort;
};

void run(const Job& job, Row& row) {
  void* const shared =
      mmap(nullptr, sizeof(Round), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& round = *new (shared) Round{};
  std::vector<pid_t> processes;
  for (int number = 0; number < job.processes; ++number) {
    const pid_t process = fork();
    if (process == 0) {
      if (freopen("/dev/null", "w", stdout) == nullptr) std::_Exit(1);
      Process(job, round, number).play();
    }
    processes.push_back(process);
  }
  while (round.waiting < job.processes) usleep(1000);
  usleep(50'000);  // the operation is under way
  const int64_t killed = now();
  kill(processes.back(), SIGKILL);
  for (const pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    if (process != processes.back()) CHECK(status);
  }
  const auto last = [&](int64_t Times::*of, int64_t since) {
    int64_t most = 0;
    for (int number = 0; number + 1 < job.processes; ++number)
      most = std::max(most, round.of[number].*of);
    return static_cast<double>(most - since) / 1e6;
  };
  row.noticed.push_back(last(&Times::noticed, killed));
  row.shrunk.push_back(last(&Times::shrunk, killed));
  row.reduced.push_back(last(&Times::reduced, killed));
  row.longest_abort.push_back(last(&Times::longest_abort, 0));
  munmap(shared, sizeof(Round));
}

void print(const char* name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::printf(", \"%s\": {\"p50\": %.1f, \"most\": %.1f}", name, values[values.size() / 2],
              values.back());
}

}  // namespace

int main(int argc, char** argv) {
  const Job job{.processes = argc > 1 ? std::atoi(argv[1]) : 8,
                .ranks_each = argc > 2 ? std::atoi(argv[2]) : 8,
                .state = argc > 4 ? argv[4] : "waiting"};
  const int kills = argc > 3 ? std::atoi(argv[3]) : 5;
  if (job.processes < 2 || job.processes > kMostProcesses || job.ranks_each < 1 || kills < 1)
    return 2;
#ifdef __CUDACC__
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
#else
  setenv("NICCOLITE_DEVICES", ("virtual:" + std::to_string(job.nranks())).c_str(), 0);
#endif
  setenv("NCCL_DEBUG", "VERSION", 0);
  Row row;
  for (int i = 0; i < kills; ++i) run(job, row);
  std::printf("{\"processes\": %d, \"ranks\": %d, \"kills\": %d, \"state\": \"%s\"", job.processes,
              job.nranks(), kills, job.state.c_str());
  print("noticed_ms", row.noticed);
  print("shrunk_ms", row.shrunk);
  print("first_result_ms", row.reduced);
  print("longest_abort_ms", row.longest_abort);
  std::printf("}\n");
  return 0;
}
