// Rank: one GPU's part of a run: its stream, buffers and communicators. Worker: the ranks that one
// thread drives, and what it does with them: calls, timing, verification. Results go into the
// team's records; who reads them does so between two barriers. Thread safety: a Worker and its
// ranks belong to one thread.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "cli/perf/library.h"
#include "cli/perf/options.h"
#include "cli/perf/pattern.h"
#include "cli/perf/team.h"
#include "gpu/machine.h"

namespace niccolite::perf {

struct Rank {
  static Result<Rank> create(gpu::Machine& machine, const Options& options, int rank, int device);

  int rank = 0;
  int device = 0;
  gpu::Stream stream;
  gpu::Memory send, receive;
  gpu::Memory staging;             // page-locked; results on their way to verification
  std::vector<gpu::Event> events;  // between graph replays
  std::deque<Communicator>
      comms;  // one per library; last, so that they end while the stream still exists
};

/// One operation as the worker calls it.
struct Call {
  int library = 0;  // index
  const ElementType* type = nullptr;
  const Operation* operation = nullptr;
  size_t count = 0;
  bool is_in_place = false;

  size_t bytes() const { return count * type->bytes; }
};

class Worker {
 public:
  /// All arguments must outlive the worker.
  Worker(gpu::Machine& machine, const Options& options, std::span<const Library> libraries,
         Team& team, std::span<Rank> ranks)
      : machine_(machine), options_(options), libraries_(libraries), team_(team), ranks_(ranks) {}

  Status init_communicators();
  Status destroy_communicators();
  /// Runs `call` as often as the options say, without timing it.
  Status warm_up(const Call& call);
  /// Warms up, runs `call` as the options say and writes the time into the ranks' records. All
  /// workers take part.
  Status time(const Call& call);
  /// Runs `call` on the inputs of `pattern` and writes into the ranks' records how many elements
  /// were wrong.
  Status check(const Call& call, const Pattern& pattern);
  /// Runs `call` on `pattern` and writes digests of the results into the ranks' records.
  Status digest(const Call& call, const Pattern& pattern);

 private:
  Status launch(const Call& call, size_t offset);
  Status launch_iterations(const Call& call, int iterations);
  Status synchronize();
  Result<std::vector<gpu::Graph>> capture(const Call& call, int iterations);
  Status time_stream(const Call& call);
  Status time_graph(const Call& call);
  Status fill_inputs(const Call& call, const Pattern& pattern, size_t shift);
  Status run_once(const Call& call, const std::vector<gpu::Graph>& graphs);
  /// Brings `bytes` of the rank's result to the host piece by piece and calls visit(data, first
  /// byte, bytes).
  template <typename Visit>
  Status read_back(const Rank& rank, size_t bytes, Visit visit);
  Result<uint64_t> wrong_in_guard(const Rank& rank, size_t bytes);

  gpu::Machine& machine_;
  const Options& options_;
  std::span<const Library> libraries_;
  Team& team_;
  std::span<Rank> ranks_;
};

}  // namespace niccolite::perf
