// What one instruction costs on the GPUs of this machine.
#pragma once

#include <nlohmann/json.hpp>

#include "base/status.h"
#include "gpu/machine.h"

namespace niccolite::device_test {

/// Prints and returns a row for each protocol and instruction.
Result<nlohmann::json> time_instructions(gpu::Machine& machine);

}  // namespace niccolite::device_test
