// A rank whose operations are done may destroy its communicator, and its process may end, before
// the others come to theirs: they find what they need.
#include <gmock/gmock.h>
#include <signal.h>

#include <string>
#include <vector>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

constexpr size_t kCount = 16;

// What rank 0 sends; the others' buffers have it afterwards.
ncclResult_t send_of(const std::string& kind, int rank, int nranks, float* buffer, ncclComm_t comm,
                     cudaStream_t stream) {
  if (kind == "broadcast") return ncclBroadcast(buffer, buffer, kCount, ncclFloat, 0, comm, stream);
  if (kind == "list") {
    ncclGroupStart();
    for (float* const half : {buffer, buffer + kCount / 2})
      ncclBroadcast(half, half, kCount / 2, ncclFloat, 0, comm, stream);
    return ncclGroupEnd();
  }
  if (rank != 0) return ncclRecv(buffer, kCount, ncclFloat, 0, comm, stream);
  ncclGroupStart();
  for (int peer = 1; peer < nranks; ++peer) ncclSend(buffer, kCount, ncclFloat, peer, comm, stream);
  return ncclGroupEnd();
}

// The operation as one rank's whole program; false when the data are wrong.
bool take_part(const std::string& kind, int rank, int nranks, ncclComm_t comm) {
  cudaStream_t stream = nullptr;
  float* buffer = nullptr;
  REQUIRE_CUDA(cudaStreamCreate(&stream));
  REQUIRE_CUDA(cudaMalloc(&buffer, kCount * sizeof(float)));
  std::vector<float> values(kCount, rank == 0 ? 3.5F : 0.0F);
  REQUIRE_CUDA(cudaMemcpy(buffer, values.data(), kCount * sizeof(float), cudaMemcpyDefault));
  REQUIRE_NCCL(send_of(kind, rank, nranks, buffer, comm, stream));
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  REQUIRE_CUDA(cudaMemcpy(values.data(), buffer, kCount * sizeof(float), cudaMemcpyDefault));
  REQUIRE_NCCL(ncclCommDestroy(comm));
  REQUIRE_CUDA(cudaFree(buffer));
  REQUIRE_CUDA(cudaStreamDestroy(stream));
  return values == std::vector<float>(kCount, 3.5F);
}

// The signal by which a test lets a role go on: held back from all threads, which are started
// later.
class Go {
 public:
  Go() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }
  void wait() const {
    int received = 0;
    sigwait(&signals_, &received);
  }

 private:
  sigset_t signals_;
};

// id nranks rank kind: rank 0 does its part and ends, the others wait for a signal first.
ROLE(comes_late) {
  const Go go;
  const int nranks = std::stoi(arguments[1]);
  const int rank = std::stoi(arguments[2]);
  REQUIRE_CUDA(cudaSetDevice(rank));
  ncclComm_t comm = nullptr;
  REQUIRE_NCCL(ncclCommInitRank(&comm, nranks, to_id(arguments[0]), rank));
  std::printf("READY\n");
  std::fflush(stdout);
  if (rank != 0) go.wait();
  return take_part(arguments[3], rank, nranks, comm) ? 0 : 1;
}

struct Late {
  const char* kind;
  bool on_machines;  // each process as if on its own
};

class Leaving : public testing::TestWithParam<Late> {};

TEST_P(Leaving, LeavesWhatPeersNeedThatHaveNotComeYet) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (int rank = 0; rank < 3; ++rank) {
    Process::Environment environment;
    if (GetParam().on_machines) environment["NCCL_HOSTID"] = "machine" + std::to_string(rank);
    processes.emplace_back("comes_late",
                           Arguments{to_text(id), "3", std::to_string(rank), GetParam().kind},
                           environment);
  }
  for (Process& process : processes)
    ASSERT_TRUE(process.wait_for_line("READY")) << process.output();
  ASSERT_EQ(processes[0].wait(), 0) << processes[0].output();
  for (const size_t rank : {1u, 2u}) processes[rank].kill(SIGUSR1);
  for (const size_t rank : {1u, 2u})
    EXPECT_EQ(processes[rank].wait(), 0) << "rank " << rank << "\n" << processes[rank].output();
}

INSTANTIATE_TEST_SUITE_P(Of, Leaving,
                         testing::Values(Late{"message", false}, Late{"message", true},
                                         Late{"broadcast", true}),
                         [](const auto& instance) {
                           return std::string(instance.param.kind) +
                                  (instance.param.on_machines ? "BetweenMachines" : "");
                         });

// id nranks rank: after a signal sends to all others, and receives from them; says what it was
// told, and ends at once.
ROLE(exchanges_once) {
  const Go go;
  const int nranks = std::stoi(arguments[1]);
  const int rank = std::stoi(arguments[2]);
  REQUIRE_CUDA(cudaSetDevice(rank));
  ncclComm_t comm = nullptr;
  REQUIRE_NCCL(ncclCommInitRank(&comm, nranks, to_id(arguments[0]), rank));
  float* buffer = nullptr;
  REQUIRE_CUDA(cudaMalloc(&buffer, 2 * static_cast<size_t>(nranks) * sizeof(float)));
  std::printf("READY\n");
  std::fflush(stdout);
  go.wait();
  ncclGroupStart();
  for (int peer = 0; peer < nranks; ++peer) {
    if (peer == rank) continue;
    ncclSend(buffer + peer, 1, ncclFloat, peer, comm, nullptr);
    ncclRecv(buffer + nranks + peer, 1, ncclFloat, peer, comm, nullptr);
  }
  const ncclResult_t result = ncclGroupEnd();
  std::printf("TOLD %d %s\n", static_cast<int>(result), ncclGetLastError(comm));
  return 0;
}

// Survivors end as soon as they have heard, while others still connect to them.
TEST(Dying, BeforeTheFirstOperationIsWhatAllSurvivorsAreTold) {
  constexpr int kRanks = 5;
  for (int round = 0; round < 5; ++round) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::vector<Process> processes;
    for (int rank = 0; rank < kRanks; ++rank)
      processes.emplace_back("exchanges_once",
                             Arguments{to_text(id), std::to_string(kRanks), std::to_string(rank)});
    for (Process& process : processes)
      ASSERT_TRUE(process.wait_for_line("READY")) << process.output();
    processes[1].kill(SIGKILL);
    for (const size_t rank : {4u, 3u, 2u, 0u}) processes[rank].kill(SIGUSR1);
    for (const size_t rank : {0u, 2u, 3u, 4u}) {
      EXPECT_EQ(processes[rank].wait(), 0);
      const std::string& output = processes[rank].output();
      EXPECT_THAT(output, testing::HasSubstr("TOLD 6 ")) << "rank " << rank;
      EXPECT_THAT(output, testing::ContainsRegex("TOLD 6 .*rank 1 .process [0-9]+ on host .*"
                                                 "ended unexpectedly"))
          << "rank " << rank;
    }
  }
}

// id rank: rank 0 puts into the window of rank 1, with a signal, and ends; that one, after a signal
// of the test's, waits for it.
ROLE(puts_and_leaves) {
  const Go go;
  const int rank = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), 2, rank, 1);
  ncclComm_t comm = ranks.comms[0];
  float* memory = nullptr;
  ncclWindow_t window = nullptr;
  REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory), 2 * kCount * sizeof(float)));
  // Before there is a window, into which the other rank puts as soon as it has it.
  std::vector<float> values(kCount, rank == 0 ? 3.5F : 0.0F);
  REQUIRE_CUDA(cudaMemcpy(memory, values.data(), kCount * sizeof(float), cudaMemcpyDefault));
  REQUIRE_NCCL(ncclCommWindowRegister(comm, memory, 2 * kCount * sizeof(float), &window,
                                      NCCL_WIN_COLL_SYMMETRIC));
  std::printf("READY\n");
  std::fflush(stdout);
  if (rank == 0) {
    REQUIRE_NCCL(
        ncclPutSignal(memory, kCount, ncclFloat, 1, window, 0, 0, 0, 0, comm, ranks.streams[0]));
  } else {
    go.wait();
    ncclWaitSignalDesc_t put{1, 0, 0, 0};
    REQUIRE_NCCL(ncclWaitSignal(1, &put, comm, ranks.streams[0]));
  }
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  REQUIRE_CUDA(cudaMemcpy(values.data(), memory, kCount * sizeof(float), cudaMemcpyDefault));
  REQUIRE_NCCL(ncclCommWindowDeregister(comm, window));
  ranks.destroy();
  REQUIRE_NCCL(ncclMemFree(memory));
  return values == std::vector<float>(kCount, 3.5F) ? 0 : 1;
}

TEST(LeavingASignal, NeedsNobodyForItsSignals) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  Process leaver("puts_and_leaves", {to_text(id), "0"});
  Process waiter("puts_and_leaves", {to_text(id), "1"});
  ASSERT_TRUE(waiter.wait_for_line("READY")) << waiter.output();
  ASSERT_EQ(leaver.wait(), 0) << leaver.output();
  waiter.kill(SIGUSR1);
  EXPECT_EQ(waiter.wait(), 0) << waiter.output();
}

// id nranks rank: an all-reduce of all, then, after a signal, the end.
ROLE(destroys_after_a_signal) {
  const Go go;
  const int nranks = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), nranks, std::stoi(arguments[2]), 1);
  if (!ranks.all_reduce(kCount)) return 1;
  std::printf("READY\n");
  std::fflush(stdout);
  go.wait();
  ranks.destroy();
  std::printf("ENDED\n");
  return 0;
}

class LeavingTheStopped : public testing::TestWithParam<bool> {};

TEST_P(LeavingTheStopped, NamesThemAndDoesNotWait) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (int rank = 0; rank < 4; ++rank) {
    Process::Environment environment{{"NCCL_DEBUG", "WARN"}};
    if (GetParam()) environment["NCCL_HOSTID"] = "machine" + std::to_string(rank);
    processes.emplace_back("destroys_after_a_signal",
                           Arguments{to_text(id), "4", std::to_string(rank)}, environment);
  }
  for (Process& process : processes)
    ASSERT_TRUE(process.wait_for_line("READY")) << process.output();
  for (const size_t rank : {1u, 3u}) processes[rank].kill(SIGSTOP);
  for (const size_t rank : {0u, 2u}) processes[rank].kill(SIGUSR1);
  for (const size_t rank : {0u, 2u}) {
    EXPECT_EQ(processes[rank].wait(), 0) << processes[rank].output();
    for (const char* stopped : {"rank 1", "rank 3"})
      EXPECT_THAT(processes[rank].output(),
                  testing::ContainsRegex(std::string("does not wait for ") + stopped +
                                         " .process [0-9]+ on host .*, which is stopped"));
  }
  // They end well, too, when they go on.
  for (const size_t rank : {1u, 3u}) processes[rank].kill(SIGCONT);
  for (const size_t rank : {1u, 3u}) processes[rank].kill(SIGUSR1);
  for (const size_t rank : {1u, 3u}) {
    EXPECT_EQ(processes[rank].wait(), 0) << processes[rank].output();
    EXPECT_THAT(processes[rank].output(), testing::Not(testing::HasSubstr("does not wait")));
  }
}

INSTANTIATE_TEST_SUITE_P(Of, LeavingTheStopped, testing::Bool(), [](const auto& instance) {
  return instance.param ? "OtherMachines" : "OneMachine";
});

// kind: one thread that lets each of its ranks do all it has to do, one after the other.
ROLE(one_after_the_other) {
  std::vector<ncclComm_t> comms(3);
  REQUIRE_NCCL(ncclCommInitAll(comms.data(), 3, nullptr));
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE_CUDA(cudaSetDevice(rank));
    if (!take_part(arguments[0], rank, 3, comms[static_cast<size_t>(rank)])) return 1;
  }
  return 0;
}

TEST(LeavingInOneThread, LeavesWhatTheNextRankNeeds) {
  for (const char* kind : {"broadcast", "message", "list"}) {
    Process process("one_after_the_other", {kind});
    EXPECT_EQ(process.wait(), 0) << kind << "\n" << process.output();
  }
}

// A rank is destroyed at once; the other never comes, and is destroyed by the same thread.
ROLE(one_never_comes) {
  std::vector<ncclComm_t> comms(2);
  REQUIRE_NCCL(ncclCommInitAll(comms.data(), 2, nullptr));
  REQUIRE_CUDA(cudaSetDevice(0));
  take_part("message", 0, 2, comms[0]);
  REQUIRE_NCCL(ncclCommDestroy(comms[1]));
  return 0;
}

TEST(LeavingInOneThread, WaitsForNobodyWhoNeverComes) {
  Process process("one_never_comes", {});
  EXPECT_EQ(process.wait(), 0) << process.output();
}

}  // namespace
}  // namespace niccolite::test
