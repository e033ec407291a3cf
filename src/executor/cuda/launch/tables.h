// The tables of a program as the kernel reads them (launch_args.h): what the compact program says,
// with what the kernel would otherwise have to count. Pure functions.
#pragma once

#include <span>
#include <vector>

#include "executor/cuda/launch/launch_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

struct Places;

PortTask task_of(const Launch& launch, uint16_t port);

struct Params {
  std::vector<std::byte> bytes;
  uint32_t threads = 0;  // that a CTA needs, a multiple of kWarp
  bool has_staged_copies = false;
  bool has_advertisements = false;
};

/// The parameters of the launch's program, whose workers have these plans, for CTAs of at most so
/// many threads, enough for a warp for every worker, and for the service warp of Simple. Fills in
/// the header's offsets in it and in shared memory. InvalidUsage when a field's range is exceeded.
/// `reduces`: the kernel does (KernelId). `most_shared`: bytes of shared memory that a CTA may have
/// with stages.
Result<Params> make_params(const Launch& launch, std::span<const lowering::WorkerPlan> plans,
                           const Places* places, uint32_t threads, bool reduces,
                           uint32_t most_shared, LaunchHeader& header);

}  // namespace niccolite::executor::cuda
