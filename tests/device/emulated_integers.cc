// Types that few tests have: compiled without optimisation (CMakeLists.txt).
#include "tests/device/emulated_kernels.h"

namespace niccolite::emulation {

NICCOLITE_EMULATE(Uint8)
NICCOLITE_EMULATE(Int32)
NICCOLITE_EMULATE(Uint32)
NICCOLITE_EMULATE(Int64)
NICCOLITE_EMULATE(Uint64)

}  // namespace niccolite::emulation
