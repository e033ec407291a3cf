#include "devices.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "cuda_devices.h"
#include "errors.h"
#include "library.h"
#include "virtual_devices.h"

namespace niccolite::python {
namespace {

bool chosen = false;

std::unique_ptr<Devices> choose() {
  const char* variable = std::getenv("NICCOLITE_DEVICES");
  const std::string_view wanted = variable != nullptr ? variable : "";
  std::string why_not;
  // A program that has loaded the virtual driver uses virtual GPUs, unless it says otherwise.
  const bool is_automatic = wanted.empty();
  if (is_automatic && !is_virtual_driver_loaded()) {
    auto cuda = open_cuda_devices(&why_not);
    // The CUDA driver may have been the virtual GPUs' libcuda.so.1, which brings their devices.
    if (cuda != nullptr && !is_virtual_driver_loaded()) return cuda;
  }
  if (wanted == "cuda") {
    if (auto cuda = open_cuda_devices(&why_not)) return cuda;
    throw_runtime_error("NICCOLITE_DEVICES is cuda, and there is no GPU: " + why_not);
  }
  if (!library().is_ours())
    throw_runtime_error("there is no GPU (" + why_not + "), and " + library().path() +
                        " has no virtual ones: unset NICCOLITE_LIBRARY to use Niccolite's");
  return open_virtual_devices();
}

}  // namespace

Devices& devices() {
  // Leaked: streams and buffers that end with the interpreter still ask it.
  static Devices& process = *[] {
    Devices* opened = choose().release();
    chosen = true;
    return opened;
  }();
  return process;
}

bool are_devices_chosen() { return chosen; }

CurrentDevice::CurrentDevice(int device) {
  const int before = devices().chosen();
  if (before == device) return;
  devices().set_current(device);
  previous_ = before;
}

CurrentDevice::~CurrentDevice() {
  if (previous_ == Devices::kNone) return;
  try {
    devices().set_current(previous_);
  } catch (...) {
    // The device was current a moment ago, and a destructor cannot report an error.
  }
}

}  // namespace niccolite::python
