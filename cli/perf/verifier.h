// Verifier: runs a worker's calls once on known inputs, apart from the timed ones, and looks at
// every element of what came out. Results go into the team's records; who reads them does so
// between two barriers. Thread safety: belongs to its worker's thread.
#pragma once

#include <vector>

#include "cli/perf/pattern.h"
#include "cli/perf/worker.h"

namespace niccolite::perf {

class Verifier {
 public:
  explicit Verifier(Worker& worker) : worker_(worker) {}

  /// Runs `call` on the inputs of `pattern` and writes into the ranks' records how many elements
  /// were wrong.
  Status check(const Call& call, const Pattern& pattern);
  /// Runs `call` on `pattern` and writes digests of the results into the ranks' records.
  Status digest(const Call& call, const Pattern& pattern);

 private:
  /// Returns graphs of the verified operations if the options want graphs, else none.
  Result<std::vector<gpu::Graph>> capture(const Call& call);
  /// Where in the buffers the operations of the group are, of all communicators.
  std::vector<size_t> offsets(const Call& call) const;
  Status fill(const Call& call, const Pattern& pattern, size_t shift);
  Status run_once(const Call& call, const std::vector<gpu::Graph>& graphs);
  Result<uint64_t> count_wrong(const Call& call, const Pattern& pattern, size_t shift,
                               const Rank& rank);
  /// Brings `bytes` of the receive buffer that `call` has used, from `first` on to the host, piece
  /// by piece, and calls visit(data, offset in the buffer, bytes).
  template <typename Visit>
  Status read_back(const Call& call, const Rank& rank, size_t first, size_t bytes, Visit visit);

  Worker& worker_;
};

}  // namespace niccolite::perf
