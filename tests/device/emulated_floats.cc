#include "tests/device/emulated_kernels.h"

namespace niccolite::emulation {

void run_floats(const KernelId& id, const LaunchArgs& args) {
  switch (id.type) {
    case DataType::Float16:
      return run_type<DataType::Float16>(id, args);
    case DataType::Float32:
      return run_type<DataType::Float32>(id, args);
    case DataType::Float64:
      return run_type<DataType::Float64>(id, args);
    case DataType::Bfloat16:
      return run_type<DataType::Bfloat16>(id, args);
    case DataType::Float8e4m3:
      return run_type<DataType::Float8e4m3>(id, args);
    case DataType::Float8e5m2:
      return run_type<DataType::Float8e5m2>(id, args);
    default:
      fail_for_want_of(id);
  }
}

}  // namespace niccolite::emulation
