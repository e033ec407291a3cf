// Assigns to each worker of a program in a CTA its movers: a pipeline of stages (pipeline.cuh), or
// the threads of as many warps as there are. Lowering decides; this file has the facilities of
// kernels, which lowering takes into account, and the fields of its plans that kernels read. Pure
// functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "executor/cuda/launch/launch_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

/// Bytes that the blocks of an aligned buffer are aligned to, at most 16; the same for all ranks,
/// also for those whose buffers have one block and no stride.
uint8_t stride_width(const Launch& launch, size_t work);

/// The most warps of a worker that bulk copies serve: the warp of the thread that drives them, and
/// warps that shift the data where source and target are not aligned alike (stage_shift.cuh).
inline constexpr uint32_t kWarpsOfPassingOn = 2;
inline constexpr uint32_t kWarpsOfCopyWithin = 4;
inline constexpr uint32_t kWarpsOfShiftedCopyWithin = 5;
inline constexpr uint32_t kWarpsOfSend = 8;

/// How a CTA shares out its warps and its shared memory. Both layouts move data either way: in each
/// operation peers say whether their buffers are reached (protocol/advertisement.h). A rank expects
/// its peers' buffers to be reached if its own are.
enum class Expected : uint8_t {
  Direct,  // stages and warps are for the worker that reduces exposed inputs; the others only wait
  Slots,   // stages are for the workers that copy to slots and from slots
};

/// Workers of a launch by a team may share their warps with others, if each is one instruction at
/// one end of one connection: they move chunks in no order (team_kernel.cuh). Those that wait for
/// other ranks to move their data do so, and leave the warps to who moves them; all do where a CTA
/// has no warp for each. There is a group of workers that send, and one of workers that receive.
enum class Sharing : uint8_t { None, WithSenders, WithReceivers };
inline constexpr size_t kSharings = 2;
/// The group that the worker may be in.
Sharing possible_sharing(const Launch& launch, size_t worker);
/// The least warps of workers that a CTA of the pattern channel needs.
size_t least_warps(const Launch& launch, int channel);

/// The movers, by worker.
struct WorkerMovers {
  std::vector<uint8_t> forms;        // WorkerForm: several
  std::vector<uint32_t> most_warps;  // kMaxWarps: as many as there are
  std::vector<Sharing> sharing;
};

/// Kernels' facilities for the launch, on a device that has such stages.
lowering::Facilities facilities_of(const Launch& launch, Staging staging);

/// Lowering's plans of the workers for such kernels, and for the layout that `expected` says.
std::vector<lowering::WorkerPlan> plan_workers(const Launch& launch, Staging staging,
                                               Expected expected);

/// Returns the movers of each worker, as `plans` say.
WorkerMovers movers_of(const Launch& launch, std::span<const lowering::WorkerPlan> plans);

}  // namespace niccolite::executor::cuda
