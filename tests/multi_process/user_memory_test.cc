// Networks that read and write the buffers of virtual GPUs' users themselves, between processes
// that meet as if they were on several machines: results, and whose the buffers are after an abort.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <thread>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;

std::string make_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  return to_text(id);
}

Process::Environment on_machine(int number, Process::Environment environment) {
  environment["NCCL_HOSTID"] = fmt::format("machine{}", number);
  environment.emplace("NICCOLITE_NET_DIRECT_BYTES", "1");
  return environment;
}

class Carriers : public testing::TestWithParam<std::string> {
 protected:
  Process::Environment environment() const {
    if (GetParam() == "several_sockets")
      return {{"NCCL_NSOCKS_PERTHREAD", "3"}, {"NCCL_SOCKET_MIN_TASKSIZE", "4096"}};
    if (GetParam() == "plugin") return {{"NCCL_NET_PLUGIN", NET_PLUGINS "/libnccl-net-NOTHING.so"}};
    return {};
  }
};

TEST_P(Carriers, BringEveryOperationsResultsToUsersBuffers) {
  const std::string one = make_id(), two = make_id();
  std::vector<Process> running;
  for (const int machine : {0, 1})
    running.emplace_back("perform", Arguments{one, two, "4", std::to_string(2 * machine), "2"},
                         on_machine(machine, environment()));
  for (Process& process : running) EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
}

// id rank turn: messages both ways, until the communicator is aborted in the middle of one.
ROLE(aborted_while_bytes_travel) {
  constexpr size_t kBytes = 24 << 20;
  constexpr int kMessages = 4;
  const int rank = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), 2, rank, 1);
  std::vector<void*> buffers(2);
  for (void*& buffer : buffers) {
    REQUIRE_CUDA(cudaMalloc(&buffer, kBytes));
    REQUIRE_CUDA(cudaMemset(buffer, 1, kBytes));
  }
  cudaEvent_t events[kMessages];
  for (cudaEvent_t& event : events) {
    REQUIRE_CUDA(cudaEventCreate(&event));
    REQUIRE_NCCL(ncclGroupStart());
    REQUIRE_NCCL(
        ncclSend(buffers[0], kBytes, ncclInt8, 1 - rank, ranks.comms[0], ranks.streams[0]));
    REQUIRE_NCCL(
        ncclRecv(buffers[1], kBytes, ncclInt8, 1 - rank, ranks.comms[0], ranks.streams[0]));
    REQUIRE_NCCL(ncclGroupEnd());
    REQUIRE_CUDA(cudaEventRecord(event, ranks.streams[0]));
  }
  // The first is done; how far the second is by now, nobody knows.
  REQUIRE_CUDA(cudaEventSynchronize(events[0]));
  for (int turn = std::stoi(arguments[2]) * 3'000; turn > 0; --turn)
    static_cast<void>(cudaEventQuery(events[1]));
  // From the end of the kernels on the buffers are the program's, though the network may be there.
  std::thread user([&] {
    REQUIRE_CUDA(cudaSetDevice(rank));
    REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
    for (void* const buffer : buffers) REQUIRE_CUDA(cudaMemset(buffer, 0xee, kBytes));
  });
  REQUIRE_NCCL(ncclCommAbort(ranks.comms[0]));
  user.join();
  bool is_left_alone = true;
  std::vector<unsigned char> values(kBytes);
  for (void* const buffer : buffers) {
    REQUIRE_CUDA(cudaMemcpy(values.data(), buffer, kBytes, cudaMemcpyDeviceToHost));
    is_left_alone &= std::ranges::all_of(values, [](unsigned char value) { return value == 0xee; });
    REQUIRE_CUDA(cudaFree(buffer));
  }
  return is_left_alone ? 0 : 1;
}

TEST_P(Carriers, LeaveBuffersOfAnAbortedCommunicatorAlone) {
  for (int turn = 0; turn < 6; ++turn) {
    SCOPED_TRACE(turn);
    const std::string id = make_id();
    std::vector<Process> running;
    for (const int rank : {0, 1})
      running.emplace_back("aborted_while_bytes_travel",
                           Arguments{id, std::to_string(rank), std::to_string(turn + rank)},
                           on_machine(rank, environment()));
    for (Process& process : running) EXPECT_EQ(process.wait(seconds(60)), 0) << process.output();
  }
}

INSTANTIATE_TEST_SUITE_P(, Carriers, testing::Values("sockets", "several_sockets", "plugin"),
                         [](const auto& carrier) { return carrier.param; });

}  // namespace
}  // namespace niccolite::test
