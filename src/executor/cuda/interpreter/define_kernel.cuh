// The frame of every kernel that runs a launch.
#pragma once

#include "executor/cuda/interpreter/progress.cuh"
#include "executor/cuda/launch/kernel_list.h"

/// Defines a kernel of kernel_list.h: it marks its begin, runs the body, and marks its end. One CTA
/// per multiprocessor is enough. The launch bounds say so, because the compiler may otherwise spill
/// registers to make room for more.
#define NICCOLITE_KERNEL(name, variant, protocol, most_peers, counters, Args, ...)        \
  extern "C" __global__ void __launch_bounds__(niccolite::executor::cuda::kMaxThreads, 1) \
      niccolite_##name(const __grid_constant__ niccolite::executor::cuda::Args args) {    \
    using namespace niccolite::executor::cuda;                                            \
    using niccolite::executor::Protocol;                                                  \
    mark_begin(args.header);                                                              \
    __VA_ARGS__;                                                                          \
    mark_end(args.header);                                                                \
  }
