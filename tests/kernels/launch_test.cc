// niccolite::launch: CUDA's words keep their meaning in kernels on virtual GPUs.
#include <niccolite/device.h>

#include <numeric>
#include <vector>

#include "tests/api/cluster.h"

namespace niccolite::test {
namespace {

class Output {
 public:
  explicit Output(size_t count) : count_(count) {
    EXPECT_CUDA(cudaSetDevice(0));
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    EXPECT_CUDA(cudaMallocHost(reinterpret_cast<void**>(&data_), count * sizeof(int)));
    std::fill(data_, data_ + count, 0);
  }
  ~Output() {
    EXPECT_CUDA(cudaFreeHost(data_));
    EXPECT_CUDA(cudaStreamDestroy(stream_));
  }
  int* data() const { return data_; }
  int operator[](size_t i) const { return data_[i]; }
  cudaStream_t stream() const { return stream_; }
  void wait() const { EXPECT_CUDA(cudaStreamSynchronize(stream_)); }

 private:
  size_t count_;
  int* data_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

__global__ void number_threads(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  atomicAdd(out + block * blockDim.x * blockDim.y * blockDim.z + thread, 1);
}

TEST(Launch, RunsEachThreadOfEachBlockOnce) {
  Output out(2 * 3 * 2 * 5 * 4 * 3);
  ASSERT_CUDA(launch(number_threads, dim3(2, 3, 2), dim3(5, 4, 3), 0, out.stream(), out.data()));
  out.wait();
  for (size_t i = 0; i < 2 * 3 * 2 * 5 * 4 * 3; ++i) ASSERT_EQ(out[i], 1) << i;
}

TEST(Launch, RunsMoreBlocksThanItHoldsAtATime) {
  constexpr unsigned kThreads = 64;
  constexpr unsigned kBlocks = emulation::Engine::kMostThreads / kThreads + 8;
  Output out(kBlocks * kThreads);
  ASSERT_CUDA(launch(number_threads, dim3(kBlocks), dim3(kThreads), 0, out.stream(), out.data()));
  out.wait();
  for (size_t i = 0; i < kBlocks * kThreads; ++i) ASSERT_EQ(out[i], 1) << i;
}

__global__ void reverse(int* out, int count) {
  NICCOLITE_SHARED(int, first, 128);
  NICCOLITE_SHARED(int, second, 128);
  auto* const dynamic = static_cast<int*>(dynamic_shared());
  first[threadIdx.x] = static_cast<int>(threadIdx.x);
  second[threadIdx.x] = 1000;
  __syncthreads();
  dynamic[threadIdx.x] = first[count - 1 - static_cast<int>(threadIdx.x)] + second[0];
  __syncthreads();
  out[threadIdx.x + blockDim.x * blockIdx.x] = dynamic[threadIdx.x];
}

TEST(Launch, GivesEachBlockItsSharedMemory) {
  Output out(3 * 128);
  ASSERT_CUDA(launch(reverse, 3, 128, 128 * sizeof(int), out.stream(), out.data(), 128));
  out.wait();
  for (int i = 0; i < 3 * 128; ++i) ASSERT_EQ(out[static_cast<size_t>(i)], 1000 + 127 - i % 128);
}

__global__ void shuffle(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int* const mine = out + threadIdx.x * 8;
  mine[0] = __shfl_sync(~0U, lane * 10, 5);
  mine[1] = __shfl_xor_sync(~0U, lane, 3);
  mine[2] = __shfl_down_sync(~0U, lane, 4, 16);
  mine[3] = __shfl_up_sync(~0U, lane, 2);
  mine[4] = static_cast<int>(__ballot_sync(~0U, lane % 3 == 0));
  mine[5] = __any_sync(~0U, lane == 31) + 2 * __all_sync(~0U, lane < 31);
  int sum = lane;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  mine[6] = sum;
  mine[7] = __syncthreads_count(threadIdx.x % 4 == 0) * 4 +
            __syncthreads_or(threadIdx.x == 63) * 2 + __syncthreads_and(threadIdx.x != 63);
}

TEST(Launch, ShufflesAndVotesAsWarpsDo) {
  Output out(64 * 8);
  ASSERT_CUDA(launch(shuffle, 1, 64, 0, out.stream(), out.data()));
  out.wait();
  int ballot = 0;
  for (int lane = 0; lane < 32; lane += 3) ballot |= static_cast<int>(1U << lane);
  for (int thread = 0; thread < 64; ++thread) {
    const int lane = thread % 32;
    const int* const mine = out.data() + thread * 8;
    ASSERT_EQ(mine[0], 50);
    ASSERT_EQ(mine[1], lane ^ 3);
    ASSERT_EQ(mine[2], lane % 16 + 4 < 16 ? lane + 4 : lane);
    ASSERT_EQ(mine[3], lane < 2 ? lane : lane - 2);
    ASSERT_EQ(mine[4], ballot);
    ASSERT_EQ(mine[5], 1);
    ASSERT_EQ(mine[6], 31 * 32 / 2);
    ASSERT_EQ(mine[7], 16 * 4 + 2);
  }
}

__global__ void some_end(int* out) {
  if (threadIdx.x % 2 == 0) return;
  __syncthreads();  // threads that have ended are not waited for
  atomicAdd(out, 1);
}

TEST(Launch, DoesNotWaitAtBarriersForThreadsThatHaveEnded) {
  Output out(1);
  ASSERT_CUDA(launch(some_end, 1, 64, 0, out.stream(), out.data()));
  out.wait();
  EXPECT_EQ(out[0], 32);
}

__global__ void add_and_double(int* out, int value) {
  if (threadIdx.x == 0) *out = *out * 2 + value;
}

TEST(Launch, KeepsTheOrderOfTheStream) {
  Output out(1);
  for (int i = 0; i < 10; ++i)
    ASSERT_CUDA(launch(add_and_double, 1, 32, 0, out.stream(), out.data(), i % 2));
  out.wait();
  int expected = 0;
  for (int i = 0; i < 10; ++i) expected = expected * 2 + i % 2;
  EXPECT_EQ(out[0], expected);
}

__global__ void who_is_first(int* out) {
  if (atomicAdd(out, 1) == 0) out[1] = static_cast<int>(threadIdx.x + blockDim.x * blockIdx.x);
}

TEST(Launch, HasAnotherOrderForAnotherSeed) {
  std::vector<int> firsts;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Output out(2);
    emulation::set_seed(seed);
    ASSERT_CUDA(launch(who_is_first, 4, 64, 0, out.stream(), out.data()));
    out.wait();
    firsts.push_back(out[1]);
  }
  EXPECT_NE(std::count(firsts.begin(), firsts.end(), firsts[0]), 6);
}

TEST(Launch, RefusesGridsThatNoGpuTakes) {
  Output out(1);
  EXPECT_EQ(launch(some_end, 1, 1025, 0, out.stream(), out.data()), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(some_end, 0, 32, 0, out.stream(), out.data()), cudaErrorInvalidConfiguration);
  ASSERT_CUDA(cudaStreamBeginCapture(out.stream(), cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(launch(some_end, 1, 32, 0, out.stream(), out.data()),
            cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(out.stream(), &graph));
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

__global__ void deadlock(int* out) {
  if (threadIdx.x == 0)
    __syncthreads();
  else
    __syncwarp();
  atomicAdd(out, 1);
}

TEST(LaunchDeathTest, NamesTheBlockAndTheThreadOfADeadlock) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Output out(1);
        (void)launch(deadlock, 1, 96, 0, out.stream(), out.data());
        out.wait();
      },
      "deadlock: block \\(0,0,0\\) of a kernel: [0-9]+ of 96 threads wait");
}

}  // namespace
}  // namespace niccolite::test
