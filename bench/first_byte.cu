// The time from the end of a kernel to the arrival of its data: a kernel of the program writes
// a buffer, notes the time, and ends; a broadcast of that buffer follows on its stream. The other
// rank's kernel waits already. A third kernel watches the other rank's receive buffer, and notes
// when the bytes are there. All three read the clock of one GPU, which the two ranks share, so
// that no link lies between them: a link adds its way (0.67 us between two H200).
//
//   nvcc -std=c++17 -O2 -arch=sm_90 bench/first_byte.cu -o first_byte -lnccl
//   NCCL_MULTI_RANK_GPU_ENABLE=1 first_byte
//
// Prints microseconds, the median and the least of 200, for each size, on a stream and in a graph.
#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../examples/check.h"

__device__ unsigned long long now() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
  return time;
}

// Long enough that all other kernels wait by then.
__global__ void produce(int* data, int count, int value, unsigned long long* ended) {
  const unsigned long long start = now();
  while (now() - start < 100'000) {
  }
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    data[i] = value;
  __syncthreads();
  __threadfence();
  if (threadIdx.x == 0) *ended = now();
}

// The last word comes last, or nearly so.
__global__ void watch(const volatile int* data, int count, int value, unsigned long long* seen) {
  while (data[0] != value) {
  }
  seen[0] = now();
  while (data[count - 1] != value) {
  }
  seen[1] = now();
}

int main() {
  constexpr int kRounds = 200, kRanks = 2;
  ncclUniqueId id;
  CHECK_NCCL(ncclGetUniqueId(&id));
  ncclComm_t comms[kRanks];
  cudaStream_t streams[kRanks], watcher;
  int* data[kRanks];
  constexpr int kMost = 1 << 16;
  CHECK_CUDA(cudaSetDevice(0));
  CHECK_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) CHECK_NCCL(ncclCommInitRank(&comms[r], kRanks, id, r));
  CHECK_NCCL(ncclGroupEnd());
  for (int r = 0; r < kRanks; ++r) {
    CHECK_CUDA(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&data[r]), kMost * sizeof(int)));
  }
  CHECK_CUDA(cudaStreamCreateWithFlags(&watcher, cudaStreamNonBlocking));
  unsigned long long* times;
  CHECK_CUDA(cudaMallocHost(reinterpret_cast<void**>(&times), 3 * sizeof *times));

  const auto broadcast = [&](int r, int count) {
    CHECK_NCCL(ncclBroadcast(data[r], data[r], static_cast<size_t>(count), ncclInt32, 0, comms[r],
                             streams[r]));
  };
  const auto queue = [&](int r, int count, int value) {
    if (r == 0) produce<<<1, 1024, 0, streams[0]>>>(data[0], count, value, times);
    broadcast(r, count);
  };
  std::printf("%8s %28s %28s\n", "bytes", "stream: first, last (least)",
              "graph: first, last (least)");
  for (const int count : {2, 1024, 16384, 65536}) {
    std::printf("%8zu", count * sizeof(int));
    for (const bool is_graph : {false, true}) {
      std::vector<double> first, last;
      for (int round = 0; round <= kRounds; ++round) {  // round 0 sets everything up
        CHECK_CUDA(cudaMemset(data[1], 0xff, kMost * sizeof(int)));
        CHECK_CUDA(cudaDeviceSynchronize());
        cudaGraphExec_t runs[kRanks] = {};
        if (is_graph) {
          CHECK_NCCL(ncclGroupStart());
          for (int r = 0; r < kRanks; ++r) {
            CHECK_CUDA(cudaStreamBeginCapture(streams[r], cudaStreamCaptureModeThreadLocal));
            queue(r, count, round);
          }
          CHECK_NCCL(ncclGroupEnd());
          cudaGraph_t graphs[kRanks];
          for (int r = 0; r < kRanks; ++r) CHECK_CUDA(cudaStreamEndCapture(streams[r], &graphs[r]));
          for (int r = 0; r < kRanks; ++r) {
            CHECK_CUDA(cudaGraphInstantiate(&runs[r], graphs[r], 0));
            CHECK_CUDA(cudaGraphUpload(runs[r], streams[r]));
            CHECK_CUDA(cudaGraphDestroy(graphs[r]));
          }
          CHECK_CUDA(cudaDeviceSynchronize());
          for (int r = kRanks - 1; r >= 0; --r) CHECK_CUDA(cudaGraphLaunch(runs[r], streams[r]));
        } else {
          CHECK_NCCL(ncclGroupStart());
          for (int r = 0; r < kRanks; ++r) queue(r, count, round);
          CHECK_NCCL(ncclGroupEnd());
        }
        // Last: a launch may wait for a kernel that runs, to load its code or its parameters.
        watch<<<1, 1, 0, watcher>>>(data[1], count, round, times + 1);
        CHECK_CUDA(cudaDeviceSynchronize());
        for (const cudaGraphExec_t run : runs)
          if (run != nullptr) CHECK_CUDA(cudaGraphExecDestroy(run));
        if (round == 0) continue;
        first.push_back(static_cast<double>(times[1] - times[0]) / 1e3);
        last.push_back(static_cast<double>(times[2] - times[0]) / 1e3);
      }
      std::sort(first.begin(), first.end());
      std::sort(last.begin(), last.end());
      std::printf("      %6.2f, %6.2f (%5.2f)", first[kRounds / 2], last[kRounds / 2], first[0]);
    }
    std::printf("\n");
  }
  for (const ncclComm_t comm : comms) CHECK_NCCL(ncclCommDestroy(comm));
  return 0;
}
