// Graphs of ranks in several processes that are launched after their communicators have ended.
#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

constexpr int kProcesses = 3;
constexpr size_t kNumbers = 60'000;

/// Counts the resources of connections: mappings of virtual GPUs' memory, its own and others',
/// and the threads that carry data between machines.
size_t held() {
  size_t count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd") != std::string::npos;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    count += name.starts_with("nccl-proxy");
  }
  return count;
}

struct Buffers {
  float* input = nullptr;
  float* sum = nullptr;
  float* received = nullptr;

  Buffers() {
    for (float** buffer : {&input, &sum, &received})
      REQUIRE_CUDA(cudaMalloc(buffer, kNumbers * sizeof(float)));
  }
  ~Buffers() {
    for (float* buffer : {input, sum, received}) REQUIRE_CUDA(cudaFree(buffer));
  }
  void set(int rank) const {
    const std::vector<float> values(kNumbers, static_cast<float>(rank + 1));
    REQUIRE_CUDA(
        cudaMemcpy(input, values.data(), kNumbers * sizeof(float), cudaMemcpyHostToDevice));
    for (float* buffer : {sum, received})
      REQUIRE_CUDA(cudaMemset(buffer, 0xa5, kNumbers * sizeof(float)));
  }
  bool are_right(int rank) const {
    const auto holds = [](const float* buffer, float value) {
      std::vector<float> values(kNumbers);
      REQUIRE_CUDA(
          cudaMemcpy(values.data(), buffer, kNumbers * sizeof(float), cudaMemcpyDeviceToHost));
      return values == std::vector<float>(kNumbers, value);
    };
    const int before = (rank + kProcesses - 1) % kProcesses;
    return holds(sum, kProcesses * (kProcesses + 1) / 2) &&
           holds(received, static_cast<float>(before + 1));
  }
};

// An all-reduce, and a ring of messages.
cudaGraphExec_t capture(const Buffers& buffers, int rank, ncclComm_t comm, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  REQUIRE_NCCL(
      ncclAllReduce(buffers.input, buffers.sum, kNumbers, ncclFloat, ncclSum, comm, stream));
  REQUIRE_NCCL(ncclGroupStart());
  REQUIRE_NCCL(ncclSend(buffers.input, kNumbers, ncclFloat, (rank + 1) % kProcesses, comm, stream));
  REQUIRE_NCCL(ncclRecv(buffers.received, kNumbers, ncclFloat, (rank + kProcesses - 1) % kProcesses,
                        comm, stream));
  REQUIRE_NCCL(ncclGroupEnd());
  REQUIRE_CUDA(cudaStreamEndCapture(stream, &graph));
  REQUIRE_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  REQUIRE_CUDA(cudaGraphDestroy(graph));
  return executable;
}

// id rank how: "destroy", or "abort", after a signal, ends the communicator between launches of a
// graph; "linger" as "destroy", and keeps the graph until a signal says that the others are gone.
ROLE(outlived_by_graph) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const int rank = std::stoi(arguments[1]);
  const std::string how = arguments[2];
  REQUIRE_CUDA(cudaSetDevice(rank));
  const Buffers buffers;
  const size_t before = held();
  LocalRanks ranks(to_id(arguments[0]), kProcesses, rank, 1);
  cudaStream_t stream = ranks.streams[0];
  cudaGraphExec_t graph = capture(buffers, rank, ranks.comms[0], stream);
  const auto launch = [&] {
    buffers.set(rank);
    REQUIRE_CUDA(cudaGraphLaunch(graph, stream));
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    return buffers.are_right(rank);
  };
  if (!launch()) return 1;
  int received = 0;
  if (how == "abort") {
    std::printf("LAUNCHED\n");
    std::fflush(stdout);
    sigwait(&signals, &received);  // peers may need data that are on their way
    REQUIRE_NCCL(ncclCommAbort(ranks.comms[0]));
    launch();  // ends
  } else {
    REQUIRE_NCCL(ncclCommDestroy(ranks.comms[0]));
    for (int time = 0; time < 3; ++time)
      if (!launch()) return 2;
  }
  // An abort ends proxies at once.
  if (how != "abort" && held() <= before) return 3;
  if (how == "linger") {
    std::printf("LAUNCHED\n");
    std::fflush(stdout);
    sigwait(&signals, &received);
  }
  REQUIRE_CUDA(cudaGraphExecDestroy(graph));
  // A thread gives back what the graph has used.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (held() > before) {
    if (std::chrono::steady_clock::now() > limit) return 4;
    std::this_thread::yield();
  }
  return 0;
}

struct End {
  const char* how;
  bool on_machines;         // each process as if on its own
  bool has_plugin = false;  // which carries the data
};

class GraphsThatOutliveProcesses : public testing::TestWithParam<End> {};

std::vector<Process> start(const std::string& how) {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (int rank = 0; rank < kProcesses; ++rank) {
    Process::Environment environment{{"NCCL_SET_THREAD_NAME", "1"}};
    if (GraphsThatOutliveProcesses::GetParam().on_machines)
      environment["NCCL_HOSTID"] = "machine" + std::to_string(rank);
    if (GraphsThatOutliveProcesses::GetParam().has_plugin)
      environment["NCCL_NET_PLUGIN"] = NET_PLUGINS "/libnccl-net-NOTHING.so";
    processes.emplace_back(
        "outlived_by_graph",
        Arguments{to_text(id), std::to_string(rank), how == "linger" && rank > 0 ? "destroy" : how},
        environment);
  }
  return processes;
}

TEST_P(GraphsThatOutliveProcesses, AreLaunchedAndReleaseWhatTheyUse) {
  std::vector<Process> processes = start(GetParam().how);
  const std::string how = GetParam().how;
  if (how == "linger") {
    for (int rank = 1; rank < kProcesses; ++rank)
      EXPECT_EQ(processes[static_cast<size_t>(rank)].wait(), 0);
    ASSERT_TRUE(processes[0].wait_for_line("LAUNCHED")) << processes[0].output();
    processes[0].kill(SIGUSR1);
  }
  if (how == "abort") {
    for (Process& process : processes)
      ASSERT_TRUE(process.wait_for_line("LAUNCHED")) << process.output();
    for (Process& process : processes) process.kill(SIGUSR1);
  }
  for (Process& process : processes) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    // That peers end is no news for a graph that nobody launches.
    EXPECT_THAT(process.output(), testing::Not(testing::HasSubstr("WARN")));
  }
}

INSTANTIATE_TEST_SUITE_P(Of, GraphsThatOutliveProcesses,
                         testing::Values(End{"destroy", false}, End{"destroy", true},
                                         End{"abort", false}, End{"abort", true},
                                         End{"linger", false}, End{"linger", true},
                                         End{"destroy", true, true}, End{"abort", true, true}),
                         [](const auto& instance) {
                           return std::string(instance.param.how) +
                                  (instance.param.on_machines ? "BetweenMachines" : "") +
                                  (instance.param.has_plugin ? "ByAPlugin" : "");
                         });

// id, id of another communicator, rank: rank 0 destroys the first one and launches its graph after
// a signal; rank 1 does nothing more.
ROLE(outlives_its_peer) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const int rank = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), 2, rank, 1);
  // The process goes on hearing of its peers.
  LocalRanks other(to_id(arguments[1]), 2, rank, 1);
  cudaStream_t stream = ranks.streams[0];
  float* buffer = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE_CUDA(cudaMalloc(&buffer, kNumbers * sizeof(float)));
  REQUIRE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  REQUIRE_NCCL(ncclAllReduce(buffer, buffer, kNumbers, ncclFloat, ncclSum, ranks.comms[0], stream));
  REQUIRE_CUDA(cudaStreamEndCapture(stream, &graph));
  REQUIRE_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  REQUIRE_CUDA(cudaGraphLaunch(executable, stream));
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  if (rank == 0) REQUIRE_NCCL(ncclCommDestroy(ranks.comms[0]));
  std::printf("LAUNCHED\n");
  std::fflush(stdout);
  int received = 0;
  sigwait(&signals, &received);
  REQUIRE_CUDA(cudaGraphLaunch(executable, stream));
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  std::printf("ENDED\n");
  std::fflush(stdout);
  REQUIRE_NCCL(ncclCommAbort(other.comms[0]));
  return 0;
}

// Nobody could abort the communicator, which is no more.
TEST(GraphOfADestroyedCommunicator, EndsWithAWarningWhenItsPeerDies) {
  ncclUniqueId first, second;
  ASSERT_EQ(ncclGetUniqueId(&first), ncclSuccess);
  ASSERT_EQ(ncclGetUniqueId(&second), ncclSuccess);
  std::vector<Process> processes;
  for (int rank = 0; rank < 2; ++rank)
    processes.emplace_back("outlives_its_peer",
                           Arguments{to_text(first), to_text(second), std::to_string(rank)},
                           Process::Environment{{"NCCL_HOSTID", "machine" + std::to_string(rank)},
                                                {"NCCL_SOCKET_RETRY_CNT", "1"}});
  for (Process& process : processes)
    ASSERT_TRUE(process.wait_for_line("LAUNCHED")) << process.output();
  processes[1].kill(SIGKILL);
  processes[0].kill(SIGUSR1);
  EXPECT_EQ(processes[0].wait(), 0) << processes[0].output();
  EXPECT_THAT(processes[0].output(),
              testing::AllOf(testing::HasSubstr("ENDED"),
                             testing::HasSubstr("rank 0: a destroyed communicator whose operations "
                                                "graphs still hold lost a connection; from now on "
                                                "their launches end without results: "),
                             testing::HasSubstr("rank 1 (process")));
}

}  // namespace
}  // namespace niccolite::test
