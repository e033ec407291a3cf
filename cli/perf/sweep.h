// Sweep: one thread's way through collectives, types, operations, roots and sizes: measures and
// verifies each row, and tells a sink. All threads of a run make the same calls in the same order.
#pragma once

#include "cli/perf/options.h"
#include "cli/perf/pattern_cache.h"
#include "cli/perf/row.h"
#include "cli/perf/team.h"
#include "cli/perf/verifier.h"
#include "cli/perf/worker.h"

namespace niccolite::perf {

/// The number of rows that a sweep of `nranks` ranks reports.
size_t count_rows(const Options& options, int nranks);

class Sweep {
 public:
  /// All arguments must outlive the sweep. `sink` is null but for the thread that reports.
  Sweep(const Options& options, Team& team, PatternCache& patterns, Worker& worker, Sink* sink)
      : options_(options),
        team_(team),
        patterns_(patterns),
        worker_(worker),
        verifier_(worker),
        sink_(sink) {}

  Status run();

 private:
  Status measure(const Collective& collective);
  Status warm_up(Call call);
  Status row(Call call);
  Result<PlaceResult> place(Call call);
  struct Times {
    double operation_us = 0;
    double allocation_us = 0;  // of its fresh buffers
  };
  Result<Times> time(const Call& call, Worker::Parts parts);
  Status time_first(Call call, std::vector<Measurement>& measurements);
  Status verify(const Call& call, Measurement& measurement);
  std::vector<MemoryUse> memory() const;

  const Options& options_;
  Team& team_;
  PatternCache& patterns_;
  Worker& worker_;
  Verifier verifier_;
  Sink* sink_;
};

}  // namespace niccolite::perf
