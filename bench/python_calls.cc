// What a call of ncclAllReduce costs its caller: the C side of bench/python_calls.py. Prints
// nanoseconds.
//
// Rank 0 queues kCalls small operations, which cannot begin before rank 1's come: nothing but the
// call is measured, neither the operation nor the waking of whoever carries it out.
#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

int main() {
  constexpr int kCalls = 100;
  constexpr int kRounds = 200;
  constexpr size_t kCount = 8;
  ncclComm_t comms[2];
  cudaStream_t streams[2];
  float* buffers[2];
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return 1;
  // Both on one GPU where there is one (NCCL_MULTI_RANK_GPU_ENABLE=1).
  const int devices[2] = {0, 1 % gpus};
  ncclUniqueId id;
  if (ncclGetUniqueId(&id) != ncclSuccess || ncclGroupStart() != ncclSuccess) return 1;
  for (int rank = 0; rank < 2; ++rank) {
    cudaSetDevice(devices[rank]);
    if (ncclCommInitRank(&comms[rank], 2, id, rank) != ncclSuccess) return 1;
  }
  if (ncclGroupEnd() != ncclSuccess) return 1;
  for (int rank = 0; rank < 2; ++rank) {
    cudaSetDevice(devices[rank]);
    cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking);
    if (ncclMemAlloc(reinterpret_cast<void**>(&buffers[rank]), 2 * kCount * sizeof(float)) !=
        ncclSuccess)
      return 1;
  }
  const auto queue = [&](int rank) {
    for (int i = 0; i < kCalls; ++i)
      ncclAllReduce(buffers[rank], buffers[rank] + kCount, kCount, ncclFloat, ncclSum, comms[rank],
                    streams[rank]);
  };
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    queue(0);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    rounds.push_back(took.count() / kCalls);
    queue(1);
    for (cudaStream_t stream : streams) cudaStreamSynchronize(stream);
  }
  std::printf("%.0f\n", *std::min_element(rounds.begin(), rounds.end()));
  for (ncclComm_t comm : comms) ncclCommAbort(comm);
  return 0;
}
