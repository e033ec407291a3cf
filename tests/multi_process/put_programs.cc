#include "tests/multi_process/put_programs.h"

#include <algorithm>
#include <functional>

namespace niccolite::test {
namespace {

constexpr size_t kMargin = 64;  // bytes that nobody puts

// The memory of a rank, a symmetric window: data that it puts, then an area for each origin.
class PutRanks {
 public:
  PutRanks(LocalRanks& ranks, const PutProgram& program)
      : ranks_(ranks), program_(program), area_(program.large_bytes + 2 * kMargin) {
    area_ = (area_ + 4095) / 4096 * 4096;
    const size_t bytes = area_ * static_cast<size_t>(program.nranks + 1);
    memory_.resize(ranks.comms.size());
    windows_.resize(ranks.comms.size());
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < memory_.size(); ++i) {
      REQUIRE_CUDA(cudaSetDevice(rank(i)));
      REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory_[i]), bytes));
      REQUIRE_NCCL(ncclCommWindowRegister(ranks.comms[i], memory_[i], bytes, &windows_[i],
                                          NCCL_WIN_COLL_SYMMETRIC));
    }
    REQUIRE_NCCL(ncclGroupEnd());
    for (size_t i = 0; i < memory_.size(); ++i) check(windows_[i] != nullptr, "a null window");
  }

  void free_all() {
    for (size_t i = 0; i < memory_.size(); ++i) {
      REQUIRE_NCCL(ncclCommWindowDeregister(ranks_.comms[i], windows_[i]));
      REQUIRE_NCCL(ncclMemFree(memory_[i]));
    }
  }

  int rank(size_t i) const { return program_.first + static_cast<int>(i); }
  bool is_right() const { return is_right_; }
  void for_all(const std::function<void(size_t i)>& function) const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      REQUIRE_CUDA(cudaSetDevice(rank(i)));
      function(i);
    }
  }
  void for_peers(size_t i, const std::function<void(int peer)>& function) const {
    for (int step = 1; step <= program_.nranks; ++step)
      function((rank(i) + step) % program_.nranks);
  }

  /// Writes what this rank puts: bytes that rank, size and place make.
  void fill(size_t i, size_t bytes) {
    const std::vector<unsigned char> data = expected(rank(i), bytes);
    REQUIRE_CUDA(
        cudaMemcpyAsync(memory_[i], data.data(), bytes, cudaMemcpyHostToDevice, ranks_.streams[i]));
    REQUIRE_CUDA(cudaStreamSynchronize(ranks_.streams[i]));
  }
  void put(size_t i, int peer, size_t bytes, size_t at, cudaStream_t stream) {
    REQUIRE_NCCL(ncclPutSignal(memory_[i], bytes, ncclUint8, peer, windows_[i],
                               place_of(rank(i)) + at, 0, 0, 0, ranks_.comms[i], stream));
  }
  void put(size_t i, int peer, size_t bytes, size_t at) {
    put(i, peer, bytes, at, ranks_.streams[i]);
  }
  void signal(size_t i, int peer) {
    REQUIRE_NCCL(ncclSignal(peer, 0, 0, 0, ranks_.comms[i], ranks_.streams[i]));
  }
  void wait(size_t i, int peer, int count = 1) {
    ncclWaitSignalDesc_t descriptor{count, peer, 0, 0};
    REQUIRE_NCCL(ncclWaitSignal(1, &descriptor, ranks_.comms[i], ranks_.streams[i]));
  }
  /// All ranks have come here.
  void meet() {
    for_all([&](size_t i) { for_peers(i, [&](int peer) { signal(i, peer); }); });
    for_all([&](size_t i) { for_peers(i, [&](int peer) { wait(i, peer); }); });
    for_all([&](size_t i) { REQUIRE_CUDA(cudaStreamSynchronize(ranks_.streams[i])); });
  }
  void expect(size_t i, int origin, size_t bytes, size_t at) {
    std::vector<unsigned char> found(bytes + kMargin);
    REQUIRE_CUDA(cudaMemcpyAsync(found.data(), memory_[i] + place_of(origin) + at, found.size(),
                                 cudaMemcpyDeviceToHost, ranks_.streams[i]));
    REQUIRE_CUDA(cudaStreamSynchronize(ranks_.streams[i]));
    const std::vector<unsigned char> right = expected(origin, bytes);
    check(
        std::equal(right.begin(), right.end(), found.begin()),
        "wrong bytes of rank " + std::to_string(origin) + " in a put of " + std::to_string(bytes));
    check(std::all_of(found.begin() + static_cast<std::ptrdiff_t>(bytes), found.end(),
                      [](unsigned char byte) { return byte == 0; }),
          "bytes behind a put of " + std::to_string(bytes));
  }
  void clear(size_t i) {
    REQUIRE_CUDA(cudaMemsetAsync(memory_[i], 0, area_ * static_cast<size_t>(program_.nranks + 1),
                                 ranks_.streams[i]));
    REQUIRE_CUDA(cudaStreamSynchronize(ranks_.streams[i]));
  }

  // Every rank puts to every rank.
  void put_to_all(size_t bytes) {
    const size_t at = bytes % 13;
    for_all([&](size_t i) {
      clear(i);
      fill(i, bytes);
    });
    meet();
    for_all([&](size_t i) { for_peers(i, [&](int peer) { put(i, peer, bytes, at); }); });
    for_all([&](size_t i) { for_peers(i, [&](int peer) { wait(i, peer); }); });
    for_all([&](size_t i) { for_peers(i, [&](int peer) { expect(i, peer, bytes, at); }); });
    meet();
  }

  // Puts of several streams of all ranks to the first rank and the last one, whose signals are
  // waited for in other portions.
  void put_often() {
    constexpr size_t kBytes = 1003;
    constexpr int kStreams = 3, kPuts = 20;
    for_all([&](size_t i) {
      clear(i);
      fill(i, kBytes);
    });
    meet();
    std::vector<cudaStream_t> streams;
    for_all([&](size_t i) {
      for (int s = 0; s < kStreams; ++s) {
        REQUIRE_CUDA(cudaStreamCreate(&streams.emplace_back()));
        for (int put_number = 0; put_number < kPuts; ++put_number)
          for (const int peer : {0, program_.nranks - 1})
            put(i, peer, kBytes, 2048 * static_cast<size_t>(s * kPuts + put_number),
                streams.back());
      }
    });
    const auto expect_all = [&](size_t i) {
      constexpr int kFirst = 7;
      for_peers(i, [&](int peer) { wait(i, peer, kFirst); });
      for_peers(i, [&](int peer) { wait(i, peer, kStreams * kPuts - kFirst); });
      for_peers(i, [&](int peer) {
        for (size_t n = 0; n < kStreams * kPuts; ++n) expect(i, peer, kBytes, 2048 * n);
      });
    };
    for_all([&](size_t i) {
      if (rank(i) == 0 || rank(i) == program_.nranks - 1) expect_all(i);
    });
    for (cudaStream_t stream : streams) {
      REQUIRE_CUDA(cudaStreamSynchronize(stream));
      REQUIRE_CUDA(cudaStreamDestroy(stream));
    }
    meet();
  }

  // A signal is seen behind the data of earlier puts: the last of many puts is a signal alone.
  void signal_behind_data() {
    constexpr size_t kBytes = 200'001;
    constexpr int kPuts = 8;
    for_all([&](size_t i) {
      clear(i);
      fill(i, kBytes);
    });
    meet();
    for_all([&](size_t i) {
      const int next = (rank(i) + 1) % program_.nranks;
      for (int n = 0; n < kPuts; ++n) put(i, next, kBytes, static_cast<size_t>(n) * (kBytes + 99));
      signal(i, next);
    });
    for_all([&](size_t i) {
      const int before = (rank(i) + program_.nranks - 1) % program_.nranks;
      wait(i, before, kPuts + 1);
      for (int n = 0; n < kPuts; ++n)
        expect(i, before, kBytes, static_cast<size_t>(n) * (kBytes + 99));
    });
    meet();
  }

  // Each replay puts the number that the stream has just stored, to all ranks, and waits for
  // theirs.
  void replay() {
    std::vector<cudaGraphExec_t> graphs(memory_.size());
    for_all([&](size_t i) {
      cudaGraph_t graph = nullptr;
      clear(i);
      REQUIRE_CUDA(cudaStreamBeginCapture(ranks_.streams[i], cudaStreamCaptureModeThreadLocal));
      for_peers(i, [&](int peer) { put(i, peer, sizeof(int), 0); });
      for_peers(i, [&](int peer) { wait(i, peer); });
      REQUIRE_CUDA(cudaStreamEndCapture(ranks_.streams[i], &graph));
      REQUIRE_CUDA(cudaGraphInstantiate(&graphs[i], graph, 0));
      REQUIRE_CUDA(cudaGraphDestroy(graph));
    });
    meet();
    for (int replay = 1; replay <= program_.replays; ++replay) {
      const auto number = [&](int of_rank) { return replay * 1000 + of_rank; };
      for_all([&](size_t i) {
        const int own = number(rank(i));
        REQUIRE_CUDA(cudaMemcpyAsync(memory_[i], &own, sizeof own, cudaMemcpyHostToDevice,
                                     ranks_.streams[i]));
        REQUIRE_CUDA(cudaGraphLaunch(graphs[i], ranks_.streams[i]));
      });
      for_all([&](size_t i) {
        for_peers(i, [&](int peer) {
          int found = 0;
          REQUIRE_CUDA(cudaMemcpyAsync(&found, memory_[i] + place_of(peer), sizeof found,
                                       cudaMemcpyDeviceToHost, ranks_.streams[i]));
          REQUIRE_CUDA(cudaStreamSynchronize(ranks_.streams[i]));
          check(found == number(peer), "replay " + std::to_string(replay) + " has " +
                                           std::to_string(found) + " of rank " +
                                           std::to_string(peer));
        });
      });
      meet();
    }
    for (cudaGraphExec_t graph : graphs) REQUIRE_CUDA(cudaGraphExecDestroy(graph));
  }

 private:
  void check(bool is_so, const std::string& otherwise) {
    if (!is_so) std::printf("WRONG: %s\n", otherwise.c_str());
    is_right_ &= is_so;
  }
  size_t place_of(int origin) const { return area_ * static_cast<size_t>(origin + 1); }
  static std::vector<unsigned char> expected(int of_rank, size_t bytes) {
    std::vector<unsigned char> data(bytes);
    for (size_t at = 0; at < bytes; ++at)
      data[at] = static_cast<unsigned char>(
          1 + (at * 7 + at / 251 + bytes + static_cast<size_t>(of_rank) * 31) % 255);
    return data;
  }

  LocalRanks& ranks_;
  const PutProgram program_;
  size_t area_;
  std::vector<unsigned char*> memory_;
  std::vector<ncclWindow_t> windows_;
  bool is_right_ = true;
};

}  // namespace

bool perform_puts(LocalRanks& ranks, const PutProgram& program) {
  PutRanks puts(ranks, program);
  for (const size_t bytes : {1, 3, 127, 4097, 65'535, 65'536, 65'537, 1'000'003})
    puts.put_to_all(bytes);
  puts.put_to_all(program.large_bytes);
  puts.put_often();
  puts.signal_behind_data();
  puts.replay();
  puts.free_all();
  return puts.is_right();
}

}  // namespace niccolite::test
