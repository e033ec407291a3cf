// LaunchOrder: keeps live operations of communicators that share a device from waiting for each
// other in a circle, when the device has no place for all of them at a time and their streams come
// to them in another order than on other devices (docs/design/ordering.md).
//
// Where all launched operations that have not ended fit the device, nothing is ordered. An
// operation that does not fit beside it waits until the operations that other communicators
// launched before it have begun: not until they have ended, so that operations that fit side by
// side still run side by side. All ranks run one program, so that the order in which each host
// launches is an order that all agree on. A launch costs one atomic load while the widest
// operations of all communicators of the device fit it together. Thread safety: before() by one
// thread at a time for a communicator.
#pragma once

#include <atomic>
#include <memory>

#include "base/status.h"
#include "gpu/streams.h"
#include "observe/recorder.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::operations {

struct LaunchOptions;

class LaunchOrder {
 public:
  /// A communicator as other communicators of its device see it.
  struct Of {
    gpu::Machine& machine;
    int device = 0;
    std::shared_ptr<const observe::Recorder> recorder;  // hears of its launches
    std::shared_ptr<const gpu::Event> last_work;        // is recorded behind each operation
    int most_ctas = 0;                                  // that its operations have, messages aside
    int usual_ctas = 0;  // that nearly all of them have; 0: as the widest
  };
  /// Null: the device has room for everything, or cannot tell that an operation has begun.
  static Result<std::unique_ptr<LaunchOrder>> join(Of of);
  ~LaunchOrder();
  LaunchOrder(const LaunchOrder&) = delete;

  /// Called before an operation of `ctas` CTAs is launched on a stream that captures nothing: makes
  /// it wait for others, by the stream or by `options`.
  Status before(int ctas, LaunchOptions& options);
  /// Called after the event has been recorded behind the operation.
  void after() {
    // [release] pairs with has_ended(): whoever sees the number sees the event as it was recorded.
    recorded_.store(number_.load(std::memory_order_relaxed), std::memory_order_release);
  }

 private:
  struct Device;  // shared by its communicators
  LaunchOrder(Of of, std::shared_ptr<Device> shared);
  /// CTAs that its operations that have not ended may have at a time. Holds the device's mutex.
  int ctas_of_unended();
  bool has_ended(uint64_t number) const;
  bool has_begun() const;
  void note(uint64_t number, int ctas);

  const Of of_;
  const std::shared_ptr<Device> shared_;
  // The newest operation. Those before it have ended when it has begun.
  std::atomic<uint64_t> number_{0};  // 0: none
  std::atomic<int> ctas_{0};
  std::atomic<int> widest_{0};         // CTAs of an operation so far
  std::atomic<uint64_t> recorded_{0};  // the operation that the event stands behind
  uint64_t ended_ = 0;                 // number of the last operation seen to have ended; under the
                                       // device's mutex
  // Most CTAs so far or, if more, the expected CTAs. Written by the communicator's thread with the
  // device's mutex, and read by this thread alone.
  int expected_ctas_;
  gpu::Event begun_;                 // CUDA: recorded as they begin by operations that are ordered
  std::weak_ptr<const void> place_;  // virtual GPUs: of its newest operation, StartOrder::place
};

}  // namespace niccolite::operations
