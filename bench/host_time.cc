// What a call of the API costs its thread before the driver's launch: calls of one rank of two on a
// driver that does nothing (bench/idle_driver), with the library's allocations and locks counted.
// Needs a build with kernels, and no GPU (docs/perf.md).
//   host_time [--processes] [google-benchmark's flags]
// --processes: the other rank is another process, as PyTorch has it; else another thread.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace {

// Of the measuring thread alone: background threads of the library are not its callers.
thread_local bool is_counted = false;
thread_local uint64_t allocations = 0;
thread_local uint64_t locks = 0;

}  // namespace

// The program's definitions take the place of the C library's, for all that it is linked of.
extern "C" void* __libc_malloc(size_t bytes);  // NOLINT(readability-identifier-naming): glibc's
extern "C" void* malloc(size_t bytes) {
  if (is_counted) ++allocations;
  return __libc_malloc(bytes);
}

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) {
  using Lock = int (*)(pthread_mutex_t*);
  static std::atomic<Lock> next{nullptr};
  Lock lock = next.load(std::memory_order_relaxed);
  if (lock == nullptr) {
    lock = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    next.store(lock, std::memory_order_relaxed);
  }
  if (is_counted) ++locks;
  return lock(mutex);
}
extern "C" int pthread_rwlock_rdlock(pthread_rwlock_t* mutex) {
  using Lock = int (*)(pthread_rwlock_t*);
  static std::atomic<Lock> next{nullptr};
  Lock lock = next.load(std::memory_order_relaxed);
  if (lock == nullptr) {
    lock = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_rwlock_rdlock"));
    next.store(lock, std::memory_order_relaxed);
  }
  if (is_counted) ++locks;
  return lock(mutex);
}

namespace {

void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  std::fprintf(stderr, "host_time: %s: %s\n", what, ncclGetLastError(nullptr));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

/// The driver's functions that a program of CUDA would call through the runtime.
struct Driver {
  using GetProcAddress = int (*)(const char*, void**, int, unsigned long long, int*);
  int (*set_current)(void*) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*allocate)(unsigned long long*, size_t) = nullptr;
  int (*create_stream)(void**, unsigned) = nullptr;

  Driver() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) {
      std::fprintf(stderr, "host_time: %s\n", dlerror());
      std::exit(1);
    }
    const auto get = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    find(get, "cuCtxSetCurrent", set_current);
    find(get, "cuDevicePrimaryCtxRetain", retain);
    find(get, "cuMemAlloc", allocate);
    find(get, "cuStreamCreate", create_stream);
  }
  template <typename Function>
  static void find(GetProcAddress get, const char* name, Function& function) {
    void* address = nullptr;
    int found = 0;
    get(name, &address, 12000, 0, &found);
    function = reinterpret_cast<Function>(address);
  }
};

constexpr size_t kBufferBytes = size_t{16} << 10;
constexpr size_t kMostCalls = 200;
constexpr size_t kLargeBytes = size_t{32}
                               << 20;  // of a collective that takes buffers where they are
static_assert(kLargeBytes >= kMostCalls * kBufferBytes);

/// Rank 0 of two, whose calls are measured.
struct World {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::byte* memory = nullptr;

  std::byte* buffer(size_t number) const { return memory + number * kBufferBytes; }
};
World world;

void enter(const Driver& driver, int device) {
  void* context = nullptr;
  driver.retain(&context, device);
  driver.set_current(context);
}

ncclComm_t join(const Driver& driver, const ncclUniqueId& id, int rank) {
  enter(driver, rank);
  ncclComm_t comm = nullptr;
  CHECK(ncclCommInitRank(&comm, 2, id, rank));
  return comm;
}

/// What the parent tells the process of rank 1.
struct Shared {
  ncclUniqueId id;
  std::atomic<int> stage;  // 1: the id is there; 2: all is measured
};

void wait_for(const std::atomic<int>& stage, int wanted) {
  while (stage.load(std::memory_order_acquire) < wanted) usleep(1000);
}

void all_reduce(size_t number) {
  CHECK(ncclAllReduce(world.buffer(2 * number), world.buffer(2 * number + 1),
                      kBufferBytes / sizeof(float), ncclFloat32, ncclSum, world.comm,
                      world.stream));
}

/// Memory and a stream; then calls until both processes have mapped each other's memory, and agree
/// to plan for that.
void settle(const Driver& driver) {
  unsigned long long memory = 0;
  driver.allocate(&memory, 2 * kLargeBytes);
  world.memory = reinterpret_cast<std::byte*>(memory);
  driver.create_stream(reinterpret_cast<void**>(&world.stream), 1);
  for (int i = 0; i < 200; ++i) {
    CHECK(ncclAllReduce(world.memory, world.memory + kLargeBytes, kLargeBytes / sizeof(float),
                        ncclFloat32, ncclSum, world.comm, world.stream));
    usleep(1000);
  }
}

void make_world(Shared* shared) {
  const Driver driver;
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  std::thread other;
  if (shared != nullptr) {
    shared->id = id;
    shared->stage.store(1, std::memory_order_release);
  } else {
    other = std::thread([&] { join(driver, id, 1); });
  }
  world.comm = join(driver, id, 0);
  if (other.joinable()) other.join();
  settle(driver);
}

/// Measures `call`, which makes `calls` calls of operations.
template <typename Call>
void measure(benchmark::State& state, size_t calls, const Call& call) {
  for (int i = 0; i < 200; ++i) call();  // plans, exports, agreements
  usleep(20000);
  for (int i = 0; i < 200; ++i) call();
  allocations = locks = 0;
  is_counted = true;
  for (auto _ : state) call();
  is_counted = false;
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["allocations"] = static_cast<double>(allocations) / iterations;
  state.counters["locks"] = static_cast<double>(locks) / iterations;
  state.counters["ns_per_call"] = benchmark::Counter(
      static_cast<double>(calls) * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void one_all_reduce(benchmark::State& state) {
  measure(state, 1, [] { all_reduce(0); });
}
BENCHMARK(one_all_reduce);

void group_of_all_reduces(benchmark::State& state) {
  const auto calls = static_cast<size_t>(state.range(0));
  measure(state, calls, [calls] {
    CHECK(ncclGroupStart());
    for (size_t i = 0; i < calls; ++i) all_reduce(i);
    CHECK(ncclGroupEnd());
  });
}
BENCHMARK(group_of_all_reduces)->Arg(1)->Arg(8)->Arg(64)->Arg(200);

void group_of_messages(benchmark::State& state) {
  const auto each = static_cast<size_t>(state.range(0));
  measure(state, 2 * each, [each] {
    CHECK(ncclGroupStart());
    for (size_t i = 0; i < each; ++i) {
      CHECK(ncclSend(world.buffer(2 * i), 256, ncclInt8, 1, world.comm, world.stream));
      CHECK(ncclRecv(world.buffer(2 * i + 1), 256, ncclInt8, 1, world.comm, world.stream));
    }
    CHECK(ncclGroupEnd());
  });
}
BENCHMARK(group_of_messages)->Arg(1)->Arg(8)->Arg(32);

void async_error(benchmark::State& state) {
  measure(state, 1, [] {
    ncclResult_t error = ncclSuccess;
    CHECK(ncclCommGetAsyncError(world.comm, &error));
  });
}
BENCHMARK(async_error);

}  // namespace

int main(int argc, char** argv) {
  Shared* shared = nullptr;
  if (argc > 1 && std::strcmp(argv[1], "--processes") == 0) {
    --argc;
    std::memmove(argv + 1, argv + 2, static_cast<size_t>(argc) * sizeof *argv);
    shared = static_cast<Shared*>(
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    new (shared) Shared{};
    if (fork() == 0) {
      const Driver driver;
      wait_for(shared->stage, 1);
      world.comm = join(driver, shared->id, 1);
      settle(driver);
      wait_for(shared->stage, 2);
      _exit(0);
    }
  }
  setenv("NICCOLITE_DEVICES", "cuda", 1);
  make_world(shared);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  if (shared != nullptr) {
    shared->stage.store(2, std::memory_order_release);
    while (wait(nullptr) > 0) continue;
  }
  _exit(0);  // the operations have begun nowhere: nobody can wait for them
}
