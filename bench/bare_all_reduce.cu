// All-reduces of two GPUs by kernels that do nothing else, beside libraries: how fast the hardware
// lets an all-reduce be. Inference engines have kernels of these three kinds of their own.
//
//   push      each rank stores its operand into the peer's slot; the data are their own flag: a
//             slot is empty where it holds +0, which senders replace by -0 and receivers write back
//   pull      a barrier, loads of the peer's input, a barrier
//   two-shot  push of the peer's half, sums of the own half, push of the sums
//
// They know one type (bfloat16), one operation and two ranks, check nothing, wait for ever for a
// peer, and take all multiprocessors. "early": a launch begins while the one before it ends
// (programmatic stream serialization).
//
//   nvcc -std=c++20 -O3 -arch=sm_90 bench/bare_all_reduce.cu -o bare_all_reduce -lcuda -ldl
//   NCCL_NVLS_ENABLE=0 bare_all_reduce [--sizes 256,4K,...] [--blocks 132] LIBRARY...
//
// Prints microseconds of an operation: graphs of 20, ten replays behind each other, and bursts of
// 50 launches; medians of 15, of the slower GPU. Every result is compared with the exact sums.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../examples/check.h"

namespace {

constexpr int kRanks = 2;
constexpr int kMostBlocks = 132;  // one for each multiprocessor of an H100 or H200
constexpr int kFlagStride = 32;   // words: a line for each block's flag
constexpr size_t kMostBytes = 32 << 20;
constexpr int kUnderWay = 2;  // packs of a thread

/// A kernel's parameters, of one rank.
struct Bare {
  const uint4* input;
  const uint4* peer_input;
  uint4* output;
  uint4* slots;  // two of kSlotPacks for operands, and two for sums
  uint4* peer_slots;
  uint32_t* flags;  // of each block
  uint32_t* peer_flags;
  uint32_t* epochs;  // of each block: operations that it has carried out
  int packs;
  int rank;
};
constexpr size_t kSlotPacks = kMostBytes / sizeof(uint4);

__device__ uint4 load(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}
__device__ uint4 load_relaxed(const uint4* at) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}
__device__ void store_relaxed(uint4* at, const uint4& v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ uint32_t without_zero(uint32_t pair) { return pair | (__vcmpeq2(pair, 0) & 0x80008000); }
__device__ uint4 without_zero(const uint4& v) {
  return {without_zero(v.x), without_zero(v.y), without_zero(v.z), without_zero(v.w)};
}
__device__ bool has_zero(const uint4& v) {
  return (__vcmpeq2(v.x, 0) | __vcmpeq2(v.y, 0) | __vcmpeq2(v.z, 0) | __vcmpeq2(v.w, 0)) != 0;
}

__device__ uint32_t add(uint32_t a, uint32_t b) {
  const auto as_pair = [](const uint32_t& word) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&word));
  };
  const float2 x = as_pair(a), y = as_pair(b);
  const __nv_bfloat162 sum = __floats2bfloat162_rn(x.x + y.x, x.y + y.y);
  return *reinterpret_cast<const uint32_t*>(&sum);
}
__device__ uint4 add(const uint4& a, const uint4& b) {
  return {add(a.x, b.x), add(a.y, b.y), add(a.z, b.z), add(a.w, b.w)};
}

template <bool kIsEarly>
__device__ void await_launch_before() {
  if constexpr (kIsEarly) asm volatile("griddepcontrol.wait;" ::: "memory");
}
template <bool kIsEarly>
__device__ void let_next_begin() {
  if constexpr (kIsEarly) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Calls step(first, count) for packs of [0, packs), `kUnderWay` of them in each: first,
/// first + all threads, ...
template <typename Step>
__device__ void for_packs(int packs, Step step) {
  const int threads = static_cast<int>(gridDim.x * blockDim.x);
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  for (int first = thread; first < packs; first += threads * kUnderWay)
    step(first, min(kUnderWay, (packs - first + threads - 1) / threads), threads);
}

__device__ void push(uint4* slots, const uint4* data, int packs) {
  for_packs(packs, [&](int first, int count, int stride) {
    uint4 v[kUnderWay];
#pragma unroll
    for (int i = 0; i < kUnderWay; ++i)
      if (i < count) v[i] = load(data + first + i * stride);
#pragma unroll
    for (int i = 0; i < kUnderWay; ++i)
      if (i < count) store_relaxed(slots + first + i * stride, without_zero(v[i]));
  });
}

/// Calls use(pack, value) for every pack of the slot as it comes, and empties it.
template <typename Use>
__device__ void take(uint4* slots, int packs, Use use) {
  for_packs(packs, [&](int first, int count, int stride) {
    uint4 v[kUnderWay];
    bool is_missing = true;
    while (is_missing) {
      is_missing = false;
#pragma unroll
      for (int i = 0; i < kUnderWay; ++i)
        if (i < count) v[i] = load_relaxed(slots + first + i * stride);
#pragma unroll
      for (int i = 0; i < kUnderWay; ++i)
        if (i < count) is_missing |= has_zero(v[i]);
    }
#pragma unroll
    for (int i = 0; i < kUnderWay; ++i)
      if (i < count) {
        use(first + i * stride, v[i]);
        slots[first + i * stride] = {};
      }
  });
}

template <bool kIsEarly>
__device__ uint32_t begin(const Bare& bare) {
  await_launch_before<kIsEarly>();
  return bare.epochs[blockIdx.x];
}
template <bool kIsEarly>
__device__ void end(const Bare& bare, uint32_t epoch) {
  let_next_begin<kIsEarly>();
  __syncthreads();
  if (threadIdx.x == 0) bare.epochs[blockIdx.x] = epoch + 1;
}

// Two slots in turns are enough: the peer stores into one again when it has had this rank's data of
// the operation between, which follow the end of the launch that emptied it.
template <bool kIsEarly>
__global__ __launch_bounds__(1024, 1) void push_all_reduce(const __grid_constant__ Bare bare) {
  const uint32_t epoch = begin<kIsEarly>(bare);
  const size_t slot = epoch % 2 * kSlotPacks;
  push(bare.peer_slots + slot, bare.input, bare.packs);
  take(bare.slots + slot, bare.packs, [&](int pack, const uint4& theirs) {
    bare.output[pack] = add(load(bare.input + pack), theirs);
  });
  end<kIsEarly>(bare, epoch);
}

template <bool kIsEarly>
__global__ __launch_bounds__(1024, 1) void two_shot_all_reduce(const __grid_constant__ Bare bare) {
  const uint32_t epoch = begin<kIsEarly>(bare);
  const size_t slot = epoch % 2 * kSlotPacks, sums = slot + 2 * kSlotPacks;
  const int half = bare.packs / 2;
  const int mine = bare.rank == 0 ? 0 : half, theirs = half - mine;
  push(bare.peer_slots + slot, bare.input + theirs, half);
  take(bare.slots + slot, half, [&](int pack, const uint4& operand) {
    const uint4 sum = add(load(bare.input + mine + pack), operand);
    bare.output[mine + pack] = sum;
    store_relaxed(bare.peer_slots + sums + pack, without_zero(sum));
  });
  take(bare.slots + sums, half,
       [&](int pack, const uint4& sum) { bare.output[theirs + pack] = sum; });
  end<kIsEarly>(bare, epoch);
}

// Blocks of the same number meet: each has told that its rank's launches before have ended.
__device__ void meet(const Bare& bare, uint32_t times) {
  const size_t flag = blockIdx.x * kFlagStride;
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(bare.peer_flags + flag)
                 : "memory");
    uint32_t value;
    do {
      asm volatile("ld.relaxed.sys.global.u32 %0, [%1];"
                   : "=r"(value)
                   : "l"(bare.flags + flag)
                   : "memory");
    } while (value - times > UINT32_MAX / 2);
  }
  __syncthreads();
}

template <bool kIsEarly>
__global__ __launch_bounds__(1024, 1) void pull_all_reduce(const __grid_constant__ Bare bare) {
  const uint32_t epoch = begin<kIsEarly>(bare);
  meet(bare, 2 * epoch + 1);
  for_packs(bare.packs, [&](int first, int count, int stride) {
    uint4 own[kUnderWay], theirs[kUnderWay];
#pragma unroll
    for (int i = 0; i < kUnderWay; ++i)
      if (i < count) {
        theirs[i] = load(bare.peer_input + first + i * stride);
        own[i] = load(bare.input + first + i * stride);
      }
#pragma unroll
    for (int i = 0; i < kUnderWay; ++i)
      if (i < count) bare.output[first + i * stride] = add(own[i], theirs[i]);
  });
  meet(bare, 2 * epoch + 2);
  end<kIsEarly>(bare, epoch);
}

/// The few functions of a library of NCCL's interface.
struct Library {
  explicit Library(const char* path) : name(path) {
    void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::exit(1);
    }
    const auto find = [handle](const char* symbol, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
      if (function == nullptr) std::exit((std::fprintf(stderr, "%s\n", dlerror()), 1));
    };
    find("ncclGetUniqueId", get_id);
    find("ncclCommInitRank", init);
    find("ncclAllReduce", all_reduce);
    find("ncclCommDestroy", destroy);
    find("ncclGetVersion", get_version);
    int version = 0;
    check(get_version(&version), "ncclGetVersion");
    name = "library " + std::to_string(version) + " of " + path;
  }
  void check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess) return;
    std::fprintf(stderr, "%s: %s failed with %d\n", name.c_str(), what, result);
    std::exit(1);
  }

  std::string name;
  decltype(&ncclGetUniqueId) get_id;
  decltype(&ncclCommInitRank) init;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclGetVersion) get_version;
};

struct Rank {
  int number;
  cudaStream_t stream;
  __nv_bfloat16* input;
  __nv_bfloat16* output;
  uint4* slots;
  uint32_t* flags;
  uint32_t* epochs;  // kMostBlocks for each kind
};

/// A way to carry out an all-reduce of some bytes: called by the thread of the rank.
struct Way {
  std::string name;
  std::function<void(const Rank&, const Rank& peer, size_t bytes)> launch;
};

// The smallest blocks that give work to each multiprocessor, as inference engines choose them.
int threads_for(int packs, int blocks) {
  for (const int threads : {128, 256, 512})
    if ((packs + threads - 1) / threads <= blocks) return threads;
  return 1024;
}

Way bare_way(const char* name, void (*kernel)(Bare), int kind, bool is_early, int blocks) {
  return {std::string(name) + (is_early ? ", early" : ""),
          [=](const Rank& rank, const Rank& peer, size_t bytes) {
            const Bare bare{.input = reinterpret_cast<const uint4*>(rank.input),
                            .peer_input = reinterpret_cast<const uint4*>(peer.input),
                            .output = reinterpret_cast<uint4*>(rank.output),
                            .slots = rank.slots,
                            .peer_slots = peer.slots,
                            .flags = rank.flags,
                            .peer_flags = peer.flags,
                            .epochs = rank.epochs + kind * kMostBlocks,
                            .packs = static_cast<int>(bytes / sizeof(uint4)),
                            .rank = rank.number};
            cudaLaunchAttribute early{};
            early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
            early.val.programmaticStreamSerializationAllowed = 1;
            cudaLaunchConfig_t config{};
            config.gridDim = static_cast<unsigned>(blocks);
            config.blockDim = static_cast<unsigned>(threads_for(bare.packs, blocks));
            config.stream = rank.stream;
            config.attrs = &early;
            config.numAttrs = is_early ? 1 : 0;
            CHECK_CUDA(cudaLaunchKernelEx(&config, kernel, bare));
          }};
}

float value_of(int rank, size_t i) { return static_cast<float>((i * 7 + rank * 3) % 17) - 8; }

void check(const Rank& rank, size_t bytes, const std::string& way) {
  const size_t count = bytes / sizeof(__nv_bfloat16);
  std::vector<__nv_bfloat16> output(count);
  CHECK_CUDA(cudaMemcpy(output.data(), rank.output, bytes, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < count; ++i)
    if (__bfloat162float(output[i]) != value_of(0, i) + value_of(1, i)) {
      std::fprintf(stderr, "%s, %zu bytes, rank %d: element %zu is %f\n", way.c_str(), bytes,
                   rank.number, i, static_cast<double>(__bfloat162float(output[i])));
      std::exit(1);
    }
  CHECK_CUDA(cudaMemset(rank.output, 0xff, bytes));
}

/// Microseconds of one of the operations that `queue` puts on the stream, the slower rank's.
double measure(const Rank& rank, std::barrier<>& together, std::vector<float>& times,
               int operations, const std::function<void()>& queue) {
  constexpr int kRepeats = 15;
  cudaEvent_t from, to;
  CHECK_CUDA(cudaEventCreate(&from));
  CHECK_CUDA(cudaEventCreate(&to));
  std::vector<double> all;
  for (int i = -2; i < kRepeats; ++i) {
    together.arrive_and_wait();
    CHECK_CUDA(cudaEventRecord(from, rank.stream));
    queue();
    CHECK_CUDA(cudaEventRecord(to, rank.stream));
    CHECK_CUDA(cudaStreamSynchronize(rank.stream));
    CHECK_CUDA(cudaEventElapsedTime(&times[static_cast<size_t>(rank.number)], from, to));
    together.arrive_and_wait();
    if (i >= 0) all.push_back(1e3 * std::max(times[0], times[1]) / operations);
  }
  together.arrive_and_wait();
  CHECK_CUDA(cudaEventDestroy(from));
  CHECK_CUDA(cudaEventDestroy(to));
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

struct Times {
  double graph, burst;
};

void run(const Rank& rank, const Rank& peer, const Way& way, size_t bytes, std::barrier<>& together,
         std::vector<float>& times, Times& result) {
  constexpr int kOperations = 20, kReplays = 10, kBurst = 50;
  CHECK_CUDA(cudaSetDevice(rank.number));
  const auto launch = [&] { way.launch(rank, peer, bytes); };
  for (int i = 0; i < 5; ++i) launch();
  CHECK_CUDA(cudaStreamSynchronize(rank.stream));
  check(rank, bytes, way.name);
  together.arrive_and_wait();
  cudaGraph_t graph;
  CHECK_CUDA(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kOperations; ++i) launch();
  CHECK_CUDA(cudaStreamEndCapture(rank.stream, &graph));
  cudaGraphExec_t replay;
  CHECK_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  const double in_graph = measure(rank, together, times, kOperations * kReplays, [&] {
    for (int i = 0; i < kReplays; ++i) CHECK_CUDA(cudaGraphLaunch(replay, rank.stream));
  });
  check(rank, bytes, way.name);
  const double in_burst = measure(rank, together, times, kBurst, [&] {
    for (int i = 0; i < kBurst; ++i) launch();
  });
  check(rank, bytes, way.name);
  CHECK_CUDA(cudaGraphExecDestroy(replay));
  CHECK_CUDA(cudaGraphDestroy(graph));
  if (rank.number == 0) result = {in_graph, in_burst};
}

void in_both(const std::function<void(int)>& work) {
  std::thread other([&] { work(1); });
  work(0);
  other.join();
}

size_t to_bytes(const std::string& text) {
  char* unit = nullptr;
  const size_t number = std::strtoull(text.c_str(), &unit, 10);
  return number << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : 0);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<size_t> sizes{256, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
  std::vector<Library> libraries;
  int blocks = kMostBlocks;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--blocks") == 0 && i + 1 < argc) {
      blocks = std::clamp(std::atoi(argv[++i]), 1, kMostBlocks);
      continue;
    }
    if (std::strcmp(argv[i], "--sizes") != 0 || i + 1 == argc) {
      libraries.emplace_back(argv[i]);
      continue;
    }
    sizes.clear();
    const std::string list = argv[++i];
    for (size_t at = 0; at < list.size(); at = std::min(list.find(',', at), list.size()) + 1)
      sizes.push_back(to_bytes(list.substr(at, list.find(',', at) - at)));
  }
  for (const size_t bytes : sizes)
    if (bytes % 32 != 0 || bytes == 0 || bytes > kMostBytes) {
      std::fprintf(stderr, "sizes are multiples of 32 bytes up to 32M; %zu is none\n", bytes);
      return 2;
    }

  Rank ranks[kRanks];
  in_both([&](int number) {
    CHECK_CUDA(cudaSetDevice(number));
    CHECK_CUDA(cudaDeviceEnablePeerAccess(1 - number, 0));
    Rank& rank = ranks[number];
    rank.number = number;
    CHECK_CUDA(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaMalloc(&rank.input, kMostBytes));
    CHECK_CUDA(cudaMalloc(&rank.output, kMostBytes));
    CHECK_CUDA(cudaMalloc(&rank.slots, 4 * kMostBytes));
    CHECK_CUDA(cudaMemset(rank.slots, 0, 4 * kMostBytes));
    CHECK_CUDA(cudaMalloc(&rank.flags, kMostBlocks * kFlagStride * sizeof(uint32_t)));
    CHECK_CUDA(cudaMemset(rank.flags, 0, kMostBlocks * kFlagStride * sizeof(uint32_t)));
    CHECK_CUDA(cudaMalloc(&rank.epochs, 3 * kMostBlocks * sizeof(uint32_t)));
    CHECK_CUDA(cudaMemset(rank.epochs, 0, 3 * kMostBlocks * sizeof(uint32_t)));
    std::vector<__nv_bfloat16> values(kMostBytes / sizeof(__nv_bfloat16));
    for (size_t i = 0; i < values.size(); ++i) values[i] = __float2bfloat16(value_of(number, i));
    CHECK_CUDA(cudaMemcpy(rank.input, values.data(), kMostBytes, cudaMemcpyHostToDevice));
    CHECK_CUDA(cudaDeviceSynchronize());
  });

  std::vector<Way> ways{bare_way("push", push_all_reduce<false>, 0, false, blocks),
                        bare_way("push", push_all_reduce<true>, 0, true, blocks),
                        bare_way("pull", pull_all_reduce<false>, 1, false, blocks),
                        bare_way("pull", pull_all_reduce<true>, 1, true, blocks),
                        bare_way("two-shot", two_shot_all_reduce<false>, 2, false, blocks),
                        bare_way("two-shot", two_shot_all_reduce<true>, 2, true, blocks)};
  std::vector<std::vector<ncclComm_t>> comms(libraries.size(), std::vector<ncclComm_t>(kRanks));
  for (size_t i = 0; i < libraries.size(); ++i) {
    const Library& library = libraries[i];
    ncclUniqueId id;
    library.check(library.get_id(&id), "ncclGetUniqueId");
    in_both([&](int number) {
      CHECK_CUDA(cudaSetDevice(number));
      library.check(library.init(&comms[i][static_cast<size_t>(number)], kRanks, id, number),
                    "ncclCommInitRank");
    });
    ways.push_back(
        {library.name, [&library, &of = comms[i]](const Rank& rank, const Rank&, size_t bytes) {
           library.check(
               library.all_reduce(rank.input, rank.output, bytes / 2, ncclBfloat16, ncclSum,
                                  of[static_cast<size_t>(rank.number)], rank.stream),
               "ncclAllReduce");
         }});
  }

  std::vector<std::vector<Times>> results(ways.size(), std::vector<Times>(sizes.size()));
  for (size_t w = 0; w < ways.size(); ++w)
    for (size_t s = 0; s < sizes.size(); ++s) {
      std::barrier<> together(kRanks);
      std::vector<float> times(kRanks);
      in_both([&](int number) {
        run(ranks[number], ranks[1 - number], ways[w], sizes[s], together, times, results[w][s]);
      });
    }
  for (const bool is_graph : {true, false}) {
    std::printf("%s, us\n%-16s", is_graph ? "graphs of 20" : "bursts of 50", "bytes");
    for (const size_t bytes : sizes) std::printf(" %9zu", bytes);
    std::printf("\n");
    for (size_t w = 0; w < ways.size(); ++w) {
      std::printf("%-16.16s", ways[w].name.c_str());
      for (const Times& of : results[w]) std::printf(" %9.2f", is_graph ? of.graph : of.burst);
      std::printf("%s\n", ways[w].name.size() > 16 ? ("  " + ways[w].name).c_str() : "");
    }
  }
  for (size_t i = 0; i < libraries.size(); ++i)
    in_both([&](int number) {
      CHECK_CUDA(cudaSetDevice(number));
      libraries[i].check(libraries[i].destroy(comms[i][static_cast<size_t>(number)]),
                         "ncclCommDestroy");
    });
  return 0;
}
