#include "tests/device/emulated_kernels.h"

namespace niccolite::emulation {

template void run_types<false>(const KernelId& id, const LaunchArgs& args);

}  // namespace niccolite::emulation
