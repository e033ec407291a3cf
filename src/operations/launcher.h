// Launcher: planned operations bound to their connections, ready to be queued again and again;
// hides which executor runs them. Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "executor/launch.h"
#include "gpu/streams.h"
#include "profiling/profiling.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::operations {

/// How one launch is queued, beside its buffers.
struct LaunchOptions {
  gpu::StreamHandle stream = nullptr;  // or the graph that it captures into
  uint64_t number = 0;                 // Launch::number
  /// Task::launched. The operation queue has it recorded: by `begun`, or by the stream.
  void* launched = nullptr;
  /// CUDA: the event with this handle is recorded when the kernel has begun; null: none.
  void* begun = nullptr;
  /// Virtual GPUs: the place of the launch among the launches of its device.
  executor::StartOrder order{};
  /// Virtual GPUs wait in any case.
  executor::AfterLast after_last = executor::AfterLast::Ended;
};

class Launcher {
 public:
  virtual ~Launcher() = default;
  /// May peers be offered the user's buffers (executor/protocol/advertisement.h)?
  bool advertises() const { return advertisements_ == Advertisements::Made; }
  /// Which buffers are offered to whom.
  enum class Advertisements : uint8_t {
    None,
    Possible,  // none, as all goes by slots, but a plan for direct buffers might make some
    Taken,     // peers offer their buffers to this rank alone, as to the root of a reduce
    Made       // this rank offers its own, or has to know its place in windows
  };
  Advertisements advertisements() const { return advertisements_; }
  /// Does it have device memory, so that it must live until its queued launches are done?
  virtual bool has_memory() const { return false; }
  /// Is it a short collective, after which, or as which, a launch may begin early
  /// (AfterLast::Early)?
  virtual bool is_short() const { return false; }
  /// Returns the CTAs of each of its launches.
  int ctas() const { return ctas_; }
  /// `launch` without its buffers. `scratch`: Scratch::reserve() of it.
  static Result<std::unique_ptr<Launcher>> create(gpu::Machine& machine, int device,
                                                  executor::Launch launch,
                                                  std::vector<void*> scratch);
  /// Queues the launch with the users' buffers, one for each of its works.
  Status queue(std::span<const executor::Buffers> buffers, LaunchOptions options);

  /// The form of a launch, for a communicator that is profiled; else empty.
  const profiling::LaunchForm& form() const { return form_; }
  void set_form(profiling::LaunchForm form) { form_ = std::move(form); }

 protected:
  /// queue() with all buffers, scratch buffers among them.
  virtual Status queue_kernel(std::span<const executor::Buffers> buffers,
                              LaunchOptions options) = 0;

  int ctas_ = 0;

 private:
  Advertisements advertisements_ = Advertisements::None;
  std::vector<void*> scratch_;              // by work; empty: no work needs any
  std::vector<executor::Buffers> buffers_;  // of the launch in progress, with it
  profiling::LaunchForm form_;
};

/// Makes the kernels of `device` ready to be launched; part of making a communicator, since the
/// first launch of a kernel that was not loaded waits for the device, which may be waiting for a
/// peer.
Status load_kernels(gpu::Machine& machine, int device);

}  // namespace niccolite::operations
