// Random programs of groups: what a user's program could do with one or two communicators,
// generated from a seed, run on virtual GPUs by one thread or a thread per rank, live or as graphs,
// and checked byte by byte. A failure prints its seed; NICCOLITE_RANDOM_SEED=<seed> replays that
// program alone, NICCOLITE_RANDOM_PROGRAMS=<n> runs more or fewer.

#include <cstdlib>
#include <random>
#include <thread>

#include "tests/api/trial.h"

namespace niccolite::test {
namespace {

constexpr int kPrograms = 2000;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  size_t below(size_t bound) { return engine_() % bound; }
  bool one_in(size_t n) { return below(n) == 0; }
  template <typename T, size_t kCount>
  T among(const T (&values)[kCount]) {
    return values[below(kCount)];
  }

 private:
  std::mt19937_64 engine_;
};

struct Call {
  Operation operation;
  size_t communicator;  // of two over the same devices
  size_t stream;        // of two
};
struct Group {
  std::vector<Call> calls;
  bool is_open;  // in ncclGroupStart/End; else call by call, where that cannot deadlock
};
struct Program {
  uint64_t seed;
  int nranks;
  bool thread_per_rank;
  bool as_graph;
  std::vector<Group> groups;
};

size_t random_count(Random& random) {
  constexpr size_t kUsual[] = {0, 1, 2, 3, 15, 16, 17, 1000, 4095, 4096, 4097};
  if (random.one_in(12)) return random.below(200'000);
  return random.one_in(2) ? random.among(kUsual) : random.below(3000);
}

Operation random_operation(Random& random, int nranks) {
  constexpr ncclDataType_t kTypes[] = {ncclFloat, ncclHalf, ncclInt8, ncclDouble, ncclInt64};
  constexpr ncclRedOp_t kOps[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
  const auto rank = [&] { return static_cast<int>(random.below(static_cast<size_t>(nranks))); };
  Operation operation;
  operation.kind = random.one_in(2) ? Kind::Message : random.among(kCollectives);
  operation.type = random.among(kTypes);
  operation.op = random.among(kOps);
  operation.count = random_count(random);
  operation.root = rank();
  operation.receiver = rank();
  operation.in_place = random.one_in(3);
  operation.misalignment = random.one_in(4) ? 8 * random.below(3) : 0;
  operation.salt = random.below(1000);
  return operation;
}

Program generate(uint64_t seed) {
  Random random(seed);
  Program program{.seed = seed,
                  .nranks = static_cast<int>(random.below(5)) + 1,
                  .thread_per_rank = random.one_in(3),
                  .as_graph = random.one_in(4),
                  .groups = {}};
  const bool two_communicators = random.one_in(4), two_streams = random.one_in(4);
  for (size_t g = random.below(3) + 1; g > 0; --g) {
    Group& group = program.groups.emplace_back();
    group.is_open = true;
    for (size_t c = random.below(8) + 1; c > 0; --c)
      group.calls.push_back({random_operation(random, program.nranks),
                             two_communicators ? random.below(2) : 0,
                             two_streams ? random.below(2) : 0});
    // Collectives on one stream need no group when every rank has a thread.
    bool only_collectives = true;
    for (const Call& call : group.calls)
      only_collectives = only_collectives && call.operation.kind != Kind::Message;
    if (only_collectives && program.thread_per_rank && !two_communicators)
      group.is_open = random.one_in(2);
  }
  return program;
}

std::ostream& operator<<(std::ostream& out, const Program& program) {
  out << "seed " << program.seed << ": " << program.nranks << " ranks"
      << (program.thread_per_rank ? ", a thread each" : ", one thread")
      << (program.as_graph ? ", as graphs" : "");
  for (const Group& group : program.groups) {
    out << (group.is_open ? "\n  group" : "\n  calls");
    for (const Call& call : group.calls)
      out << "\n    comm " << call.communicator << " stream " << call.stream << ": "
          << call.operation;
  }
  return out;
}

// Two communicators over the same devices, and two more streams for each rank.
class Stage {
 public:
  explicit Stage(int nranks) : clusters_{Cluster(nranks), Cluster(nranks)} {}
  Cluster& cluster(size_t i) { return clusters_[i]; }

 private:
  Cluster clusters_[2];
};

class Performance {
 public:
  Performance(const Program& program, Stage& stage) : program_(program), stage_(stage) {
    for (const Group& group : program.groups)
      for (const Call& call : group.calls)
        trials_.push_back(std::make_unique<Trial>(call.operation, program.nranks));
  }

  void run() {
    const int rounds = program_.as_graph ? 2 : 1;
    if (program_.as_graph) {
      for (int rank = 0; rank < program_.nranks; ++rank) begin_capture(rank);
    }
    queue_all();
    if (program_.as_graph) {
      for (int rank = 0; rank < program_.nranks; ++rank) end_capture(rank);
    }
    for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
      if (program_.as_graph) {
        for (const auto& trial : trials_) trial->reset();
        for (int rank = 0; rank < program_.nranks; ++rank) {
          EXPECT_CUDA(cudaSetDevice(rank));
          EXPECT_CUDA(cudaGraphLaunch(graphs_[static_cast<size_t>(rank)], stream(rank, 0)));
        }
      }
      stage_.cluster(0).synchronize();
      stage_.cluster(1).synchronize();
      for (const auto& trial : trials_) EXPECT_TRUE(trial->is_right());
    }
    for (cudaGraphExec_t graph : graphs_) EXPECT_CUDA(cudaGraphExecDestroy(graph));
  }

 private:
  cudaStream_t stream(int rank, size_t i) { return stage_.cluster(i).stream(rank); }

  void queue_all() {
    if (!program_.thread_per_rank) {
      size_t first = 0;
      for (const Group& group : program_.groups) {
        EXPECT_NCCL(ncclGroupStart());
        for (int rank = 0; rank < program_.nranks; ++rank) queue_calls(group, first, rank);
        EXPECT_NCCL(ncclGroupEnd());
        first += group.calls.size();
      }
      return;
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < program_.nranks; ++rank)
      threads.emplace_back([this, rank] {
        EXPECT_CUDA(cudaSetDevice(rank));
        size_t first = 0;
        for (const Group& group : program_.groups) {
          if (group.is_open) {
            EXPECT_NCCL(ncclGroupStart());
          }
          queue_calls(group, first, rank);
          if (group.is_open) {
            EXPECT_NCCL(ncclGroupEnd());
          }
          first += group.calls.size();
        }
      });
    for (std::thread& thread : threads) thread.join();
  }

  void queue_calls(const Group& group, size_t first, int rank) {
    for (size_t i = 0; i < group.calls.size(); ++i) {
      const Call& call = group.calls[i];
      const Trial& trial = *trials_[first + i];
      if (!trial.takes_part(rank)) continue;
      EXPECT_NCCL(trial.call(rank, stage_.cluster(call.communicator).comm(rank),
                             stream(rank, call.stream)));
    }
  }

  // Stream 1 joins the capture of stream 0, and comes back to it.
  void begin_capture(int rank) {
    EXPECT_CUDA(cudaSetDevice(rank));
    EXPECT_CUDA(cudaStreamBeginCapture(stream(rank, 0), cudaStreamCaptureModeRelaxed));
    join(rank, 0, 1);
  }
  void end_capture(int rank) {
    EXPECT_CUDA(cudaSetDevice(rank));
    join(rank, 1, 0);
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamEndCapture(stream(rank, 0), &graph));
    EXPECT_CUDA(cudaGraphInstantiate(&graphs_.emplace_back(), graph, 0));
    EXPECT_CUDA(cudaGraphDestroy(graph));
  }
  void join(int rank, size_t from, size_t to) {
    cudaEvent_t event = nullptr;
    EXPECT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    EXPECT_CUDA(cudaEventRecord(event, stream(rank, from)));
    EXPECT_CUDA(cudaStreamWaitEvent(stream(rank, to), event, 0));
    EXPECT_CUDA(cudaEventDestroy(event));
  }

  const Program& program_;
  Stage& stage_;
  std::vector<std::unique_ptr<Trial>> trials_;
  std::vector<cudaGraphExec_t> graphs_;
};

TEST(RandomGroups, GiveWhatTheirCallsPromise) {
  const char* const seed = std::getenv("NICCOLITE_RANDOM_SEED");
  const char* const count = std::getenv("NICCOLITE_RANDOM_PROGRAMS");
  const uint64_t first = seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1;
  const uint64_t programs = seed != nullptr    ? 1
                            : count != nullptr ? std::strtoull(count, nullptr, 10)
                                               : kPrograms;
  ASSERT_GT(programs, 0u);
  std::vector<std::unique_ptr<Stage>> stages(6);
  for (uint64_t i = 0; i < programs; ++i) {
    const Program program = generate(first + i);
    auto& stage = stages[static_cast<size_t>(program.nranks)];
    if (stage == nullptr) stage = std::make_unique<Stage>(program.nranks);
    SCOPED_TRACE(testing::Message() << program);
    Performance(program, *stage).run();
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace niccolite::test
