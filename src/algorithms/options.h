// The options of an algorithm beside the number of ranks, and the functions by which algorithms
// read them.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "schedule/schedule.h"

namespace niccolite::algorithms {

// Limits of an instruction's compact form (executor/program.h): 255 receives in one, 65,535
// instructions in a worker.
inline constexpr int kMaxRingRanks = 32768;
inline constexpr int kMaxDirectRanks = 256;
/// n/2 log2 n + n instructions, of blocks that are forwarded to one receiver each.
inline constexpr int kMaxForwardingRanks = 8192;

struct Options {
  /// Builds the workers of this rank alone, which is all that executor::compile() needs of a
  /// schedule: O(nranks) instead of O(nranks^2). Every rank's part is the same as in the whole
  /// schedule; only the whole can be checked.
  std::optional<int> only_rank{};
  /// For collectives with a root.
  int root = 0;
  /// Rings: the orders in which data goes round, one pattern channel each. Each names every rank
  /// once. Empty: one ring, in rank order.
  std::vector<std::vector<int>> rings{};
  /// Algorithms with a worker for each phase: shares of a channel's warps for the workers that
  /// push, reduce, gather.
  std::array<int, 3> weights{3, 3, 3};
  /// PAT: chunks that it may have in flight to one peer, at most the slots of the FIFOs. More of
  /// them save latency; two suffice up to 8 ranks.
  int window = 2;
  /// The machine that each rank is on, by any numbers; empty: all ranks are on one. What goes over
  /// wires between machines, and by which rank, follows from it in algorithms that look at it.
  std::vector<int> machines{};
  /// Messages: the tag of their connections, 0 or schedule::kMessageTag.
  int message_tag = 0;
};

/// Positions in Options::weights.
inline constexpr size_t kPushWorker = 0;
inline constexpr size_t kReductionWorker = 1;
inline constexpr size_t kGatherWorker = 2;

/// InvalidArgument when `nranks` is outside [1, max_ranks], `only_rank` or `root` is no rank, or
/// `window` is not positive, or `machines` names not every rank's.
Status check_options(const char* algorithm, int nranks, int max_ranks, const Options& options);

/// The ranks whose workers are to be built.
std::vector<int> ranks_to_build(int nranks, const Options& options);

/// All other ranks, in the order rank + step, rank + 2 * step, ... modulo nranks. With step 1 or -1
/// all ranks together address each peer at a different time.
std::vector<int> peers_by_distance(int rank, int nranks, int step);

/// One rank has nobody to talk to: every collective is a copy of its one block, scaled where it
/// reduces.
schedule::Schedule alone(schedule::Collective collective, const char* algorithm);

/// Renames a schedule that another algorithm has built to `algorithm`, which builds an equal one in
/// such a case.
Result<schedule::Schedule> renamed(Result<schedule::Schedule> built, const char* algorithm);

}  // namespace niccolite::algorithms
