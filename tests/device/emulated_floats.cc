#include "tests/device/emulated_kernels.h"

namespace niccolite::emulation {

template void run_types<true>(const KernelId& id, const LaunchArgs& args);

}  // namespace niccolite::emulation
