// Is a launch one that the CUDA executor can run? Pure functions.
#pragma once

#include "executor/launch.h"

namespace niccolite::executor::cuda {

/// InternalError when the launch is inconsistent, InvalidUsage when its program is larger than the
/// executor can hold.
Status check(const Launch& launch);

size_t workers_of_channel(const Program& program, int channel);

}  // namespace niccolite::executor::cuda
