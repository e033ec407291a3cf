// How long init takes over many ranks on several machines: network namespaces of this one, joined
// by a bridge. From the moment at which rank 0 asks for the id until the last rank's init returns,
// with the processors' time of all processes; and the same for the first all-reduce and the end.
// For bench/scale. Prints JSON.
//   init_machines [machines, 8] [ranks of each, 8] [processes of each, 1] [times, 5]
#include <cuda_runtime.h>
#include <nccl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "tests/namespaces/network.h"

namespace {

using Clock = std::chrono::steady_clock;  // the same for all processes

void require(bool is_fine, const char* what) {
  if (is_fine) return;
  std::fprintf(stderr, "init_machines: %s failed: %s\n", what, ncclGetLastError(nullptr));
  std::_Exit(1);
}
#define NCCL(call) require((call) == ncclSuccess, #call)
#define CUDA(call) require((call) == cudaSuccess, #call)

enum Stage { kBegin, kInit, kOperation, kEnd, kStages };

/// What the processes of one run share.
struct Run {
  ncclUniqueId id;
  std::atomic<bool> has_id;
  std::atomic<int> arrived[kStages];      // processes
  std::atomic<int64_t> last_ns[kStages];  // when the last came

  void meet(Stage stage, int processes) {
    const int64_t now = Clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    int64_t last = last_ns[stage];
    while (last < now && !last_ns[stage].compare_exchange_weak(last, now)) continue;
    ++arrived[stage];
    while (arrived[stage] < processes) usleep(500);
  }
  double milliseconds(Stage from, Stage to) const {
    return static_cast<double>(last_ns[to] - last_ns[from]) / 1e6;
  }
};

struct Shape {
  int machines = 8;
  int ranks = 8;      // of each machine
  int processes = 1;  // of each machine
  int all_processes() const { return machines * processes; }
};

double cpu_seconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void be_process(Run& run, const Shape& shape, int process) {
  const int nranks = shape.machines * shape.ranks;
  const int count = shape.ranks / shape.processes, first = process * count;
  setenv("NICCOLITE_DEVICES", ("virtual:" + std::to_string(nranks)).c_str(), 1);
  setenv("NCCL_HOSTID", ("machine" + std::to_string(process / shape.processes)).c_str(), 1);
  const auto ranks = static_cast<size_t>(count);
  std::vector<ncclComm_t> comms(ranks);
  std::vector<cudaStream_t> streams(ranks);
  std::vector<float*> buffers(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    CUDA(cudaSetDevice(first + static_cast<int>(i)));
    CUDA(cudaStreamCreate(&streams[i]));
    CUDA(cudaMalloc(reinterpret_cast<void**>(&buffers[i]), 4096));
  }
  run.meet(kBegin, shape.all_processes());
  if (process == 0) {
    NCCL(ncclGetUniqueId(&run.id));
    run.has_id = true;
  }
  while (!run.has_id) usleep(100);
  NCCL(ncclGroupStart());
  for (size_t i = 0; i < ranks; ++i) {
    CUDA(cudaSetDevice(first + static_cast<int>(i)));
    NCCL(ncclCommInitRank(&comms[i], nranks, run.id, first + static_cast<int>(i)));
  }
  NCCL(ncclGroupEnd());
  run.meet(kInit, shape.all_processes());
  NCCL(ncclGroupStart());
  for (size_t i = 0; i < ranks; ++i)
    NCCL(ncclAllReduce(buffers[i], buffers[i], 1024, ncclFloat, ncclSum, comms[i], streams[i]));
  NCCL(ncclGroupEnd());
  for (size_t i = 0; i < ranks; ++i) CUDA(cudaStreamSynchronize(streams[i]));
  run.meet(kOperation, shape.all_processes());
  for (ncclComm_t comm : comms) NCCL(ncclCommDestroy(comm));
  run.meet(kEnd, shape.all_processes());
}

struct Times {
  double init_ms, operation_ms, end_ms, cpu_ms;
};

Times run_once(const niccolite::test::Network& network, const Shape& shape) {
  void* const memory =
      mmap(nullptr, sizeof(Run), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, "mmap");
  Run& run = *new (memory) Run();
  const double cpu = cpu_seconds(RUSAGE_CHILDREN);
  std::vector<pid_t> children;
  for (int process = 0; process < shape.all_processes(); ++process) {
    const pid_t child = fork();
    require(child >= 0, "fork");
    if (child == 0) {
      require(setns(network.machine(process / shape.processes), CLONE_NEWNET) == 0, "setns");
      be_process(run, shape, process);
      std::exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {  // the others would wait for it
      for (const pid_t other : children) kill(other, SIGKILL);
      std::exit(1);
    }
  }
  const Times times{run.milliseconds(kBegin, kInit), run.milliseconds(kInit, kOperation),
                    run.milliseconds(kOperation, kEnd), (cpu_seconds(RUSAGE_CHILDREN) - cpu) * 1e3};
  munmap(memory, sizeof(Run));
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int at, int otherwise) {
    return argc > at ? std::atoi(argv[at]) : otherwise;
  };
  const Shape shape{argument(1, 8), argument(2, 8), argument(3, 1)};
  const int repeats = argument(4, 5);
  if (shape.processes < 1 || shape.machines < 1 || shape.ranks % shape.processes != 0) {
    std::fprintf(stderr,
                 "init_machines: ranks of each machine must be divisible by its processes\n");
    return 2;
  }
  niccolite::test::prepare_for_namespaces();
  std::string reason;
  const auto network = niccolite::test::Network::create({.machines = shape.machines}, reason);
  if (network == nullptr) {
    std::fprintf(stderr, "init_machines: no machines: %s\n", reason.c_str());
    return 3;
  }
  std::vector<Times> all;
  for (int i = 0; i < repeats; ++i) all.push_back(run_once(*network, shape));
  std::printf("{\"machines\": %d, \"ranks\": %d, \"processes\": %d", shape.machines,
              shape.machines * shape.ranks, shape.all_processes());
  const auto print = [&](const char* name, double Times::*part) {
    std::vector<double> values;
    for (const Times& times : all) values.push_back(times.*part);
    std::sort(values.begin(), values.end());
    std::printf(", \"%s\": {\"median\": %.1f, \"least\": %.1f, \"most\": %.1f}", name,
                values[values.size() / 2], values.front(), values.back());
  };
  print("init_ms", &Times::init_ms);
  print("first_operation_ms", &Times::operation_ms);
  print("destroy_ms", &Times::end_ms);
  print("processor_ms_of_all", &Times::cpu_ms);
  std::printf("}\n");
  return 0;
}
