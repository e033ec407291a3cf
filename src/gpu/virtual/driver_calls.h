// DriverCalls: the calls of CUDA's driver beyond its runtime, for vcuda's libcuda.so.1: virtual
// memory management, fills of words, waits for values. Reached by VirtualMachine::driver_calls().
// Errors have CUDA's numbers, which are the driver's, too. Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gpu/streams.h"
#include "gpu/virtual/error.h"
#include "gpu/virtual/memory.h"
#include "gpu/virtual/virtual_memory.h"

namespace niccolite::gpu::virtual_ {

/// When a stream goes on that waits for a value in memory: CU_STREAM_WAIT_VALUE_*.
enum class Comparison : uint8_t {
  AtLeast = 0,  // the difference is not negative, so that a counter may wrap around
  Equal = 1,
  AnyBit = 2,     // some bit is in memory and in the value
  NotAllBits = 3  // some bit is neither in memory nor in the value
};

class DriverCalls {
 public:
  virtual VirtualMemory& virtual_memory() = 0;

  /// Has the runtime been called in this process? Then the driver counts as initialised.
  virtual bool is_runtime_used() = 0;
  /// Has the calling thread called the runtime for its current device, since leave_runtime()?
  virtual bool is_in_runtime() = 0;
  virtual void leave_runtime() = 0;

  /// Stores `count` elements of 2 or 4 bytes. `waits`: the call returns when it is done.
  virtual Error fill(int device, StreamHandle stream, void* target, uint32_t value,
                     size_t element_bytes, size_t count, bool waits) = 0;

  /// Memory of `pool` for work of a stream, which need not be of the pool's device. NotSupported:
  /// the stream is capturing.
  virtual Error allocate_in_order(int stream_device, StreamHandle stream,
                                  std::shared_ptr<const MemoryPool> pool, size_t bytes,
                                  void** out) = 0;
  /// Gives it back, or a mapping of another process's memory, after the work queued so far.
  virtual Error free_in_order(int stream_device, StreamHandle stream, void* base) = 0;
  /// A file that says which pool. InvalidValue: the pool was not made to be exported.
  virtual Error export_pool(const MemoryPool& pool, Fd* out) = 0;
  /// The pool that such a file stands for. InvalidValue: it stands for none.
  virtual Error import_pool(int fd, std::shared_ptr<const MemoryPool>* out) = 0;

  // ---- words of 4 or 8 bytes, in memory that GPUs know
  /// Work queued later to the stream waits until the host, or another stream, has stored such a
  /// value; no other stream does.
  virtual Error wait_value(int device, StreamHandle stream, const void* address, uint64_t value,
                           size_t bytes, Comparison comparison) = 0;
  virtual Error write_value(int device, StreamHandle stream, void* address, uint64_t value,
                            size_t bytes) = 0;

 protected:
  ~DriverCalls() = default;
};

}  // namespace niccolite::gpu::virtual_
