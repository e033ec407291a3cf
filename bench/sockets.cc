// What is left of raw sockets: two processes, which NCCL_HOSTID makes two machines, move data by
// plain TCP and then by the library, in turns, over the same interface.
//
//   bench/sockets [rounds [bytes...]]   prints a table: sizes, raw and the library's times, ratios
//
// Raw: blocking sockets, one connection each way, a thread for each direction; the time of a
// "swap" is that until both sides have all of the other's bytes. The library: ncclSend and
// ncclRecv in one group, and ncclAllReduce. Before the table: a ping-pong's half, which is a
// message's time one way, by reads that block and by epoll as proxies wait.
//
// Beside each time stands the processor's, of all threads of one process: where others use the
// machine, too, the scheduler gives who has more threads more of it, and times say little.
#include <arpa/inet.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

void require(bool is_fine, const char* what) {
  if (is_fine) return;
  std::fprintf(stderr, "sockets: %s failed\n", what);
  std::exit(1);
}
#define NCCL(call) require((call) == ncclSuccess, #call)
#define CUDA(call) require((call) == cudaSuccess, #call)

void move_all(int fd, std::vector<char>& data, size_t bytes, bool is_send) {
  for (size_t at = 0; at < bytes;) {
    const ssize_t done = is_send ? send(fd, data.data() + at, bytes - at, MSG_NOSIGNAL)
                                 : recv(fd, data.data() + at, bytes - at, 0);
    require(done > 0, is_send ? "send" : "recv");
    at += static_cast<size_t>(done);
  }
}

// Both processes' view of the other: pipes for what is to be agreed, sockets for data.
struct Pair {
  int rank;
  int control;  // a socket pair
  int data;     // TCP

  void barrier() const {
    char byte = 0;
    require(write(control, &byte, 1) == 1 && read(control, &byte, 1) == 1, "barrier");
  }
};

int tcp_to_peer(int rank, int control) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (rank == 0) {
    require(bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(fd, 1) == 0 &&
                getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0,
            "listen");
    require(write(control, &address, sizeof address) == sizeof address, "write");
    const int listener = fd;
    fd = accept(listener, nullptr, nullptr);
    close(listener);
  } else {
    require(read(control, &address, sizeof address) == sizeof address, "read");
    require(connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0, "connect");
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

// Microseconds, of one operation.
struct Times {
  double time = 0;  // the median
  double processor = 0;
};

double processor_us() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(used.ru_utime) + us(used.ru_stime);
}

Times measure(const Pair& pair, int repeats, const std::function<void()>& once) {
  std::vector<double> times;
  double processor = 0;
  for (int i = 0; i < repeats + 2; ++i) {
    pair.barrier();
    if (i == 2) processor = processor_us();
    const auto start = Clock::now();
    once();
    if (i >= 2)
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  processor = processor_us() - processor;
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return {times[times.size() / 2], processor / repeats};
}

Times raw_swap(const Pair& pair, size_t bytes, int repeats) {
  std::vector<char> out(bytes), in(bytes);
  if (bytes <= 4096)  // one after the other: both fit the sockets' buffers
    return measure(pair, repeats, [&] {
      move_all(pair.data, out, bytes, true);
      move_all(pair.data, in, bytes, false);
    });
  return measure(pair, repeats, [&] {
    std::thread sender([&] { move_all(pair.data, out, bytes, true); });
    move_all(pair.data, in, bytes, false);
    sender.join();
  });
}

// Half of there and back.
double one_way_us(const Pair& pair, bool by_epoll) {
  constexpr int kRepeats = 5000;
  std::vector<char> data(8);
  const int set = epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN;
  require(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, pair.data, &event) == 0, "epoll");
  const auto receive = [&] {
    if (by_epoll) require(epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
    move_all(pair.data, data, data.size(), false);
  };
  const Times both = measure(pair, kRepeats, [&] {
    if (pair.rank == 1) receive();
    move_all(pair.data, data, data.size(), true);
    if (pair.rank == 0) receive();
  });
  close(set);
  return both.time / 2;
}

struct Library {
  ncclComm_t comm;
  cudaStream_t stream;
  char* out;
  char* in;
};

Times swap_by_library(const Pair& pair, const Library& library, size_t bytes, int repeats) {
  return measure(pair, repeats, [&] {
    NCCL(ncclGroupStart());
    NCCL(ncclSend(library.out, bytes, ncclInt8, 1 - pair.rank, library.comm, library.stream));
    NCCL(ncclRecv(library.in, bytes, ncclInt8, 1 - pair.rank, library.comm, library.stream));
    NCCL(ncclGroupEnd());
    CUDA(cudaStreamSynchronize(library.stream));
  });
}

Times reduce_by_library(const Pair& pair, const Library& library, size_t bytes, int repeats) {
  return measure(pair, repeats, [&] {
    NCCL(ncclAllReduce(library.out, library.in, std::max<size_t>(bytes / 4, 1), ncclFloat, ncclSum,
                       library.comm, library.stream));
    CUDA(cudaStreamSynchronize(library.stream));
  });
}

const std::vector<size_t> kSizes = {8,       256,     8 << 10,  64 << 10, 512 << 10,
                                    4 << 20, 8 << 20, 16 << 20, 32 << 20, 64 << 20};

void run(int rank, int control, int rounds, const std::vector<size_t>& sizes) {
  const size_t most = *std::max_element(sizes.begin(), sizes.end());
  setenv("NCCL_HOSTID", rank == 0 ? "first" : "second", 1);
  const Pair pair{rank, control, tcp_to_peer(rank, control)};
  ncclUniqueId id;
  if (rank == 0) {
    NCCL(ncclGetUniqueId(&id));
    require(write(control, &id, sizeof id) == sizeof id, "write");
  } else {
    require(read(control, &id, sizeof id) == sizeof id, "read");
  }
  Library library{};
  CUDA(cudaSetDevice(rank));
  CUDA(cudaStreamCreate(&library.stream));
  CUDA(cudaMalloc(&library.out, most));
  CUDA(cudaMalloc(&library.in, most));
  NCCL(ncclCommInitRank(&library.comm, 2, id, rank));
  const auto middle = [](std::vector<double>& times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  };
  std::vector<double> blocking, by_epoll;
  for (int round = 0; round < rounds; ++round) {
    blocking.push_back(one_way_us(pair, false));
    by_epoll.push_back(one_way_us(pair, true));
  }
  const double one_way = middle(blocking);
  if (rank == 0)
    std::printf(
        "raw sockets one way: %.1f us by reads that block, %.1f by epoll\n"
        "%10s %10s %10s %10s %10s %10s %10s %8s %8s %14s\n",
        one_way, middle(by_epoll), "bytes", "raw us", "cpu us", "swap us", "cpu us", "reduce us",
        "cpu us", "raw/swap", "of cpu", "reduce/one way");
  for (const size_t bytes : sizes) {
    const int repeats = bytes <= 4096 ? 2000 : bytes <= (1 << 20) ? 200 : 20;
    struct Column {
      std::vector<double> times, processor;
      void add(const Times& times_of) {
        times.push_back(times_of.time);
        processor.push_back(times_of.processor);
      }
    } raw, swap, reduce;
    for (int round = 0; round < rounds; ++round) {
      raw.add(raw_swap(pair, bytes, repeats));
      swap.add(swap_by_library(pair, library, bytes, repeats));
      reduce.add(reduce_by_library(pair, library, bytes, repeats));
    }
    if (rank != 0) continue;
    const double raw_us = middle(raw.times), swap_us = middle(swap.times),
                 reduce_us = middle(reduce.times), raw_cpu = middle(raw.processor),
                 swap_cpu = middle(swap.processor);
    std::printf("%10zu %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f %8.2f %8.2f", bytes, raw_us,
                raw_cpu, swap_us, swap_cpu, reduce_us, middle(reduce.processor), raw_us / swap_us,
                raw_cpu / swap_cpu);
    if (bytes <= 4096) std::printf(" %14.1f", reduce_us / one_way);
    std::printf("\n");
  }
  NCCL(ncclCommDestroy(library.comm));
  CUDA(cudaFree(library.out));
  CUDA(cudaFree(library.in));
  CUDA(cudaStreamDestroy(library.stream));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3;
  std::vector<size_t> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = kSizes;
  require(rounds > 0 && *std::min_element(sizes.begin(), sizes.end()) > 0, "reading the numbers");
  int ends[2];
  require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  const pid_t child = fork();
  require(child >= 0, "fork");
  run(child == 0 ? 1 : 0, ends[child == 0 ? 1 : 0], rounds, sizes);
  if (child == 0) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
