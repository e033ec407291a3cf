#include "tests/api/random_program.h"

#include <random>
#include <thread>

namespace niccolite::test {
namespace {

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

size_t random_count(Random& random) {
  constexpr size_t kUsual[] = {0, 1, 2, 3, 15, 16, 17, 1000, 4095, 4096, 4097};
  if (random.one_in(12)) return random.below(200'000);
  return random.one_in(2) ? random.among(kUsual) : random.below(3000);
}

/// The same of other data, as of several tensors: such operations may share a launch.
Operation another(Random& random, Operation operation) {
  operation.count = random_count(random);
  operation.in_place = random.one_in(3);
  operation.misalignment = random.one_in(4) ? 8 * random.below(3) : 0;
  operation.salt = random.below(1000);
  return operation;
}

Operation random_operation(Random& random, int nranks) {
  constexpr ncclDataType_t kTypes[] = {ncclFloat, ncclHalf, ncclInt8, ncclDouble, ncclInt64};
  constexpr ncclRedOp_t kOps[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
  const auto rank = [&] { return static_cast<int>(random.below(static_cast<size_t>(nranks))); };
  Operation operation;
  operation.kind = random.one_in(2) ? Kind::Message : random.among(kCollectives);
  operation.type = random.among(kTypes);
  operation.op = random.among(kOps);
  // What is reduced before it is divided, or multiplied, must fit (input_value()).
  const bool may_overflow = (operation.op == ncclAvg && nranks * nranks > INT8_MAX) ||
                            (operation.op == ncclProd && nranks > 6);
  if (operation.type == ncclInt8 && may_overflow) operation.type = ncclInt64;
  operation.root = rank();
  operation.receiver = rank();
  return another(random, operation);
}

class Performance {
 public:
  Performance(const RandomProgram& program, const Stage& stage) : program_(program), stage_(stage) {
    for (const RandomGroup& group : program.groups)
      for (const RandomCall& call : group.calls)
        trials_.push_back(std::make_unique<Trial>(call.operation, program.nranks));
  }

  void run() {
    const int rounds = program_.as_graph ? 2 : 1;
    if (program_.as_graph) {
      for (int rank = first(); rank < end(); ++rank) begin_capture(rank);
    }
    queue_all();
    if (program_.as_graph) {
      for (int rank = first(); rank < end(); ++rank) end_capture(rank);
    }
    for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
      if (program_.as_graph) {
        for (const auto& trial : trials_) trial->reset();
        for (int rank = first(); rank < end(); ++rank) {
          EXPECT_CUDA(cudaSetDevice(rank));
          EXPECT_CUDA(
              cudaGraphLaunch(graphs_[static_cast<size_t>(rank - first())], stream(rank, 0)));
        }
      }
      for (const Stage::Rank& rank : stage_.ranks)
        for (cudaStream_t stream : rank.streams) EXPECT_CUDA(cudaStreamSynchronize(stream));
      for (const auto& trial : trials_)
        for (int rank = first(); rank < end(); ++rank) EXPECT_TRUE(trial->is_right(rank));
    }
    for (cudaGraphExec_t graph : graphs_) EXPECT_CUDA(cudaGraphExecDestroy(graph));
  }

 private:
  int first() const { return stage_.first_rank; }
  int end() const { return first() + static_cast<int>(stage_.ranks.size()); }
  const Stage::Rank& local(int rank) const {
    return stage_.ranks[static_cast<size_t>(rank - first())];
  }
  cudaStream_t stream(int rank, size_t i) const { return local(rank).streams[i]; }

  void queue_all() {
    if (!program_.thread_per_rank) {
      size_t trial = 0;
      for (const RandomGroup& group : program_.groups) {
        EXPECT_NCCL(ncclGroupStart());
        for (int rank = first(); rank < end(); ++rank) queue_calls(group, trial, rank);
        EXPECT_NCCL(ncclGroupEnd());
        trial += group.calls.size();
      }
      return;
    }
    std::vector<std::thread> threads;
    for (int rank = first(); rank < end(); ++rank)
      threads.emplace_back([this, rank] {
        EXPECT_CUDA(cudaSetDevice(rank));
        size_t trial = 0;
        for (const RandomGroup& group : program_.groups) {
          if (group.is_open) {
            EXPECT_NCCL(ncclGroupStart());
          }
          queue_calls(group, trial, rank);
          if (group.is_open) {
            EXPECT_NCCL(ncclGroupEnd());
          }
          trial += group.calls.size();
        }
      });
    for (std::thread& thread : threads) thread.join();
  }

  void queue_calls(const RandomGroup& group, size_t first_trial, int rank) {
    for (size_t i = 0; i < group.calls.size(); ++i) {
      const RandomCall& call = group.calls[i];
      const Trial& trial = *trials_[first_trial + i];
      if (!trial.takes_part(rank)) continue;
      EXPECT_NCCL(
          trial.call(rank, local(rank).comms[call.communicator], stream(rank, call.stream)));
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

  const RandomProgram& program_;
  const Stage& stage_;
  std::vector<std::unique_ptr<Trial>> trials_;
  std::vector<cudaGraphExec_t> graphs_;
};

}  // namespace

RandomProgram generate(uint64_t seed, int nranks) {
  Random random(seed);
  RandomProgram program{.seed = seed,
                        .nranks = static_cast<int>(random.below(5)) + 1,
                        .thread_per_rank = random.one_in(3),
                        .as_graph = random.one_in(4),
                        .groups = {}};
  if (nranks != 0) program.nranks = nranks;
  const bool two_communicators = random.one_in(4), two_streams = random.one_in(4);
  for (size_t g = random.below(3) + 1; g > 0; --g) {
    RandomGroup& group = program.groups.emplace_back();
    group.is_open = true;
    for (size_t c = random.below(8) + 1; c > 0; --c) {
      const bool is_alike = !group.calls.empty() && random.one_in(3);
      group.calls.push_back({is_alike ? another(random, group.calls.back().operation)
                                      : random_operation(random, program.nranks),
                             two_communicators ? random.below(2) : 0,
                             two_streams ? random.below(2) : 0});
    }
    // Collectives on one stream need no group when every rank has a thread.
    bool only_collectives = true;
    for (const RandomCall& call : group.calls)
      only_collectives = only_collectives && call.operation.kind != Kind::Message;
    if (only_collectives && program.thread_per_rank && !two_communicators)
      group.is_open = random.one_in(2);
  }
  return program;
}

std::ostream& operator<<(std::ostream& out, const RandomProgram& program) {
  out << "seed " << program.seed << ": " << program.nranks << " ranks"
      << (program.thread_per_rank ? ", a thread each" : ", one thread")
      << (program.as_graph ? ", as graphs" : "");
  for (const RandomGroup& group : program.groups) {
    out << (group.is_open ? "\n  group" : "\n  calls");
    for (const RandomCall& call : group.calls)
      out << "\n    comm " << call.communicator << " stream " << call.stream << ": "
          << call.operation;
  }
  return out;
}

void perform(const RandomProgram& program, const Stage& stage) {
  Performance(program, stage).run();
}

}  // namespace niccolite::test
