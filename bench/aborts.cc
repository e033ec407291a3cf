// How long ncclCommAbort takes, called by another thread at a random moment of what the
// communicator is in: an init, a split, a shrink or a growth that another rank does not come to, an
// operation, a destroy; and beside a process that is stopped, on this machine or as if on another.
// Prints JSON.
//   aborts [rounds of each, default 200]
#include <cuda_runtime.h>
#include <nccl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kCount = 1024;

#define CHECK(call)                                                                      \
  if (const int check = static_cast<int>(call); check != 0) {                            \
    std::fprintf(stderr, "%s failed: %d %s\n", #call, check, ncclGetLastError(nullptr)); \
    std::_Exit(1);                                                                       \
  }

std::mt19937 random_numbers{1};

void pass_a_moment() {
  std::this_thread::sleep_for(
      std::chrono::microseconds(std::uniform_int_distribution<int>(0, 3000)(random_numbers)));
}

/// Milliseconds.
double abort_time(ncclComm_t comm) {
  const auto start = Clock::now();
  CHECK(ncclCommAbort(comm));
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// A unique id whose root lives in another process, until the end of this object.
class OtherRoot {
 public:
  OtherRoot() {
    int ends[2];
    CHECK(pipe(ends));
    process_ = fork();
    if (process_ == 0) {
      ncclUniqueId made;
      CHECK(ncclGetUniqueId(&made));
      if (write(ends[1], &made, sizeof made) != sizeof made) std::_Exit(1);
      while (true) pause();
    }
    if (read(ends[0], &id, sizeof id) != sizeof id) std::_Exit(1);
    close(ends[0]);
    close(ends[1]);
  }
  ~OtherRoot() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  ncclUniqueId id;

 private:
  pid_t process_;
};

ncclComm_t begin_init(const ncclUniqueId& id, int rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  CHECK(cudaSetDevice(rank));
  if (ncclCommInitRankConfig(&comm, 2, id, rank, &config) != ncclInProgress) std::_Exit(1);
  return comm;
}

double in_init() {
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  ncclComm_t comm = begin_init(id, 0);
  pass_a_moment();
  return abort_time(comm);
}

double in_init_elsewhere() {
  const OtherRoot root;
  ncclComm_t comm = begin_init(root.id, 0);
  pass_a_moment();
  return abort_time(comm);
}

double in_init_of_all() {
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  ncclComm_t comms[] = {begin_init(id, 0), begin_init(id, 1)};
  pass_a_moment();
  const double first = abort_time(comms[0]);
  return std::max(first, abort_time(comms[1]));
}

/// Rank 0 of `nranks` is in `call`, on a thread of its own; the others call nothing.
double in_call(int nranks, const std::function<void(ncclComm_t)>& call) {
  std::vector<ncclComm_t> comms(static_cast<size_t>(nranks));
  CHECK(ncclCommInitAll(comms.data(), nranks, nullptr));
  std::thread caller([&] { call(comms[0]); });
  pass_a_moment();
  const double time = abort_time(comms[0]);
  caller.join();
  for (int rank = 1; rank < nranks; ++rank) CHECK(ncclCommAbort(comms[static_cast<size_t>(rank)]));
  return time;
}

double in_split() {
  return in_call(2, [](ncclComm_t comm) {
    ncclComm_t made = nullptr;
    ncclCommSplit(comm, 0, 0, &made, nullptr);
  });
}

double in_shrink() {
  return in_call(3, [](ncclComm_t comm) {
    ncclComm_t made = nullptr;
    int last = 2;
    ncclCommShrink(comm, &last, 1, &made, nullptr, NCCL_SHRINK_ABORT);
  });
}

double in_growth() {
  return in_call(2, [](ncclComm_t comm) {
    ncclComm_t made = nullptr;
    ncclUniqueId id;
    if (ncclCommGetUniqueId(comm, &id) == ncclSuccess)
      ncclCommGrow(comm, 3, &id, -1, &made, nullptr);
  });
}

/// An operation that rank 1 does not call; `destroys`: and rank 0 is in ncclCommDestroy.
double in_operation(bool destroys) {
  float* buffer = nullptr;
  CHECK(cudaSetDevice(0));
  CHECK(cudaMalloc(reinterpret_cast<void**>(&buffer), kCount * sizeof(float)));
  std::vector<ncclComm_t> comms(2);
  CHECK(ncclCommInitAll(comms.data(), 2, nullptr));
  CHECK(ncclAllReduce(buffer, buffer, kCount, ncclFloat, ncclSum, comms[0], nullptr));
  std::thread destroyer([&] {
    if (destroys) ncclCommDestroy(comms[0]);
  });
  pass_a_moment();
  const auto start = Clock::now();
  // Whoever destroys may be so far that the handle is gone.
  const ncclResult_t result = ncclCommAbort(comms[0]);
  const double time = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  if (result != ncclSuccess && !destroys) std::_Exit(1);
  destroyer.join();
  CHECK(ncclCommAbort(comms[1]));
  CHECK(cudaSetDevice(0));
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaFree(buffer));
  return time;
}

/// Rank 1 is another process, which is stopped once it has taken part in an operation.
double beside_stopped(bool on_other_machine) {
  int ids[2], news[2], go[2];
  CHECK(pipe(ids));
  CHECK(pipe(news));
  CHECK(pipe(go));
  const auto give = [](int to, const auto& value) {
    if (write(to, &value, sizeof value) != sizeof value) std::_Exit(1);
  };
  const auto take = [](int from, auto& value) {
    if (read(from, &value, sizeof value) != sizeof value) std::_Exit(1);
  };
  const auto join = [&](int rank, const ncclUniqueId& id) {
    if (on_other_machine) setenv("NCCL_HOSTID", rank == 0 ? "one" : "other", 1);
    ncclComm_t comm = nullptr;
    float* buffer = nullptr;
    CHECK(cudaSetDevice(rank));
    CHECK(cudaMalloc(reinterpret_cast<void**>(&buffer), kCount * sizeof(float)));
    CHECK(ncclCommInitRank(&comm, 2, id, rank));
    CHECK(ncclAllReduce(buffer, buffer, kCount, ncclFloat, ncclSum, comm, nullptr));
    CHECK(cudaDeviceSynchronize());
    return comm;
  };
  // Both are children: this process must be able to fork again.
  ncclUniqueId id;
  const pid_t stopped = fork();
  if (stopped == 0) {
    take(ids[0], id);
    join(1, id);
    while (true) pause();
  }
  const pid_t aborting = fork();
  if (aborting == 0) {
    CHECK(ncclGetUniqueId(&id));
    give(ids[1], id);
    ncclComm_t comm = join(0, id);
    double time = 0;
    give(news[1], time);  // it has reduced, and so has rank 1
    take(go[0], time);
    give(news[1], abort_time(comm));
    std::_Exit(0);
  }
  double time = 0;
  take(news[0], time);
  kill(stopped, SIGSTOP);
  waitpid(stopped, nullptr, WUNTRACED);
  give(go[1], time);
  take(news[0], time);
  int status = 0;
  waitpid(aborting, &status, 0);
  CHECK(status);
  kill(stopped, SIGKILL);
  waitpid(stopped, nullptr, 0);
  for (const int end : {ids[0], ids[1], news[0], news[1], go[0], go[1]}) close(end);
  return time;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;
  if (rounds < 1) return 2;
  setenv("NICCOLITE_DEVICES", "virtual:4", 0);
  setenv("NCCL_DEBUG", "NONE", 0);
  if (freopen("/dev/null", "w", stderr) == nullptr) return 1;
  const std::pair<const char*, std::function<double()>> states[] = {
      {"stopped", [] { return beside_stopped(false); }},  // forks: before there are threads
      {"stopped_elsewhere", [] { return beside_stopped(true); }},
      {"init_elsewhere", in_init_elsewhere},  // the same
      {"init", in_init},
      {"init_of_all", in_init_of_all},
      {"split", in_split},
      {"shrink", in_shrink},
      {"growth", in_growth},
      {"operation", [] { return in_operation(false); }},
      {"destroy", [] { return in_operation(true); }},
  };
  std::printf("{\"rounds\": %d", rounds);
  for (const auto& [name, run] : states) {
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) times.push_back(run());
    std::sort(times.begin(), times.end());
    std::printf(", \"%s_ms\": {\"p50\": %.2f, \"p99\": %.2f, \"most\": %.2f}", name,
                times[times.size() / 2], times[times.size() * 99 / 100], times.back());
    std::fflush(stdout);
  }
  std::printf("}\n");
  return 0;
}
