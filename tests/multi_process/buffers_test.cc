// Buffers that are in no window, of ranks in several processes: which of them peers use directly,
// that results are right whatever becomes of the memory, and that nothing of it is kept.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/api/trial.h"
#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;

size_t count_lines(const std::string& path, std::string_view text) {
  std::ifstream file(path);
  size_t lines = 0;
  for (std::string line; std::getline(file, line);) lines += line.find(text) != std::string::npos;
  return lines;
}

/// Counts the lines of a log with `text`, each once, however often it is asked.
class LogLines {
 public:
  LogLines(std::string path, std::string text) : path_(std::move(path)), text_(std::move(text)) {}
  size_t count() {
    std::ifstream file(path_);
    file.seekg(read_);
    for (std::string line; std::getline(file, line) && !file.eof();) {
      read_ = file.tellg();
      count_ += line.find(text_) != std::string::npos;
    }
    return count_;
  }

 private:
  const std::string path_;
  const std::string text_;
  std::streamoff read_ = 0;  // whole lines only
  size_t count_ = 0;
};

/// Mappings of virtual GPUs' memory, of this process and of others.
size_t count_mappings() { return count_lines("/proc/self/maps", "memfd"); }

/// Waits until it is true, half a minute at most.
bool becomes(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// The ranks of one process. Arguments of its roles: id, ranks, first rank, ranks here, the file of
/// the log.
class BufferRanks {
 public:
  explicit BufferRanks(const Arguments& arguments)
      : nranks_(std::stoi(arguments[1])),
        first_(std::stoi(arguments[2])),
        ranks_(to_id(arguments[0]), nranks_, first_, std::stoi(arguments[3])),
        direct_calls_(arguments[4], "peers are offered") {}

  /// Calls of this process of which peers were offered a buffer.
  size_t direct_calls() { return direct_calls_.count(); }

  bool call(const Trial& trial) {
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < ranks_.comms.size(); ++i)
      REQUIRE_NCCL(trial.call(rank(i), ranks_.comms[i], ranks_.streams[i]));
    REQUIRE_NCCL(ncclGroupEnd());
    return is_right(trial);
  }
  bool is_right(const Trial& trial) {
    for (cudaStream_t stream : ranks_.streams) REQUIRE_CUDA(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < ranks_.comms.size(); ++i) {
      if (const auto right = trial.is_right(rank(i)); !right) {
        std::cout << "WRONG rank " << rank(i) << " " << trial.operation() << ": " << right.message()
                  << "\n";
        return false;
      }
    }
    return true;
  }
  /// Is it true on all ranks? A collective.
  bool is_true_everywhere(bool here) {
    std::vector<int*> flags(ranks_.comms.size());
    const int value = here ? 1 : 0;
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < flags.size(); ++i) {
      REQUIRE_CUDA(cudaSetDevice(rank(i)));
      REQUIRE_CUDA(cudaMalloc(&flags[i], sizeof(int)));
      REQUIRE_CUDA(cudaMemcpy(flags[i], &value, sizeof value, cudaMemcpyHostToDevice));
      REQUIRE_NCCL(ncclAllReduce(flags[i], flags[i], 1, ncclInt, ncclMin, ranks_.comms[i],
                                 ranks_.streams[i]));
    }
    REQUIRE_NCCL(ncclGroupEnd());
    int all = 0;
    for (size_t i = 0; i < flags.size(); ++i) {
      REQUIRE_CUDA(cudaStreamSynchronize(ranks_.streams[i]));
      REQUIRE_CUDA(cudaMemcpy(&all, flags[i], sizeof all, cudaMemcpyDeviceToHost));
      REQUIRE_CUDA(cudaFree(flags[i]));
    }
    return all == 1;
  }

  int nranks() const { return nranks_; }
  int rank(size_t i) const { return first_ + static_cast<int>(i); }
  LocalRanks& ranks() { return ranks_; }

 private:
  const int nranks_;
  const int first_;
  LocalRanks ranks_;
  LogLines direct_calls_;
};

using Handles = std::vector<std::pair<ncclComm_t, void*>>;

/// The buffers of an operation of 30,001 integers, of the ranks of this process.
Handles register_all(BufferRanks& ranks, const Trial& trial) {
  Handles handles;
  for (size_t i = 0; i < ranks.ranks().comms.size(); ++i) {
    for (void* buffer : {trial.input(ranks.rank(i)), trial.output(ranks.rank(i))}) {
      handles.emplace_back(ranks.ranks().comms[i], nullptr);
      REQUIRE_NCCL(ncclCommRegister(handles.back().first, buffer, 30'001 * sizeof(int),
                                    &handles.back().second));
    }
  }
  return handles;
}

std::vector<Operation> operations() {
  std::vector<Operation> all;
  for (const Kind kind : kCollectives)
    for (const bool in_place : {false, true})
      all.push_back({.kind = kind,
                     .type = ncclInt32,
                     .count = 30'001,
                     .in_place = in_place,
                     .misalignment = all.size() % 3 * sizeof(int),
                     .salt = all.size() + 1});
  all.push_back(
      {.kind = Kind::Message, .type = ncclInt8, .count = 120'007, .root = 0, .receiver = 1});
  return all;
}

// ---- plain buffers: the first call copies, later ones go direct

constexpr std::chrono::seconds kPatience{100};  // where other processes keep the cores busy

ROLE(use_plain_buffers) {
  BufferRanks ranks(arguments);
  for (const Operation& operation : operations()) {
    Trial trial(operation, ranks.nranks());
    const size_t before = ranks.direct_calls();
    const auto begin = std::chrono::steady_clock::now();
    for (int round = 0;; ++round) {
      trial.reset();
      if (!ranks.call(trial)) return 1;
      // Not all ranks have a buffer that others use; then the third round is the last.
      const bool is_partial = has_root(operation.kind) || operation.kind == Kind::Message;
      const bool is_direct = ranks.direct_calls() > before || (is_partial && round > 2);
      if (ranks.is_true_everywhere(is_direct)) break;
      // The threads that map memory want a core: rounds say nothing of them where it is busy.
      if (round > 20) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (std::chrono::steady_clock::now() - begin > kPatience) {
        std::cout << operation << " never goes direct\n";
        return 2;
      }
    }
  }
  ranks.ranks().destroy();
  return 0;
}

// Ranks agree to plan for buffers that all reach, and, when buffers come and go, for slots again.
/// Calls until rank 0 tells that plans are those for `what`. False: they never are, or a call
/// fails.
bool goes_on_until(BufferRanks& ranks, const std::string& log, const std::string& what,
                   const std::function<bool()>& call) {
  LogLines changes(log, "on, plans are those for " + what);
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; std::chrono::steady_clock::now() - begin < kPatience; ++round) {
    for (int i = 0; i < 10; ++i)
      if (!call()) return false;
    if (round > 20) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const bool is_told = ranks.rank(0) != 0 || changes.count() > 0;
    if (ranks.is_true_everywhere(is_told)) return true;
  }
  std::cout << "plans are never those for " << what << "\n";
  return false;
}

ROLE(agree_on_plans) {
  BufferRanks ranks(arguments);
  const Operation operation{.kind = Kind::AllReduce, .type = ncclInt32, .count = 30'001};
  Trial stays(operation, ranks.nranks());
  const auto call_again = [&] {
    stays.reset();
    return ranks.call(stays);
  };
  const std::string& log = arguments[4];
  if (!goes_on_until(ranks, log, "buffers that all ranks reach", call_again)) return 1;
  std::vector<std::unique_ptr<Trial>> others;  // not freed: each call has memory of its own
  const auto call_with_new = [&] {
    others.push_back(std::make_unique<Trial>(operation, ranks.nranks()));
    return ranks.call(*others.back());
  };
  if (!goes_on_until(ranks, log, "slots", call_with_new)) return 2;
  ranks.ranks().destroy();
  return 0;
}

// The root of reduces offers none of its buffers, and has nothing to wait for.
ROLE(agree_on_plans_of_reduces) {
  BufferRanks ranks(arguments);
  Trial trial({.kind = Kind::Reduce, .type = ncclInt32, .count = 30'001}, ranks.nranks());
  const auto call = [&] {
    trial.reset();
    return ranks.call(trial);
  };
  if (!goes_on_until(ranks, arguments[4], "buffers that all ranks reach", call)) return 1;
  ranks.ranks().destroy();
  return 0;
}

// ---- live messages, of which the two ends agree

/// What every rank here sends to all others and gets from them, by messages of uneven lengths.
class Messages {
 public:
  explicit Messages(BufferRanks& ranks) : ranks_(ranks) { allocate(); }
  ~Messages() { release(); }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Other memory, perhaps at the same addresses.
  void replace() {
    release();
    allocate();
  }
  /// `groups`: in so many groups, as each process likes. False: a byte is wrong.
  bool exchange(int groups) {
    ++round_;
    for_each([&](size_t i, int peer, Block& block) {
      std::vector<uint8_t> bytes(kMost);
      for (size_t at = 0; at < kMost; ++at) bytes[at] = byte(ranks_.rank(i), peer, at);
      REQUIRE_CUDA(cudaMemcpy(block.sent, bytes.data(), kMost, cudaMemcpyHostToDevice));
      REQUIRE_CUDA(cudaMemset(block.received, 0, kMost));
    });
    // A group has the messages of some distances; where a process has several ranks, of all.
    for (int group = 0; group < groups; ++group) {
      REQUIRE_NCCL(ncclGroupStart());
      for_each([&](size_t i, int peer, const Block& block) {
        const int self = ranks_.rank(i);
        const auto is_now = [&](int from, int to) {
          return ((to - from + ranks_.nranks()) % ranks_.nranks()) % groups == group;
        };
        if (is_now(self, peer))
          REQUIRE_NCCL(ncclSend(block.sent, count(self, peer), ncclUint8, peer,
                                ranks_.ranks().comms[i], ranks_.ranks().streams[i]));
        if (is_now(peer, self))
          REQUIRE_NCCL(ncclRecv(block.received, count(peer, self), ncclUint8, peer,
                                ranks_.ranks().comms[i], ranks_.ranks().streams[i]));
      });
      REQUIRE_NCCL(ncclGroupEnd());
    }
    for (cudaStream_t stream : ranks_.ranks().streams) REQUIRE_CUDA(cudaStreamSynchronize(stream));
    bool is_right = true;
    for_each([&](size_t i, int peer, const Block& block) {
      std::vector<uint8_t> bytes(kMost);
      REQUIRE_CUDA(cudaMemcpy(bytes.data(), block.received, kMost, cudaMemcpyDeviceToHost));
      const int self = ranks_.rank(i);
      for (size_t at = 0; at < kMost; ++at)
        is_right &= bytes[at] == (at < count(peer, self) ? byte(peer, self, at) : 0);
    });
    if (!is_right) std::cout << "WRONG bytes in round " << round_ << "\n";
    return is_right;
  }
  /// Pairs, in either direction, of a rank here with one of another process.
  size_t agreeing() const {
    const auto here = ranks_.ranks().comms.size();
    return 2 * here * (static_cast<size_t>(ranks_.nranks()) - here);
  }

 private:
  static constexpr size_t kMost = 120'000;
  struct Block {
    uint8_t* sent = nullptr;
    uint8_t* received = nullptr;
  };

  uint8_t byte(int from, int to, size_t at) const {
    return static_cast<uint8_t>(1 +
                                (at * 7 + round_ * 31 + static_cast<size_t>(from * 5 + to)) % 251);
  }
  static size_t count(int from, int to) {
    return kMost - static_cast<size_t>(10'007 * ((3 * from + to) % 5));
  }
  template <typename Function>
  void for_each(Function&& function) {
    for (size_t i = 0; i < ranks_.ranks().comms.size(); ++i) {
      REQUIRE_CUDA(cudaSetDevice(ranks_.rank(i)));
      for (int peer = 0; peer < ranks_.nranks(); ++peer)
        if (peer != ranks_.rank(i))
          function(i, peer,
                   blocks_[i * static_cast<size_t>(ranks_.nranks()) + static_cast<size_t>(peer)]);
    }
  }
  void allocate() {
    blocks_.resize(ranks_.ranks().comms.size() * static_cast<size_t>(ranks_.nranks()));
    for_each([](size_t, int, Block& block) {
      REQUIRE_CUDA(cudaMalloc(&block.sent, kMost));
      REQUIRE_CUDA(cudaMalloc(&block.received, kMost));
    });
  }
  void release() {
    for_each([](size_t, int, Block& block) {
      REQUIRE_CUDA(cudaFree(block.sent));
      REQUIRE_CUDA(cudaFree(block.received));
    });
  }

  BufferRanks& ranks_;
  std::vector<Block> blocks_;
  size_t round_ = 0;
};

// With buffers that stay, all pairs agree on direct plans; with such that are freed and come back,
// on slots again.
ROLE(agree_on_messages) {
  BufferRanks ranks(arguments);
  Messages messages(ranks);
  const auto goes_on_until_all = [&](const std::string& what, bool replaces) {
    LogLines changes(arguments[4], "on have plans for " + what);
    const auto begin = std::chrono::steady_clock::now();
    for (int round = 0; std::chrono::steady_clock::now() - begin < kPatience; ++round) {
      for (int i = 0; i < 10; ++i) {
        if (replaces) messages.replace();
        // Processes group alike or not, where each has one rank, which may.
        const bool is_alone = ranks.ranks().comms.size() == 1;
        if (!messages.exchange(is_alone && round % 2 == 1 ? 1 + ranks.rank(0) % 2 : 1))
          return false;
      }
      if (round > 20) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (ranks.is_true_everywhere(changes.count() >= messages.agreeing())) return true;
    }
    std::cout << "plans are never those for " << what << "\n";
    return false;
  };
  if (!goes_on_until_all("the receiver's buffers", false)) return 1;
  if (!goes_on_until_all("slots", true)) return 2;
  ranks.ranks().destroy();
  return 0;
}

// Memory that is freed and comes back with other contents, at the same addresses.
ROLE(reuse_addresses) {
  BufferRanks ranks(arguments);
  for (size_t round = 0; round < 60; ++round) {
    Trial trial({.kind = kCollectives[round % std::size(kCollectives)],
                 .type = ncclInt32,
                 .count = 20'000 + round % 7 * 1000,
                 .salt = round + 1},
                ranks.nranks());
    for (int turn = 0; turn < 3; ++turn) {
      trial.reset();
      if (!ranks.call(trial)) return 1;
    }
  }
  // Peers let go of all of it.
  const bool is_direct = ranks.direct_calls() > 0;
  ranks.ranks().destroy();
  std::printf("DIRECT %d\n", is_direct);
  return 0;
}

// ---- registered buffers go direct from the first call on

bool use_registered(BufferRanks& ranks, const Trial::Place& place) {
  Trial trial({.kind = Kind::AllGather, .type = ncclInt32, .count = 30'001}, ranks.nranks(), place);
  const auto goes_direct = [&] {
    trial.reset();
    const size_t before = ranks.direct_calls();
    if (!ranks.call(trial)) std::exit(1);
    return ranks.direct_calls() - before;
  };
  const auto all = static_cast<size_t>(ranks.ranks().count());
  if (goes_direct() != 0) return false;
  const Handles handles = register_all(ranks, trial);
  const size_t at_once = goes_direct();
  const size_t again = goes_direct();
  for (const auto& [comm, handle] : handles) REQUIRE_NCCL(ncclCommDeregister(comm, handle));
  const size_t afterwards = goes_direct();
  std::printf("DIRECT %zu %zu %zu of %zu\n", at_once, again, afterwards, all);
  return at_once == all && again == all && afterwards == 0;
}

ROLE(use_registered_buffers) {
  BufferRanks ranks(arguments);
  const bool of_malloc = use_registered(ranks, nullptr);
  constexpr size_t kBytes = 16 << 20;
  std::vector<std::byte*> memory;
  std::vector<size_t> used(ranks.ranks().comms.size());
  for (size_t i = 0; i < used.size(); ++i) {
    void* made = nullptr;
    REQUIRE_CUDA(cudaSetDevice(ranks.rank(i)));
    REQUIRE_NCCL(ncclMemAlloc(&made, kBytes));
    memory.push_back(static_cast<std::byte*>(made));
  }
  const bool of_mem_alloc = use_registered(ranks, [&](int rank, size_t bytes) -> void* {
    const auto i = static_cast<size_t>(rank - ranks.rank(0));
    if (i >= used.size()) return nullptr;
    std::byte* const place = memory[i] + used[i];
    used[i] += (bytes + 255) / 256 * 256;
    return used[i] <= kBytes ? place : nullptr;
  });
  for (std::byte* of_rank : memory) REQUIRE_NCCL(ncclMemFree(of_rank));
  ranks.ranks().destroy();
  return of_malloc && of_mem_alloc ? 0 : 2;
}

// ---- captured buffers go direct, as long as there is a graph of them

ROLE(use_captured_buffers) {
  BufferRanks ranks(arguments);
  Trial trial({.kind = Kind::AllReduce, .type = ncclInt32, .count = 30'001}, ranks.nranks());
  if (!ranks.call(trial)) return 1;
  if (ranks.direct_calls() != 0) return 2;
  if (!ranks.is_true_everywhere(true)) return 1;
  const size_t mappings = count_mappings();
  if (!ranks.is_true_everywhere(true)) return 1;  // all have counted
  std::vector<cudaGraphExec_t> graphs;
  for (size_t i = 0; i < ranks.ranks().comms.size(); ++i) {
    cudaStream_t stream = ranks.ranks().streams[i];
    cudaGraph_t graph = nullptr;
    REQUIRE_CUDA(cudaSetDevice(ranks.rank(i)));
    REQUIRE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    REQUIRE_NCCL(trial.call(ranks.rank(i), ranks.ranks().comms[i], stream));
    REQUIRE_CUDA(cudaStreamEndCapture(stream, &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&graphs.emplace_back(), graph, 0));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
  }
  if (ranks.direct_calls() != graphs.size()) return 3;
  if (!ranks.is_true_everywhere(true)) return 1;  // all have captured
  const size_t captured = count_mappings();
  for (int turn = 0; turn < 3; ++turn) {
    trial.reset();
    if (!ranks.is_true_everywhere(true)) return 1;  // buffers are set on all ranks
    for (size_t i = 0; i < graphs.size(); ++i)
      REQUIRE_CUDA(cudaGraphLaunch(graphs[i], ranks.ranks().streams[i]));
    if (!ranks.is_right(trial)) return 1;
  }
  for (cudaGraphExec_t graph : graphs) REQUIRE_CUDA(cudaGraphExecDestroy(graph));
  const bool is_released = becomes([&] { return count_mappings() < captured; });
  std::printf("MAPPINGS %zu %zu %zu\n", mappings, captured, count_mappings());
  if (!ranks.is_true_everywhere(is_released)) return 4;
  ranks.ranks().destroy();
  return captured > mappings ? 0 : 5;
}

// ---- freed memory is let go of, though nobody calls anything

ROLE(free_buffers) {
  BufferRanks ranks(arguments);
  size_t mapped = 0;
  {
    Trial trial({.kind = Kind::AllGather, .type = ncclInt32, .count = 30'001}, ranks.nranks());
    size_t before = ranks.direct_calls();
    do {
      trial.reset();
      if (!ranks.call(trial)) return 1;
    } while (!ranks.is_true_everywhere(ranks.direct_calls() > before));
    mapped = count_mappings();
  }
  const bool is_released = becomes([&] { return count_mappings() < mapped; });
  std::printf("MAPPINGS %zu %zu\n", mapped, count_mappings());
  if (!ranks.is_true_everywhere(is_released)) return 4;
  ranks.ranks().destroy();
  return 0;
}

// ---- a registration may end while operations that use it wait for their turn

void pass_gate(void* is_open) { static_cast<std::atomic<bool>*>(is_open)->wait(false); }

ROLE(end_registrations_early) {
  BufferRanks ranks(arguments);
  LocalRanks& here = ranks.ranks();
  Trial trial({.kind = Kind::AllReduce, .type = ncclInt32, .count = 30'001}, ranks.nranks());
  const Handles handles = register_all(ranks, trial);
  if (!ranks.is_true_everywhere(true)) return 1;  // all have registered
  const size_t before = ranks.direct_calls();
  if (!ranks.call(trial)) return 1;
  if (!ranks.is_true_everywhere(ranks.direct_calls() == before + here.comms.size())) return 2;
  trial.reset();
  if (!ranks.is_true_everywhere(true)) return 1;  // buffers are set on all ranks

  std::atomic<bool> is_open = false;
  for (size_t i = 0; i < here.comms.size(); ++i) {
    REQUIRE_CUDA(cudaSetDevice(ranks.rank(i)));
    REQUIRE_CUDA(cudaLaunchHostFunc(here.streams[i], &pass_gate, &is_open));
  }
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < here.comms.size(); ++i)
    REQUIRE_NCCL(trial.call(ranks.rank(i), here.comms[i], here.streams[i]));
  REQUIRE_NCCL(ncclGroupEnd());
  const size_t mapped = count_mappings();
  for (const auto& [comm, handle] : handles) REQUIRE_NCCL(ncclCommDeregister(comm, handle));
  // Long enough for those who do not wait for the operation.
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  is_open = true;
  is_open.notify_all();
  if (!ranks.is_right(trial)) return 1;
  if (!ranks.is_true_everywhere(becomes([&] { return count_mappings() < mapped; }))) return 4;
  here.destroy();
  return 0;
}

struct Layout {
  int processes;
  int devices;
};
class BuffersOfProcesses : public testing::TestWithParam<Layout> {
 protected:
  /// `algorithms`: null for those of which all connections land or lend.
  void run(const char* role, const char* cache, const char* algorithms = nullptr) {
    const auto [processes, devices] = GetParam();
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
    if (algorithms == nullptr)
      algorithms = processes * devices > 2
                       ? "direct_workers,two_shot_workers,scatter_gather_workers"
                       : "direct,two_shot";
    std::vector<Process> running;
    std::vector<std::string> logs;
    for (int p = 0; p < processes; ++p) {
      logs.push_back(testing::TempDir() + "niccolite-buffers-" + std::to_string(getpid()) + "-" +
                     std::to_string(p));
      running.emplace_back(
          role,
          Arguments{to_text(id), std::to_string(processes * devices), std::to_string(p * devices),
                    std::to_string(devices), logs[static_cast<size_t>(p)]},
          Process::Environment{{"NCCL_PROTO", "Simple"},
                               {"NCCL_ALGO", algorithms},
                               {"NICCOLITE_BUFFER_CACHE", cache},
                               {"NCCL_DEBUG", "TRACE"},
                               {"NCCL_DEBUG_SUBSYS", "REG,TUNING"},
                               {"NCCL_DEBUG_FILE", logs.back()}});
    }
    for (Process& process : running) EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
    for (const std::string& log : logs) std::filesystem::remove(log);
  }
};

TEST_P(BuffersOfProcesses, GoDirectFromTheSecondCallOn) { run("use_plain_buffers", "1G"); }
TEST_P(BuffersOfProcesses, HaveTheRanksAgreeOnPlans) { run("agree_on_plans", "1G"); }
TEST_P(BuffersOfProcesses, HaveTheRanksOfReducesAgreeOnPlans) {
  run("agree_on_plans_of_reduces", "1G");
}
TEST_P(BuffersOfProcesses, HaveTheRanksOfChainsAgreeOnPlans) {
  run("agree_on_plans_of_reduces", "1G", "ring,ring_halves");
}
TEST_P(BuffersOfProcesses, HaveTheEndsOfMessagesAgreeOnPlans) { run("agree_on_messages", "1G"); }
TEST_P(BuffersOfProcesses, MayHaveAddressesThatWereOthersBefore) { run("reuse_addresses", "64M"); }
TEST_P(BuffersOfProcesses, GoDirectAsSoonAsTheyAreRegistered) {
  run("use_registered_buffers", "0");
}
TEST_P(BuffersOfProcesses, StayUntilOperationsAreDoneThatUseThem) {
  run("end_registrations_early", "0");
}
TEST_P(BuffersOfProcesses, GoDirectInGraphsAndAreReleasedWithThem) {
  run("use_captured_buffers", "0");
}
TEST_P(BuffersOfProcesses, AreReleasedWhenTheyAreFreed) { run("free_buffers", "1G"); }

INSTANTIATE_TEST_SUITE_P(, BuffersOfProcesses,
                         testing::Values(Layout{2, 1}, Layout{3, 1}, Layout{2, 2}),
                         [](const auto& layout) {
                           return std::to_string(layout.param.processes) + "x" +
                                  std::to_string(layout.param.devices);
                         });

// id rank: rank 1 dies while rank 0's registered buffer is offered to it.
ROLE(buffer_survivor) {
  const int rank = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), 2, rank, 1);
  Trial trial({.kind = Kind::AllGather, .type = ncclInt32, .count = 30'001}, 2);
  void* handles[2] = {};
  REQUIRE_NCCL(ncclCommRegister(ranks.comms[0], trial.input(rank), 4, &handles[0]));
  REQUIRE_NCCL(ncclCommRegister(ranks.comms[0], trial.output(rank), 4, &handles[1]));
  REQUIRE_NCCL(trial.call(rank, ranks.comms[0], ranks.streams[0]));
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  if (rank == 1) {
    std::printf("READY\n");
    std::fflush(stdout);
    for (;;) pause();
  }
  REQUIRE_NCCL(trial.call(rank, ranks.comms[0], ranks.streams[0]));
  std::printf("STARTED\n");
  std::fflush(stdout);
  const ncclResult_t state = ranks.finish();
  const bool waits = ranks.is_waiting();
  std::printf("STATE %d WAITS %d ABORTED %d\n", state, waits, ncclCommAbort(ranks.comms[0]));
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  return 0;
}

TEST(BuffersOfOtherProcesses, EndWhenAPeerIsKilledAndTheCommunicatorAborted) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  const Process::Environment environment{{"NCCL_PROTO", "Simple"}, {"NCCL_ALGO", "direct"}};
  Process survivor("buffer_survivor", {to_text(id), "0"}, environment);
  Process victim("buffer_survivor", {to_text(id), "1"}, environment);
  ASSERT_TRUE(victim.wait_for_line("READY")) << victim.output();
  ASSERT_TRUE(survivor.wait_for_line("STARTED")) << survivor.output();
  victim.kill(SIGKILL);
  EXPECT_EQ(survivor.wait(seconds(30)), 0) << survivor.output();
  EXPECT_NE(survivor.output().find("STATE 6 WAITS 1 ABORTED 0"), std::string::npos)
      << survivor.output();
}

}  // namespace
}  // namespace niccolite::test
