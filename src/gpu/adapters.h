// Adapters: memory of devices that network adapters (NICs) read and write by themselves (GPUDirect
// RDMA). Thread safety: any thread, as all of Machine (machine.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/fd.h"
#include "base/status.h"

namespace niccolite::gpu {

/// Memory of a device as a NIC registers it: a dma-buf, or of virtual GPUs a file that can be
/// mapped.
struct DmaBuffer {
  Fd descriptor;
  uint64_t offset = 0;  // where the memory begins in it
};

/// When kernels see what a NIC has written to memory of their device, and the host has heard of.
struct NicWrites {
  bool are_ordered = false;     // at once
  bool can_be_flushed = false;  // after flush_nic_writes()
};

class Adapters {
 public:
  /// A descriptor of memory of a device, which has it as long as it is open. CudaError: it is no
  /// memory of this process's devices, or the driver has no dma-buf of it.
  virtual Result<DmaBuffer> export_range(const void* memory, size_t bytes) = 0;
  virtual Result<NicWrites> nic_writes(int device) = 0;
  /// Kernels of `device` that begin to read after this see what NICs have written before it. Waits
  /// while a thread of the program holds the driver.
  virtual Status flush_nic_writes(int device) = 0;

 protected:
  ~Adapters() = default;
};

}  // namespace niccolite::gpu
