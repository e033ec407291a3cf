// Types that few tests have: compiled without optimisation (CMakeLists.txt).
#include "tests/device/emulated_kernels.h"

namespace niccolite::emulation {

NICCOLITE_EMULATE(Float16)
NICCOLITE_EMULATE(Float64)
NICCOLITE_EMULATE(Float8e4m3)
NICCOLITE_EMULATE(Float8e5m2)

}  // namespace niccolite::emulation
