// Times the launches of all ranks together, in graph replay or by stream launches, a host thread
// per rank.
#pragma once

#include <barrier>
#include <vector>

#include "tests/device/gpu_ranks.h"

namespace niccolite::device_test {

/// Per operation: the slowest rank's.
struct Timing {
  double microseconds = 0;
};

class Bench {
 public:
  Bench(gpu::Machine& machine, GpuRanks& ranks,
        std::vector<executor::cuda::PreparedLaunch>& launches)
      : machine_(machine), ranks_(ranks), launches_(launches) {}

  Result<Timing> graph(double milliseconds) { return run(milliseconds, /*use_graph=*/true); }
  Result<Timing> stream(double milliseconds) { return run(milliseconds, /*use_graph=*/false); }

 private:
  static constexpr int kOperations = 20;  // in one graph

  Result<Timing> run(double milliseconds, bool use_graph);
  Result<double> run_rounds(int rounds, bool use_graph);
  Status run_rank(int rank, int rounds, bool use_graph, std::barrier<>& meeting, float& time);

  gpu::Machine& machine_;
  GpuRanks& ranks_;
  std::vector<executor::cuda::PreparedLaunch>& launches_;
};

}  // namespace niccolite::device_test
