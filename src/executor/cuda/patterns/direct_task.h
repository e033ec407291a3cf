// Programs of one step by LL, as tasks of the kernels of direct.cuh and direct_list.cuh: from a
// rank's phases (lowering/phases.h). Pure functions.
#pragma once

#include <optional>

#include "executor/cuda/patterns/direct_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

/// One work as the kernels for operations of one step see it.
struct OneStep {
  const lowering::Phases* phases;
  uint32_t peers;  // the larger of the numbers of destinations and sources
};

/// Returns the work as one step, or nothing if such a kernel cannot run it. All blocks of a task
/// have one length, results are not sent on, and a reducing task stores nothing else. `reduces`:
/// for a kernel that reduces; otherwise for one that moves bytes.
std::optional<OneStep> one_step_of(const Launch& launch, size_t work, bool reduces);

/// Is the program's first work one that one_step_of() knows?
bool goes_in_one_step(const Launch& launch, bool reduces);
/// Is it so for a kernel that reduces? `reduces` is ignored: direct lists have no other kernel.
bool reduces_in_one_step(const Launch& launch, bool reduces);

/// The task, of at most kMostPeers peers. Of a list, blocks are counted, of others measured.
template <uint32_t kMostPeers>
DirectTask<kMostPeers> make_task(const Launch& launch, size_t work, const OneStep& step);

/// How the one length of the first work's blocks is cut up.
BlockCut cut_of(const Launch& launch);

extern template DirectTask<1> make_task<1>(const Launch&, size_t, const OneStep&);
extern template DirectTask<kFewDirectPeers> make_task<kFewDirectPeers>(const Launch&, size_t,
                                                                       const OneStep&);
extern template DirectTask<kMostDirectPeers> make_task<kMostDirectPeers>(const Launch&, size_t,
                                                                         const OneStep&);

/// Elements of a block of the partition.
uint64_t length_of(const Partition& partition, uint32_t block);

/// Threads that have a vec8 of so many bytes each, in whole warps.
uint32_t threads_for(uint64_t bytes);

}  // namespace niccolite::executor::cuda
