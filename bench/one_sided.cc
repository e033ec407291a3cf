// Puts and signals between two ranks, each a thread or a process: checks that data are there when
// the signal is, and times them in graphs. One way: half of a put, a signal and a wait there and
// back. Prints JSON; anything wrong ends it with a line and status 1.
//   one_sided [--processes | --machines] [libnccl.so.2 [largest put, bytes]]
// --machines: processes that take each other for another machine's, so that data cross the network.
// Two ranks share a single GPU where NCCL_MULTI_RANK_GPU_ENABLE=1 allows it.
#include <dlfcn.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gpu/machine.h"

namespace niccolite {
namespace {

size_t most_bytes = size_t{256} << 20;
constexpr int kRoundTrips = 20;  // in a graph
constexpr int kLaunches = 15;

void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "one_sided: %s\n", what.c_str());
  std::_Exit(1);
}
void require(const Status& status) { require(status.is_ok(), status.message()); }
template <typename T>
T must(Result<T> result) {
  require(result.is_ok(), result.status().message());
  return std::move(result).take();
}

void* library = nullptr;
template <typename Function>
Function* symbol(const char* name, Function*) {
  void* const found = dlsym(library, name);
  require(found != nullptr, std::string("the library has no ") + name);
  return reinterpret_cast<Function*>(found);
}
#define NCCL(function, ...)                                                                     \
  require(                                                                                      \
      symbol(#function, static_cast<decltype(&function)>(nullptr))(__VA_ARGS__) == ncclSuccess, \
      std::string(#function ": ") +                                                             \
          symbol("ncclGetLastError", static_cast<decltype(&ncclGetLastError)>(nullptr))(nullptr))

class Rank {
 public:
  Rank(int rank, const ncclUniqueId& id)
      : machine_(*must(gpu::machine())),
        rank_(rank),
        device_(machine_.device_count() > rank ? rank : 0) {
    require(machine_.set_current_device(device_));
    NCCL(ncclCommInitRank, &comm_, 2, id, rank);
    stream_ = must(machine_.create_stream(device_));
    void* memory = nullptr;
    NCCL(ncclMemAlloc, &memory, 2 * most_bytes);
    received_ = static_cast<std::byte*>(memory);
    source_ = received_ + most_bytes;
    NCCL(ncclCommWindowRegister, comm_, memory, 2 * most_bytes, &window_, NCCL_WIN_COLL_SYMMETRIC);
  }
  ~Rank() {
    NCCL(ncclCommWindowDeregister, comm_, window_);
    NCCL(ncclMemFree, received_);
    NCCL(ncclCommDestroy, comm_);
  }
  Rank(const Rank&) = delete;

  /// One way, in microseconds: the median of graphs of round trips.
  double time(size_t bytes) {
    require(machine_.begin_capture(device_, stream_.handle()));
    for (int trip = 0; trip < kRoundTrips; ++trip) {
      if (rank_ == 0) put(bytes);
      wait();
      if (rank_ == 1) put(bytes);
    }
    const gpu::Graph graph = must(machine_.end_capture(device_, stream_.handle()));
    std::vector<double> times;
    for (int launch = 0; launch < kLaunches; ++launch) {
      const auto start = std::chrono::steady_clock::now();
      require(machine_.launch_graph(graph, device_, stream_.handle()));
      require(machine_.synchronize_stream(device_, stream_.handle()));
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - start;
      times.push_back(took.count() / (2 * kRoundTrips));
    }
    std::nth_element(times.begin(), times.begin() + kLaunches / 2, times.end());
    return times[kLaunches / 2];
  }

  /// What arrives before a signal is what was put.
  void check(size_t bytes, int round) {
    const auto value_of = [&](int rank) {
      return static_cast<unsigned char>(17 * round + 3 * rank + 1);
    };
    require(machine_.set_async(source_, value_of(rank_), bytes, device_, stream_.handle()));
    put(bytes);
    wait();
    std::vector<unsigned char> got(bytes);
    require(machine_.copy_async(got.data(), received_, bytes, device_, stream_.handle()));
    require(machine_.synchronize_stream(device_, stream_.handle()));
    const bool is_right = std::all_of(
        got.begin(), got.end(), [&](unsigned char byte) { return byte == value_of(1 - rank_); });
    require(is_right, "a put of " + std::to_string(bytes) + " bytes arrived wrong");
    // Nobody puts again before both have looked.
    NCCL(ncclSignal, 1 - rank_, 0, 0, 0, comm_, stream());
    wait();
    require(machine_.synchronize_stream(device_, stream_.handle()));
  }

  void run() {
    for (const size_t bytes : {size_t{8}, size_t{4097}, size_t{128} << 10, (size_t{128} << 10) + 1,
                               size_t{3} << 20, most_bytes}) {
      if (bytes > most_bytes) continue;
      for (int round = 0; round < 5; ++round) check(bytes, round);
    }
    std::string text;
    for (size_t bytes = 8; bytes <= most_bytes; bytes *= 8) {
      text += line(bytes);
      if (bytes < most_bytes && bytes * 8 > most_bytes) text += line(most_bytes);
    }
    if (rank_ == 0) std::printf("{\"checked\": true, \"one_way\": [\n%s]}\n", text.c_str());
  }

 private:
  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_.handle()); }
  void put(size_t bytes) {
    NCCL(ncclPutSignal, source_, bytes, ncclInt8, 1 - rank_, window_, 0, 0, 0, 0, comm_, stream());
  }
  void wait() {
    ncclWaitSignalDesc_t descriptor{1, 1 - rank_, 0, 0};
    NCCL(ncclWaitSignal, 1, &descriptor, comm_, stream());
  }
  std::string line(size_t bytes) {
    const double microseconds = time(bytes);
    char text[128];
    std::snprintf(text, sizeof text, "  {\"bytes\": %zu, \"us\": %.2f, \"gb_per_s\": %.2f}%s\n",
                  bytes, microseconds, static_cast<double>(bytes) / microseconds / 1e3,
                  bytes == most_bytes ? "" : ",");
    return text;
  }

  gpu::Machine& machine_;
  const int rank_;
  const int device_;
  ncclComm_t comm_ = nullptr;
  gpu::Stream stream_;
  std::byte* received_ = nullptr;
  std::byte* source_ = nullptr;
  ncclWindow_t window_ = nullptr;
};

void run_rank(int rank, const ncclUniqueId& id) { Rank(rank, id).run(); }

// The id goes to the other process, which is started before either touches a GPU.
int run_processes(const char* path, bool are_machines) {
  int pipe_ends[2];
  require(pipe(pipe_ends) == 0, "pipe");
  const pid_t child = fork();
  require(child >= 0, "fork");
  if (are_machines) setenv("NCCL_HOSTID", child == 0 ? "one" : "zero", 1);
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  require(library != nullptr, "cannot load the library");
  ncclUniqueId id;
  if (child == 0) {
    require(read(pipe_ends[0], &id, sizeof id) == sizeof id, "no id");
    run_rank(1, id);
    std::_Exit(0);
  }
  NCCL(ncclGetUniqueId, &id);
  require(write(pipe_ends[1], &id, sizeof id) == sizeof id, "write");
  run_rank(0, id);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int run_threads(const char* path) {
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  require(library != nullptr, "cannot load the library");
  ncclUniqueId id;
  NCCL(ncclGetUniqueId, &id);
  std::thread other(run_rank, 1, id);
  run_rank(0, id);
  other.join();
  return 0;
}

}  // namespace
}  // namespace niccolite

int main(int argc, char** argv) {
  const bool are_machines = argc > 1 && std::strcmp(argv[1], "--machines") == 0;
  const bool are_processes = are_machines || (argc > 1 && std::strcmp(argv[1], "--processes") == 0);
  const int first = are_processes ? 2 : 1;
  const char* const path = argc > first ? argv[first] : "libnccl.so.2";
  if (argc > first + 1) niccolite::most_bytes = std::strtoull(argv[first + 1], nullptr, 10);
  return are_processes ? niccolite::run_processes(path, are_machines)
                       : niccolite::run_threads(path);
}
