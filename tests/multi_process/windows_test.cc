// Windows whose ranks live in several processes.

#include <gtest/gtest.h>
#include <nccl_device.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <functional>
#include <iostream>
#include <thread>

#include "tests/api/trial.h"
#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

constexpr size_t kWords = 5000;

// Every rank's word in every rank's window, by that rank's own stores.
bool exchange(LocalRanks& ranks, int nranks, int first, int round) {
  std::vector<int*> memory(ranks.comms.size());
  std::vector<ncclWindow_t> windows(ranks.comms.size());
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < ranks.comms.size(); ++i) {
    REQUIRE_CUDA(cudaSetDevice(first + static_cast<int>(i)));
    REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory[i]), kWords * sizeof(int)));
    REQUIRE_NCCL(ncclCommWindowRegister(ranks.comms[i], memory[i], kWords * sizeof(int),
                                        &windows[i], NCCL_WIN_COLL_SYMMETRIC));
  }
  REQUIRE_NCCL(ncclGroupEnd());
  for (size_t i = 0; i < ranks.comms.size(); ++i) {
    const int rank = first + static_cast<int>(i);
    for (int peer = 0; peer < nranks; ++peer) {
      void* word = nullptr;
      REQUIRE_NCCL(ncclGetPeerDevicePointer(windows[i], static_cast<size_t>(rank) * sizeof(int),
                                            peer, &word));
      const int value = 1000 * round + 100 * rank + peer;
      REQUIRE_CUDA(cudaMemcpy(word, &value, sizeof value, cudaMemcpyHostToDevice));
    }
  }
  bool right = ranks.all_reduce(1);  // all have stored
  for (size_t i = 0; i < ranks.comms.size(); ++i) {
    const int rank = first + static_cast<int>(i);
    std::vector<int> words(static_cast<size_t>(nranks));
    REQUIRE_CUDA(
        cudaMemcpy(words.data(), memory[i], words.size() * sizeof(int), cudaMemcpyDeviceToHost));
    for (int peer = 0; peer < nranks; ++peer) {
      const int value = words[static_cast<size_t>(peer)];
      if (value == 1000 * round + 100 * peer + rank) continue;
      std::printf("round %d: rank %d has %d of rank %d\n", round, rank, value, peer);
      right = false;
    }
  }
  for (size_t i = 0; i < ranks.comms.size(); ++i) {
    REQUIRE_NCCL(ncclCommWindowDeregister(ranks.comms[i], windows[i]));
    REQUIRE_NCCL(ncclMemFree(memory[i]));
  }
  return right;
}

// ---- networking of kernels

/// A context as kernels of 2.30.7 read it (device-api reference, section 9.1).
struct Context {
  int nranks;
  uint32_t depth;
  uint64_t* queues;
  uint32_t* produced;
  uint32_t* consumed;
  uint64_t* counters;
  uint64_t* signals;
};

// Asks the proxy, as a kernel does, to put `bytes` of the window (its name: `window`) to `peer`,
// and to add 1 to the peer's signal 0.
void post(const Context& context, int peer, uint64_t window, uint64_t from, uint64_t to,
          uint64_t bytes) {
  constexpr uint64_t kPutAndIncrement = 1 | 8;
  const uint32_t index = __atomic_fetch_add(context.produced + peer, 1, __ATOMIC_RELAXED);
  while (index - __atomic_load_n(context.consumed + peer, __ATOMIC_ACQUIRE) >= context.depth)
    std::this_thread::yield();
  uint64_t* const slot = context.queues + 16 * (static_cast<uint32_t>(peer) * context.depth +
                                                (index & (context.depth - 1)));
  const uint64_t words[16] = {1 | 2 << 1 | bytes << 7,
                              1 | from << 1,
                              1 | window << 1,
                              1 | to << 1,
                              1 | window << 1,
                              1,
                              1,
                              1 | kPutAndIncrement << 8,
                              1,
                              1,
                              1,
                              1,
                              1,
                              1,
                              1,
                              1};
  for (size_t i = 0; i < 16; ++i) __atomic_store_n(slot + i, words[i], __ATOMIC_RELEASE);
}

// Every rank puts a word to every rank, `rounds` times, and signals.
bool exchange_by_proxy(LocalRanks& ranks, int nranks, int first, int rounds) {
  const size_t count = ranks.comms.size();
  std::vector<uint64_t*> memory(count);
  std::vector<ncclWindow_t> windows(count);
  std::vector<ncclDevComm_t> devices(count);
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < count; ++i) {
    REQUIRE_CUDA(cudaSetDevice(first + static_cast<int>(i)));
    REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory[i]), 4096));
    REQUIRE_NCCL(ncclCommWindowRegister(ranks.comms[i], memory[i], 4096, &windows[i],
                                        NCCL_WIN_COLL_SYMMETRIC));
  }
  REQUIRE_NCCL(ncclGroupEnd());
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < count; ++i) {
    ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    needs.ginContextCount = 1;
    needs.ginSignalCount = 1;
    REQUIRE_NCCL(ncclDevCommCreate(ranks.comms[i], &needs, &devices[i]));
  }
  REQUIRE_NCCL(ncclGroupEnd());
  bool right = true;
  for (int round = 1; round <= rounds; ++round) {
    for (size_t i = 0; i < count; ++i) {
      const auto rank = static_cast<uint64_t>(first) + i;
      const auto& context = *static_cast<const Context*>(devices[i].ginHandles[0]);
      uint64_t window = 0;  // ginWins[0] of the record
      std::memcpy(&window, reinterpret_cast<const char*>(windows[i]) + 40, sizeof window);
      for (int peer = 0; peer < nranks; ++peer) {
        const size_t out = 256 + static_cast<size_t>(peer);
        memory[i][out] =
            static_cast<uint64_t>(round) * 10000 + rank * 100 + static_cast<uint64_t>(peer);
        post(context, peer, window, out * 8, rank * 8, 8);
      }
    }
    for (size_t i = 0; i < count; ++i) {
      const auto& context = *static_cast<const Context*>(devices[i].ginHandles[0]);
      while (__atomic_load_n(context.signals, __ATOMIC_ACQUIRE) <
             static_cast<uint64_t>(round) * static_cast<uint64_t>(nranks))
        std::this_thread::yield();
      for (size_t peer = 0; peer < static_cast<size_t>(nranks); ++peer)
        right &= memory[i][peer] == static_cast<uint64_t>(round) * 10000 + peer * 100 +
                                        static_cast<uint64_t>(first) + i;
    }
    right &= ranks.all_reduce(1);  // all have looked
  }
  for (size_t i = 0; i < count; ++i) {
    REQUIRE_NCCL(ncclDevCommDestroy(ranks.comms[i], &devices[i]));
    REQUIRE_NCCL(ncclCommWindowDeregister(ranks.comms[i], windows[i]));
    REQUIRE_NCCL(ncclMemFree(memory[i]));
  }
  return right;
}

// id nranks first count
ROLE(network_of_kernels) {
  const int nranks = std::stoi(arguments[1]);
  const int first = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), nranks, first, std::stoi(arguments[3]));
  bool right = true;
  for (int i = 0; i < 3 && right; ++i) right = exchange_by_proxy(ranks, nranks, first, 30);
  ranks.destroy();
  return right ? 0 : 1;
}

// id nranks first count
ROLE(windows) {
  const int nranks = std::stoi(arguments[1]);
  const int first = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), nranks, first, std::stoi(arguments[3]));
  bool right = true;
  for (int round = 0; round < 20 && right; ++round) right = exchange(ranks, nranks, first, round);
  ranks.destroy();
  return right ? 0 : 1;
}

class WindowsOfProcesses : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(WindowsOfProcesses, EveryRankStoresToEveryOther) {
  const auto [processes, devices] = GetParam();
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<Process> running;
  for (int p = 0; p < processes; ++p)
    running.emplace_back("windows",
                         Arguments{to_text(id), std::to_string(processes * devices),
                                   std::to_string(p * devices), std::to_string(devices)});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

TEST_P(WindowsOfProcesses, EveryRankPutsToEveryOtherByProxy) {
  const auto [processes, devices] = GetParam();
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<Process> running;
  for (int p = 0; p < processes; ++p)
    running.emplace_back("network_of_kernels",
                         Arguments{to_text(id), std::to_string(processes * devices),
                                   std::to_string(p * devices), std::to_string(devices)});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

INSTANTIATE_TEST_SUITE_P(, WindowsOfProcesses,
                         testing::Values(std::pair(2, 1), std::pair(4, 2), std::pair(1, 4)));

// id rank: the last of three ranks ends instead of registering.
ROLE(window_of_some) {
  const int rank = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), 3, rank, 1);
  if (rank == 2) {
    ranks.destroy();
    return 0;
  }
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  REQUIRE_NCCL(ncclMemAlloc(&memory, 4096));
  const ncclResult_t result = ncclCommWindowRegister(ranks.comms[0], memory, 4096, &window, 0);
  std::printf("%d %s\n", result, ncclGetLastError(nullptr));
  REQUIRE_NCCL(ncclCommAbort(ranks.comms[0]));
  REQUIRE_NCCL(ncclMemFree(memory));
  return result == ncclRemoteError && window == nullptr ? 0 : 1;
}

TEST(WindowOfSomeProcesses, ARankThatEndsInsteadIsNamed) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<Process> running;
  for (int rank = 0; rank < 3; ++rank)
    running.emplace_back("window_of_some", Arguments{to_text(id), std::to_string(rank)});
  for (int rank = 0; rank < 3; ++rank) {
    Process& process = running[static_cast<size_t>(rank)];
    EXPECT_EQ(process.wait(), 0) << process.output();
    if (rank == 2) continue;
    EXPECT_NE(process.output().find("rank 2"), std::string::npos) << process.output();
  }
}

// ---- collectives over buffers in windows

struct WindowMemory {
  static constexpr size_t kBytes = 24 << 20;
  unsigned char* data = nullptr;
  ncclWindow_t window = nullptr;
  size_t used = 0;
};

/// One process's ranks, with memory for their buffers.
class WindowRanks {
 public:
  WindowRanks(const Arguments& arguments)
      : nranks_(std::stoi(arguments[1])),
        first_(std::stoi(arguments[2])),
        ranks_(to_id(arguments[0]), nranks_, first_, std::stoi(arguments[3])),
        memories_(ranks_.comms.size()) {
    allocate();
  }
  void allocate() {
    for (size_t i = 0; i < memories_.size(); ++i) {
      REQUIRE_CUDA(cudaSetDevice(first_ + static_cast<int>(i)));
      REQUIRE_NCCL(
          ncclMemAlloc(reinterpret_cast<void**>(&memories_[i].data), WindowMemory::kBytes));
    }
  }
  void free() {
    for (WindowMemory& memory : memories_) REQUIRE_NCCL(ncclMemFree(memory.data));
  }
  /// All but some bytes at both ends.
  void register_all(int flags) {
    constexpr size_t kMargin = 8192;
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < memories_.size(); ++i)
      REQUIRE_NCCL(ncclCommWindowRegister(ranks_.comms[i], memories_[i].data + kMargin,
                                          WindowMemory::kBytes - 2 * kMargin, &memories_[i].window,
                                          flags));
    REQUIRE_NCCL(ncclGroupEnd());
  }
  void deregister_all() {
    for (size_t i = 0; i < memories_.size(); ++i)
      REQUIRE_NCCL(ncclCommWindowDeregister(ranks_.comms[i], memories_[i].window));
  }
  void destroy() { ranks_.destroy(); }

  /// Which buffers lie in the ranks' memory: bit 2 * rank the input's, the next the output's.
  Trial trial(const Operation& operation, uint32_t inside) {
    constexpr size_t kFirst = 12 << 10;
    for (WindowMemory& memory : memories_) memory.used = kFirst;
    std::vector<int> asked(static_cast<size_t>(nranks_));
    return Trial(operation, nranks_, [&, asked](int rank, size_t bytes) mutable -> void* {
      const int nth = asked[static_cast<size_t>(rank)]++;
      const auto here = static_cast<size_t>(rank - first_);
      if (here >= memories_.size() || (inside >> (2 * rank + nth) & 1) == 0) return nullptr;
      WindowMemory& memory = memories_[here];
      unsigned char* const place = memory.data + memory.used;
      memory.used += (bytes + 255) / 256 * 256;
      return memory.used < WindowMemory::kBytes - kFirst ? place : nullptr;
    });
  }
  bool call(const Trial& trial) {
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < memories_.size(); ++i)
      REQUIRE_NCCL(trial.call(first_ + static_cast<int>(i), ranks_.comms[i], ranks_.streams[i]));
    REQUIRE_NCCL(ncclGroupEnd());
    return is_right(trial);
  }
  bool is_right(const Trial& trial) {
    for (size_t i = 0; i < memories_.size(); ++i)
      REQUIRE_CUDA(cudaStreamSynchronize(ranks_.streams[i]));
    for (size_t i = 0; i < memories_.size(); ++i) {
      const int rank = first_ + static_cast<int>(i);
      if (const auto right = trial.is_right(rank); !right) {
        std::cout << "WRONG rank " << rank << " " << trial.operation() << ": " << right.message()
                  << "\n";
        return false;
      }
    }
    return true;
  }
  /// Every operation, in place and not, of one element to several rounds.
  bool perform(uint32_t inside) {
    size_t salt = 0;
    for (const size_t count : {1u, 1003u, 150'001u}) {
      for (const bool in_place : {false, true}) {
        const size_t off = salt % 3 * sizeof(int);
        for (const Kind kind : kCollectives)
          if (!call(trial({.kind = kind,
                           .type = ncclInt32,
                           .count = count,
                           .root = static_cast<int>(salt) % nranks_,
                           .in_place = in_place,
                           .misalignment = off,
                           .salt = ++salt},
                          inside)))
            return false;
        for (int peer = 1; peer < nranks_; ++peer)
          if (!call(trial({.kind = Kind::Message,
                           .type = ncclInt8,
                           .count = 4 * count + 1,
                           .root = 0,
                           .receiver = peer,
                           .salt = ++salt},
                          inside)))
            return false;
      }
    }
    return true;
  }
  /// The same calls again and again, while what they have was captured.
  bool replay(const std::function<void()>& between) {
    std::deque<Trial> trials;
    for (const Kind kind : kCollectives)
      trials.push_back(trial({.kind = kind, .type = ncclInt32, .count = 70'001}, kAll));
    std::vector<cudaGraphExec_t> graphs(memories_.size());
    bool right = true;
    for (size_t one = 0; one < trials.size() && right; ++one) {
      // One at a time: all have their buffers in the same place.
      for (size_t i = 0; i < graphs.size(); ++i) {
        cudaGraph_t graph = nullptr;
        REQUIRE_CUDA(cudaSetDevice(first_ + static_cast<int>(i)));
        REQUIRE_CUDA(cudaStreamBeginCapture(ranks_.streams[i], cudaStreamCaptureModeThreadLocal));
        REQUIRE_NCCL(
            trials[one].call(first_ + static_cast<int>(i), ranks_.comms[i], ranks_.streams[i]));
        REQUIRE_CUDA(cudaStreamEndCapture(ranks_.streams[i], &graph));
        REQUIRE_CUDA(cudaGraphInstantiate(&graphs[i], graph, 0));
        REQUIRE_CUDA(cudaGraphDestroy(graph));
      }
      for (int turn = 0; turn < 4 && right; ++turn) {
        if (turn == 2) between();
        trials[one].reset();
        for (size_t i = 0; i < graphs.size(); ++i)
          REQUIRE_CUDA(cudaGraphLaunch(graphs[i], ranks_.streams[i]));
        right = is_right(trials[one]);
      }
      for (cudaGraphExec_t graph : graphs) REQUIRE_CUDA(cudaGraphExecDestroy(graph));
    }
    return right;
  }

  static constexpr uint32_t kAll = ~0u;
  LocalRanks& ranks() { return ranks_; }

 private:
  const int nranks_;
  const int first_;
  LocalRanks ranks_;
  std::vector<WindowMemory> memories_;
};

void say(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
}

// id nranks first count
ROLE(operate_on_windows) {
  WindowRanks ranks(arguments);
  bool right = ranks.perform(WindowRanks::kAll);
  say("NO WINDOW YET");
  ranks.register_all(NCCL_WIN_COLL_SYMMETRIC);
  // Every rank's answer is its own.
  for (const uint32_t inside : {~0u, 0u, 0b0011'1100'1100u, 0b0101'0101'0101u, 0b1001'0110'0010u})
    right = right && ranks.perform(inside);
  say("IN WINDOWS");
  ranks.deregister_all();
  right = right && ranks.perform(WindowRanks::kAll);
  say("NO WINDOW ANY MORE");
  ranks.register_all(NCCL_WIN_DEFAULT);
  right = right && ranks.perform(WindowRanks::kAll);
  // Freed under its window: other memory comes to lie there.
  ranks.free();
  ranks.allocate();
  right = right && ranks.perform(WindowRanks::kAll);
  ranks.deregister_all();
  say("REPLAYS");
  ranks.register_all(NCCL_WIN_COLL_SYMMETRIC);
  bool is_registered = true;
  right = right && ranks.replay([&] {
    is_registered ? ranks.deregister_all() : ranks.register_all(NCCL_WIN_COLL_SYMMETRIC);
    is_registered = !is_registered;
  });
  if (is_registered) ranks.deregister_all();
  ranks.free();
  ranks.destroy();
  return right ? 0 : 1;
}

struct Layout {
  int processes;
  int devices;
  const char* algorithm;
};

class OperationsOnWindows : public testing::TestWithParam<Layout> {};

// The part of the output between two lines.
std::string between(const std::string& output, const std::string& from, const std::string& to) {
  const size_t begin = output.find(from), end = output.find(to);
  return begin == std::string::npos || end < begin ? "" : output.substr(begin, end - begin);
}

TEST_P(OperationsOnWindows, AreRightAndTakeTheDirectPath) {
  const auto& [processes, devices, algorithm] = GetParam();
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<Process> running;
  for (int p = 0; p < processes; ++p)
    running.emplace_back("operate_on_windows",
                         Arguments{to_text(id), std::to_string(processes * devices),
                                   std::to_string(p * devices), std::to_string(devices)},
                         Process::Environment{{"NCCL_PROTO", "Simple"},
                                              {"NCCL_ALGO", algorithm},
                                              {"NICCOLITE_BUFFER_CACHE", "0"},
                                              {"NCCL_GRAPH_REGISTER", "0"},
                                              {"NCCL_DEBUG", "TRACE"},
                                              {"NCCL_DEBUG_SUBSYS", "REG"}});
  constexpr std::chrono::seconds kLimit{240};
  for (Process& process : running) {
    ASSERT_EQ(process.wait(kLimit), 0) << process.output().substr(0, 20'000);
    const std::string& output = process.output();
    constexpr const char* kDirect = "peers are offered";
    EXPECT_EQ(output.substr(0, output.find("NO WINDOW YET")).find(kDirect), std::string::npos);
    EXPECT_NE(between(output, "NO WINDOW YET", "IN WINDOWS").find(kDirect), std::string::npos);
    EXPECT_EQ(between(output, "IN WINDOWS", "NO WINDOW ANY MORE").find(kDirect), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , OperationsOnWindows,
    testing::Values(Layout{2, 1, ""}, Layout{3, 1, "direct,two_shot"},

                    Layout{2, 2, "direct_workers,two_shot_workers,scatter_gather_workers"}));

// id rank: rank 1 registers, and then does nothing until it is killed.
ROLE(window_survivor) {
  const int rank = std::stoi(arguments[1]);
  WindowRanks ranks({arguments[0], "2", arguments[1], "1"});
  ranks.register_all(NCCL_WIN_COLL_SYMMETRIC);
  const Trial trial = ranks.trial({.kind = Kind::AllGather, .type = ncclInt32, .count = 150'001},
                                  WindowRanks::kAll);
  if (!ranks.call(trial)) return 1;
  ncclComm_t comm = ranks.ranks().comms[0];
  cudaStream_t stream = ranks.ranks().streams[0];
  if (rank == 1) {
    say("READY");
    for (;;) pause();
  }
  REQUIRE_NCCL(trial.call(rank, comm, stream));
  say("STARTED");
  ncclResult_t state = ncclSuccess;
  while (state == ncclSuccess) {
    REQUIRE_NCCL(ncclCommGetAsyncError(comm, &state));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const bool waits = cudaStreamQuery(stream) == cudaErrorNotReady;
  std::printf("STATE %d WAITS %d ABORTED %d\n", state, waits, ncclCommAbort(comm));
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  ranks.free();
  return 0;
}

TEST(OperationsOnWindowsOfOthers, EndWhenAPeerIsKilledAndTheCommunicatorAborted) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  const Process::Environment environment{{"NCCL_PROTO", "Simple"}, {"NCCL_ALGO", "direct_workers"}};
  Process survivor("window_survivor", {to_text(id), "0"}, environment);
  Process victim("window_survivor", {to_text(id), "1"}, environment);
  ASSERT_TRUE(victim.wait_for_line("READY")) << victim.output();
  ASSERT_TRUE(survivor.wait_for_line("STARTED")) << survivor.output();
  victim.kill(SIGKILL);
  EXPECT_EQ(survivor.wait(std::chrono::seconds(30)), 0) << survivor.output();
  EXPECT_NE(survivor.output().find("STATE 6 WAITS 1 ABORTED 0"), std::string::npos)
      << survivor.output();
}

}  // namespace
}  // namespace niccolite::test
