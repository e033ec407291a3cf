// The owners of machine.h and multicast.h give their objects back.
#include <utility>

#include "base/log.h"
#include "gpu/machine.h"
#include "gpu/multicast.h"

namespace niccolite::gpu {
namespace {

// A destructor has nobody to tell: log and go on.
void report(const Status& status) {
  if (!status.is_ok()) LOG(Warn, All, "{}", status.message());
}

}  // namespace

void Stream::reset() {
  if (void* handle = std::exchange(handle_, nullptr)) report(machine_->release_stream(handle));
}

void Event::reset() {
  if (void* handle = std::exchange(handle_, nullptr)) report(machine_->release_event(handle));
}

void Graph::reset() {
  if (void* handle = std::exchange(handle_, nullptr)) report(machine_->release_graph(handle));
}

void Physical::reset() {
  if (void* handle = std::exchange(handle_, nullptr)) report(machine_->release_physical(handle));
}

void PoolImport::reset() {
  if (void* handle = std::exchange(handle_, nullptr)) report(machine_->release_pool_import(handle));
}

void Reservation::reset() {
  if (void* handle = std::exchange(handle_, nullptr)) report(machine_->release_reservation(handle));
}

MulticastTeam::~MulticastTeam() {
  if (handle_ != nullptr) report(owner_->release_team(handle_));
}

MulticastMapping::~MulticastMapping() {
  if (handle_ != nullptr) report(owner_->release_mapping(handle_));
}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this == &other) return *this;
  reset();
  machine_ = other.machine_;
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
  if (void* handle = std::exchange(handle_, nullptr)) report(machine_->release_memory(handle));
}

ScopedDevice::ScopedDevice(Machine& machine, int device) : machine_(machine) {
  const Result<int> current = machine_.current_device();
  if (!current.is_ok()) {
    report(current.status());
    return;
  }
  if (current.value() == device) return;
  const Status status = machine_.set_current_device(device);
  report(status);
  if (status.is_ok()) previous_ = current.value();
}

ScopedDevice::~ScopedDevice() {
  if (previous_ >= 0) report(machine_.set_current_device(previous_));
}

}  // namespace niccolite::gpu
