// Multicast teams (NVLS) of ranks in several processes: right results by a team, and right results
// without one, whatever goes wrong when it is made.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl_device.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// id nranks first count: initialization, all-reduces, and all-reduces of a split of all ranks.
ROLE(by_team) {
  const int nranks = std::stoi(arguments[1]), count = std::stoi(arguments[3]);
  LocalRanks local(to_id(arguments[0]), nranks, std::stoi(arguments[2]), count);
  for (const size_t elements : {size_t{1}, size_t{1003}, size_t{300'007}, size_t{64}})
    if (!local.all_reduce(elements)) return 1;
  std::vector<ncclComm_t> children(local.comms.size());
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < children.size(); ++i)
    REQUIRE_NCCL(ncclCommSplit(local.comms[i], 0, 0, &children[i], nullptr));
  REQUIRE_NCCL(ncclGroupEnd());
  std::swap(children, local.comms);
  for (const size_t elements : {size_t{1}, size_t{300'007}})
    if (!local.all_reduce(elements)) return 1;
  std::swap(children, local.comms);
  for (const ncclComm_t child : children) REQUIRE_NCCL(ncclCommDestroy(child));
  local.destroy();
  return 0;
}

/// A communicator of each rank of `local`, of this color and key.
std::vector<ncclComm_t> split(const LocalRanks& local, int color, int key) {
  std::vector<ncclComm_t> made(local.comms.size());
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < made.size(); ++i)
    REQUIRE_NCCL(ncclCommSplit(local.comms[i], color, key, &made[i], nullptr));
  REQUIRE_NCCL(ncclGroupEnd());
  return made;
}

// id nranks first count: splits of all ranks, in their order and with the processes the other way
// round, and of this process's ranks alone.
ROLE(split_often) {
  const int first = std::stoi(arguments[2]);
  LocalRanks local(to_id(arguments[0]), std::stoi(arguments[1]), first, std::stoi(arguments[3]));
  if (!local.all_reduce(1003)) return 1;
  for (int round = 0; round < 3; ++round) {
    std::vector<ncclComm_t> one = split(local, 0, 0), two = split(local, 0, -first);
    for (std::vector<ncclComm_t>* const of : {&one, &two}) {
      std::swap(*of, local.comms);
      if (!local.all_reduce(300'007)) return 1;
      std::swap(*of, local.comms);
      if (!local.all_reduce(70'001)) return 1;
      for (const ncclComm_t comm : *of) REQUIRE_NCCL(ncclCommDestroy(comm));
    }
  }
  std::printf("PARTS\n");
  std::fflush(stdout);
  for (const ncclComm_t comm : split(local, first, 0)) REQUIRE_NCCL(ncclCommDestroy(comm));
  local.destroy();
  return 0;
}

/// Memory of each rank of a process, which is a window if it is registered.
class WindowsOf {
 public:
  WindowsOf(const LocalRanks& local, size_t bytes, bool is_registered = true)
      : local_(local), bytes_(bytes) {
    memory_.resize(local.comms.size());
    handles_.resize(local.comms.size());
    for (size_t i = 0; i < memory_.size(); ++i) {
      int device = 0;
      REQUIRE_NCCL(ncclCommCuDevice(local.comms[i], &device));
      REQUIRE_CUDA(cudaSetDevice(device));
      REQUIRE_NCCL(ncclMemAlloc(&memory_[i], bytes));
    }
    if (!is_registered) return;
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < memory_.size(); ++i)
      REQUIRE_NCCL(ncclCommWindowRegister(local.comms[i], memory_[i], bytes, &handles_[i],
                                          NCCL_WIN_COLL_SYMMETRIC));
    REQUIRE_NCCL(ncclGroupEnd());
  }
  float* at(size_t i, size_t offset) const {
    return reinterpret_cast<float*>(static_cast<std::byte*>(memory_[i]) + offset);
  }
  void deregister() {
    for (size_t i = 0; i < memory_.size(); ++i)
      REQUIRE_NCCL(ncclCommWindowDeregister(local_.comms[i], handles_[i]));
  }
  void fill() const {
    const std::vector<float> ones(bytes_ / sizeof(float), 1);
    for (void* const memory : memory_)
      REQUIRE_CUDA(cudaMemcpy(memory, ones.data(), bytes_, cudaMemcpyHostToDevice));
  }
  /// An all-reduce from the second half to the first one, `shift` bytes further on in each.
  void reduce(size_t count, size_t shift = 0) const {
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < memory_.size(); ++i)
      REQUIRE_NCCL(ncclAllReduce(at(i, bytes_ / 2 + shift), at(i, shift), count, ncclFloat, ncclSum,
                                 local_.comms[i], local_.streams[i]));
    REQUIRE_NCCL(ncclGroupEnd());
  }
  /// A graph of that on each rank.
  std::vector<cudaGraphExec_t> capture(size_t count, size_t shift = 0) const {
    std::vector<cudaGraphExec_t> graphs(local_.comms.size());
    for (const cudaStream_t stream : local_.streams)
      REQUIRE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    reduce(count, shift);
    for (size_t i = 0; i < graphs.size(); ++i) {
      cudaGraph_t graph = nullptr;
      REQUIRE_CUDA(cudaStreamEndCapture(local_.streams[i], &graph));
      REQUIRE_CUDA(cudaGraphInstantiate(&graphs[i], graph, 0));
      REQUIRE_CUDA(cudaGraphDestroy(graph));
    }
    return graphs;
  }
  void launch(const std::vector<cudaGraphExec_t>& graphs) const {
    for (size_t i = 0; i < graphs.size(); ++i)
      REQUIRE_CUDA(cudaGraphLaunch(graphs[i], local_.streams[i]));
  }
  bool have_sums(size_t count, int nranks) const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      REQUIRE_CUDA(cudaStreamSynchronize(local_.streams[i]));
      std::vector<float> found(bytes_ / sizeof(float));
      REQUIRE_CUDA(cudaMemcpy(found.data(), memory_[i], bytes_, cudaMemcpyDeviceToHost));
      for (size_t e = 0; e < found.size(); ++e)
        if (found[e] != (e < count ? static_cast<float>(nranks) : 1)) {
          std::printf("rank %zu of the process, element %zu: %g\n", i, e,
                      static_cast<double>(found[e]));
          return false;
        }
    }
    return true;
  }
  void free() {
    for (void* const memory : memory_) REQUIRE_NCCL(ncclMemFree(memory));
  }

 private:
  const LocalRanks& local_;
  const size_t bytes_;
  std::vector<void*> memory_;
  std::vector<ncclWindow_t> handles_;
};

// id nranks first count: all-reduces on windows, live and in a graph, which goes on when the
// windows have ended.
ROLE(by_team_on_windows) {
  const int nranks = std::stoi(arguments[1]), own = std::stoi(arguments[3]);
  LocalRanks local(to_id(arguments[0]), nranks, std::stoi(arguments[2]), own);
  WindowsOf windows(local, 4 << 20);
  const auto is_right = [&](size_t count) {
    windows.fill();
    windows.reduce(count);
    return windows.have_sums(count, nranks);
  };
  for (const size_t count : {size_t{4}, size_t{1003}, size_t{4096}, size_t{400'000}})
    if (!is_right(count)) return 1;
  constexpr size_t kCount = 200'000;
  const std::vector<cudaGraphExec_t> graphs = windows.capture(kCount);
  for (int round = 0; round < 4; ++round) {
    if (round == 2) windows.deregister();
    windows.fill();
    windows.launch(graphs);
    if (!windows.have_sums(kCount, nranks) || !is_right(4096)) return 2;
  }
  for (const cudaGraphExec_t graph : graphs) REQUIRE_CUDA(cudaGraphExecDestroy(graph));
  WindowsOf others(local, 2 << 20);  // in the room of the first
  others.fill();
  others.reduce(4096);
  if (!others.have_sums(4096, nranks)) return 3;
  others.deregister();
  local.destroy();
  windows.free();
  others.free();
  return 0;
}

// id nranks first count: live all-reduces on windows, where each process's first rank passes
// another offset from time to time.
ROLE(by_team_at_other_places) {
  const int nranks = std::stoi(arguments[1]);
  LocalRanks local(to_id(arguments[0]), nranks, std::stoi(arguments[2]), std::stoi(arguments[3]));
  WindowsOf windows(local, 4 << 20);
  constexpr size_t kCount = 100'000, kFurther = 4096 / sizeof(float);
  for (int round = 0; round < 4; ++round) {
    const size_t further = round % 2 == 0 ? 0 : kFurther;
    windows.fill();
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < local.comms.size(); ++i) {
      const size_t from = i == 0 ? further : 0;
      REQUIRE_NCCL(ncclAllReduce(windows.at(i, 2 << 20) + from, windows.at(i, 0) + from, kCount,
                                 ncclFloat, ncclSum, local.comms[i], local.streams[i]));
    }
    REQUIRE_NCCL(ncclGroupEnd());
    for (const cudaStream_t stream : local.streams) REQUIRE_CUDA(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < local.comms.size(); ++i) {
      std::vector<float> found(kCount + 2 * kFurther);
      REQUIRE_CUDA(cudaMemcpy(found.data(), windows.at(i, 0), found.size() * sizeof(float),
                              cudaMemcpyDeviceToHost));
      const size_t from = i == 0 ? further : 0;
      for (size_t e = 0; e < found.size(); ++e) {
        const bool is_sum = e >= from && e < from + kCount;
        if (found[e] != (is_sum ? static_cast<float>(nranks) : 1)) return 1;
      }
    }
  }
  windows.deregister();
  local.destroy();
  windows.free();
  return 0;
}

// id nranks first count: graphs of all-reduces on memory without a window, at one place of all
// ranks and at another one on each process, beside live ones.
ROLE(captured_by_team) {
  const int nranks = std::stoi(arguments[1]), first = std::stoi(arguments[2]);
  LocalRanks local(to_id(arguments[0]), nranks, first, std::stoi(arguments[3]));
  constexpr size_t kCount = 200'000;
  for (int turn = 0; turn < 3; ++turn) {
    WindowsOf memory(local, 4 << 20, /*is_registered=*/false);
    const std::vector<cudaGraphExec_t> same = memory.capture(kCount),
                                       other = memory.capture(kCount, first == 0 ? 0 : 4096);
    for (int round = 0; round < 3; ++round) {
      memory.fill();
      memory.launch(same);
      if (!memory.have_sums(kCount, nranks)) return 1;
      memory.fill();
      memory.launch(other);
      memory.reduce(16);
      for (const cudaStream_t stream : local.streams) REQUIRE_CUDA(cudaStreamSynchronize(stream));
      if (*memory.at(0, first == 0 ? kCount * 4 - 4 : kCount * 4 + 4092) !=
          static_cast<float>(nranks))
        return 2;
    }
    for (const auto& graphs : {same, other})
      for (const cudaGraphExec_t graph : graphs) REQUIRE_CUDA(cudaGraphExecDestroy(graph));
    memory.free();
  }
  local.destroy();
  return 0;
}

// id nranks first count: live all-reduces on registered memory, and then at other places of it.
ROLE(registered_by_team) {
  const int nranks = std::stoi(arguments[1]), first = std::stoi(arguments[2]);
  LocalRanks local(to_id(arguments[0]), nranks, first, std::stoi(arguments[3]));
  WindowsOf memory(local, 4 << 20, /*is_registered=*/false);
  std::vector<void*> handles(local.comms.size());
  for (size_t i = 0; i < handles.size(); ++i)
    REQUIRE_NCCL(ncclCommRegister(local.comms[i], memory.at(i, 0), 4 << 20, &handles[i]));
  for (int round = 0; round < 200; ++round) {
    const size_t count = 3000 + static_cast<size_t>(round) * 4;
    const bool is_looked_at = round % 10 == 0;  // buffers are compared after some dozens of calls
    if (is_looked_at) memory.fill();
    memory.reduce(count, round > 150 && first == 0 ? 4096 : 0);
    for (const cudaStream_t stream : local.streams) REQUIRE_CUDA(cudaStreamSynchronize(stream));
    if (!is_looked_at) continue;
    if (round > 150 ? *memory.at(0, first == 0 ? 4096 : 0) != static_cast<float>(nranks)
                    : !memory.have_sums(count, nranks))
      return 1;
  }
  for (size_t i = 0; i < handles.size(); ++i)
    REQUIRE_NCCL(ncclCommDeregister(local.comms[i], handles[i]));
  memory.fill();
  memory.reduce(4096);
  if (!memory.have_sums(4096, nranks)) return 2;
  local.destroy();
  memory.free();
  return 0;
}

// id nranks first count: all-reduces on windows without end, until the communicator fails.
ROLE(on_windows_until) {
  LocalRanks local(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]),
                   std::stoi(arguments[3]));
  WindowsOf windows(local, 16 << 20);
  ncclResult_t state = ncclSuccess;
  for (int round = 0; state == ncclSuccess; ++round) {
    std::printf("ROUND %d\n", round);
    std::fflush(stdout);
    for (size_t i = 0; i < local.comms.size() && state == ncclSuccess; ++i)
      state = ncclAllReduce(windows.at(i, 0), windows.at(i, 8 << 20), 1 << 20, ncclFloat, ncclSum,
                            local.comms[i], local.streams[i]);
    for (size_t i = 0; i < local.comms.size(); ++i)
      while (state == ncclSuccess && cudaStreamQuery(local.streams[i]) == cudaErrorNotReady)
        REQUIRE_NCCL(ncclCommGetAsyncError(local.comms[i], &state));
  }
  std::printf("FAILURE %d %s\n", state, ncclGetLastError(local.comms[0]));
  local.abort();
  windows.free();
  return 0;
}

// id nranks first count: the first operation is refused on all ranks.
ROLE(refused_by_team) {
  LocalRanks local(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]),
                   std::stoi(arguments[3]));
  if (local.start(100) == ncclInvalidUsage) std::printf("REFUSED %s\n", ncclGetLastError(nullptr));
  local.destroy();
  return 0;
}

/// Each rank stores to all copies of a window: the bytes are there, in all processes.
bool check_multicast(LocalRanks& local, int nranks, int first, ncclWindow_t* windows,
                     const std::vector<void*>& memories) {
  for (size_t i = 0; i < local.comms.size(); ++i) {
    void* all = nullptr;
    REQUIRE_CUDA(cudaSetDevice(first + static_cast<int>(i)));
    REQUIRE_NCCL(ncclGetLsaMultimemDevicePointer(windows[i], 0, &all));
    if (all == nullptr) {
      std::printf("NO ADDRESS\n");
      return false;
    }
    const int rank = first + static_cast<int>(i);
    REQUIRE_CUDA(cudaMemset(static_cast<char*>(all) + rank * 16, rank + 1, 16));
    REQUIRE_CUDA(cudaDeviceSynchronize());
  }
  if (!local.all_reduce(1)) return false;  // all have stored
  for (const void* memory : memories)
    for (int byte = 0; byte < nranks * 16; ++byte)
      if (static_cast<const char*>(memory)[byte] != byte / 16 + 1) {
        std::printf("byte %d is %d\n", byte, static_cast<const char*>(memory)[byte]);
        return false;
      }
  return local.all_reduce(1);  // all have looked
}

// id nranks first count: windows with multicast addresses, of before and of after.
ROLE(by_multicast) {
  const int nranks = std::stoi(arguments[1]), first = std::stoi(arguments[2]),
            count = std::stoi(arguments[3]);
  LocalRanks local(to_id(arguments[0]), nranks, first, count);
  const auto ranks = static_cast<size_t>(count);
  for (int round = 0; round < 3; ++round) {
    std::vector<void*> memories[2];
    std::vector<ncclWindow_t> windows[2];
    std::vector<ncclDevComm_t> devices(ranks);
    for (int each = 0; each < 2; ++each) {
      memories[each].resize(ranks);
      windows[each].resize(ranks);
      REQUIRE_NCCL(ncclGroupStart());
      for (size_t i = 0; i < ranks; ++i) {
        REQUIRE_CUDA(cudaSetDevice(first + static_cast<int>(i)));
        REQUIRE_NCCL(ncclMemAlloc(&memories[each][i], 8192));
        REQUIRE_NCCL(ncclCommWindowRegister(local.comms[i], memories[each][i], 8192,
                                            &windows[each][i], NCCL_WIN_COLL_SYMMETRIC));
      }
      REQUIRE_NCCL(ncclGroupEnd());
      if (each == 1) continue;
      REQUIRE_NCCL(ncclGroupStart());
      for (size_t i = 0; i < ranks; ++i) {
        ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
        needs.lsaMultimem = true;
        needs.lsaBarrierCount = 1;
        REQUIRE_NCCL(ncclDevCommCreate(local.comms[i], &needs, &devices[i]));
      }
      const ncclResult_t made = ncclGroupEnd();
      if (made == ncclInvalidArgument) {
        std::printf("REFUSED %s\n", ncclGetLastError(nullptr));
        return local.all_reduce(1003) ? 0 : 1;
      }
      REQUIRE_NCCL(made);
    }
    for (int each = 0; each < 2; ++each)
      if (!check_multicast(local, nranks, first, windows[each].data(), memories[each])) return 1;
    for (size_t i = 0; i < ranks; ++i) {
      REQUIRE_NCCL(ncclDevCommDestroy(local.comms[i], &devices[i]));
      for (int each = 0; each < 2; ++each) {
        REQUIRE_NCCL(ncclCommWindowDeregister(local.comms[i], windows[each][i]));
        REQUIRE_NCCL(ncclMemFree(memories[each][i]));
      }
    }
  }
  local.destroy();
  return 0;
}

// id nranks first count: windows that cannot be bound to the team, of before and of after it is
// made, and a device communicator whose own memory cannot be bound.
ROLE(without_addresses) {
  LocalRanks local(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]),
                   std::stoi(arguments[3]));
  const size_t ranks = local.comms.size();
  constexpr size_t kBytes = 8192;
  std::vector<void*> memories[2];
  std::vector<ncclWindow_t> windows[2];
  std::vector<ncclDevComm_t> devices(ranks);
  const auto create = [&](int barriers) {
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < ranks; ++i) {
      ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
      needs.lsaMultimem = true;
      needs.lsaBarrierCount = barriers;
      REQUIRE_NCCL(ncclDevCommCreate(local.comms[i], &needs, &devices[i]));
    }
    return ncclGroupEnd();
  };
  for (int each = 0; each < 2; ++each) {
    memories[each].resize(ranks);
    windows[each].resize(ranks);
    REQUIRE_NCCL(ncclGroupStart());
    for (size_t i = 0; i < ranks; ++i) {
      REQUIRE_CUDA(cudaSetDevice(std::stoi(arguments[2]) + static_cast<int>(i)));
      REQUIRE_NCCL(ncclMemAlloc(&memories[each][i], kBytes));
      REQUIRE_NCCL(ncclCommWindowRegister(local.comms[i], memories[each][i], kBytes,
                                          &windows[each][i], NCCL_WIN_COLL_SYMMETRIC));
    }
    REQUIRE_NCCL(ncclGroupEnd());
    if (each == 0) REQUIRE_NCCL(create(/*barriers=*/0));
    if (!local.all_reduce(300'007)) return 1;
  }
  for (const std::vector<ncclWindow_t>& of : windows)
    for (const ncclWindow_t window : of) {
      void* address = window;
      REQUIRE_NCCL(ncclGetLsaMultimemDevicePointer(window, 0, &address));
      std::printf("%s\n", address == nullptr ? "NO ADDRESS" : "AN ADDRESS");
      REQUIRE_NCCL(ncclGetLsaDevicePointer(window, 0, 0, &address));
      if (address == nullptr) return 1;
    }
  std::vector<ncclDevComm_t> first = devices;
  if (create(/*barriers=*/1) != ncclInvalidArgument) return 1;
  std::printf("REFUSED %s\n", ncclGetLastError(nullptr));
  if (!local.all_reduce(1003)) return 1;
  for (size_t i = 0; i < ranks; ++i) {
    REQUIRE_NCCL(ncclDevCommDestroy(local.comms[i], &first[i]));
    for (int each = 0; each < 2; ++each) {
      REQUIRE_NCCL(ncclCommWindowDeregister(local.comms[i], windows[each][i]));
      REQUIRE_NCCL(ncclMemFree(memories[each][i]));
    }
  }
  local.destroy();
  return 0;
}

std::string text_of_new_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  return to_text(id);
}

/// Two processes of `each` ranks; the environments are theirs.
std::vector<Process> run(const char* role, int each, const Process::Environment& first,
                         const Process::Environment& second) {
  const std::string id = text_of_new_id(), all = std::to_string(2 * each),
                    own = std::to_string(each);
  std::vector<Process> running;
  running.emplace_back(role, Arguments{id, all, "0", own}, first);
  running.emplace_back(role, Arguments{id, all, own, own}, second);
  return running;
}

TEST(NvlsOverProcesses, ATeamGivesRightResults) {
  for (const int each : {1, 2, 4}) {
    const Process::Environment environment{
        {"NCCL_ALGO", "NVLS"}, {"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "NVLS,TUNING"}};
    std::vector<Process> running = run("by_team", each, environment, environment);
    for (Process& process : running) {
      EXPECT_EQ(process.wait(), 0) << process.output();
      EXPECT_THAT(process.output(), HasSubstr("NVLS multicast support is available on dev"));
    }
    EXPECT_THAT(running[0].output(), HasSubstr("Algo NVLS proto SIMPLE"));
  }
}

TEST(NvlsOverProcesses, WordsThatOneRankStoresToAllAreRight) {
  for (const int each : {1, 4}) {
    const Process::Environment environment{{"NCCL_ALGO", "NVLS"},
                                           {"NCCL_PROTO", "LL"},
                                           {"NCCL_DEBUG", "INFO"},
                                           {"NCCL_DEBUG_SUBSYS", "TUNING"}};
    std::vector<Process> running = run("by_team", each, environment, environment);
    for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(running[0].output(), HasSubstr("Algo NVLS proto LL"));
  }
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(NvlsOverProcesses, SplitsOfAllRanksShareOneTeam) {
  const Process::Environment environment{
      {"NCCL_ALGO", "NVLS,ring"}, {"NCCL_DEBUG", "TRACE"}, {"NCCL_DEBUG_SUBSYS", "NVLS"}};
  std::vector<Process> running = run("split_often", 2, environment, environment);
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
  const std::string& text = running[0].output();
  const std::string until = text.substr(0, text.find("PARTS"));
  EXPECT_EQ(count_of(until, "multicast: create a team"), 1u) << text;
  EXPECT_EQ(count_of(until, "by the team of the communicator that it is made from"), 2u * 6)
      << text;
  // A team of all ranks is of no use to some of them.
  EXPECT_EQ(count_of(text, "multicast: create a team"), 2u) << text;
}

// Machines of two ranks each: a communicator of the ranks of one has that machine's team.
TEST(NvlsOverProcesses, SplitsOfWholeMachinesShareTheirTeams) {
  Process::Environment first{{"NCCL_ALGO", "NVLS,NVLSTree,ring"},
                             {"NCCL_HOSTID", "one"},
                             {"NCCL_DEBUG", "TRACE"},
                             {"NCCL_DEBUG_SUBSYS", "NVLS"}};
  Process::Environment second = first;
  second["NCCL_HOSTID"] = "two";
  std::vector<Process> running = run("split_often", 2, first, second);
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_EQ(count_of(process.output(), "multicast: create a team"), 1u) << process.output();
    EXPECT_EQ(count_of(process.output(), "by the team of the communicator that it is made from"),
              2u * 7)
        << process.output();
  }
}

TEST(NvlsOverProcesses, ASplitWhoseMemoryCannotBeBoundDoesWithout) {
  const Process::Environment environment{{"NCCL_NVLS_ENABLE", "1"}};
  Process::Environment broken = environment;
  broken["NICCOLITE_VIRTUAL_FAULT"] = "unbound_later";
  std::vector<Process> running = run("by_team", 2, environment, broken);
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_EQ(count_of(running[0].output(),
                     "no NVLS multicast, so operations go other ways: rank 2: binding memory"),
            1u)
      << running[0].output();
  EXPECT_THAT(running[1].output(), Not(HasSubstr("no NVLS multicast")));
}

TEST(NvlsOverProcesses, OperationsOnWindowsAreRight) {
  for (const int each : {1, 2, 4}) {
    const Process::Environment environment{
        {"NCCL_ALGO", "NVLS"}, {"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "NVLS,TUNING"}};
    std::vector<Process> running = run("by_team_on_windows", each, environment, environment);
    for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(running[0].output(), HasSubstr("Algo NVLS proto SIMPLE"));
    EXPECT_THAT(running[0].output(), HasSubstr("operations by the team load and store symmetric"));
  }
}

TEST(NvlsOverProcesses, CapturedOperationsNeedNoWindow) {
  for (const int each : {1, 2}) {
    const Process::Environment environment{
        {"NCCL_ALGO", "NVLS"}, {"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "NVLS"}};
    std::vector<Process> running = run("captured_by_team", each, environment, environment);
    for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(running[0].output(),
                HasSubstr("operations by the team load and store the 4194304 bytes"));
  }
}

TEST(NvlsOverProcesses, RegisteredBuffersNeedNoWindow) {
  for (const int each : {1, 2}) {
    const Process::Environment environment{
        {"NCCL_ALGO", "NVLS"}, {"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "NVLS"}};
    std::vector<Process> running = run("registered_by_team", each, environment, environment);
    for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(running[0].output(),
                HasSubstr("operations by the team load and store the 4194304 bytes"));
  }
}

TEST(NvlsOverProcesses, CapturedBuffersThatCannotBeBoundGoThroughSlots) {
  const Process::Environment environment{{"NCCL_ALGO", "NVLS"}};
  Process::Environment broken{{"NCCL_ALGO", "NVLS"}, {"NICCOLITE_VIRTUAL_FAULT", "unbound_later"}};
  std::vector<Process> running = run("captured_by_team", 2, environment, broken);
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(running[0].output(), HasSubstr("a window has no multicast addresses: rank 2"));
}

TEST(NvlsOverProcesses, ARankThatDiesWhileOthersStoreToItsWindowIsAnError) {
  std::vector<Process> running =
      run("on_windows_until", 1, {{"NCCL_ALGO", "NVLS"}}, {{"NCCL_ALGO", "NVLS"}});
  for (Process& process : running)
    ASSERT_TRUE(process.wait_for_line("ROUND 5")) << process.output();
  running[1].kill(SIGKILL);
  EXPECT_EQ(running[0].wait(seconds(30)), 0) << running[0].output();
  EXPECT_THAT(running[0].output(), ContainsRegex("FAILURE 6 .*rank 1.*ended"));
}

// The team is there; but some rank cannot bind its windows.
TEST(NvlsOverProcesses, WindowsThatCannotBeBoundGoThroughSlots) {
  const Process::Environment environment{{"NCCL_ALGO", "NVLS"}};
  Process::Environment broken{{"NCCL_ALGO", "NVLS"}, {"NICCOLITE_VIRTUAL_FAULT", "unbound_later"}};
  std::vector<Process> running = run("by_team_on_windows", 2, environment, broken);
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(running[0].output(), HasSubstr("a window has no multicast addresses: rank 2"));
}

// Teams inside two machines, and the network between them. Each machine is a process.
std::vector<Process> run_on_two_machines(const char* role, int each, const char* fault = nullptr) {
  Process::Environment first{{"NCCL_ALGO", "allreduce:NVLSTree"},
                             {"NCCL_HOSTID", "one"},
                             {"NCCL_DEBUG", "INFO"},
                             {"NCCL_DEBUG_SUBSYS", "NVLS,TUNING"}};
  Process::Environment second = first;
  second["NCCL_HOSTID"] = "two";
  if (fault != nullptr) second["NICCOLITE_VIRTUAL_FAULT"] = fault;
  return run(role, each, first, second);
}

TEST(NvlsOverProcesses, ATreeOfTeamsGivesRightResults) {
  for (const int each : {2, 3}) {
    std::vector<Process> running = run_on_two_machines("by_team", each);
    for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(running[0].output(), HasSubstr("Algo NVLS_TREE proto SIMPLE"));
  }
}

TEST(NvlsOverProcesses, ATreeOfTeamsLoadsAndStoresBuffersThemselves) {
  const std::pair<const char*, const char*> rows[] = {
      {"by_team_on_windows", "load and store symmetric windows themselves"},
      {"by_team_at_other_places", "load and store symmetric windows themselves"},
      {"captured_by_team", "load and store the 4194304 bytes"},
      {"registered_by_team", "load and store the 4194304 bytes"}};
  for (const auto& [role, line] : rows)
    for (const int each : {2, 3}) {
      SCOPED_TRACE(fmt::format("{} of 2 x {} ranks", role, each));
      std::vector<Process> running = run_on_two_machines(role, each);
      for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
      EXPECT_THAT(running[0].output(), HasSubstr("Algo NVLS_TREE proto SIMPLE"));
      EXPECT_THAT(running[0].output(), HasSubstr(line));
    }
}

// Windows of one machine cannot be bound: operations go through slots on both.
TEST(NvlsOverProcesses, ATreeOfTeamsWithoutWindowsOfOneMachineGoesThroughSlots) {
  std::vector<Process> running = run_on_two_machines("by_team_on_windows", 2, "unbound_later");
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(running[0].output(), HasSubstr("a window has no multicast addresses: rank 2"));
}

TEST(NvlsOverProcesses, WhatFailsOnOneRankIsDoneWithoutOnAll) {
  for (const std::string fault : {"unbound", "hung"}) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<Process> running =
        run("by_team", 2, {{"NCCL_NVLS_ENABLE", "1"}}, {{"NICCOLITE_VIRTUAL_FAULT", fault}});
    for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(50)) << fault;
    const std::string& text = running[0].output();
    const size_t at = text.find("no NVLS multicast, so operations go other ways: rank 2: binding");
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_THAT(text.substr(at), HasSubstr("NCCL_NVLS_ENABLE=0 on all ranks"));
    EXPECT_EQ(text.find("no NVLS multicast", at + 1), std::string::npos) << "once\n" << text;
    EXPECT_THAT(running[1].output(), Not(HasSubstr("no NVLS multicast")));
  }
}

TEST(NvlsOverProcesses, ATeamThatLosesStoresIsNotTrusted) {
  const Process::Environment environment{{"NCCL_NVLS_ENABLE", "1"},
                                         {"NICCOLITE_VIRTUAL_FAULT", "deaf"}};
  std::vector<Process> running = run("by_team", 2, environment, environment);
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(running[0].output(),
              ContainsRegex("no NVLS multicast, so operations go other ways: rank [0-3]: trying a "
                            "multicast team: what the members have stored to the team has not "
                            "arrived"));
}

TEST(NvlsOverProcesses, OneRankThatDoesWithoutIsEnough) {
  const Process::Environment log{
      {"NCCL_NVLS_ENABLE", "1"}, {"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "NVLS"}};
  Process::Environment without = log;
  without["NCCL_NVLS_ENABLE"] = "0";
  std::vector<Process> running = run("by_team", 1, log, without);
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(running[0].output(),
              HasSubstr("NVLS multicast support is not available: rank 1: NCCL_NVLS_ENABLE=0"));

  const Process::Environment only{{"NCCL_ALGO", "NVLS"}};
  running = run("refused_by_team", 1, only, {{"NCCL_ALGO", "NVLS"}, {"NCCL_NVLS_ENABLE", "0"}});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("REFUSED"));
    EXPECT_THAT(process.output(), HasSubstr("the ranks have no multicast team"));
  }
}

TEST(NvlsOverProcesses, WindowsHaveMulticastAddresses) {
  for (const int each : {1, 3}) {
    std::vector<Process> running = run("by_multicast", each, {}, {});
    for (Process& process : running) {
      EXPECT_EQ(process.wait(), 0) << process.output();
      EXPECT_THAT(process.output(), Not(HasSubstr("REFUSED")));
    }
  }
}

TEST(NvlsOverProcesses, WindowsOfRanksThatDoWithoutHaveNone) {
  const Process::Environment without[] = {{{"NCCL_NVLS_ENABLE", "0"}},
                                          {{"NICCOLITE_VIRTUAL_FAULT", "unbound"}}};
  const char* const reasons[] = {"rank 1: NCCL_NVLS_ENABLE=0",
                                 "rank 1: binding memory to a multicast team"};
  for (size_t i = 0; i < 2; ++i) {
    std::vector<Process> running = run("by_multicast", 1, {}, without[i]);
    for (Process& process : running) {
      EXPECT_EQ(process.wait(), 0) << process.output();
      EXPECT_THAT(process.output(), HasSubstr("REFUSED"));
      EXPECT_THAT(process.output(), HasSubstr(reasons[i]));
    }
  }
}

// The team itself works: its slots, and the memory of its trial.
TEST(NvlsOverProcesses, AWindowThatCannotBeBoundIsOneLineAndTheRestWorks) {
  Process::Environment broken{{"NICCOLITE_VIRTUAL_FAULT", "unbound_later"}};
  std::vector<Process> running = run("without_addresses", 2, {}, broken);
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_EQ(count_of(process.output(), "NO ADDRESS"), 2u * 2) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("REFUSED"));
  }
  const std::string line =
      "a window has no multicast addresses: rank 2: window {} of the communicator: binding a "
      "window to a multicast team";
  for (const int window : {0, 1})  // each window once, and by rank 0
    EXPECT_EQ(count_of(running[0].output(), fmt::format(fmt::runtime(line), window)), 1u)
        << running[0].output();
  EXPECT_THAT(running[0].output(), HasSubstr("NCCL_NVLS_ENABLE=0 on all ranks"));
  EXPECT_THAT(running[1].output(), Not(HasSubstr("a window has no multicast addresses")));
}

// The virtual driver has a line for each call about multicast.
TEST(NvlsOverProcesses, WhereItIsOffNothingIsAskedOfTheDriver) {
  const Process::Environment log{{"NCCL_DEBUG", "TRACE"}, {"NCCL_DEBUG_SUBSYS", "NVLS"}};
  const auto with = [&](Process::Environment more) {
    more.insert(log.begin(), log.end());
    return more;
  };
  const Process::Environment off = with({{"NCCL_NVLS_ENABLE", "0"}});
  const Process::Environment on = with({{"NCCL_NVLS_ENABLE", "1"}});
  const Process::Environment named = with({{"NCCL_NVLS_ENABLE", "0"}, {"NCCL_ALGO", "NVLS,ring"}});
  for (const char* const role : {"by_team", "split_often", "by_multicast"}) {
    for (const Process::Environment& one : {off, named})
      for (Process& process : run(role, 2, one, one)) {
        EXPECT_EQ(process.wait(), 0) << process.output();
        EXPECT_THAT(process.output(), Not(HasSubstr("multicast: "))) << role;
      }
    // One process does without, and so do all; but only this one asks nothing.
    std::vector<Process> running = run(role, 2, on, off);
    for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(running[1].output(), Not(HasSubstr("multicast: "))) << role;
    // With it, the lines are there.
    running = run(role, 2, on, on);
    for (Process& process : running) {
      EXPECT_EQ(process.wait(), 0) << process.output();
      for (const char* const call : {"can virtual GPU", "granularity", "add", "bind", "map"})
        EXPECT_THAT(process.output(), HasSubstr(fmt::format("multicast: {}", call))) << role;
    }
  }
}

TEST(NvlsOverProcesses, AMemberThatDiesWhileItsTeamIsMadeIsAnErrorOfTheOthers) {
  std::vector<Process> running = run("by_team", 1, {{"NCCL_NVLS_ENABLE", "1"}},
                                     {{"NICCOLITE_VIRTUAL_FAULT", "hung"}, {"NCCL_DEBUG", "INFO"}});
  ASSERT_TRUE(running[1].wait_for_line("Init START"));
  // It joins in milliseconds, and hangs for seconds. Should it die before, the error is the same.
  std::this_thread::sleep_for(seconds(2));
  running[1].kill(SIGKILL);
  EXPECT_EQ(running[0].wait(seconds(30)), 10 + ncclRemoteError) << running[0].output();
}

}  // namespace
}  // namespace niccolite::test
