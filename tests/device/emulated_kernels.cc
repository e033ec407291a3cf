#include "tests/device/emulated_kernels.h"

namespace niccolite::emulation {

void run_thread(const KernelId& id, const LaunchArgs& args) {
  mark_begin(args.header);
  if (!id.reduces)
    run_form<CopyOperation>(id, args);
  else if (executor::is_floating(id.type))
    run_types<true>(id, args);
  else
    run_types<false>(id, args);
  mark_end(args.header);
}

}  // namespace niccolite::emulation
