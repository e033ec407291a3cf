// The virtual driver's door for libnccl.so.2 (gpu/virtual/tasks.h).
#include "gpu/virtual/driver.h"

extern "C" niccolite::gpu::virtual_::VirtualMachine* niccolite_virtual_driver(
    int interface_version) {
  return niccolite::gpu::virtual_::open(interface_version);
}
