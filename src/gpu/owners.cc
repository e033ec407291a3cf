// The owners give their objects back to the interface that they came from.
#include <atomic>
#include <utility>

#include "base/log.h"
#include "gpu/machine.h"
#include "gpu/multicast.h"

namespace niccolite::gpu {

namespace {
// relaxed, both: a failure that is logged all the same does no harm.
std::atomic<bool> driver_has_ended{false};
}  // namespace

void note_end_of_driver() { driver_has_ended.store(true, std::memory_order_relaxed); }

void log_failure(const Status& status) {
  if (status.is_ok() || driver_has_ended.load(std::memory_order_relaxed)) return;
  LOG(Warn, All, "{}", status.message());
}

Status Stream::give_back(Streams& from, void* handle) { return from.release_stream(handle); }
Status Event::give_back(Streams& from, void* handle) { return from.release_event(handle); }
Status Graph::give_back(Graphs& from, void* handle) { return from.release_graph(handle); }
Status Physical::give_back(Mappings& from, void* handle) { return from.release_physical(handle); }
Status Reservation::give_back(Mappings& from, void* handle) {
  return from.release_reservation(handle);
}
Status PoolImport::give_back(Sharing& from, void* handle) {
  return from.release_pool_import(handle);
}

Status MulticastTeam::give_back(Multicast& from, void* handle) { return from.release_team(handle); }
Status MulticastMapping::give_back(Multicast& from, void* handle) {
  return from.release_mapping(handle);
}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this == &other) return *this;
  reset();
  from_ = other.from_;
  handle_ = std::exchange(other.handle_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  device_ = std::exchange(other.device_, -1);
  return *this;
}

void Memory::reset() {
  data_ = nullptr;
  bytes_ = 0;
  device_ = -1;
  if (void* handle = std::exchange(handle_, nullptr)) log_failure(from_->release_memory(handle));
}

ScopedDevice::ScopedDevice(Devices& devices, int device) : devices_(devices) {
  const Result<int> current = devices_.current_device();
  if (!current.is_ok()) {
    log_failure(current.status());
    return;
  }
  if (current.value() == device) return;
  const Status status = devices_.set_current_device(device);
  log_failure(status);
  if (status.is_ok()) previous_ = current.value();
}

ScopedDevice::~ScopedDevice() {
  if (previous_ >= 0) log_failure(devices_.set_current_device(previous_));
}

}  // namespace niccolite::gpu
