// Is a GPU that is slowed by other work named as the straggler? A process for each rank, on a GPU
// of its own where there are enough. Five communicators at a time, each a trial: a rank, drawn anew
// for each five, has `delay` microseconds of other work on its stream before each all-reduce; after
// the library's survey (about a second) the job, asked as `niccolite ras` asks it, must name that
// rank first. After every fourth five come five in which nobody is slowed, and nobody may have come
// last to a quarter of the operations. Prints JSON, and "named N of M" to stderr. Exit status 1:
// fewer than 99 of 100, or a wrong name. Hosts whose cores are busy make late ranks of their own,
// of some milliseconds: there take a longer delay.
//   stragglers [trials, default 100] [ranks, default 2] [delay, default 1000]
// On virtual GPUs the other work is a host function that sleeps (NICCOLITE_DEVICES=virtual:N has
// them where there are GPUs). On GPUs it is a kernel, and nvcc compiles this file:
//   nvcc -O2 -std=c++20 -arch=sm_90 -x cu -Iinclude bench/stragglers.cc -o stragglers
//     -Lbuild/cuda/lib -lnccl
//   LD_LIBRARY_PATH=build/cuda/lib ./stragglers
#include <arpa/inet.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace {

#define CHECK_CUDA(call)                                                   \
  do {                                                                     \
    if (const cudaError_t result = (call); result != cudaSuccess) {        \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(result)); \
      std::_Exit(2);                                                       \
    }                                                                      \
  } while (false)
#define CHECK_NCCL(call)                                                  \
  do {                                                                    \
    if (const ncclResult_t result = (call); result != ncclSuccess) {      \
      std::fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(nullptr)); \
      std::_Exit(2);                                                      \
    }                                                                     \
  } while (false)

constexpr size_t kCount = 256;
constexpr int kOperations = 32;  // of a trial
constexpr int kAtATime = 5;      // communicators
constexpr int kQuietRound = 5;   // every so many rounds

/// What the processes share.
struct Shared {
  std::atomic<int> arrived, passed;
  ncclUniqueId ids[kAtATime];
};

/// Until all have come, of whom there are so many.
void meet(Shared& shared, int of) {
  const int round = shared.passed;
  if (++shared.arrived == of) {
    shared.arrived = 0;
    ++shared.passed;
  }
  while (shared.passed == round) usleep(200);
}

#ifdef __CUDACC__
__global__ void spin(uint64_t nanoseconds) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - start < nanoseconds);
}
void do_other_work(cudaStream_t stream, uint64_t microseconds) {
  spin<<<1, 1, 0, stream>>>(microseconds * 1000);
  CHECK_CUDA(cudaGetLastError());
}
#else
void do_other_work(cudaStream_t stream, uint64_t microseconds) {
  const auto rest = [](void* data) { usleep(static_cast<useconds_t>(std::uintptr_t(data))); };
  CHECK_CUDA(cudaLaunchHostFunc(stream, rest, reinterpret_cast<void*>(microseconds)));
}
#endif

/// Who is slow in each round, alike in all processes; -1: nobody.
class Draw {
 public:
  explicit Draw(int ranks) : ranks_(ranks) {}
  int next() {
    const auto rank = static_cast<int>(random_() % static_cast<unsigned>(ranks_));
    return ++round_ % kQuietRound == 0 ? -1 : rank;
  }

 private:
  const int ranks_;
  int round_ = 0;
  std::mt19937 random_{20};
};

class Rank {
 public:
  Rank(int rank, int ranks, Shared& shared) : rank_(rank), ranks_(ranks), shared_(shared) {}

  void play(int rounds, uint64_t delay) {
    int devices = 0;
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    CHECK_CUDA(cudaSetDevice(rank_ % devices));
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer_), kCount * sizeof(float)));
    CHECK_CUDA(cudaMemset(buffer_, 0, kCount * sizeof(float)));
    Draw draw(ranks_);
    for (int round = 0; round < rounds; ++round) {
      const std::vector<ncclComm_t> comms = start();
      for (ncclComm_t comm : comms) reduce(comm, 0);  // connects, and nobody is slow
      const bool is_slow = draw.next() == rank_;
      for (ncclComm_t comm : comms) reduce(comm, is_slow ? delay : 0);
      meet(shared_, ranks_ + 1);  // then the parent asks
      meet(shared_, ranks_ + 1);
      for (ncclComm_t comm : comms) CHECK_NCCL(ncclCommDestroy(comm));
    }
    CHECK_CUDA(cudaStreamDestroy(stream_));
    CHECK_CUDA(cudaFree(buffer_));
    std::_Exit(0);
  }

 private:
  std::vector<ncclComm_t> start() {
    if (rank_ == 0)
      for (ncclUniqueId& id : shared_.ids) CHECK_NCCL(ncclGetUniqueId(&id));
    meet(shared_, ranks_ + 1);
    std::vector<ncclComm_t> comms(kAtATime);
    for (int i = 0; i < kAtATime; ++i)
      CHECK_NCCL(ncclCommInitRank(&comms[static_cast<size_t>(i)], ranks_, shared_.ids[i], rank_));
    return comms;
  }

  void reduce(ncclComm_t comm, uint64_t delay) {
    for (int i = 0; i < kOperations; ++i) {
      if (delay > 0) do_other_work(stream_, delay);
      CHECK_NCCL(ncclAllReduce(buffer_, buffer_, kCount, ncclFloat, ncclSum, comm, stream_));
      CHECK_CUDA(cudaStreamSynchronize(stream_));
    }
  }

  const int rank_, ranks_;
  Shared& shared_;
  cudaStream_t stream_ = nullptr;
  float* buffer_ = nullptr;
};

std::string ask(uint16_t port, const std::string& question) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return text;
  if (write(fd, question.data(), question.size()) > 0) {
    char part[4096];
    for (ssize_t got; (got = read(fd, part, sizeof part)) > 0;)
      text.append(part, static_cast<size_t>(got));
  }
  close(fd);
  return text;
}

struct Named {
  int rank = 0, times = 0, of = 0;  // came last so many times
};
/// By communicator, who comes first in what is said of it.
std::map<std::string, Named> named_in(const std::string& status) {
  std::map<std::string, Named> named;
  const std::regex line(
      "communicator (0x[0-9a-f]+): rank ([0-9]+) came last to ([0-9]+) of ([0-9]+)");
  for (std::sregex_iterator at(status.begin(), status.end(), line), end; at != end; ++at)
    named.emplace((*at)[1], Named{std::stoi((*at)[2]), std::stoi((*at)[3]), std::stoi((*at)[4])});
  return named;
}

uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    std::exit(2);
  close(fd);
  return ntohs(address.sin_port);
}

struct Tally {
  int trials = 0, right = 0, wrong = 0, quiet_trials = 0, false_names = 0;

  void add(const std::string& status, int slow) {
    (slow < 0 ? quiet_trials : trials) += kAtATime;
    for (const auto& [communicator, named] : named_in(status))
      if (slow < 0)
        false_names += named.times * 4 >= named.of ? 1 : 0;
      else
        ++(named.rank == slow ? right : wrong);
  }
};

Tally run(int ranks, int rounds, uint64_t delay, uint16_t port) {
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::exit(2);
  auto& shared = *new (memory) Shared{};
  const pid_t parent = getpid();
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = fork();
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() == parent) Rank(rank, ranks, shared).play(rounds, delay);
      std::_Exit(2);
    }
    processes.push_back(process);
  }
  // One that fails would leave the others, and this process, to wait for it.
  std::thread guard([&processes] {
    for (size_t ended = 0; ended < processes.size(); ++ended) {
      int status = 0;
      waitpid(-1, &status, 0);
      if (status != 0) std::_Exit(2);
    }
  });
  Draw draw(ranks);
  Tally tally;
  for (int round = 0; round < rounds; ++round) {
    meet(shared, ranks + 1);  // there are ids
    const int slow = draw.next();
    meet(shared, ranks + 1);                                       // all have reduced
    std::this_thread::sleep_for(std::chrono::milliseconds(2300));  // two surveys
    const std::string status = ask(port, "stragglers\n");
    if (std::getenv("VERBOSE") != nullptr)
      std::fprintf(stderr, "slow: rank %d\n%s", slow, status.c_str());
    tally.add(status, slow);
    meet(shared, ranks + 1);
  }
  guard.join();
  return tally;
}

}  // namespace

int main(int argc, char** argv) {
  const int trials = argc > 1 ? std::atoi(argv[1]) : 100;
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 2;
  const uint64_t delay = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1000;
  if (trials < 1 || ranks < 2 || delay < 1) return 2;
  const int slowed = (trials + kAtATime - 1) / kAtATime;
  const int rounds = slowed + slowed / (kQuietRound - 1);
  const uint16_t port = free_port();
  setenv("NCCL_RAS_ADDR", ("127.0.0.1:" + std::to_string(port)).c_str(), 1);
  setenv("NICCOLITE_KERNEL_MARKS", "1", 0);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  const Tally tally = run(ranks, rounds, delay, port);
  std::printf(
      "{\"ranks\": %d, \"delay_us\": %llu, \"operations\": %d, \"trials\": %d, \"named\": %d, "
      "\"wrong\": %d, \"not_named\": %d, \"quiet_trials\": %d, \"false_names\": %d}\n",
      ranks, static_cast<unsigned long long>(delay), kOperations, tally.trials, tally.right,
      tally.wrong, tally.trials - tally.right - tally.wrong, tally.quiet_trials, tally.false_names);
  std::fprintf(stderr, "named %d of %d\n", tally.right, tally.trials);
  return tally.right * 100 >= 99 * tally.trials && tally.wrong == 0 && tally.false_names == 0 ? 0
                                                                                              : 1;
}
