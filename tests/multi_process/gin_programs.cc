#include "tests/multi_process/gin_programs.h"

#include <niccolite/device.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <thread>

namespace niccolite::test {
namespace {

using device::Buffer;
using device::Comm;
using device::Network;
using device::ThisBlock;

constexpr int kBarriers = 2;
constexpr int kContexts = 2;

/// Words of a window: for each rank `each` that come, go, and are got back; a value of each rank,
/// and a signal.
struct Places {
  size_t n, each;
  __device__ size_t in(int rank) const { return static_cast<size_t>(rank) * each; }
  __device__ size_t out(int rank) const { return (n + static_cast<size_t>(rank)) * each; }
  __device__ size_t back(int rank) const { return (2 * n + static_cast<size_t>(rank)) * each; }
  __device__ size_t value(int rank) const { return 3 * n * each + static_cast<size_t>(rank); }
  __device__ size_t sum() const { return 3 * n * each + n; }
};
constexpr size_t words_of_context(size_t n, size_t each) { return 3 * n * each + n + 1; }

/// A team's numbers, in packs of two words, and a pack of sums of each rank.
constexpr size_t words_of_team(size_t team) { return (team + 1) / 2 * 2 + 2 * team; }

__device__ uint64_t word_of(int round, int from, int to, size_t i) {
  return static_cast<uint64_t>(round) * 1'000'000'000 + static_cast<uint64_t>(from) * 10'000'000 +
         static_cast<uint64_t>(to) * 1'000'000 + i;
}

// Barriers of NVIDIA's headers have a signal for each rank, too.
__device__ bool meet(Network<ThisBlock>& network, uint32_t first_signal, uint64_t epoch) {
  for (int peer = 0; peer < network.nranks(); ++peer)
    network.signal(peer, first_signal + static_cast<uint32_t>(network.rank()));
  for (int peer = 0; peer < network.nranks(); ++peer)
    if (!network.wait(first_signal + static_cast<uint32_t>(peer), epoch)) return false;
  return true;
}

__global__ void exchange(Comm comm, ncclWindow_t window, size_t each, int rounds, uint32_t barriers,
                         int* errors, int* ends) {
  Network network(ThisBlock(), comm, static_cast<int>(blockIdx.x));
  const int n = network.nranks(), rank = network.rank();
  const Places at{static_cast<size_t>(n), each};
  const size_t words = words_of_context(at.n, each);
  const Buffer<uint64_t> data(window, words, blockIdx.x * words * sizeof(uint64_t));
  const uint32_t barrier = barriers + blockIdx.x * static_cast<uint32_t>(n);
  const auto all = static_cast<uint64_t>(n);
  for (int round = 1; round <= rounds; ++round) {
    const auto past = static_cast<uint64_t>(round);
    for (int peer = 0; peer < n; ++peer)
      for (size_t i = threadIdx.x; i < each; i += blockDim.x)
        data.own()[at.out(peer) + i] = word_of(round, rank, peer, i);
    for (int peer = 0; peer < n; ++peer) {
      if (round % 2 == 0)
        network.put(data, at.in(rank), peer, data, at.out(peer), each);
      else
        network.put_counted(data, at.in(rank), peer, data, at.out(peer), each, 1);
      network.signal(peer, 1, 3);
    }
    if (!network.wait_counter(1, (past + 1) / 2 * all) || !network.wait(1, 3 * past * all)) return;
    for (int peer = 0; peer < n; ++peer)
      for (size_t i = threadIdx.x; i < each; i += blockDim.x)
        if (data.own()[at.in(peer) + i] != word_of(round, peer, rank, i)) atomicAdd(errors, 1);
    for (int peer = 0; peer < n; ++peer)
      network.get(data, at.out(rank), peer, data, at.back(peer), each);
    if (!network.flush()) return;
    __syncthreads();
    for (int peer = 0; peer < n; ++peer)
      for (size_t i = threadIdx.x; i < each; i += blockDim.x)
        if (data.own()[at.back(peer) + i] != word_of(round, peer, rank, i)) atomicAdd(errors, 1);
    for (int peer = 0; peer < n; ++peer) {
      network.put_value(data, at.value(rank), peer, word_of(round, rank, peer, 7));
      network.signal_at(data, at.sum(), peer, 2);
    }
    if (!network.wait_at(data, at.sum(), 2 * past * all)) return;
    if (!meet(network, barrier, 2 * past - 1)) return;
    if (threadIdx.x == 0)
      for (int peer = 0; peer < n; ++peer)
        if (data.own()[at.value(peer)] != word_of(round, peer, rank, 7)) atomicAdd(errors, 1);
    if (!meet(network, barrier, 2 * past)) return;
  }
  if (threadIdx.x == 0) atomicAdd(ends, 1);
}

// Ranks of a team store their numbers in each other's memory. Then each rank adds a pack over all,
// and stores the sums to all: behind the numbers.
__global__ void meet_in_team(Comm comm, Buffer<uint64_t> data) {
  device::Barrier barrier(ThisBlock(), comm, 0);
  const auto team = static_cast<size_t>(comm.nranks());
  const auto rank = static_cast<size_t>(comm.rank());
  if (threadIdx.x == 0)
    for (int peer = 0; peer < comm.nranks(); ++peer)
      data.of(peer)[rank] = static_cast<uint64_t>(rank) + 1;
  if (!barrier.sync()) return;
  if (threadIdx.x == 0)
    device::store_all(comm, data, words_of_team(team) - 2 * (team - rank),
                      device::load_reduce(comm, data, 0).rounded());
  barrier.sync();
}

// Puts until the word at the end of the window says that it is enough.
__global__ void put_on(Comm comm, Buffer<uint64_t> data) {
  Network network(ThisBlock(), comm, 0);
  const size_t each = data.count() / 4;
  const int peer = 1 - network.rank();
  for (;;) {
    network.put(data, 0, peer, data, each, each);
    network.signal(peer, 0);
    network.get(data, each, peer, data, 2 * each, each);
    if (!network.flush()) return;
    if (__any_sync(~0U, device::detail::load_acquire(data.own() + data.count() - 1) != 0)) return;
  }
}

// Asks for the impossible, and goes on asking, for more than a queue holds.
__global__ void ask_badly(Comm comm, Buffer<uint64_t> data, int bad) {
  Network network(ThisBlock(), comm, 0);
  if (bad == 0) network.put(data, data.count() - 1, 1, data, 0, 2);
  if (bad == 1) network.signal(1, 1000);
  if (bad == 2) network.put_counted(data, 0, 1, data, 0, 1, 7);
  if (bad == 3) network.get(data, data.count(), 1, data, 0, 1);
  for (int i = 0; i < 300; ++i) network.signal(1, 0);
  (void)network.flush();
}

// Ranks tell each other that they are in no call.
__global__ void say_ready(Comm comm) {
  Network network(ThisBlock(), comm, 0);
  network.signal(1 - network.rank(), 1);
}
__global__ void wait_until_ready(Comm comm) {
  Network network(ThisBlock(), comm, 0);
  (void)network.wait(1, 1);
}

__global__ void wait_for_nobody(Comm comm, int* answer) {
  Network network(ThisBlock(), comm, 0);
  const bool has_come = network.wait(0, 1'000'000);
  if (threadIdx.x == 0) *answer = has_come ? 1 : 2;
}

__global__ void flood(Comm comm, Buffer<uint64_t> data, int peer, int rounds, int* ends) {
  Network network(ThisBlock(), comm, 0);
  for (int i = 0; i < rounds; ++i) network.put(data, 0, peer, data, 0, data.count());
  network.signal(peer, 0);
  if (network.flush() && threadIdx.x == 0) atomicAdd(ends, 1);
}
__global__ void take_turns(Comm comm, Buffer<uint64_t> data, int rounds, int* ends) {
  Network network(ThisBlock(), comm, 1);
  const int peer = 1 - network.rank();
  const auto own = static_cast<size_t>(network.rank());
  for (int i = 1; i <= rounds; ++i) {
    const auto round = static_cast<uint64_t>(i);
    network.put_value(data, own, peer, round);
    network.signal(peer, 0);
    if (!network.wait(0, round)) return;
    network.get(data, own, peer, data, 2 + own, 1);
    if (!network.flush() || data.own()[2 + own] != round) return;
    network.signal(peer, 1);  // it may store the next value
    if (!network.wait(1, round)) return;
  }
  if (threadIdx.x == 0) atomicAdd(ends, 1);
}
__global__ void tell(Comm comm, Buffer<uint64_t> data, uint64_t word) {
  Network network(ThisBlock(), comm, 1);
  network.put_value(data, 0, 0, word);
  network.signal(0, 1);
}
__global__ void put_and_end(Comm comm, Buffer<uint64_t> source, Buffer<uint64_t> target) {
  Network network(ThisBlock(), comm, 1);
  network.put(target, 0, 1, source, 0, source.count());
  network.signal(1, 1);
}
__global__ void hear(Comm comm, uint32_t signal, uint64_t least) {
  Network network(ThisBlock(), comm, signal == 0 ? 0 : 1);
  (void)network.wait(signal, least);
}

// Rank 1 fills words with the number of the round, and with nothing as soon as rank 0 says that it
// has them.
__global__ void give(Comm comm, Buffer<uint64_t> data, int rounds) {
  Network network(ThisBlock(), comm, 0);
  for (int i = 1; i <= rounds; ++i) {
    const auto round = static_cast<uint64_t>(i);
    for (const uint64_t word : {round, uint64_t{0}}) {
      for (size_t at = threadIdx.x; at < data.count(); at += blockDim.x) data.own()[at] = word;
      ThisBlock().sync();
      if (word == 0) break;
      network.signal(0, 1);
      if (!network.wait(0, round)) return;
    }
  }
}
__global__ void get_and_say_so(Comm comm, Buffer<uint64_t> source, Buffer<uint64_t> target,
                               int rounds, int* errors) {
  Network network(ThisBlock(), comm, 0);
  for (int i = 1; i <= rounds; ++i) {
    const auto round = static_cast<uint64_t>(i);
    if (!network.wait(1, round)) return;
    network.get(source, 0, 1, target, 0, source.count());
    network.signal(1, 0);
    if (!network.flush()) return;
    int wrong = 0;
    for (size_t at = threadIdx.x; at < target.count(); at += blockDim.x)
      wrong += target.own()[at] != round;
    if (wrong != 0) atomicAdd(errors, wrong);
    ThisBlock().sync();
  }
}

ncclDevCommRequirements_t requirements() {
  ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  needs.ginContextCount = kContexts;
  needs.ginSignalCount = 2;
  needs.ginCounterCount = 2;
  needs.lsaBarrierCount = 1;
  needs.worldGinBarrierCount = kBarriers;
  return needs;
}

// A team of one rank has no multicast addresses.
bool is_multicast_refused(ncclComm_t comm) {
  ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  needs.lsaMultimem = true;
  ncclDevComm_t device;
  const ncclResult_t result = ncclDevCommCreate(comm, &needs, &device);
  const std::string text = ncclGetLastError(nullptr);
  if (result == ncclInvalidArgument &&
      text.find("a team has 2 to 16 ranks, and its own would have 1") != std::string::npos)
    return true;
  std::printf("WRONG multicast: %d %s\n", result, text.c_str());
  return false;
}

// Compares the host's answers with the machines.
bool check_teams(ncclComm_t comm, ncclWindow_t window, int rank, const GinProgram& program) {
  ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
  REQUIRE_NCCL(ncclCommQueryProperties(comm, &props));
  const int teams = program.nranks / program.team;
  bool is_right = props.deviceApiSupport && props.ginType == NCCL_GIN_TYPE_PROXY &&
                  props.nLsaTeams == teams && props.multimemSupport == (program.team > 1);
  const ncclTeam_t lsa = ncclTeamLsa(comm), rail = ncclTeamRail(comm), world = ncclTeamWorld(comm);
  is_right &= lsa.nRanks == program.team && lsa.rank == rank % program.team && lsa.stride == 1;
  is_right &=
      rail.nRanks == teams && rail.rank == rank / program.team && rail.stride == program.team;
  is_right &= world.nRanks == program.nranks && world.rank == rank;
  for (int peer = 0; peer < program.nranks; ++peer) {
    void* pointer = nullptr;
    REQUIRE_NCCL(ncclGetPeerDevicePointer(window, 0, peer, &pointer));
    is_right &= (pointer != nullptr) == (peer / program.team == rank / program.team);
  }
  if (!is_right) std::printf("WRONG teams or properties on rank %d\n", rank);
  return is_right;
}

// A second device communicator, without networking.
bool use_team(LocalRanks& ranks, const std::vector<uint64_t*>& memory,
              const std::vector<ncclWindow_t>& windows, const GinProgram& program) {
  std::vector<ncclDevComm_t> devices(ranks.comms.size());
  ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  needs.lsaBarrierCount = 1;
  needs.lsaMultimem = program.team > 1;
  if (!ranks.all_reduce(1)) return false;  // all have read their words
  const auto team = static_cast<size_t>(program.team);
  for (uint64_t* const words : memory) std::fill(words, words + words_of_team(team), 0);
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < devices.size(); ++i)
    REQUIRE_NCCL(ncclDevCommCreate(ranks.comms[i], &needs, &devices[i]));
  REQUIRE_NCCL(ncclGroupEnd());
  for (size_t i = 0; i < devices.size(); ++i) {
    REQUIRE_CUDA(cudaSetDevice(program.first + static_cast<int>(i)));
    REQUIRE_CUDA(launch(meet_in_team, dim3(1), dim3(32), 0, ranks.streams[i], Comm(devices[i]),
                        Buffer<uint64_t>(windows[i], words_of_team(team))));
  }
  bool is_right = true;
  for (size_t i = 0; i < devices.size(); ++i) {
    REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[i]));
    void* address = nullptr;
    REQUIRE_NCCL(ncclGetLsaMultimemDevicePointer(windows[i], 0, &address));
    is_right &= (address != nullptr) == needs.lsaMultimem;
    for (size_t peer = 0; peer < team; ++peer) {
      is_right &= memory[i][peer] == peer + 1;
      const uint64_t* const sums = memory[i] + words_of_team(team) - 2 * (team - peer);
      is_right &= sums[0] == team && sums[1] == (team > 1 ? 2 * team : 0);
    }
    REQUIRE_NCCL(ncclDevCommDestroy(ranks.comms[i], &devices[i]));
  }
  if (!is_right) std::printf("WRONG words of a team\n");
  return is_right;
}

// Raises the flag that an abort raises, while a kernel waits.
int abort_kernel(LocalRanks& ranks, const ncclDevComm_t& device) {
  int* answer = nullptr;
  REQUIRE_CUDA(cudaMallocHost(reinterpret_cast<void**>(&answer), sizeof *answer));
  *answer = 0;
  REQUIRE_CUDA(
      launch(wait_for_nobody, dim3(1), dim3(32), 0, ranks.streams[0], Comm(device), answer));
  __atomic_store_n(device.abortFlag, 1U, __ATOMIC_RELEASE);
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  __atomic_store_n(device.abortFlag, 0U, __ATOMIC_RELEASE);
  std::printf("ENDED with %d\n", *answer);
  REQUIRE_CUDA(cudaFreeHost(answer));
  REQUIRE_NCCL(ncclDevCommDestroy(ranks.comms[0], &device));
  ranks.abort();
  return 0;
}

// Aborts while a kernel waits for room in its queue, which a peer that is stopped leaves full.
int abort_full_queue(LocalRanks& ranks, const ncclDevComm_t& device, const Buffer<uint64_t>& data,
                     const uint64_t* memory) {
  REQUIRE_CUDA(launch(hear, dim3(1), dim3(32), 0, ranks.streams[0], Comm(device), 1U, uint64_t{1}));
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  const auto process = static_cast<pid_t>(memory[0]);
  kill(process, SIGSTOP);
  int* ends = nullptr;
  REQUIRE_CUDA(cudaMallocHost(reinterpret_cast<void**>(&ends), sizeof *ends));
  *ends = 0;
  constexpr int kPuts = 1000;  // more than a queue and the network hold
  REQUIRE_CUDA(
      launch(flood, dim3(1), dim3(32), 0, ranks.streams[0], Comm(device), data, 1, kPuts, ends));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const bool is_waiting = cudaStreamQuery(ranks.streams[0]) == cudaErrorNotReady;
  REQUIRE_NCCL(ncclCommAbort(ranks.comms[0]));
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  std::printf("ENDED, %s\n", is_waiting ? "waited" : "did not wait");
  kill(process, SIGKILL);
  REQUIRE_CUDA(cudaFreeHost(ends));
  return 0;
}

size_t entries_of(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

}  // namespace

bool leave_nothing_behind(LocalRanks& ranks) {
  const auto make_and_end = [&](size_t times) {
    std::vector<ncclDevComm_t> devices(ranks.comms.size());
    const ncclDevCommRequirements_t needs = requirements();
    for (size_t i = 0; i < times; ++i) {
      REQUIRE_NCCL(ncclGroupStart());
      for (size_t k = 0; k < devices.size(); ++k)
        REQUIRE_NCCL(ncclDevCommCreate(ranks.comms[k], &needs, &devices[k]));
      REQUIRE_NCCL(ncclGroupEnd());
      for (size_t k = 0; k < devices.size(); ++k)
        REQUIRE_NCCL(ncclDevCommDestroy(ranks.comms[k], &devices[k]));
    }
  };
  make_and_end(1);  // connections, and pools of memory
  const size_t threads = entries_of("/proc/self/task");
  const size_t descriptors = entries_of("/proc/self/fd");
  constexpr size_t kTimes = 30;
  make_and_end(kTimes);
  if (!ranks.all_reduce(1)) return false;
  const size_t threads_after = entries_of("/proc/self/task");
  const size_t descriptors_after = entries_of("/proc/self/fd");
  // The network opens and closes a few by itself.
  if (threads_after < threads + kTimes && descriptors_after < descriptors + kTimes) return true;
  std::printf("LEFT %zu threads of %zu, %zu descriptors of %zu\n", threads_after, threads,
              descriptors_after, descriptors);
  return false;
}

bool exchange_by_kernels(LocalRanks& ranks, const GinProgram& program) {
  const size_t count = ranks.comms.size();
  const size_t bytes = kContexts *
                       words_of_context(static_cast<size_t>(program.nranks), program.each) *
                       sizeof(uint64_t);
  std::vector<uint64_t*> memory(count);
  std::vector<ncclWindow_t> windows(count);
  std::vector<ncclDevComm_t> devices(count);
  int* errors = nullptr;
  REQUIRE_CUDA(cudaMallocHost(reinterpret_cast<void**>(&errors), 2 * sizeof *errors));
  int* const ends = errors + 1;  // blocks that came to their ends
  *errors = *ends = 0;
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < count; ++i) {
    REQUIRE_CUDA(cudaSetDevice(program.first + static_cast<int>(i)));
    REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory[i]), bytes));
    REQUIRE_CUDA(cudaMemset(memory[i], 0, bytes));
    REQUIRE_NCCL(ncclCommWindowRegister(ranks.comms[i], memory[i], bytes, &windows[i],
                                        NCCL_WIN_COLL_SYMMETRIC));
  }
  REQUIRE_NCCL(ncclGroupEnd());
  bool is_right = true;
  for (size_t i = 0; i < count; ++i)
    is_right &=
        check_teams(ranks.comms[i], windows[i], program.first + static_cast<int>(i), program);
  REQUIRE_NCCL(ncclGroupStart());
  ncclDevCommRequirements_t needs = requirements();
  needs.lsaMultimem = program.team > 1;
  for (size_t i = 0; i < count; ++i)
    REQUIRE_NCCL(ncclDevCommCreate(ranks.comms[i], &needs, &devices[i]));
  REQUIRE_NCCL(ncclGroupEnd());
  for (size_t i = 0; i < count; ++i) {
    REQUIRE_CUDA(cudaSetDevice(program.first + static_cast<int>(i)));
    REQUIRE_CUDA(launch(exchange, dim3(kContexts), dim3(32), 0, ranks.streams[i], Comm(devices[i]),
                        windows[i], program.each, program.rounds,
                        devices[i].worldGinBarrier.signal0, errors, ends));
  }
  for (size_t i = 0; i < count; ++i) REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[i]));
  is_right &= use_team(ranks, memory, windows, program);
  if (*errors != 0 || *ends != kContexts * static_cast<int>(count)) {
    std::printf("WRONG %d words, and %d blocks came to their ends\n", *errors, *ends);
    is_right = false;
  }
  for (size_t i = 0; i < count; ++i) {
    REQUIRE_NCCL(ncclDevCommDestroy(ranks.comms[i], &devices[i]));
    REQUIRE_NCCL(ncclCommWindowDeregister(ranks.comms[i], windows[i]));
    REQUIRE_NCCL(ncclMemFree(memory[i]));
  }
  REQUIRE_CUDA(cudaFreeHost(errors));
  return is_right;
}

bool go_on_beside_a_peer_that_is_stopped(LocalRanks& ranks, int rank) {
  constexpr size_t kCount = 512 * 1024;
  constexpr int kPuts = 24, kTurns = 20;
  REQUIRE_CUDA(cudaSetDevice(rank));
  uint64_t* memory = nullptr;
  ncclWindow_t window = nullptr;
  int* ends = nullptr;
  REQUIRE_CUDA(cudaMallocHost(reinterpret_cast<void**>(&ends), 2 * sizeof *ends));
  std::fill(ends, ends + 2, 0);
  REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory), kCount * sizeof *memory));
  std::fill(memory, memory + kCount, static_cast<uint64_t>(rank) + 7);
  REQUIRE_NCCL(ncclCommWindowRegister(ranks.comms[0], memory, kCount * sizeof *memory, &window,
                                      NCCL_WIN_COLL_SYMMETRIC));
  ncclDevComm_t device;
  const ncclDevCommRequirements_t needs = requirements();
  REQUIRE_NCCL(ncclDevCommCreate(ranks.comms[0], &needs, &device));
  cudaStream_t other = nullptr;
  REQUIRE_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  const Comm comm(device);
  const Buffer<uint64_t> data(window, kCount);
  const auto run = [&](cudaStream_t stream, auto kernel, auto... more) {
    REQUIRE_CUDA(launch(kernel, dim3(1), dim3(32), 0, stream, comm, more...));
  };
  const auto wait = [](cudaStream_t stream) { REQUIRE_CUDA(cudaStreamSynchronize(stream)); };
  bool is_right = true;
  if (rank == 2) {
    run(other, tell, data, static_cast<uint64_t>(getpid()));
    run(other, hear, 0U, uint64_t{1});
  } else if (rank == 1) {
    run(other, take_turns, Buffer<uint64_t>(window, 4, 1024), kTurns, ends + 1);
  } else {
    run(other, hear, 1U, uint64_t{1});
    wait(other);
    const auto process = static_cast<pid_t>(memory[0]);
    kill(process, SIGSTOP);
    run(ranks.streams[0], flood, data, 2, kPuts, ends);
    // Room that the network has left is used up by now, or a moment later.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    run(other, take_turns, Buffer<uint64_t>(window, 4, 1024), kTurns, ends + 1);
    wait(other);
    if (cudaStreamQuery(ranks.streams[0]) != cudaErrorNotReady) {
      std::printf("WRONG: the network has taken all puts\n");
      is_right = false;
    }
    kill(process, SIGCONT);
    wait(ranks.streams[0]);
  }
  wait(other);
  if (rank == 2 && memory[kCount - 1] != 7) is_right = false;
  if (rank < 2 && ends[1] != 1) is_right = false;
  if (rank == 0 && ends[0] != 1) is_right = false;
  if (!is_right) std::printf("WRONG: rank %d\n", rank);
  if (!ranks.all_reduce(1)) return false;  // no kernel reaches the others any more
  REQUIRE_NCCL(ncclDevCommDestroy(ranks.comms[0], &device));
  REQUIRE_NCCL(ncclCommWindowDeregister(ranks.comms[0], window));
  REQUIRE_NCCL(ncclMemFree(memory));
  REQUIRE_CUDA(cudaStreamDestroy(other));
  REQUIRE_CUDA(cudaFreeHost(ends));
  return is_right;
}

bool keep_the_order(LocalRanks& ranks, int rank) {
  constexpr size_t kCount = 100'000;
  constexpr int kRounds = 30;
  REQUIRE_CUDA(cudaSetDevice(rank));
  uint64_t* memory = nullptr;
  ncclWindow_t window = nullptr;
  int* errors = nullptr;
  REQUIRE_CUDA(cudaMallocHost(reinterpret_cast<void**>(&errors), sizeof *errors));
  *errors = 0;
  REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory), 2 * kCount * sizeof *memory));
  REQUIRE_NCCL(ncclCommWindowRegister(ranks.comms[0], memory, 2 * kCount * sizeof *memory, &window,
                                      NCCL_WIN_COLL_SYMMETRIC));
  ncclDevComm_t device;
  const ncclDevCommRequirements_t needs = requirements();
  REQUIRE_NCCL(ncclDevCommCreate(ranks.comms[0], &needs, &device));
  const Comm comm(device);
  const Buffer<uint64_t> source(window, kCount), target(window, kCount, kCount * sizeof(uint64_t));
  const cudaStream_t stream = ranks.streams[0];
  if (rank == 0)
    REQUIRE_CUDA(launch(get_and_say_so, dim3(1), dim3(32), 0, stream, comm, source, target, kRounds,
                        errors));
  else
    REQUIRE_CUDA(launch(give, dim3(1), dim3(32), 0, stream, comm, source, kRounds));
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  if (*errors != 0) std::printf("WRONG: %d words\n", *errors);
  // The last operations of a communicator that is destroyed, device communicators and all.
  if (!ranks.all_reduce(1)) return false;
  REQUIRE_CUDA(cudaSetDevice(rank));
  if (rank == 0) {
    for (size_t i = 0; i < kCount; ++i) memory[i] = 11;
    REQUIRE_CUDA(launch(put_and_end, dim3(1), dim3(32), 0, stream, comm, source, target));
  } else {
    REQUIRE_CUDA(launch(hear, dim3(1), dim3(32), 0, stream, comm, 1U, uint64_t{1}));
  }
  REQUIRE_CUDA(cudaStreamSynchronize(stream));
  const bool is_right =
      *errors == 0 && (rank == 0 || std::all_of(memory + kCount, memory + 2 * kCount,
                                                [](uint64_t word) { return word == 11; }));
  if (!is_right) std::printf("WRONG: rank %d\n", rank);
  REQUIRE_NCCL(ncclCommDestroy(ranks.comms[0]));
  ranks.comms.clear();
  REQUIRE_NCCL(ncclMemFree(memory));
  REQUIRE_CUDA(cudaFreeHost(errors));
  return is_right;
}

int fail_by_kernels(LocalRanks& ranks, int rank, const std::string& what) {
  if (!is_multicast_refused(ranks.comms[0])) return 1;
  constexpr size_t kCount = 40000;
  REQUIRE_CUDA(cudaSetDevice(rank));
  uint64_t* memory = nullptr;
  ncclWindow_t window = nullptr;
  REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory), kCount * sizeof *memory));
  REQUIRE_CUDA(cudaMemset(memory, 0, kCount * sizeof *memory));
  REQUIRE_NCCL(ncclCommWindowRegister(ranks.comms[0], memory, kCount * sizeof *memory, &window,
                                      NCCL_WIN_COLL_SYMMETRIC));
  ncclDevComm_t device;
  const ncclDevCommRequirements_t needs = requirements();
  REQUIRE_NCCL(ncclDevCommCreate(ranks.comms[0], &needs, &device));
  const auto run = [&](auto kernel, auto... more) {
    REQUIRE_CUDA(launch(kernel, dim3(1), dim3(32), 0, ranks.streams[0], Comm(device), more...));
  };
  const Buffer<uint64_t> data(window, kCount);
  if (what == "aborted") return abort_kernel(ranks, device);
  if (what == "stopped" && rank == 0) return abort_full_queue(ranks, device, data, memory);
  if (what == "stopped") run(tell, data, static_cast<uint64_t>(getpid()));
  if (rank == 0) {
    run(say_ready);
    if (what == "deregistered") run(wait_until_ready);
    if (what.rfind("bad", 0) == 0)
      run(ask_badly, data, what.back() - '0');
    else
      run(put_on, data);
  } else if (what == "left") {
    run(wait_until_ready);
    REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
    REQUIRE_NCCL(ncclCommAbort(ranks.comms[0]));
    return 0;
  } else if (what == "deregistered") {
    REQUIRE_NCCL(ncclCommWindowDeregister(ranks.comms[0], window));
    run(say_ready);
  } else if (what == "killed") {
    run(put_on, data);
  }
  std::printf("WAITING\n");
  std::fflush(stdout);
  ncclResult_t state = ncclSuccess;
  while (state == ncclSuccess) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE_NCCL(ncclCommGetAsyncError(ranks.comms[0], &state));
  }
  std::printf("FAILURE %d %s\n", state, ncclGetLastError(ranks.comms[0]));
  __atomic_store_n(memory + kCount - 1, 1, __ATOMIC_RELEASE);
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  std::printf("ENDED\n");
  REQUIRE_NCCL(ncclDevCommDestroy(ranks.comms[0], &device));
  REQUIRE_NCCL(ncclCommAbort(ranks.comms[0]));
  return 0;
}

}  // namespace niccolite::test
