// Random faults of virtual NICs and killed ranks, while collectives, messages and puts run between
// machines: each run ends with right results, or with an error that names a rank and a remedy. A
// failure prints its seed: NICCOLITE_RANDOM_SEED=<seed> runs that one alone,
// NICCOLITE_RANDOM_FAULTS=<n> runs more or fewer, and both run n from that seed on.
#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/multi_process/ranks.h"
#include "tests/namespaces/job.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ContainsRegex;

constexpr uint64_t kRuns = 20;
// Seeds that have found something, and run besides.
constexpr uint64_t kInstructive[] = {127, 164, 180, 1169};

size_t below(std::mt19937_64& random, size_t bound) { return random() % bound; }

// ---- what the ranks do

constexpr size_t kMost = 50'000;  // floats of an operation, of each rank
constexpr size_t kGuard = 16;     // floats behind each output
constexpr size_t kAtOnce = 3;     // operations queued at once
constexpr float kUntouched = -1;
enum class Work { AllReduce, AllGather, ReduceScatter, Broadcast, AllToAll, Ring, Put, kCount };

const char* name_of(Work work) {
  constexpr const char* kNames[] = {
      "all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "ring", "put"};
  return kNames[static_cast<size_t>(work)];
}

struct Step {
  Work work;
  size_t count;
  int salt;
};

// Runs steps on the ranks of this process. Each function returns the first error of NCCL.
class FaultyRanks {
 public:
  FaultyRanks(LocalRanks& ranks, int nranks, int first)
      : ranks_(ranks), nranks_(nranks), first_(first) {
    const size_t all = kMost * static_cast<size_t>(nranks);
    for (size_t i = 0; i < ranks_.comms.size(); ++i) {
      REQUIRE_CUDA(cudaSetDevice(rank(i)));
      for (size_t slot = 0; slot < kAtOnce; ++slot) {
        REQUIRE_CUDA(cudaMalloc(&inputs_.emplace_back(), all * sizeof(float)));
        REQUIRE_CUDA(cudaMalloc(&outputs_.emplace_back(), (all + kGuard) * sizeof(float)));
      }
    }
  }

  /// The NICs read and write the buffers themselves.
  void register_buffers() {
    void* handle = nullptr;  // ends with the communicator
    for (size_t i = 0; i < ranks_.comms.size(); ++i) {
      const size_t all = kMost * static_cast<size_t>(nranks_);
      for (size_t slot = 0; slot < kAtOnce; ++slot) {
        REQUIRE_NCCL(
            ncclCommRegister(ranks_.comms[i], input(i, slot), all * sizeof(float), &handle));
        REQUIRE_NCCL(ncclCommRegister(ranks_.comms[i], output(i, slot),
                                      (all + kGuard) * sizeof(float), &handle));
      }
    }
  }

  ncclResult_t make_windows() {
    windows_.resize(ranks_.comms.size());
    memory_.resize(ranks_.comms.size());
    constexpr size_t kBytes = (2 * kMost + kGuard) * sizeof(float);
    ncclGroupStart();
    for (size_t i = 0; i < ranks_.comms.size(); ++i) {
      REQUIRE_CUDA(cudaSetDevice(rank(i)));
      REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory_[i]), kBytes));
      ncclCommWindowRegister(ranks_.comms[i], memory_[i], kBytes, &windows_[i],
                             NCCL_WIN_COLL_SYMMETRIC);
    }
    return ncclGroupEnd();
  }

  /// Queues the steps, waits for them, and compares their results.
  ncclResult_t perform(const std::vector<Step>& steps) {
    for (size_t slot = 0; slot < steps.size(); ++slot) prepare(steps[slot], slot);
    for (size_t slot = 0; slot < steps.size(); ++slot)
      if (const ncclResult_t result = queue(steps[slot], slot); result != ncclSuccess)
        return result;
    if (const ncclResult_t result = finish(); result != ncclSuccess) return result;
    bool has_put = false;
    for (size_t slot = 0; slot < steps.size(); ++slot) {
      check(steps[slot], slot);
      has_put |= steps[slot].work == Work::Put;
    }
    if (!has_put) return ncclSuccess;
    // The next put comes when all have looked.
    for (size_t i = 0; i < ranks_.comms.size(); ++i) {
      if (const ncclResult_t result =
              ncclSignal(previous(i), 0, 0, 0, ranks_.comms[i], ranks_.streams[i]);
          result != ncclSuccess)
        return result;
      if (const ncclResult_t result = wait(i, next(i)); result != ncclSuccess) return result;
    }
    return finish();
  }

  bool is_right() const { return is_right_; }

 private:
  int rank(size_t i) const { return first_ + static_cast<int>(i); }
  int next(size_t i) const { return (rank(i) + 1) % nranks_; }
  int previous(size_t i) const { return (rank(i) + nranks_ - 1) % nranks_; }
  static float value(const Step& step, int of_rank, size_t k) {
    return static_cast<float>(
        (k * 7 + static_cast<size_t>(of_rank) * 13 + static_cast<size_t>(step.salt)) % 16);
  }
  float* input(size_t i, size_t slot) const { return inputs_[i * kAtOnce + slot]; }
  float* output(size_t i, size_t slot) const { return outputs_[i * kAtOnce + slot]; }

  ncclResult_t wait(size_t i, int peer) {
    ncclWaitSignalDesc_t descriptor{1, peer, 0, 0};
    return ncclWaitSignal(1, &descriptor, ranks_.comms[i], ranks_.streams[i]);
  }

  // Until all are done, or one has failed: the others wait for it then.
  ncclResult_t finish() const {
    for (bool waits = true; waits;) {
      waits = false;
      for (size_t i = 0; i < ranks_.comms.size(); ++i) {
        // Before the state: an operation that a failure ends has ended after it.
        const bool this_waits = ranks_.is_waiting(i);
        ncclResult_t state = ncclSuccess;
        REQUIRE_NCCL(ncclCommGetAsyncError(ranks_.comms[i], &state));
        if (state != ncclSuccess) return state;
        waits |= this_waits;
      }
      if (waits) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return ncclSuccess;
  }

  void prepare(const Step& step, size_t slot) {
    const size_t all = step.count * static_cast<size_t>(nranks_);
    const std::vector<float> untouched(all + kGuard, kUntouched);
    std::vector<float> data(all);
    for (size_t i = 0; i < ranks_.comms.size(); ++i) {
      REQUIRE_CUDA(cudaSetDevice(rank(i)));
      for (size_t k = 0; k < all; ++k) data[k] = value(step, rank(i), k);
      const bool puts = step.work == Work::Put;
      REQUIRE_CUDA(cudaMemcpy(puts ? memory_[i] : input(i, slot), data.data(),
                              (puts ? step.count : all) * sizeof(float), cudaMemcpyHostToDevice));
      REQUIRE_CUDA(cudaMemcpy(output(i, slot), untouched.data(), (all + kGuard) * sizeof(float),
                              cudaMemcpyHostToDevice));
    }
  }

  ncclResult_t queue(const Step& step, size_t slot) {
    if (step.work == Work::Put) return put(step);
    ncclGroupStart();
    for (size_t i = 0; i < ranks_.comms.size(); ++i) queue_on(i, step, slot);
    return ncclGroupEnd();
  }

  // The group answers with their errors.
  void queue_on(size_t i, const Step& step, size_t slot) {
    const float* const in = input(i, slot);
    float* const out = output(i, slot);
    const ncclComm_t comm = ranks_.comms[i];
    const cudaStream_t stream = ranks_.streams[i];
    switch (step.work) {
      case Work::AllReduce:
        ncclAllReduce(in, out, step.count, ncclFloat, ncclSum, comm, stream);
        break;
      case Work::AllGather:
        ncclAllGather(in, out, step.count, ncclFloat, comm, stream);
        break;
      case Work::ReduceScatter:
        ncclReduceScatter(in, out, step.count, ncclFloat, ncclSum, comm, stream);
        break;
      case Work::Broadcast:
        ncclBroadcast(in, out, step.count, ncclFloat, step.salt % nranks_, comm, stream);
        break;
      case Work::AllToAll:
        for (int peer = 0; peer < nranks_; ++peer) {
          const size_t at = step.count * static_cast<size_t>(peer);
          ncclSend(in + at, step.count, ncclFloat, peer, comm, stream);
          ncclRecv(out + at, step.count, ncclFloat, peer, comm, stream);
        }
        break;
      default:
        ncclSend(in, step.count, ncclFloat, next(i), comm, stream);
        ncclRecv(out, step.count, ncclFloat, previous(i), comm, stream);
    }
  }

  ncclResult_t put(const Step& step) {
    for (size_t i = 0; i < ranks_.comms.size(); ++i)
      if (const ncclResult_t result =
              ncclPutSignal(memory_[i], step.count, ncclFloat, next(i), windows_[i],
                            kMost * sizeof(float), 0, 0, 0, ranks_.comms[i], ranks_.streams[i]);
          result != ncclSuccess)
        return result;
    for (size_t i = 0; i < ranks_.comms.size(); ++i)
      if (const ncclResult_t result = wait(i, previous(i)); result != ncclSuccess) return result;
    return ncclSuccess;
  }

  void check(const Step& step, size_t slot) {
    const size_t all = step.count * static_cast<size_t>(nranks_);
    std::vector<float> found(all + kGuard);
    for (size_t i = 0; i < ranks_.comms.size(); ++i) {
      const bool puts = step.work == Work::Put;
      REQUIRE_CUDA(cudaMemcpy(found.data(), puts ? memory_[i] + kMost : output(i, slot),
                              (puts ? step.count : found.size()) * sizeof(float),
                              cudaMemcpyDeviceToHost));
      const size_t written =
          step.work == Work::AllGather || step.work == Work::AllToAll ? all : step.count;
      for (size_t k = 0; k < (puts ? step.count : found.size()); ++k) {
        const float want = k < written ? expected(step, i, k) : kUntouched;
        if (found[k] == want) continue;
        std::printf("WRONG %s of %zu on rank %d at %zu: %g, not %g\n", name_of(step.work),
                    step.count, rank(i), k, static_cast<double>(found[k]),
                    static_cast<double>(want));
        is_right_ = false;
        break;
      }
    }
  }

  float expected(const Step& step, size_t i, size_t k) const {
    const auto own = static_cast<size_t>(rank(i));
    const auto sum = [&](size_t at) {
      float total = 0;
      for (int of = 0; of < nranks_; ++of) total += value(step, of, at);
      return total;
    };
    switch (step.work) {
      case Work::AllReduce:
        return sum(k);
      case Work::ReduceScatter:
        return sum(own * step.count + k);
      case Work::AllGather:
        return value(step, static_cast<int>(k / step.count), k % step.count);
      case Work::AllToAll:
        return value(step, static_cast<int>(k / step.count), own * step.count + k % step.count);
      case Work::Broadcast:
        return value(step, step.salt % nranks_, k);
      default:
        return value(step, previous(i), k);
    }
  }

  LocalRanks& ranks_;
  const int nranks_;
  const int first_;
  std::vector<float*> inputs_;  // of each rank, kAtOnce
  std::vector<float*> outputs_;
  std::vector<float*> memory_;
  std::vector<ncclWindow_t> windows_;
  bool is_right_ = true;
};

std::vector<Step> steps_of(std::mt19937_64& random) {
  constexpr size_t kCounts[] = {1, 37, 1000, 8192, 20'001, kMost};
  std::vector<Step> steps;
  bool has_put = false;
  const size_t count = 1 + below(random, kAtOnce);
  while (steps.size() < count) {
    const Step step{static_cast<Work>(below(random, static_cast<size_t>(Work::kCount))),
                    kCounts[below(random, std::size(kCounts))],
                    static_cast<int>(below(random, 1000))};
    if (step.work == Work::Put && std::exchange(has_put, true)) continue;
    steps.push_back(step);
  }
  return steps;
}

// ... seed rounds: 0: all results were right; 3: an error, which it says.
ROLE(work_under_faults) {
  const LocalIds ids(arguments);
  const int nranks = std::stoi(arguments[2]), first = std::stoi(arguments[3]);
  LocalRanks ranks(ids.one, nranks, first, std::stoi(arguments[4]));
  std::mt19937_64 random(std::stoull(arguments[5]));
  FaultyRanks work(ranks, nranks, first);
  if (arguments[7] == "registered") work.register_buffers();
  ncclResult_t result = work.make_windows();
  for (int round = 0; result == ncclSuccess && round < std::stoi(arguments[6]); ++round) {
    const std::vector<Step> steps = steps_of(random);
    std::printf("ROUND %d", round);
    for (const Step& step : steps) std::printf(", %s of %zu", name_of(step.work), step.count);
    std::printf("\n");
    std::fflush(stdout);
    result = work.perform(steps);
    if (!work.is_right()) return 1;
  }
  if (result == ncclSuccess)
    for (ncclComm_t comm : ranks.comms) {
      const ncclResult_t ended = ncclCommDestroy(comm);
      if (ended == ncclSuccess) continue;
      std::printf("FAILURE %d %s\n", ended, ncclGetLastError(nullptr));
      return 3;
    }
  if (result == ncclSuccess) return 0;
  std::printf("FAILURE %d %s\n", result, ncclGetLastError(nullptr));
  for (ncclComm_t comm : ranks.comms) REQUIRE_NCCL(ncclCommAbort(comm));
  for (cudaStream_t stream : ranks.streams) REQUIRE_CUDA(cudaStreamSynchronize(stream));
  return 3;
}

// ---- what happens to them

struct Trouble {
  uint64_t seed = 0;
  int machines = 2;
  int devices = 1;
  int nics = 1;
  int ports = 1;
  Process::Environment environment{};
  std::vector<std::string> faults{};  // of each machine
  std::set<int> lost_rails{};         // on which no machine can rely
  bool is_registered = false;         // the buffers
  bool is_refused_memory = false;
  int victim = -1;  // the machine whose process is killed
  int killed_in = 0;

  int rails() const { return nics * ports; }
  /// Some rail has no fault on any machine.
  bool must_succeed() const {
    return victim < 0 && !is_refused_memory &&
           (lost_rails.empty() || std::ssize(lost_rails) < rails());
  }
};
std::ostream& operator<<(std::ostream& out, const Trouble& run) {
  out << "NICCOLITE_RANDOM_SEED=" << run.seed << ": " << run.machines << " machines of "
      << run.devices << ", " << run.nics << " NICs of " << run.ports << " ports";
  if (run.is_registered) out << ", registered buffers";
  for (const auto& [name, value] : run.environment) out << " " << name << "=" << value;
  for (size_t i = 0; i < run.faults.size(); ++i)
    if (!run.faults[i].empty()) out << "; machine " << i << run.faults[i];
  if (run.victim >= 0) out << "; machine " << run.victim << " killed in round " << run.killed_in;
  return out;
}

constexpr int kRounds = 10;

void add_fault(Trouble& run, std::mt19937_64& random) {
  constexpr const char* kHarmless[] = {"late", "lose", "slow"};
  constexpr const char* kHarmful[] = {"down", "flap", "drop", "refuse", "flush", "gone", "mr"};
  const bool is_harmless = below(random, 3) == 0;
  const std::string kind = is_harmless ? kHarmless[below(random, std::size(kHarmless))]
                                       : kHarmful[below(random, std::size(kHarmful))];
  const int device = static_cast<int>(below(random, static_cast<size_t>(run.nics)));
  const int port = static_cast<int>(below(random, static_cast<size_t>(run.ports)));
  constexpr size_t kBounds[] = {10, 60, 300, 1000};
  const size_t after =
      kind == "mr" ? below(random, 20) : below(random, kBounds[below(random, std::size(kBounds))]);
  run.faults[below(random, run.faults.size())] += ",fault=" + kind + "@" + std::to_string(device) +
                                                  "/" + std::to_string(port + 1) + ":" +
                                                  std::to_string(after);
  if (is_harmless) return;
  if (kind == "mr") run.is_refused_memory = true;
  for (int of = 0; of < run.ports; ++of)
    if (of == port || kind == "gone") run.lost_rails.insert(device * run.ports + of);
}

Trouble run_of(uint64_t seed) {
  std::mt19937_64 random(seed);
  Trouble run{.seed = seed};
  run.machines = below(random, 3) == 0 ? 3 : 2;
  run.devices = below(random, 3) == 0 ? 2 : 1;
  if (below(random, 3) > 0) (below(random, 2) == 0 ? run.ports : run.nics) = 2;
  run.environment = {{"NCCL_IB_TIMEOUT", "14"}, {"NCCL_IB_RETRY_CNT", "7"}};
  if (below(random, 2) == 0)
    run.environment["NCCL_IB_QPS_PER_CONNECTION"] = std::to_string(1 + below(random, 4));
  if (below(random, 3) == 0) run.environment["NCCL_IB_SPLIT_DATA_ON_QPS"] = "1";
  if (below(random, 4) == 0) run.environment["NCCL_PROTO"] = below(random, 2) ? "LL" : "Simple";
  run.faults.resize(static_cast<size_t>(run.machines));
  const size_t faults = below(random, 4);
  for (size_t i = 0; i < faults; ++i) add_fault(run, random);
  if (faults == 0 || below(random, 8) == 0) {
    run.victim = static_cast<int>(below(random, static_cast<size_t>(run.machines)));
    run.killed_in = static_cast<int>(below(random, kRounds));
  }
  run.is_registered = below(random, 2) == 0;
  if (run.is_registered) run.environment["NICCOLITE_NET_DIRECT_BYTES"] = "1";
  return run;
}

void perform(const Trouble& run, const Network& network) {
  Job job{.role = "work_under_faults",
          .devices = run.devices,
          .machines = run.machines,
          .rest = {std::to_string(run.seed), std::to_string(kRounds),
                   run.is_registered ? "registered" : ""},
          .environment = run.environment};
  job.environment.insert(
      {{"LD_LIBRARY_PATH", NICCOLITE_VVERBS}, {"NICCOLITE_NET_TIMEOUT", "3"}, {"NCCL_NET", "IB"}});
  for (const std::string& faults : run.faults)
    job.of_machine.push_back({{"NICCOLITE_NICS", "virtual:" + std::to_string(run.nics) + ",ports=" +
                                                     std::to_string(run.ports) + faults}});
  std::vector<Process> running = start(network, job);
  if (run.victim >= 0) {
    Process& victim = running[static_cast<size_t>(run.victim)];
    victim.wait_for_line("ROUND " + std::to_string(run.killed_in));
    victim.kill(SIGKILL);
  }
  std::vector<std::string> said;
  for (int machine = 0; machine < std::ssize(running); ++machine) {
    Process& process = running[static_cast<size_t>(machine)];
    const int status = process.wait(seconds(60));
    SCOPED_TRACE(::testing::Message() << "machine " << machine << " said\n" << process.output());
    if (machine == run.victim && status == 128 + SIGKILL) continue;
    EXPECT_NE(status, -1) << "it hangs";
    if (status == 0) continue;
    EXPECT_FALSE(run.must_succeed());
    EXPECT_EQ(status, 3);
    std::smatch found;
    const std::string& output = process.output();
    ASSERT_TRUE(std::regex_search(output, found, std::regex("FAILURE (\\d+) (.*)")));
    EXPECT_TRUE(found[1] == std::to_string(ncclRemoteError) ||
                found[1] == std::to_string(ncclSystemError));
    EXPECT_THAT(found[2].str(), ContainsRegex("ranks? [0-9]+"));
    said.push_back(found[2]);
  }
  // A rank may hear no more than that another one has left, which knows why.
  if (!said.empty()) {
    EXPECT_THAT(said, Contains(ContainsRegex("\\?|NCCL_|look at|log of the kernel")));
  }
}

TEST(VerbsFaults, EndWithRightResultsOrWithAnErrorThatHelps) {
  const char* const seed = std::getenv("NICCOLITE_RANDOM_SEED");
  const char* const count = std::getenv("NICCOLITE_RANDOM_FAULTS");
  const uint64_t first = seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1;
  const uint64_t runs = count != nullptr  ? std::strtoull(count, nullptr, 10)
                        : seed != nullptr ? 1
                                          : kRuns;
  ASSERT_GT(runs, 0u);
  NETWORK_OR_SKIP(network, .machines = 3, .rails = 2);
  std::vector<uint64_t> seeds;
  for (uint64_t i = 0; i < runs; ++i) seeds.push_back(first + i);
  if (seed == nullptr) seeds.insert(seeds.end(), std::begin(kInstructive), std::end(kInstructive));
  for (const uint64_t each : seeds) {
    const Trouble run = run_of(each);
    SCOPED_TRACE(::testing::Message() << run);
    perform(run, *network);
  }
}

}  // namespace
}  // namespace niccolite::test
