// Worker: the ranks that one thread drives, with their communicators, calls and times. Times go
// into the team's records; who reads them does so between two barriers. Thread safety: a Worker and
// its ranks belong to one thread.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "cli/perf/collective.h"
#include "cli/perf/library.h"
#include "cli/perf/options.h"
#include "cli/perf/rank.h"
#include "cli/perf/team.h"
#include "gpu/machine.h"

namespace niccolite::perf {

/// One operation as the worker calls it.
struct Call {
  int library = 0;  // index
  const Collective* collective = nullptr;
  const ElementType* type = nullptr;
  const Operation* operation = nullptr;
  int root = 0;
  size_t elements = 0;  // of the larger buffer
  size_t start = 0;     // elements from an aligned address to where the buffers begin

  size_t start_bytes() const { return start * type->bytes; }
  bool is_in_place = false;
};

class Worker {
 public:
  /// All arguments must outlive the worker. `kernels`: of --device, else null.
  Worker(gpu::Machine& machine, const Options& options, std::span<const Library> libraries,
         Team& team, const KernelLibrary* kernels, std::span<Rank> ranks)
      : machine_(machine),
        options_(options),
        libraries_(libraries),
        team_(team),
        kernels_(kernels),
        ranks_(ranks) {}

  Status init_communicators();
  Status destroy_communicators();
  /// The operation of the calls that follow, on every communicator.
  Status set_operation(const ElementType& type, const Operation& operation);

  /// Runs `call` as often as the options say, without timing it.
  Status warm_up(const Call& call);
  /// The timed parts. --beside asks for the product.
  enum class Parts : uint8_t { Collective, Product, Both };
  /// Warms up, runs `call` as the options say and writes the time into the ranks' records. All
  /// workers take part.
  Status time(const Call& call, Parts parts = Parts::Collective);

  /// The times of as many calls as --first says, one by one, on a pair of buffers that nothing has
  /// used: visit() is called after each, when it is in the ranks' records. All workers take part.
  Status time_first(const Call& call, const std::function<Status()>& visit);

  /// Goes on to the buffers of the next operation, and writes what fresh ones cost into
  /// allocation_us_. All workers take part.
  Status next_buffers(const Call& call);

  /// The places of a slot where successive operations go, one after the other: so many bytes from
  /// one to the next.
  struct Places {
    size_t count = 1;
    size_t stride = 0;
  };
  Places places(const Call& call) const;
  /// Queues, for each communicator, as many runs of `call` in one group as the options say, but
  /// none at a place that another one has: `operations(call)` of them, from the first place on.
  Status launch(const Call& call);
  size_t operations(const Call& call) const;
  Status launch_graphs(const std::vector<gpu::Graph>& graphs);
  /// A graph for each rank with so many iterations of `call`, and one with what launch() does.
  Result<std::vector<gpu::Graph>> capture(const Call& call, int iterations);
  Result<std::vector<gpu::Graph>> capture(const Call& call);
  Status synchronize();

  gpu::Machine& machine() const { return machine_; }
  const Options& options() const { return options_; }
  Team& team() const { return team_; }
  std::span<Rank> ranks() const { return ranks_; }
  Shape shape(const Call& call, const Rank& rank) const {
    return call.collective->shape(call.elements, team_.nranks(), rank.rank);
  }

 private:
  Status register_buffers();
  Status deregister_buffers();
  Status make_device_comms();
  class MemoryMeter;
  /// Where one operation goes: which communicator of the call's library, and where in its slot.
  struct Place {
    size_t communicator = 0;
    size_t offset = 0;
  };
  Invocation invocation(const Call& call, const Rank& rank, Place place) const;
  Status copy_own_blocks(const Call& call, Place place);
  Status launch_kernel(const Call& call, const Rank& rank, Place place) const;
  Status launch_at(const Call& call, Place place);
  /// For every communicator.
  Status launch_all(const Call& call, size_t offset);
  Status fork();
  Status join();
  bool multiplies() const { return parts_ != Parts::Collective; }
  Status multiply();
  /// Does each operation wait for the device, so that buffers can be freed?
  bool waits_for_buffers() const;
  /// So many runs in one group, from place `place` on, which moves on; `takes_turns`: so do the
  /// pairs of buffers.
  Status launch_group(const Call& call, size_t operations, size_t& place, bool takes_turns);
  Status launch_iterations(const Call& call, int iterations);
  template <typename Launch>
  Result<std::vector<gpu::Graph>> capture_launch(Launch launch);
  Status time_stream(const Call& call);
  Status time_one_by_one(const Call& call);
  Result<double> time_call(const Call& call);
  void record(double microseconds);
  Status time_graph(const Call& call);

  gpu::Machine& machine_;
  const Options& options_;
  std::span<const Library> libraries_;
  Team& team_;
  const KernelLibrary* const kernels_;
  std::span<Rank> ranks_;
  Parts parts_ = Parts::Collective;  // that are launched now
  double allocation_us_ = 0;         // of fresh buffers, since time() began to measure
};

}  // namespace niccolite::perf
