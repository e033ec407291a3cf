#include "comm/launch_order.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "base/thread_annotations.h"
#include "comm/launcher.h"

namespace niccolite::comm {
namespace {

constexpr int kFirstDriver = 12030;  // whose launches record an event when they have begun

}  // namespace

struct LaunchOrder::Device {
  std::atomic<int> members{0};
  std::mutex mutex;
  LaunchOrder* last GUARDED_BY(mutex) = nullptr;        // that launched; null: it is gone
  std::weak_ptr<const void> place GUARDED_BY(mutex){};  // of its launch: StartOrder::place
};

Result<std::unique_ptr<LaunchOrder>> LaunchOrder::join(gpu::Machine& machine, int device) {
  // Never destroyed: communicators may end after main().
  static auto* const mutex = new std::mutex;
  static auto* const devices =
      new std::map<std::pair<const gpu::Machine*, int>, std::shared_ptr<Device>>;
  const bool is_cuda = machine.kind() == gpu::Kind::Cuda;
  if (is_cuda && machine.driver_version() < kFirstDriver) return std::unique_ptr<LaunchOrder>();
  gpu::Event begun;
  if (is_cuda) begun = TRY(machine.create_event(device, /*timing=*/false));
  std::lock_guard lock(*mutex);
  std::shared_ptr<Device>& shared = (*devices)[{&machine, device}];
  if (shared == nullptr) shared = std::make_shared<Device>();
  // relaxed: a count; whoever sees it late orders one operation less.
  shared->members.fetch_add(1, std::memory_order_relaxed);
  std::unique_ptr<LaunchOrder> order(new LaunchOrder(machine, device, shared));
  order->begun_ = std::move(begun);
  return order;
}

LaunchOrder::~LaunchOrder() {
  std::lock_guard lock(shared_->mutex);
  shared_->members.fetch_sub(1, std::memory_order_relaxed);
  if (shared_->last == this) shared_->last = nullptr;
}

Status LaunchOrder::before(Launcher& launcher, gpu::StreamHandle stream) {
  if (shared_->members.load(std::memory_order_relaxed) < 2) return {};
  std::lock_guard lock(shared_->mutex);
  const LaunchOrder* const other = shared_->last == this ? nullptr : shared_->last;
  if (machine_.kind() == gpu::Kind::Cuda) {
    // The lock is held for one call of the driver: the event may not end, nor record more, before
    // the stream knows which record it waits for.
    if (other != nullptr) TRY(machine_.wait_event(device_, stream, other->begun_));
    launcher.start_recording(begun_);
  } else {
    auto place = std::make_shared<const char>('\0');
    executor::StartOrder order{.place = place, .predecessor = {}};
    // Its own operations are ordered already.
    if (other != nullptr) order.predecessor = shared_->place;
    shared_->place = place;
    launcher.start_after(std::move(order));
  }
  shared_->last = this;
  return {};
}

}  // namespace niccolite::comm
