#include "tests/device/emulated_kernels.h"

namespace niccolite::emulation {

void run_integers(const KernelId& id, const LaunchArgs& args) {
  switch (id.type) {
    case DataType::Int8:
      return run_type<DataType::Int8>(id, args);
    case DataType::Uint8:
      return run_type<DataType::Uint8>(id, args);
    case DataType::Int32:
      return run_type<DataType::Int32>(id, args);
    case DataType::Uint32:
      return run_type<DataType::Uint32>(id, args);
    case DataType::Int64:
      return run_type<DataType::Int64>(id, args);
    case DataType::Uint64:
      return run_type<DataType::Uint64>(id, args);
    default:
      fail_for_want_of(id);
  }
}

}  // namespace niccolite::emulation
