// The interface of virtual GPUs beyond Machine: it runs resumable tasks as kernels. Used by
// executor/host.
//
// Where virtual GPUs live: one shared library per process, the *virtual driver*, holds their state,
// as libcuda.so.1 does for real ones. It is vcuda's libcudart.so.13, which host programs link for
// the CUDA Runtime's names; libnccl.so.2 finds it by the symbol below: among the libraries already
// loaded, else as `vcuda/libcudart.so.13` beside itself.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/event_source.h"
#include "gpu/machine.h"
#include "gpu/virtual/multicast_memory.h"

namespace niccolite::gpu::virtual_ {

class DriverCalls;

enum class Progress : unsigned char { Done, Advanced, WouldBlock };

/// One execution of a kernel. A worker thread calls step() again and again until it returns Done;
/// never two at once, but successive calls may come from different threads (with a happens-before
/// between them). step() does a bounded amount of work (about a millisecond at most) and never
/// blocks.
class Task {
 public:
  virtual ~Task() = default;
  virtual Progress step() = 0;
  /// After step() has returned WouldBlock: does whoever ends the wait serve its source or call
  /// EventWorkers::wake()? Nobody has to look whether it is over, but for an abort.
  virtual bool is_woken() const { return false; }
};

/// A kernel launch: makes one Task per execution; a captured launch makes one per replay.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual std::unique_ptr<Task> start() = 0;
};

class VirtualMachine : public Machine, public EventWorkers {
 public:
  /// Queues `kernel` on the stream, or adds it to the graph the stream is capturing into.
  virtual Status launch(int device, StreamHandle stream, std::shared_ptr<Kernel> kernel) = 0;
  /// The memory behind `address`, and the place of `address` in it; null: `address` is in no range
  /// of a multicast team.
  virtual std::shared_ptr<const MulticastMemory> multicast_memory(const void* address,
                                                                  size_t* offset) = 0;
  /// For vcuda's libcuda.so.1.
  virtual DriverCalls& driver_calls() = 0;
};

/// The entry point of the virtual driver. `interface_version` must be kInterfaceVersion, else null:
/// the two libraries are of different builds. Signature: VirtualMachine*
/// niccolite_virtual_driver(int interface_version).
inline constexpr int kInterfaceVersion = 17;
inline constexpr const char* kEntryPoint = "niccolite_virtual_driver";

}  // namespace niccolite::gpu::virtual_
