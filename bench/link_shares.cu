// How CTAs share a full link: copies of 1 GiB to a peer by cp.async.bulk, with a
// fixed part for each CTA, and with 128 KiB for whoever is free. Prints GB/s, and when the first
// and the last CTA were done, in microseconds.
//
//   nvcc -O3 -std=c++20 -arch=sm_90 -Isrc bench/link_shares.cu -o link_shares && ./link_shares
//
// Needs two GPUs with peer access. Not built with the library, and not part of it.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "executor/cuda/ptx/ptx.cuh"

namespace ptx = niccolite::executor::cuda::ptx;

namespace {

constexpr size_t kBytes = size_t{1} << 30;
constexpr uint32_t kStages = 8, kAhead = 5, kPiece = 16384, kPiecesOfTurn = 8;
constexpr uint32_t kTurns = kBytes / (kPiece * kPiecesOfTurn);
constexpr int kMostCtas = 64;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "link_shares: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

struct Job {
  const std::byte* source;
  std::byte* peer;
  std::byte* own;   // or null: a second place to store to
  uint32_t* taken;  // turns; null: each CTA has its part
  uint64_t* ends;   // globaltimer, by CTA; ends[kMostCtas]: of the start
};

__device__ uint64_t now() {
  uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__global__ void start(Job job) {
  if (job.taken != nullptr) *job.taken = 0;
  job.ends[kMostCtas] = now();
}

__global__ void __launch_bounds__(32, 1) copy(Job job) {
  std::byte* stages = ptx::shared_memory();
  __shared__ uint64_t barriers[kStages];
  __shared__ volatile size_t places[kStages];
  if (threadIdx.x != 0) return;
  for (uint64_t& barrier : barriers) ptx::init_bulk_barrier(&barrier, 1);
  ptx::fence_bulk_barriers();

  const uint32_t part = kTurns / gridDim.x;
  uint32_t next = job.taken != nullptr ? atomicAdd(job.taken, 1) : part * blockIdx.x;
  uint32_t left = 0;  // pieces of the turn
  size_t at = 0;
  uint32_t loaded = 0, stored = 0;
  for (bool has_turns = true;;) {
    while (has_turns && loaded - stored < kAhead) {
      if (left == 0) {
        has_turns = next < (job.taken != nullptr ? kTurns : part * (blockIdx.x + 1));
        if (!has_turns) break;
        at = size_t{next} * kPiecesOfTurn * kPiece;
        left = kPiecesOfTurn;
        next = job.taken != nullptr ? atomicAdd(job.taken, 1) : next + 1;
      }
      const uint32_t stage = loaded % kStages;
      if (loaded >= kStages) ptx::await_bulk_reads<kStages - kAhead>();
      ptx::bulk_load(stages + stage * kPiece, job.source + at, kPiece, &barriers[stage]);
      places[stage] = at;
      at += kPiece;
      --left;
      ++loaded;
    }
    if (stored == loaded) break;
    const uint32_t stage = stored % kStages;
    ptx::await_bulk_load(&barriers[stage], stored / kStages % 2);
    for (std::byte* target : {job.peer, job.own}) {
      if (target == nullptr) continue;
      ptx::bulk_store(target + places[stage], stages + stage * kPiece, kPiece);
    }
    ptx::commit_bulk_stores();
    ++stored;
  }
  ptx::await_bulk_stores<0>();
  job.ends[blockIdx.x] = now();
}

struct Gpu {
  std::byte *input, *output;
  uint32_t* taken;
  uint64_t* ends;
  cudaStream_t stream;
  cudaEvent_t first, last;
};

/// The slower GPU's time of a copy, microseconds; the best of two.
float measure(Gpu (&gpus)[2], int senders, int ctas, bool in_turn, bool to_own) {
  constexpr int kCopies = 3;
  float best = 1e9;
  for (int run = 0; run < 2; ++run) {
    for (int g = 0; g < senders; ++g) {
      CHECK(cudaSetDevice(g));
      CHECK(cudaEventRecord(gpus[g].first, gpus[g].stream));
    }
    for (int i = 0; i < kCopies; ++i) {
      for (int g = 0; g < senders; ++g) {
        CHECK(cudaSetDevice(g));
        const Job job{gpus[g].input, gpus[1 - g].output, to_own ? gpus[g].output : nullptr,
                      in_turn ? gpus[g].taken : nullptr, gpus[g].ends};
        start<<<1, 1, 0, gpus[g].stream>>>(job);
        copy<<<ctas, 32, kStages * kPiece, gpus[g].stream>>>(job);
        CHECK(cudaGetLastError());
      }
    }
    float slowest = 0;
    for (int g = 0; g < senders; ++g) {
      CHECK(cudaSetDevice(g));
      CHECK(cudaEventRecord(gpus[g].last, gpus[g].stream));
    }
    for (int g = 0; g < senders; ++g) {
      float milliseconds;
      CHECK(cudaEventSynchronize(gpus[g].last));
      CHECK(cudaEventElapsedTime(&milliseconds, gpus[g].first, gpus[g].last));
      slowest = std::max(slowest, milliseconds * 1000 / kCopies);
    }
    best = std::min(best, slowest);
  }
  return best;
}

}  // namespace

int main() {
  Gpu gpus[2];
  for (int g = 0; g < 2; ++g) {
    CHECK(cudaSetDevice(g));
    CHECK(cudaDeviceEnablePeerAccess(1 - g, 0));
    CHECK(cudaMalloc(&gpus[g].input, kBytes));
    CHECK(cudaMalloc(&gpus[g].output, kBytes));
    CHECK(cudaMalloc(&gpus[g].taken, sizeof(uint32_t)));
    CHECK(cudaMalloc(&gpus[g].ends, (kMostCtas + 1) * sizeof(uint64_t)));
    CHECK(cudaStreamCreate(&gpus[g].stream));
    CHECK(cudaEventCreate(&gpus[g].first));
    CHECK(cudaEventCreate(&gpus[g].last));
    CHECK(
        cudaFuncSetAttribute(copy, cudaFuncAttributeMaxDynamicSharedMemorySize, kStages * kPiece));
  }
  std::printf("%-42s", "CTAs");
  constexpr int kCtas[] = {8, 10, 12, 14, 16, 18, 20, 24};
  for (const int ctas : kCtas) std::printf(" %16d", ctas);
  std::printf("\n");
  for (const bool to_own : {false, true}) {
    for (const int senders : {1, 2}) {
      for (const bool in_turn : {false, true}) {
        std::printf("%s%-13s%-15s", to_own ? "and a copy, " : "peer alone, ",
                    senders == 1 ? "one way, " : "both ways, ",
                    in_turn ? "in turn" : "fixed parts");
        for (const int ctas : kCtas) {
          const float time = measure(gpus, senders, ctas, in_turn, to_own);
          uint64_t ends[kMostCtas + 1];
          CHECK(cudaMemcpy(ends, gpus[0].ends, sizeof ends, cudaMemcpyDefault));
          const auto [first, last] = std::minmax_element(ends, ends + ctas);
          const double bytes =
              in_turn ? kBytes : double(kTurns / ctas) * ctas * kPiecesOfTurn * kPiece;
          std::printf(" %4.0f (%4.0f, %4.0f)", bytes / time / 1000,
                      (*first - ends[kMostCtas]) / 1e3, (*last - ends[kMostCtas]) / 1e3);
        }
        std::printf("\n");
      }
    }
  }
  return 0;
}
