// Types that most tests have.
#include "tests/device/emulated_kernels.h"

namespace niccolite::emulation {

NICCOLITE_EMULATE(Int8)
NICCOLITE_EMULATE(Float32)
NICCOLITE_EMULATE(Bfloat16)

}  // namespace niccolite::emulation
