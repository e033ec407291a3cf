#include "operations/launch_order.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/parameters.h"
#include "base/thread_annotations.h"
#include "gpu/machine.h"
#include "operations/launcher.h"

namespace niccolite::operations {
namespace {

constexpr int kFirstDriver = 12030;  // whose launches record an event when they have begun

/// CTAs that a device has a place for at a time, if each takes a multiprocessor; 0: for all.
Result<int> places_of(gpu::Machine& machine, int device) {
  if (machine.kind() == gpu::Kind::Virtual) return static_cast<int>(parameters::virtual_sms());
  if (machine.driver_version() < kFirstDriver) return 0;
  return TRY(machine.device_info(device)).multiprocessors;
}

}  // namespace

struct LaunchOrder::Device {
  explicit Device(int count) : places(count) {}
  const int places;
  // CTAs of the widest operations of all members, added up. Relaxed: a member that sees it late
  // leaves one operation unordered, of a communicator that has just been made, or has just become
  // wider.
  std::atomic<int> most{0};
  std::mutex mutex;
  std::vector<LaunchOrder*> members GUARDED_BY(mutex){};
};

// A member that becomes wider than was expected is not ordered behind operations that others have
// launched before, since nobody was told that they began. If a device has places for two of the
// widest, one of the other operations is whole on each device, and ends. If it has not, the widest
// are expected from the start.
LaunchOrder::LaunchOrder(Of of, std::shared_ptr<Device> shared)
    : of_(std::move(of)),
      shared_(std::move(shared)),
      expected_ctas_(of_.usual_ctas > 0 && 2 * of_.most_ctas <= shared_->places ? of_.usual_ctas
                                                                                : of_.most_ctas) {}

Result<std::unique_ptr<LaunchOrder>> LaunchOrder::join(Of of) {
  // Never destroyed: communicators may end after main().
  static auto* const mutex = new std::mutex;
  static auto* const devices =
      new std::map<std::pair<const gpu::Machine*, int>, std::shared_ptr<Device>>;
  const int places = TRY(places_of(of.machine, of.device));
  if (places == 0) return std::unique_ptr<LaunchOrder>();
  gpu::Event begun;
  if (of.machine.kind() == gpu::Kind::Cuda)
    begun = TRY(of.machine.create_event(of.device, /*timing=*/false));
  std::lock_guard lock(*mutex);
  std::shared_ptr<Device>& shared = (*devices)[{&of.machine, of.device}];
  if (shared == nullptr) shared = std::make_shared<Device>(places);
  std::unique_ptr<LaunchOrder> order(new LaunchOrder(std::move(of), shared));
  order->begun_ = std::move(begun);
  std::lock_guard members_lock(shared->mutex);
  shared->most.fetch_add(order->expected_ctas_, std::memory_order_relaxed);
  shared->members.push_back(order.get());
  return order;
}

LaunchOrder::~LaunchOrder() {
  std::lock_guard lock(shared_->mutex);
  shared_->most.fetch_sub(expected_ctas_, std::memory_order_relaxed);
  std::erase(shared_->members, this);
}

// relaxed: both are hints. Whoever sees the number of one operation and the CTAs of another takes
// it for one that has not ended.
void LaunchOrder::note(uint64_t number, int ctas) {
  ctas_.store(ctas, std::memory_order_relaxed);
  if (ctas > widest_.load(std::memory_order_relaxed))
    widest_.store(ctas, std::memory_order_relaxed);
  number_.store(number, std::memory_order_relaxed);
}

bool LaunchOrder::has_begun() const {
  return of_.recorder->has_begun(number_.load(std::memory_order_relaxed),
                                 static_cast<uint32_t>(ctas_.load(std::memory_order_relaxed)));
}

// Asked of the event, not of the recorder: kernels of real GPUs tell it nothing unless they are
// asked to, and a communicator that is idle would count for ever.
bool LaunchOrder::has_ended(uint64_t number) const {
  if (recorded_.load(std::memory_order_acquire) != number) return false;  // pairs with after()
  const Result<bool> is_done =
      of_.machine.await_event(*of_.last_work, Deadline::after(std::chrono::milliseconds(0)));
  return is_done.is_ok() && is_done.value();
}

int LaunchOrder::ctas_of_unended() {
  const uint64_t number = number_.load(std::memory_order_relaxed);
  if (number == ended_) return 0;  // 0: there was none
  if (!has_ended(number)) return widest_.load(std::memory_order_relaxed);
  ended_ = number;
  return 0;
}

Status LaunchOrder::before(int ctas, LaunchOptions& options) {
  if (ctas <= expected_ctas_ && shared_->most.load(std::memory_order_relaxed) <= shared_->places) {
    note(options.number, ctas);
    return {};
  }
  std::lock_guard lock(shared_->mutex);
  if (ctas > expected_ctas_) {
    shared_->most.fetch_add(ctas - expected_ctas_, std::memory_order_relaxed);
    expected_ctas_ = ctas;
  }
  int wanted = ctas;
  for (LaunchOrder* const other : shared_->members)
    if (other != this) wanted += other->ctas_of_unended();
  const bool fits = wanted <= shared_->places;
  const bool is_cuda = of_.machine.kind() == gpu::Kind::Cuda;
  executor::StartOrder order;
  for (const LaunchOrder* const other : shared_->members) {
    // Its own operations are ordered already.
    if (fits || other == this || other->has_begun()) continue;
    // With the lock held: the event may not end, nor record more, before the stream knows which
    // record it waits for.
    if (is_cuda) TRY(of_.machine.wait_event(of_.device, options.stream, other->begun_));
    if (!is_cuda) order.before.push_back(other->place_);
  }
  if (is_cuda) {
    options.begun = begun_.handle();
  } else {
    place_ = order.place = std::make_shared<const char>('\0');
    options.order = std::move(order);
  }
  note(options.number, ctas);
  return {};
}

}  // namespace niccolite::operations
