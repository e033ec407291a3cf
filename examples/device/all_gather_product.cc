// All-gather and matrix product in one kernel: every rank has some rows of A and some columns of B,
// and wants all rows of A times its columns. A block multiplies the rows of a peer as soon as they
// have come, while those of other peers are still under way.
//
// On GPUs: nvcc -x cu -std=c++17; on virtual GPUs any C++ compiler (README.md).
#include "job.h"

using namespace niccolite::device;  // NOLINT(google-build-using-namespace)
using niccolite::launch;

constexpr int kThreads = kMeasures ? 128 : 32;
constexpr int kBlocks = kMeasures ? 8 : 3;
constexpr int kRows = 4;  // of each rank, for a block

// ---- device code

/// `a` is all of A: rank r's rows begin at r * rows * inner, and each rank has filled in its own.
__global__ void gather_and_multiply(Comm comm, Buffer<float> a, ChannelsHandle channels,
                                    const float* b, float* c, int inner, int columns) {
  const int rows = kRows * static_cast<int>(gridDim.x);  // of each rank
  const size_t part = static_cast<size_t>(kRows) * static_cast<size_t>(inner);
  const auto begin_of = [&](int peer) {
    return (static_cast<size_t>(peer) * gridDim.x + blockIdx.x) * part;
  };
  Channel channel(ThisBlock(), comm, channels, static_cast<int>(blockIdx.x));
  for (int i = 1; i < comm.nranks(); ++i) {
    const int peer = (comm.rank() + i) % comm.nranks();
    put(ThisBlock(), comm, a, begin_of(comm.rank()), peer, a.own() + begin_of(comm.rank()), part);
    channel.signal(peer);
  }
  for (int i = 0; i < comm.nranks(); ++i) {  // the own rows first: they are here
    const int peer = (comm.rank() + comm.nranks() - i) % comm.nranks();
    if (i > 0 && !channel.wait(peer)) return;
    const float* const from = a.own() + begin_of(peer);
    for (int e = static_cast<int>(threadIdx.x); e < kRows * columns; e += kThreads) {
      const int row = e / columns, column = e % columns;
      float sum = 0;
      for (int k = 0; k < inner; ++k) sum += from[row * inner + k] * b[k * columns + column];
      const int of_all = peer * rows + static_cast<int>(blockIdx.x) * kRows + row;
      c[static_cast<size_t>(of_all) * static_cast<size_t>(columns) + static_cast<size_t>(column)] =
          sum;
    }
  }
  // The rows may be overwritten by the next kernel only when nobody reads them any more.
  Barrier barrier(ThisBlock(), comm, static_cast<int>(blockIdx.x));
  (void)barrier.sync();
}

/// The product alone, behind ncclAllGather.
__global__ void multiply(const float* a, const float* b, float* c, int rows, int inner,
                         int columns) {
  for (int e = static_cast<int>(threadIdx.x + blockIdx.x * kThreads); e < rows * columns;
       e += static_cast<int>(gridDim.x) * kThreads) {
    float sum = 0;
    for (int k = 0; k < inner; ++k)
      sum += a[static_cast<size_t>(e / columns) * static_cast<size_t>(inner) +
               static_cast<size_t>(k)] *
             b[k * columns + e % columns];
    c[e] = sum;
  }
}

// ---- host

int main() {
  constexpr int kInner = 64, kColumns = 32;
  int gpus = 0;
  CHECK_CUDA(cudaGetDeviceCount(&gpus));
  const int rows = kRows * kBlocks;
  const size_t own = static_cast<size_t>(rows) * kInner;
  const size_t of_a = own * static_cast<size_t>(gpus) * sizeof(float);
  const size_t of_b = size_t{kInner} * kColumns * sizeof(float);
  const size_t of_c = static_cast<size_t>(rows * gpus) * kColumns * sizeof(float);
  Job job(of_a + of_b + of_c, kBlocks, kBlocks);
  const auto a_of = [&](int row, int k) { return static_cast<float>((row * 3 + k) % 7 - 3); };
  const auto b_of = [&](int r, int k, int column) {
    return static_cast<float>((k + column * 5 + r) % 5 - 2);
  };
  for (int r = 0; r < gpus; ++r) {
    std::vector<float> a, b;
    for (int row = 0; row < rows; ++row)
      for (int k = 0; k < kInner; ++k) a.push_back(a_of(r * rows + row, k));
    for (int k = 0; k < kInner; ++k)
      for (int column = 0; column < kColumns; ++column) b.push_back(b_of(r, k, column));
    job.write(r, own * static_cast<size_t>(r) * sizeof(float), a);
    job.write(r, of_a, b);
  }
  const auto b_in = [&](Rank& rank) { return reinterpret_cast<const float*>(rank.memory + of_a); };
  const auto c_in = [&](Rank& rank) { return reinterpret_cast<float*>(rank.memory + of_a + of_b); };
  const auto run = [&](Rank& rank, int) {
    CHECK_CUDA(launch(gather_and_multiply, kBlocks, kThreads, 0, rank.stream, rank.device_comm(),
                      rank.buffer<float>(own * static_cast<size_t>(gpus)), rank.channels,
                      b_in(rank), c_in(rank), kInner, kColumns));
  };
  job.each(run);
  job.wait();
  size_t wrong = 0;
  for (int r = 0; r < gpus; ++r) {
    const std::vector<float> c =
        job.read<float>(r, of_a + of_b, static_cast<size_t>(rows * gpus) * kColumns);
    for (int row = 0; row < rows * gpus; ++row)
      for (int column = 0; column < kColumns; ++column) {
        float sum = 0;
        for (int k = 0; k < kInner; ++k) sum += a_of(row, k) * b_of(r, k, column);
        wrong += c[static_cast<size_t>(row * kColumns + column)] != sum ? 1 : 0;
      }
  }
  if (!kMeasures) return finish("all_gather_product", wrong);
  const double one = job.time(20, run);
  const double two = job.time(20, [&](Rank& rank, int r) {
    auto* const a = reinterpret_cast<float*>(rank.memory);
    if (r == 0) CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(ncclAllGather(a + own * static_cast<size_t>(r), a, own, ncclFloat32, rank.comm,
                             rank.stream));
    if (r == gpus - 1) CHECK_NCCL(ncclGroupEnd());
  }) + job.time(20, [&](Rank& rank, int) {
    CHECK_CUDA(launch(multiply, kBlocks, kThreads, 0, rank.stream,
                      reinterpret_cast<const float*>(rank.memory), b_in(rank), c_in(rank),
                      rows * gpus, kInner, kColumns));
  });
  std::printf("one kernel %.1f us, two calls %.1f us\n", one, two);
  return finish("all_gather_product", wrong);
}
