// Registered buffers of users over InfiniBand and RoCE: the NICs read and write them themselves.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <malloc.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "tests/multi_process/ranks.h"
#include "tests/namespaces/job.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

/// With lines about registered buffers.
Process::Environment with_registered(const std::string& nics, Process::Environment others = {}) {
  others.insert({"NCCL_DEBUG_SUBSYS", "INIT,NET,REG"});
  return with_nics(nics, std::move(others));
}

/// Two buffers of a rank's user, which one communicator knows.
class Buffers {
 public:
  Buffers(ncclComm_t comm, size_t bytes, const std::string& kind)
      : comm_(comm), bytes_(bytes), kind_(kind) {
    for (size_t i = 0; i < 2; ++i) {
      REQUIRE_NCCL(ncclMemAlloc(&data_[i], bytes));
      if (kind == "registered") REQUIRE_NCCL(ncclCommRegister(comm, data_[i], bytes, &handles_[i]));
      if (kind == "windows")
        REQUIRE_NCCL(ncclCommWindowRegister(comm, data_[i], bytes, &windows_[i], 0));
    }
  }
  void free() {
    for (size_t i = 0; i < 2; ++i) {
      if (kind_ == "registered") REQUIRE_NCCL(ncclCommDeregister(comm_, handles_[i]));
      if (kind_ == "windows") REQUIRE_NCCL(ncclCommWindowDeregister(comm_, windows_[i]));
      REQUIRE_NCCL(ncclMemFree(data_[i]));
    }
  }
  int* input() const { return static_cast<int*>(data_[0]); }
  int* output() const { return static_cast<int*>(data_[1]); }
  size_t bytes() const { return bytes_; }

 private:
  ncclComm_t comm_;
  size_t bytes_;
  std::string kind_;
  std::array<void*, 2> data_{};
  std::array<void*, 2> handles_{};
  std::array<ncclWindow_t, 2> windows_{};
};

void require(bool is_true, const char* what) {
  if (is_true) return;
  std::printf("FAILED %s\n", what);
  std::exit(40);
}
#define REQUIRE(what) require(what, #what)

int value_of(int rank, size_t i, int turn) {
  return static_cast<int>(i * 2'654'435'761u) ^ (rank * 1000 + turn);
}

void fill(int* buffer, size_t count, int rank, int turn) {
  std::vector<int> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = value_of(rank, i, turn);
  REQUIRE_CUDA(cudaMemcpy(buffer, values.data(), count * sizeof(int), cudaMemcpyHostToDevice));
}

/// Does the buffer have what `expected(i)` says?
template <typename Expected>
bool has(const int* buffer, size_t count, Expected&& expected, const char* what) {
  std::vector<int> values(count);
  REQUIRE_CUDA(cudaMemcpy(values.data(), buffer, count * sizeof(int), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < count; ++i)
    if (values[i] != expected(i)) {
      std::printf("WRONG %s at %zu of %zu: %d in the place of %d\n", what, i, count, values[i],
                  expected(i));
      return false;
    }
  return true;
}

/// The resources of this process, which must not grow.
struct Holdings {
  size_t descriptors = 0;
  size_t mappings = 0;
  size_t heap = 0;  // bytes
  // Threads keep mappings and memory for their next allocations, which come and go.
  bool is_about(const Holdings& before) const {
    return descriptors <= before.descriptors && mappings <= before.mappings + 16 &&
           heap <= before.heap + (128 << 10);
  }
};
Holdings holdings() {
  Holdings made{.heap = mallinfo2().uordblks};
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++made.descriptors;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++made.mappings;
  return made;
}

// ... kind cycles: registers, has the NICs know the buffers, and deregisters, over and over, or
// ends the communicator.
ROLE(register_over_and_over) {
  const LocalIds ids(arguments);
  const int rank = std::stoi(arguments[3]);
  LocalRanks ranks(ids.one, 2, rank, 1);
  const std::string& kind = arguments[5];
  const int cycles = std::stoi(arguments[6]) / (kind == "communicators" ? 40 : 1);
  constexpr size_t kCount = 8192;
  std::array<void*, 2> data{};
  for (void*& each : data) REQUIRE_NCCL(ncclMemAlloc(&each, kCount * sizeof(int)));
  Holdings before;
  for (int cycle = -16; cycle < cycles; ++cycle) {
    if (cycle == 0) before = holdings();
    // Now and then the memory is another one, with the same addresses or others.
    if (cycle % 64 == 0)
      for (void*& each : data) {
        REQUIRE_NCCL(ncclMemFree(each));
        REQUIRE_NCCL(ncclMemAlloc(&each, kCount * sizeof(int)));
      }
    ncclComm_t comm = ranks.comms[0];
    if (kind == "communicators") REQUIRE_NCCL(ncclCommSplit(ranks.comms[0], 0, 0, &comm, nullptr));
    std::array<void*, 2> handles{};
    std::array<ncclWindow_t, 2> windows{};
    for (size_t i = 0; i < 2; ++i)
      if (kind == "windows")
        REQUIRE_NCCL(ncclCommWindowRegister(comm, data[i], kCount * sizeof(int), &windows[i], 0));
      else
        REQUIRE_NCCL(ncclCommRegister(comm, data[i], kCount * sizeof(int), &handles[i]));
    const bool is_looked_at = cycle % 16 == 0;
    if (is_looked_at) fill(static_cast<int*>(data[0]), kCount, rank, cycle);
    REQUIRE_NCCL(ncclGroupStart());
    REQUIRE_NCCL(ncclSend(data[0], kCount, ncclInt, 1 - rank, comm, ranks.streams[0]));
    REQUIRE_NCCL(ncclRecv(data[1], kCount, ncclInt, 1 - rank, comm, ranks.streams[0]));
    REQUIRE_NCCL(ncclGroupEnd());
    REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
    for (size_t i = 0; i < 2; ++i)
      if (kind == "windows")
        REQUIRE_NCCL(ncclCommWindowDeregister(comm, windows[i]));
      else if (kind == "registered")
        REQUIRE_NCCL(ncclCommDeregister(comm, handles[i]));
    if (kind == "communicators") REQUIRE_NCCL(ncclCommDestroy(comm));
    if (!is_looked_at) continue;
    REQUIRE(has(
        static_cast<int*>(data[1]), kCount, [&](size_t i) { return value_of(1 - rank, i, cycle); },
        "message"));
  }
  // Threads may still be ending the last ones.
  Holdings after = holdings();
  for (int looks = 0; looks < 1000 && !after.is_about(before); ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    after = holdings();
  }
  std::printf("HOLDS %zu descriptors after %zu, %zu mappings after %zu, %zu bytes after %zu\n",
              after.descriptors, before.descriptors, after.mappings, before.mappings, after.heap,
              before.heap);
  if (!after.is_about(before)) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      std::printf("DESCRIPTOR %s\n", std::filesystem::read_symlink(entry.path()).c_str());
  }
  for (void* const each : data) REQUIRE_NCCL(ncclMemFree(each));
  ranks.destroy();
  REQUIRE(after.is_about(before));
  return 0;
}

void wait_for_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  int signal = 0;
  REQUIRE(sigwait(&set, &signal) == 0);
}

// ... turn end: registered messages both ways, until the communicator is aborted, or revoked, in
// the middle of one. A turn below 0: when a signal says so, and the buffers are looked at after
// another.
ROLE(abort_while_buffers_travel) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  REQUIRE(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  constexpr size_t kBytes = 24 << 20;
  constexpr int kMessages = 24;
  const LocalIds ids(arguments);
  const int rank = std::stoi(arguments[3]);
  const int turn = std::stoi(arguments[5]);
  LocalRanks ranks(ids.one, 2, rank, 1);
  Buffers buffers(ranks.comms[0], kBytes, "registered");
  const std::array<int*, 2> both{buffers.output(), buffers.input()};
  cudaEvent_t events[kMessages];
  for (cudaEvent_t& event : events) {
    REQUIRE_CUDA(cudaEventCreate(&event));
    REQUIRE_NCCL(ncclGroupStart());
    REQUIRE_NCCL(
        ncclSend(buffers.input(), kBytes, ncclInt8, 1 - rank, ranks.comms[0], ranks.streams[0]));
    REQUIRE_NCCL(
        ncclRecv(buffers.output(), kBytes, ncclInt8, 1 - rank, ranks.comms[0], ranks.streams[0]));
    REQUIRE_NCCL(ncclGroupEnd());
    REQUIRE_CUDA(cudaEventRecord(event, ranks.streams[0]));
  }
  // The first is done; how far the second is by now, nobody knows.
  REQUIRE_CUDA(cudaEventSynchronize(events[0]));
  std::printf("TRAVELLING\n");
  std::fflush(stdout);
  if (turn < 0) wait_for_signal();
  for (int look = turn * 3'000; look > 0; --look) static_cast<void>(cudaEventQuery(events[1]));
  // From the end of the kernels on the buffers are the program's, though the network may be there.
  std::thread user([&] {
    REQUIRE_CUDA(cudaSetDevice(rank));
    REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
    for (int* const buffer : both) REQUIRE_CUDA(cudaMemset(buffer, 0xee, kBytes));
  });
  const bool is_revoked = arguments[6] == "revoke" && rank == 0;
  if (is_revoked)  // the peer does not hear of it, and the connections stay
    REQUIRE_NCCL(ncclCommRevoke(ranks.comms[0], NCCL_REVOKE_DEFAULT));
  else
    REQUIRE_NCCL(ncclCommAbort(ranks.comms[0]));
  user.join();
  std::printf("ABORTED\n");
  std::fflush(stdout);
  if (turn < 0) wait_for_signal();
  bool is_left_alone = true;
  std::vector<unsigned char> values(kBytes);
  for (int* const buffer : both) {
    REQUIRE_CUDA(cudaMemcpy(values.data(), buffer, kBytes, cudaMemcpyDeviceToHost));
    is_left_alone &= std::ranges::all_of(values, [](unsigned char value) { return value == 0xee; });
    REQUIRE_NCCL(ncclMemFree(buffer));
  }
  if (is_revoked) REQUIRE_NCCL(ncclCommAbort(ranks.comms[0]));
  return is_left_alone ? 0 : 1;
}

// ... kind elements turns: a rank of two, which are on two machines, by every operation that only
// moves data, and an all-reduce.
ROLE(move_buffers) {
  const LocalIds ids(arguments);
  const int rank = std::stoi(arguments[3]);
  LocalRanks ranks(ids.one, 2, rank, 1);
  const ncclComm_t comm = ranks.comms[0];
  const cudaStream_t stream = ranks.streams[0];
  const size_t count = std::stoull(arguments[6]);
  Buffers buffers(comm, 2 * count * sizeof(int), arguments[5]);
  int* const in = buffers.input();
  int* const out = buffers.output();
  bool is_right = true;
  for (int turn = 0; turn < std::stoi(arguments[7]); ++turn) {
    const int other = 1 - rank;
    const auto of = [&](int sender) { return [=](size_t i) { return value_of(sender, i, turn); }; };
    fill(in, count, rank, turn);
    REQUIRE_NCCL(ncclGroupStart());
    REQUIRE_NCCL(ncclSend(in, count, ncclInt, other, comm, stream));
    REQUIRE_NCCL(ncclRecv(out, count, ncclInt, other, comm, stream));
    REQUIRE_NCCL(ncclGroupEnd());
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    is_right &= has(out, count, of(other), "message");

    REQUIRE_NCCL(ncclAllGather(in, out, count, ncclInt, comm, stream));
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    for (const int sender : {0, 1})
      is_right &= has(out + static_cast<size_t>(sender) * count, count, of(sender), "all-gather");

    REQUIRE_NCCL(ncclBroadcast(in, out, count, ncclInt, turn % 2, comm, stream));
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    is_right &= has(out, count, of(turn % 2), "broadcast");

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replays = nullptr;
    REQUIRE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    REQUIRE_NCCL(ncclAllGather(in, out, count, ncclInt, comm, stream));
    REQUIRE_CUDA(cudaStreamEndCapture(stream, &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&replays, graph, 0));
    for (const int replay : {100, 200}) {
      fill(in, count, rank, turn + replay);
      REQUIRE_CUDA(cudaGraphLaunch(replays, stream));
      REQUIRE_CUDA(cudaStreamSynchronize(stream));
      for (const int sender : {0, 1})
        is_right &= has(
            out + static_cast<size_t>(sender) * count, count,
            [&](size_t i) { return value_of(sender, i, turn + replay); }, "graph");
    }
    REQUIRE_CUDA(cudaGraphExecDestroy(replays));
    REQUIRE_CUDA(cudaGraphDestroy(graph));

    fill(in, 2 * count, rank, turn);
    REQUIRE_NCCL(ncclAlltoAll(in, out, count, ncclInt, comm, stream));
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    for (const int sender : {0, 1})
      is_right &= has(
          out + static_cast<size_t>(sender) * count, count,
          [&](size_t i) { return value_of(sender, i + static_cast<size_t>(rank) * count, turn); },
          "all-to-all");

    REQUIRE_NCCL(ncclAllReduce(in, in, 2 * count, ncclInt, ncclSum, comm, stream));
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    is_right &= has(
        in, 2 * count,
        [&](size_t i) {
          return static_cast<int>(static_cast<unsigned>(value_of(0, i, turn)) +
                                  static_cast<unsigned>(value_of(1, i, turn)));
        },
        "all-reduce");
  }
  buffers.free();
  ranks.destroy();
  return is_right ? 0 : 1;
}

/// The sums of what the pairs of a process say at their end: bytes to memory of GPUs.
struct Account {
  double direct = 0, of_users = 0, to_users = 0;
};
Account account_of(const std::string& output) {
  static const std::regex line(
      "NET/IB : to rank .*; (\\d+) bytes to memory of GPUs, (\\d+) of them from buffers of the "
      "user and (\\d+) to buffers of the peer's");
  Account account;
  for (std::sregex_iterator at(output.begin(), output.end(), line), end; at != end; ++at) {
    account.direct += std::stod((*at)[1]);
    account.of_users += std::stod((*at)[2]);
    account.to_users += std::stod((*at)[3]);
  }
  return account;
}

class VerbsBuffers : public ::testing::TestWithParam<std::string> {};

TEST_P(VerbsBuffers, AreReadAndWrittenByTheNics) {
  NETWORK_OR_SKIP(network, .machines = 2);
  const bool is_known = GetParam() != "unregistered";
  // A kernel that others keep from the cores makes places too late: the best of some runs counts.
  constexpr int kMostRuns = 5;
  double in_place = 0;  // share of the bytes, of the process with fewer
  for (int turn = 0; turn < kMostRuns && in_place < 0.5; ++turn) {
    std::vector<Process> running = start(*network, {.role = "move_buffers",
                                                    .rest = {GetParam(), "4000001", "3"},
                                                    .environment = with_registered("1")});
    in_place = 1;
    for (Process& process : running) {
      ASSERT_EQ(process.wait(seconds(120)), 0) << process.output();
      const Account account = account_of(process.output());
      if (!is_known) {
        EXPECT_EQ(account.of_users, 0);
        EXPECT_EQ(account.to_users, 0);
        continue;
      }
      // But for the last chunks of operations, for which a kernel would have to wait.
      EXPECT_GE(account.of_users, 0.9 * account.direct);
      ASSERT_GT(account.direct, 0);
      in_place = std::min(in_place, account.to_users / account.direct);
    }
  }
  // Sums have no place before they are made, and a place may come too late for the first chunks.
  EXPECT_GE(in_place, 0.5);
}

INSTANTIATE_TEST_SUITE_P(, VerbsBuffers, ::testing::Values("unregistered", "registered", "windows"),
                         [](const auto& kind) { return kind.param; });

class VerbsBuffersChurn : public ::testing::TestWithParam<std::string> {};

// NICCOLITE_REGISTRATIONS=<n>: so many times, of communicators a fortieth.
TEST_P(VerbsBuffersChurn, LeavesNothingBehind) {
  NETWORK_OR_SKIP(network, .machines = 2);
  const char* const cycles = std::getenv("NICCOLITE_REGISTRATIONS");
  // Each has lines of its own, for which a pipe that is read later has no room.
  const bool has_many = GetParam() == "communicators";
  std::vector<Process> running = start(
      *network, {.role = "register_over_and_over",
                 .rest = {GetParam(), cycles != nullptr ? cycles : "2000"},
                 .environment = with_registered("1", {{"NICCOLITE_NET_DIRECT_BYTES", "1"},
                                                      {"NCCL_PROTO", "Simple"},
                                                      {"NCCL_DEBUG", has_many ? "WARN" : "INFO"},
                                                      {"NCCL_DEBUG_SUBSYS", "NET"}})});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(600)), 0) << process.output();
    if (!has_many) {
      EXPECT_GT(account_of(process.output()).of_users, 0) << process.output();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, VerbsBuffersChurn,
                         ::testing::Values("registered", "windows", "communicators"),
                         [](const auto& kind) { return kind.param; });

// Where the NIC refuses a buffer, its data go through slots. It registers three pieces of memory of
// the GPU before: of the trial, and the slots of both directions.
TEST(VerbsBuffersThatAreRefused, GoThroughSlots) {
  NETWORK_OR_SKIP(network, .machines = 2);
  Job job{.role = "move_buffers", .rest = {"registered", "1000001", "2"}};
  job.of_machine = {with_registered("1,fault=dmabuf@0:3"), with_registered("1")};
  std::vector<Process> running = start(*network, job);
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
  }
  EXPECT_THAT(running[0].output(), HasSubstr("goes through slots: "));
  EXPECT_EQ(account_of(running[0].output()).of_users, 0);
  EXPECT_GT(account_of(running[1].output()).of_users, 0);
  EXPECT_EQ(account_of(running[1].output()).to_users, 0);
}

TEST(VerbsBuffersOfAborts, AreLeftAlone) {
  NETWORK_OR_SKIP(network, .machines = 2);
  for (int turn = 0; turn < 6; ++turn) {
    SCOPED_TRACE(turn);
    Job job{.role = "abort_while_buffers_travel",
            .rest = {std::to_string(turn), "abort"},
            .environment = with_registered("1")};
    std::vector<Process> running = start(*network, job);
    for (Process& process : running) EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
  }
}

// A peer that goes on to write has places that it was offered before.
TEST(VerbsBuffersOfAborts, AreLeftAloneByAPeerThatGoesOn) {
  NETWORK_OR_SKIP(network, .machines = 2);
  std::vector<Process> running = start(*network, {.role = "abort_while_buffers_travel",
                                                  .rest = {"-1", "revoke"},
                                                  .environment = with_registered("1")});
  for (Process& process : running)
    ASSERT_TRUE(process.wait_for_line("TRAVELLING")) << process.output();
  running[0].kill(SIGUSR1);
  ASSERT_TRUE(running[0].wait_for_line("ABORTED")) << running[0].output();
  running[1].kill(SIGUSR1);
  EXPECT_TRUE(running[1].wait_for_line("ABORTED")) << running[1].output();
  for (Process& process : running) {
    process.kill(SIGUSR1);
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("is cut off")));
  }
}

// A peer that is stopped cannot say that it writes no longer.
TEST(VerbsBuffersOfAborts, AreLeftAloneByAPeerThatDoesNotAnswer) {
  NETWORK_OR_SKIP(network, .machines = 2);
  std::vector<Process> running = start(*network, {.role = "abort_while_buffers_travel",
                                                  .rest = {"-1", "revoke"},
                                                  .environment = with_registered("1")});
  for (Process& process : running)
    ASSERT_TRUE(process.wait_for_line("TRAVELLING")) << process.output();
  running[1].kill(SIGSTOP);
  running[0].kill(SIGUSR1);
  ASSERT_TRUE(running[0].wait_for_line("ABORTED")) << running[0].output();
  running[1].kill(SIGCONT);
  running[1].kill(SIGUSR1);
  EXPECT_TRUE(running[1].wait_for_line("ABORTED")) << running[1].output();
  for (Process& process : running) {
    process.kill(SIGUSR1);
    EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
  }
  EXPECT_THAT(running[0].output(), HasSubstr("does not answer, and is cut off"));
}

}  // namespace
}  // namespace niccolite::test
