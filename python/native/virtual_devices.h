// Virtual GPUs through vcuda's libcudart.so.13.
#pragma once

#include <memory>

#include "devices.h"

namespace niccolite::python {

/// Has the process loaded the virtual driver already?
bool is_virtual_driver_loaded();
/// RuntimeError: the virtual driver is not there, or NICCOLITE_DEVICES is malformed.
std::unique_ptr<Devices> open_virtual_devices();

}  // namespace niccolite::python
