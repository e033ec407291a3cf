// All-reduce, residual and RMSNorm in one kernel, as tensor-parallel inference needs them after
// each layer:
//
//   residual += sum over ranks of x;   y = residual / rms(residual) * weight
//
// Every rank takes a share of the tokens: it loads the token from all ranks, which makes the sum,
// and stores both results to all. One kernel instead of two, and each value moves once.
//
// On GPUs: nvcc -x cu -std=c++17; on virtual GPUs any C++ compiler (README.md).
#include <cuda_bf16.h>

#include "job.h"

using namespace niccolite::device;  // NOLINT(google-build-using-namespace)
using Bf16 = __nv_bfloat16;
using niccolite::launch;

constexpr int kThreads = kMeasures ? 256 : 64;
constexpr int kBlocks = kMeasures ? 16 : 4;
constexpr int kMostPacks = 4;  // of a token, for each thread: 8,192 elements

// ---- device code

/// The sum of `value` over the block.
__device__ inline float sum_of_block(float value) {
  NICCOLITE_SHARED(float, of_warps, kThreads / 32);
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  __syncthreads();  // the sums before have been read
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += of_warps[warp];
  return sum;
}

__global__ void all_reduce_norm(Comm comm, Buffer<Bf16> x, Buffer<Bf16> residual, Buffer<Bf16> y,
                                const Bf16* weight, int tokens, int hidden) {
  Barrier barrier(ThisBlock(), comm, static_cast<int>(blockIdx.x));
  if (!barrier.sync()) return;  // all ranks have their x
  const int packs = hidden / Pack<Bf16>::kElements;
  for (int t = comm.rank() + comm.nranks() * static_cast<int>(blockIdx.x); t < tokens;
       t += comm.nranks() * static_cast<int>(gridDim.x)) {
    const size_t token = static_cast<size_t>(t) * static_cast<size_t>(hidden);
    Sums<Bf16> sums[kMostPacks];
    float squares = 0;
    for (int k = 0; k < kMostPacks; ++k) {
      const int pack = k * kThreads + static_cast<int>(threadIdx.x);
      if (pack >= packs) break;
      const size_t at = token + static_cast<size_t>(pack) * Pack<Bf16>::kElements;
      sums[k] = load_reduce(comm, x, at);
      const Pack<Bf16> before = *reinterpret_cast<const Pack<Bf16>*>(residual.own() + at);
      for (int i = 0; i < Pack<Bf16>::kElements; ++i) {
        sums[k].values[i] += static_cast<float>(before.values[i]);
        squares += sums[k].values[i] * sums[k].values[i];
      }
    }
    const float scale = rsqrtf(sum_of_block(squares) / static_cast<float>(hidden) + 1e-6F);
    for (int k = 0; k < kMostPacks; ++k) {
      const int pack = k * kThreads + static_cast<int>(threadIdx.x);
      if (pack >= packs) break;
      const size_t in_token = static_cast<size_t>(pack) * Pack<Bf16>::kElements;
      store_all(comm, residual, token + in_token, sums[k].rounded());
      const Pack<Bf16> w = *reinterpret_cast<const Pack<Bf16>*>(weight + in_token);
      for (int i = 0; i < Pack<Bf16>::kElements; ++i)
        sums[k].values[i] *= scale * static_cast<float>(w.values[i]);
      store_all(comm, y, token + in_token, sums[k].rounded());
    }
  }
  (void)barrier.sync();  // all results are there
}

/// The norm alone, behind ncclAllReduce.
__global__ void norm(const Bf16* x, Bf16* residual, Bf16* y, const Bf16* weight, int tokens,
                     int hidden) {
  for (int t = static_cast<int>(blockIdx.x); t < tokens; t += static_cast<int>(gridDim.x)) {
    const size_t token = static_cast<size_t>(t) * static_cast<size_t>(hidden);
    float squares = 0;
    for (int i = static_cast<int>(threadIdx.x); i < hidden; i += kThreads) {
      const size_t at = token + static_cast<size_t>(i);
      const float sum = static_cast<float>(x[at]) + static_cast<float>(residual[at]);
      residual[at] = static_cast<Bf16>(sum);
      squares += sum * sum;
    }
    const float scale = rsqrtf(sum_of_block(squares) / static_cast<float>(hidden) + 1e-6F);
    for (int i = static_cast<int>(threadIdx.x); i < hidden; i += kThreads) {
      const size_t at = token + static_cast<size_t>(i);
      y[at] = static_cast<Bf16>(static_cast<float>(residual[at]) * scale *
                                static_cast<float>(weight[i]));
    }
  }
}

// ---- host

int main(int argc, char** argv) {
  const int hidden = argc > 2 ? std::atoi(argv[2]) : kMeasures ? 4096 : 512;
  const int most_tokens = argc > 1 ? std::atoi(argv[1]) : kMeasures ? 4096 : 16;
  if (most_tokens < 8 || hidden % 8 != 0 || hidden > kMostPacks * kThreads * 8) {
    std::fprintf(stderr,
                 "usage: all_reduce_norm [tokens >= 8] [hidden: a multiple of 8 <= 8192]\n");
    return 2;
  }
  const size_t count = static_cast<size_t>(most_tokens) * static_cast<size_t>(hidden);
  const size_t bytes = (count * sizeof(Bf16) + 127) / 128 * 128;
  Job job(3 * bytes + static_cast<size_t>(hidden) * sizeof(Bf16), kBlocks, 0);
  size_t wrong = 0;
  if (kMeasures) std::printf("%8s %16s %16s\n", "tokens", "one kernel, us", "two calls, us");
  for (int tokens = 8; tokens <= most_tokens; tokens *= 2) {
    const size_t used = static_cast<size_t>(tokens) * static_cast<size_t>(hidden);
    const auto x_of = [&](int r, size_t i) {
      return static_cast<float>(static_cast<int>(i * 7 + static_cast<size_t>(r) * 3) % 32 - 16) /
             16;
    };
    const auto before_of = [](size_t i) {
      return static_cast<float>(static_cast<int>(i % 9) - 4) / 4;
    };
    for (int r = 0; r < job.size(); ++r) {
      std::vector<Bf16> x, before, weight;
      for (size_t i = 0; i < used; ++i) {
        x.push_back(static_cast<Bf16>(x_of(r, i)));
        before.push_back(static_cast<Bf16>(before_of(i)));
      }
      for (int i = 0; i < hidden; ++i)
        weight.push_back(static_cast<Bf16>(i % 2 == 0 ? 1.0F : 0.5F));
      job.write(r, 0, x);
      job.write(r, bytes, before);
      job.write(r, 3 * bytes, weight);
    }
    const auto run = [&](Rank& rank, int) {
      CHECK_CUDA(launch(all_reduce_norm, kBlocks, kThreads, 0, rank.stream, rank.device_comm(),
                        rank.buffer<Bf16>(used), rank.buffer<Bf16>(used, bytes),
                        rank.buffer<Bf16>(used, 2 * bytes),
                        reinterpret_cast<const Bf16*>(rank.memory + 3 * bytes), tokens, hidden));
    };
    job.each(run);
    job.wait();
    for (int r = 0; r < job.size(); ++r) {
      const std::vector<Bf16> y = job.read<Bf16>(r, 2 * bytes, used);
      for (int t = 0; t < tokens; ++t) {
        const size_t token = static_cast<size_t>(t) * static_cast<size_t>(hidden);
        std::vector<float> sums(static_cast<size_t>(hidden));
        double squares = 0;
        for (size_t i = 0; i < sums.size(); ++i) {
          sums[i] = before_of(token + i);
          for (int peer = 0; peer < job.size(); ++peer) sums[i] += x_of(peer, token + i);
          squares += static_cast<double>(sums[i]) * static_cast<double>(sums[i]);
        }
        const double scale = 1 / std::sqrt(squares / hidden + 1e-6);
        for (size_t i = 0; i < sums.size(); ++i) {
          const double expected = static_cast<double>(sums[i]) * scale * (i % 2 == 0 ? 1.0 : 0.5);
          const double got = static_cast<double>(static_cast<float>(y[token + i]));
          wrong += std::fabs(got - expected) > 0.01 * std::fabs(expected) + 1e-3 ? 1 : 0;
        }
      }
    }
    if (!kMeasures) continue;
    const double one = job.time(20, run);
    const double two = job.time(20, [&](Rank& rank, int r) {
      auto* const x = reinterpret_cast<Bf16*>(rank.memory);
      if (r == 0) CHECK_NCCL(ncclGroupStart());
      CHECK_NCCL(ncclAllReduce(x, x, used, ncclBfloat16, ncclSum, rank.comm, rank.stream));
      if (r == job.size() - 1) CHECK_NCCL(ncclGroupEnd());
    }) + job.time(20, [&](Rank& rank, int) {
      auto* const x = reinterpret_cast<Bf16*>(rank.memory);
      CHECK_CUDA(launch(norm, kBlocks, kThreads, 0, rank.stream, x,
                        reinterpret_cast<Bf16*>(rank.memory + bytes),
                        reinterpret_cast<Bf16*>(rank.memory + 2 * bytes),
                        reinterpret_cast<const Bf16*>(rank.memory + 3 * bytes), tokens, hidden));
    });
    std::printf("%8d %16.1f %16.1f\n", tokens, one, two);
  }
  return finish("all_reduce_norm", wrong);
}
