// The kernels written by hand for a few patterns: each declares the shape of the plans that it
// executes, and one table matches plans with kernels. The interpreter executes all others, but for
// lists. Pure functions.
#pragma once

#include "executor/cuda/launch/kernel_launch.h"

namespace niccolite::executor::cuda {

enum class LaunchData : uint8_t {
  OneWork,
  SeveralWorks,  // messages, or joined programs
  List,          // Launch::is_list()
  DirectList,    // Launch::list_access
};

/// The plans that a kernel executes. They have one pattern channel, and all bytes go through slots.
/// (The program of a direct list only connects the ranks.)
struct PlanShape {
  LaunchData data;
  Protocol protocol;
  /// Have the rank's phases (lowering/phases.h) and sizes the form? `reduces`: as KernelId.
  bool (*has_form)(const Launch& launch, bool reduces);
};

struct PatternKernel {
  const char* name;
  PlanShape executes;
  /// `launch` has the shape. `result` has its kernel's type and op, the flags, and, but for lists,
  /// the works, the grid, and the threads that the interpreter would have.
  KernelLaunch (*prepare)(const Launch& launch, KernelLaunch result);
};

/// The kernel for the launch's plan; null: none is written for it.
const PatternKernel* match(const Launch& launch, bool reduces);

}  // namespace niccolite::executor::cuda
