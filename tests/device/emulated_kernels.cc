#include "tests/device/emulated_kernels.h"

namespace niccolite::emulation {
namespace {

void run_reduction_of_type(const KernelId& id, const LaunchArgs& args) {
  switch (id.type) {
#define X(name, bytes, text) \
  case DataType::name:       \
    return run_type<DataType::name>(id, args);
    NICCOLITE_DATA_TYPES(X)
#undef X
  }
  fail_for_want_of(id);
}

}  // namespace

void run_thread(const KernelId& id, const LaunchArgs& args) {
  mark_begin(args.header);
  if (id.reduces) {
    run_reduction_of_type(id, args);
  } else {
    run_form<CopyOperation>(id, args);
  }
  mark_end(args.header);
}

}  // namespace niccolite::emulation
