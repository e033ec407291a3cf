#include "tests/device/emulated_kernels.h"

namespace niccolite::emulation {

void run_thread(const KernelId& id, const LaunchArgs& args) {
  if (!id.reduces) return run_form<CopyOperation>(id, args);
  return executor::is_floating(id.type) ? run_types<true>(id, args) : run_types<false>(id, args);
}

}  // namespace niccolite::emulation
