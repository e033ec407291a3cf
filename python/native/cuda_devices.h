// GPUs through the CUDA driver.
#pragma once

#include <memory>
#include <string>

#include "devices.h"

namespace niccolite::python {

/// Null, with the reason in `why_not`, if there is no driver or no GPU.
std::unique_ptr<Devices> open_cuda_devices(std::string* why_not);

}  // namespace niccolite::python
