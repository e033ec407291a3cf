// Machine: the library's only view of GPUs. Two implementations: gpu/cuda (the CUDA driver, opened
// at run time) and gpu/virtual (GPUs made of CPU threads and memfd memory). tests/conformance runs
// one suite on both.
//
// A machine is all of its interfaces, each with a header of its own; a machine converts to each of
// them, so that functions and classes take the interface that they use, and callers pass the
// machine. Include this file only to name Machine itself: a new interface changes it.
//
// Thread safety: all functions may be called from any thread. Calls that name a device do not
// depend on the calling thread's current device and leave it as it was. Errors: CudaError for what
// the driver (or the virtual driver) refuses; the message names call, object and cause.
#pragma once

#include "gpu/adapters.h"
#include "gpu/devices.h"
#include "gpu/graphs.h"
#include "gpu/mappings.h"
#include "gpu/memory.h"
#include "gpu/peers.h"
#include "gpu/sharing.h"
#include "gpu/streams.h"

namespace niccolite::gpu {

class Multicast;

class Machine : public Devices,
                public Allocations,
                public Sharing,
                public Adapters,
                public Peers,
                public Mappings,
                public Graphs {
 public:
  virtual ~Machine() = default;
  /// Memory of several GPUs behind one address (multicast.h), where Multicast::has_multicast().
  virtual Multicast& multicast() = 0;
};

/// Returns the machine of this process, chosen once by NICCOLITE_DEVICES: "cuda", "virtual" or
/// "virtual:N". If it is unset: virtual GPUs when the program has loaded their driver (its streams
/// and buffers are theirs), else CUDA when a driver and a device are there, else virtual GPUs.
/// Always returns the same pointer, which nobody owns. Errors: CudaError when the chosen kind is
/// not available, with the reason (no driver, no device, no virtual driver library).
Result<Machine*> machine();

}  // namespace niccolite::gpu
