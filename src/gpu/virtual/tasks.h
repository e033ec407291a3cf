// What virtual GPUs offer beyond Machine: running resumable tasks as kernels. Used by
// executor/host.
//
// Where virtual GPUs live: one shared library per process, the *virtual driver*, holds their state,
// as libcuda.so.1 does for real ones. It is vcuda's libcudart.so.13, which host programs link for
// the CUDA Runtime's names; libnccl.so.2 finds it by the symbol below: among the libraries already
// loaded, else as `vcuda/libcudart.so.13` beside itself.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "gpu/machine.h"

struct epoll_event;

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
  /// VirtualMachine::wake()? Nobody has to look whether it is over, but for an abort.
  virtual bool is_woken() const { return false; }
};

/// What brings data that kernels wait for from outside the process, and tells so by a descriptor: a
/// proxy of the network. While kernels wait, and nothing else is to be done, a worker waits for the
/// descriptor and serves the source itself, so that no other thread has to wake between the data
/// and the kernel. None of its functions waits longer than a moment: a worker serves all sources.
/// Thread safety: one worker at a time.
class EventSource {
 public:
  /// Readable when there is something to do. The same for as long as the source is attached. Best
  /// an epoll, which is then mostly waited for itself; events of kForeign in it are none of the
  /// source's.
  virtual int descriptor() const = 0;
  static constexpr uint64_t kForeign = 0;
  /// Does what there is to do: `ready`, where the caller has waited for the epoll's events itself;
  /// else whatever the source finds. False: another thread is at it, and calls
  /// VirtualMachine::wake() when it no longer is; until then nobody waits for the descriptor.
  virtual bool serve(std::span<const epoll_event> ready) = 0;
  /// Whoever serves has looked after all kernels, and waits: what serve() has left for later is
  /// due.
  virtual void before_wait() = 0;
  /// From now on a worker waits for the descriptor: no thread of the source's own need do so ...
  virtual void begin_serving() = 0;
  /// ... until now. Kernels may have work for it again within microseconds.
  virtual void end_serving() = 0;

 protected:
  ~EventSource() = default;
};

/// A kernel launch: makes one Task per execution; a captured launch makes one per replay.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual std::unique_ptr<Task> start() = 0;
};

class VirtualMachine : public Machine {
 public:
  /// Queues `kernel` on the stream, or adds it to the graph the stream is capturing into.
  virtual Status launch(int device, StreamHandle stream, std::shared_ptr<Kernel> kernel) = 0;
  /// Workers serve `source` until it is detached; then none is inside it any more.
  virtual Status attach(EventSource& source) = 0;
  virtual void detach(EventSource& source) = 0;
  /// Something that kernels may wait for has happened. Cheap when no worker sleeps over it. Any
  /// thread, also one that serves.
  virtual void wake() = 0;
  /// For vcuda's libcuda.so.1.
  virtual DriverCalls& driver_calls() = 0;
};

/// The entry point of the virtual driver. `interface_version` must be kInterfaceVersion, else null:
/// the two libraries are of different builds. Signature: VirtualMachine*
/// niccolite_virtual_driver(int interface_version).
inline constexpr int kInterfaceVersion = 10;
inline constexpr const char* kEntryPoint = "niccolite_virtual_driver";

}  // namespace niccolite::gpu::virtual_
