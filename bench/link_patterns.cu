// Measures the bandwidth of the links between all GPUs of a machine, by who moves the bytes and in
// which order: copies of 1 GiB by cp.async.bulk, whose units any free CTA takes. Prints GB/s of one
// GPU for several numbers of CTAs.
//
//   nvcc -O3 -std=c++20 -arch=sm_90 -Isrc bench/link_patterns.cu -o link_patterns
//   ./link_patterns
//
//   ring   every GPU and the next one        all   every GPU and all others, a part each
//   push   stores to the peer                pull  loads from it
//   run    units of one peer before the next peer's turn
//
// Needs two GPUs or more with peer access. Not built with the library, and not part of it.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "executor/cuda/ptx/ptx.cuh"

namespace ptx = niccolite::executor::cuda::ptx;

namespace {

constexpr size_t kBytes = size_t{1} << 30;
constexpr uint32_t kStages = 8, kAhead = 5, kPiece = 16384;
constexpr int kMostPeers = 7;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "link_patterns: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

struct Job {
  const std::byte* sources[kMostPeers];
  std::byte* targets[kMostPeers];
  uint32_t peers;
  uint32_t units;   // of each peer
  uint32_t pieces;  // of a unit
  uint32_t run;     // units of one peer before the next peer's turn
  uint32_t* taken;
};

__global__ void __launch_bounds__(32, 1) copy(const __grid_constant__ Job job) {
  std::byte* stages = ptx::shared_memory();
  __shared__ uint64_t barriers[kStages];
  __shared__ std::byte* volatile targets[kStages];
  if (threadIdx.x != 0) return;
  for (uint64_t& barrier : barriers) ptx::init_bulk_barrier(&barrier, 1);
  ptx::fence_bulk_barriers();

  uint32_t next = atomicAdd(job.taken, 1);
  uint32_t left = 0;  // pieces of the unit
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  uint32_t loaded = 0, stored = 0;
  for (bool has_units = true;;) {
    while (has_units && loaded - stored < kAhead) {
      if (left == 0) {
        has_units = next < job.units * job.peers;
        if (!has_units) break;
        const uint32_t turn = next % (job.run * job.peers);
        const uint32_t unit = next / (job.run * job.peers) * job.run + turn % job.run;
        const size_t at = size_t{unit} * job.pieces * kPiece;
        source = job.sources[turn / job.run] + at;
        target = job.targets[turn / job.run] + at;
        left = job.pieces;
        next = atomicAdd(job.taken, 1);
      }
      const uint32_t stage = loaded % kStages;
      if (loaded >= kStages) ptx::await_bulk_reads<kStages - kAhead>();
      ptx::bulk_load(stages + stage * kPiece, source, kPiece, &barriers[stage]);
      targets[stage] = target;
      source += kPiece;
      target += kPiece;
      --left;
      ++loaded;
    }
    if (stored == loaded) break;
    const uint32_t stage = stored % kStages;
    ptx::await_bulk_load(&barriers[stage], stored / kStages % 2);
    ptx::bulk_store(targets[stage], stages + stage * kPiece, kPiece);
    ptx::commit_bulk_stores();
    ++stored;
  }
  ptx::await_bulk_stores<0>();
}

struct Gpu {
  std::byte *input, *output;
  uint32_t* taken;
  cudaStream_t stream;
  cudaEvent_t first, last;
};

struct Pattern {
  const char* name;
  bool to_all;
  bool pulls;
  uint32_t pieces;
  uint32_t run;
};

/// The slowest GPU's time of a copy, microseconds; the best of three.
float measure(std::vector<Gpu>& gpus, const Pattern& pattern, int ctas) {
  const int count = static_cast<int>(gpus.size());
  float best = 1e9;
  for (int turn = 0; turn < 3; ++turn) {
    for (Gpu& gpu : gpus) {
      CHECK(cudaMemsetAsync(gpu.taken, 0, sizeof *gpu.taken, gpu.stream));
      CHECK(cudaStreamSynchronize(gpu.stream));
    }
    for (int g = 0; g < count; ++g) {
      CHECK(cudaSetDevice(g));
      const size_t part = pattern.to_all ? kBytes / count : kBytes;
      Job job{.peers = pattern.to_all ? count - 1u : 1u,
              .units = static_cast<uint32_t>(part / (pattern.pieces * kPiece)),
              .pieces = pattern.pieces,
              .run = pattern.run,
              .taken = gpus[g].taken};
      job.run = std::min(job.run, job.units);
      job.units = job.units / job.run * job.run;
      for (uint32_t p = 0; p < job.peers; ++p) {
        const int peer = (g + 1 + static_cast<int>(p)) % count;
        const size_t own_part = pattern.to_all ? g * part : 0;
        const size_t peer_part = pattern.to_all ? peer * part : 0;
        job.sources[p] = pattern.pulls ? gpus[peer].input + own_part : gpus[g].input + peer_part;
        job.targets[p] = pattern.pulls ? gpus[g].output + peer_part : gpus[peer].output + own_part;
      }
      CHECK(cudaEventRecord(gpus[g].first, gpus[g].stream));
      copy<<<ctas, 32, kStages * kPiece, gpus[g].stream>>>(job);
      CHECK(cudaGetLastError());
      CHECK(cudaEventRecord(gpus[g].last, gpus[g].stream));
    }
    float slowest = 0;
    for (Gpu& gpu : gpus) {
      float milliseconds;
      CHECK(cudaEventSynchronize(gpu.last));
      CHECK(cudaEventElapsedTime(&milliseconds, gpu.first, gpu.last));
      slowest = std::max(slowest, milliseconds * 1000);
    }
    best = std::min(best, slowest);
  }
  return best;
}

}  // namespace

int main() {
  int count = 0;
  CHECK(cudaGetDeviceCount(&count));
  count = std::min(count, kMostPeers + 1);
  if (count < 2) {
    std::fprintf(stderr, "link_patterns: needs two GPUs, this machine has %d\n", count);
    return 1;
  }
  std::vector<Gpu> gpus(static_cast<size_t>(count));
  for (int g = 0; g < count; ++g) {
    CHECK(cudaSetDevice(g));
    for (int peer = 0; peer < count; ++peer)
      if (peer != g) CHECK(cudaDeviceEnablePeerAccess(peer, 0));
    CHECK(cudaMalloc(&gpus[g].input, kBytes));
    CHECK(cudaMalloc(&gpus[g].output, kBytes));
    CHECK(cudaMalloc(&gpus[g].taken, sizeof(uint32_t)));
    CHECK(cudaStreamCreate(&gpus[g].stream));
    CHECK(cudaEventCreate(&gpus[g].first));
    CHECK(cudaEventCreate(&gpus[g].last));
    CHECK(
        cudaFuncSetAttribute(copy, cudaFuncAttributeMaxDynamicSharedMemorySize, kStages * kPiece));
  }
  constexpr uint32_t kWhole = ~0u;
  constexpr Pattern kPatterns[] = {{"ring push, 128 KiB", false, false, 8, 1},
                                   {"ring pull, 128 KiB", false, true, 8, 1},
                                   {"all push, 128 KiB", true, false, 8, 1},
                                   {"all push, 16 KiB", true, false, 1, 1},
                                   {"all push, runs of 24", true, false, 8, 24},
                                   {"all push, runs of 256", true, false, 8, 256},
                                   {"all push, whole parts", true, false, 8, kWhole},
                                   {"all pull, 128 KiB", true, true, 8, 1},
                                   {"all pull, 16 KiB", true, true, 1, 1},
                                   {"all pull, whole parts", true, true, 8, kWhole}};
  constexpr int kCtas[] = {8, 12, 16, 20, 24};
  std::printf("%-24s", "CTAs");
  for (const int ctas : kCtas) std::printf(" %5d", ctas);
  std::printf("\n");
  for (const Pattern& pattern : kPatterns) {
    std::printf("%-24s", pattern.name);
    const size_t bytes = pattern.to_all ? kBytes / count * (count - 1) : kBytes;
    for (const int ctas : kCtas) {
      std::printf(" %5.0f", static_cast<double>(bytes) / measure(gpus, pattern, ctas) / 1000);
    }
    std::printf("\n");
  }
  return 0;
}
