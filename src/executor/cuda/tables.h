// The tables of a program as the kernel reads them (launch_args.h): what the compact program says,
// with what the kernel would otherwise have to count. Pure functions.
#pragma once

#include <vector>

#include "executor/cuda/launch_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

PortTask task_of(const Launch& launch, uint16_t port);

/// The image of the launch's program for CTAs of so many threads, enough for a warp for every lane.
/// Fills in the header's offsets in it and in shared memory. InvalidUsage when a field's range is
/// exceeded.
Result<std::vector<std::byte>> make_image(const Launch& launch, uint32_t threads,
                                          LaunchHeader& header);

}  // namespace niccolite::executor::cuda
