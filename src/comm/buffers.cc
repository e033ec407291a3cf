#include "comm/buffers.h"

#include <utility>

#include "comm/lifetime.h"
#include "registry/buffer_exports.h"
#include "registry/buffer_imports.h"
#include "registry/device_comms.h"
#include "registry/team_buffers.h"
#include "registry/windows.h"
#include "transport/net/reducer.h"
#include "transport/net/user_buffers.h"

namespace niccolite::comm {

Buffers::Buffers(gpu::Allocations& allocations, const Lifetime& lifetime)
    : lifetime_(lifetime), registrations_(allocations) {}

Buffers::~Buffers() = default;

Result<void*> Buffers::register_range(void* pointer, size_t bytes) {
  void* const handle = TRY(registrations_.add(pointer, bytes));
  if (handle != nullptr && reducer_ != nullptr) reducer_->add_user_memory(pointer, bytes);
  if (handle != nullptr && of_network_ != nullptr) of_network_->add(pointer, bytes);
  return handle;
}

Status Buffers::deregister_range(void* handle) {
  TRY(registrations_.remove(handle));
  if (reducer_ != nullptr) reducer_->remove_user_memory();
  if (of_network_ != nullptr) of_network_->remove_ended();
  if (of_team_ != nullptr) of_team_->end_unregistered();
  std::lock_guard lock(exports_mutex_);
  if (exports_ != nullptr) exports_->end_unregistered();
  return {};
}

void Buffers::share(std::shared_ptr<registry::BufferExports> exports,
                    std::shared_ptr<registry::BufferImports> imports) {
  std::lock_guard lock(exports_mutex_);
  exports_ = std::move(exports);
  imports_ = std::move(imports);
}

void Buffers::share(std::shared_ptr<transport::net::Reducer> reducer) {
  reducer_ = std::move(reducer);
}

void Buffers::share(std::shared_ptr<transport::net::UserBuffers> of_network) {
  of_network_ = std::move(of_network);
}

void Buffers::share(std::shared_ptr<registry::TeamBuffers> of_team) {
  of_team_ = std::move(of_team);
}

void Buffers::note_window(void* user, size_t bytes) {
  if (of_network_ != nullptr) of_network_->add(user, bytes);
}

bool Buffers::is_registered(const void* pointer, size_t bytes) {
  return registrations_.covers(pointer, bytes) || find_window_of(pointer, bytes) != nullptr;
}

void Buffers::open_windows(std::unique_ptr<registry::Windows> windows,
                           std::unique_ptr<registry::DeviceComms> device_comms) {
  std::lock_guard lock(windows_mutex_);
  windows_ = std::move(windows);
  device_comms_ = std::move(device_comms);
}

Status Buffers::withdraw_device_comm(const void* window) {
  std::lock_guard lock(windows_mutex_);
  return device_comms_ == nullptr ? lifetime_.gone() : device_comms_->withdraw(window);
}

void Buffers::end_device_comm(const void* handle) {
  // These end without the lock, as in deregister_window().
  std::shared_ptr<const registry::Window> window;
  gpu::Memory memory;
  std::lock_guard lock(windows_mutex_);
  if (device_comms_ == nullptr) return;
  window = windows_->find(handle);
  memory = device_comms_->end(handle);
}

Status Buffers::deregister_window(const void* handle) {
  // Ends without the lock: unmapping it may wait for kernels, which may wait for puts of other
  // machines, and a proxy looks for the windows of such puts.
  std::shared_ptr<const registry::Window> window;
  {
    std::lock_guard lock(windows_mutex_);
    if (windows_ == nullptr) return lifetime_.gone();
    window = windows_->find(handle);
    TRY(windows_->remove(handle));
  }
  if (of_network_ != nullptr) of_network_->remove_ended();
  return {};
}

std::shared_ptr<const registry::Window> Buffers::find_window(const void* handle) {
  std::lock_guard lock(windows_mutex_);
  return windows_ == nullptr ? nullptr : windows_->find(handle);
}

std::shared_ptr<const registry::Window> Buffers::find_numbered(uint64_t number) {
  std::lock_guard lock(windows_mutex_);
  return windows_ == nullptr ? nullptr : windows_->find_numbered(number);
}

std::shared_ptr<const registry::Window> Buffers::find_window_of(const void* pointer, size_t bytes) {
  std::lock_guard lock(windows_mutex_);
  return windows_ == nullptr ? nullptr : windows_->containing(pointer, bytes);
}

size_t Buffers::bytes() const {
  return (windows_ == nullptr ? 0 : windows_->record_bytes() + device_comms_->bytes()) +
         (exports_ == nullptr ? 0 : exports_->table_bytes());
}

void Buffers::close_windows() {
  std::unique_ptr<registry::Windows> windows;  // ends behind the lock
  std::unique_ptr<registry::DeviceComms> device_comms;
  if (of_team_ != nullptr) of_team_->close();
  std::lock_guard lock(windows_mutex_);
  windows = std::move(windows_);
  device_comms = std::move(device_comms_);
}

void Buffers::close_exports() {
  std::lock_guard lock(exports_mutex_);
  if (exports_ != nullptr) exports_->close();
  exports_.reset();
}

void Buffers::close_imports() {
  if (imports_ != nullptr) imports_->close();
  imports_.reset();
}

}  // namespace niccolite::comm
