// Is a GPU that is slowed by other work named as the straggler? Two ranks, on one GPU or on two;
// before each all-reduce one of them, drawn anew in every round, has a kernel on its stream that
// takes `delay` microseconds. After the library's survey (about a second) the job (`niccolite ras`)
// must name that rank, and of a round without a delay nobody. Prints how many communicators of how
// many were named right. Before that, one rank makes one call more than the other, all of them
// equal: prints what the job says of it.
//
//   nvcc -O2 -std=c++20 -arch=sm_90 -Ibuild/cuda/include bench/stragglers.cu -o stragglers \
//     -Lbuild/cuda/lib -lnccl
//   NICCOLITE_KERNEL_MARKS=1 NCCL_MULTI_RANK_GPU_ENABLE=1 ./stragglers [rounds 10]
//     [communicators at a time 10] [delay 1000]
//
// Not built with the library.
#include <arpa/inet.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <vector>

namespace {

#define CHECK_CUDA(call)                                                   \
  do {                                                                     \
    if (const cudaError_t result = (call); result != cudaSuccess) {        \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(result)); \
      std::exit(2);                                                        \
    }                                                                      \
  } while (false)
#define CHECK_NCCL(call)                                                  \
  do {                                                                    \
    if (const ncclResult_t result = (call); result != ncclSuccess) {      \
      std::fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(nullptr)); \
      std::exit(2);                                                       \
    }                                                                     \
  } while (false)

constexpr int kRanks = 2;
constexpr size_t kCount = 256;
constexpr int kOperations = 16;

__global__ void spin(uint64_t nanoseconds) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - start < nanoseconds);
}

struct Rank {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  float* buffer = nullptr;
  int device = 0;
};
using Job = std::vector<Rank>;

Job start_job(int devices) {
  Job job(kRanks);
  ncclUniqueId id;
  CHECK_NCCL(ncclGetUniqueId(&id));
  for (int rank = 0; rank < kRanks; ++rank) job[rank].device = rank % devices;
  CHECK_NCCL(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    CHECK_CUDA(cudaSetDevice(job[rank].device));
    CHECK_CUDA(cudaStreamCreateWithFlags(&job[rank].stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaMalloc(&job[rank].buffer, kCount * sizeof(float)));
    CHECK_NCCL(ncclCommInitRank(&job[rank].comm, kRanks, id, rank));
  }
  CHECK_NCCL(ncclGroupEnd());
  return job;
}

void run(Job& job, int slow, uint64_t nanoseconds) {
  for (int i = 0; i < kOperations; ++i) {
    if (slow >= 0) {
      CHECK_CUDA(cudaSetDevice(job[slow].device));
      spin<<<1, 1, 0, job[slow].stream>>>(nanoseconds);
    }
    CHECK_NCCL(ncclGroupStart());
    for (Rank& rank : job)
      CHECK_NCCL(ncclAllReduce(rank.buffer, rank.buffer, kCount, ncclFloat, ncclSum, rank.comm,
                               rank.stream));
    CHECK_NCCL(ncclGroupEnd());
    for (Rank& rank : job) CHECK_CUDA(cudaStreamSynchronize(rank.stream));
  }
}

std::string ask(const std::string& question) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(28028);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return text;
  if (write(fd, question.data(), question.size()) > 0) {
    char part[4096];
    for (ssize_t got; (got = read(fd, part, sizeof part)) > 0;) text.append(part, got);
  }
  close(fd);
  return text;
}

// The rank that comes first in what is said of each communicator.
std::map<std::string, int> named_in(const std::string& status) {
  std::map<std::string, int> named;
  const std::regex line("communicator (0x[0-9a-f]+): rank ([0-9]+) came last to ([0-9]+) of");
  for (std::sregex_iterator at(status.begin(), status.end(), line), end; at != end; ++at)
    named.emplace((*at)[1], std::stoi((*at)[2]));
  return named;
}

void finish(Job& job) {
  for (Rank& rank : job) {
    CHECK_NCCL(ncclCommDestroy(rank.comm));
    CHECK_CUDA(cudaStreamDestroy(rank.stream));
    CHECK_CUDA(cudaFree(rank.buffer));
  }
}

void tell_of_a_missing_call(int devices) {
  Job job = start_job(devices);
  run(job, -1, 0);
  const auto call = [](Rank& rank) {
    CHECK_CUDA(cudaSetDevice(rank.device));
    CHECK_NCCL(ncclAllReduce(rank.buffer, rank.buffer, kCount, ncclFloat, ncclSum, rank.comm,
                             rank.stream));
  };
  call(job[0]);
  usleep(2'500'000);
  std::printf("%s", ask("verdict\n").c_str());
  call(job[1]);
  for (Rank& rank : job) CHECK_CUDA(cudaStreamSynchronize(rank.stream));
  finish(job);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 10;
  const int at_a_time = argc > 2 ? std::atoi(argv[2]) : 10;
  const uint64_t delay = (argc > 3 ? std::atoll(argv[3]) : 1000) * 1000ull;
  int devices = 0;
  CHECK_CUDA(cudaGetDeviceCount(&devices));
  tell_of_a_missing_call(devices);
  std::mt19937 random(20);
  int right = 0, wrong = 0, silent = 0, false_names = 0;
  for (int round = 0; round <= rounds; ++round) {
    const int slow =
        round == rounds ? -1 : static_cast<int>(random() % kRanks);  // the last: nobody
    std::vector<Job> jobs;
    for (int i = 0; i < at_a_time; ++i) jobs.push_back(start_job(devices));
    for (Job& job : jobs) run(job, -1, 0);  // connects: not to be counted
    for (Job& job : jobs) run(job, slow, delay);
    usleep(2'300'000);  // two surveys
    const std::string status = ask("stragglers\n");
    const std::map<std::string, int> named = named_in(status);
    if (std::getenv("VERBOSE") != nullptr) std::printf("%s\n", status.c_str());
    if (slow < 0) {
      false_names = static_cast<int>(named.size());
    } else {
      for (const auto& [communicator, rank] : named) ++(rank == slow ? right : wrong);
      silent += at_a_time - static_cast<int>(named.size());
    }
    for (Job& job : jobs) finish(job);
  }
  std::printf("named right %d of %d, wrong %d, not named %d; without a delay named %d of %d\n",
              right, rounds * at_a_time, wrong, silent, false_names, at_a_time);
  return right * 100 >= 99 * rounds * at_a_time ? 0 : 1;
}
