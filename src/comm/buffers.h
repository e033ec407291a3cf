// Buffers: the memory of this rank's user that the communicator knows: registered ranges, windows,
// and the buffers that kernels of other ranks may use. Thread safety: functions that take a pointer
// or a handle of the user's from any thread, also while another thread ends the communicator;
// exports() and imports() also by threads that answer other ranks; the others by the thread inside
// a call on the communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "registry/registrations.h"

namespace niccolite::registry {
class BufferExports;
class BufferImports;
class DeviceComms;
class TeamBuffers;
class Window;
class Windows;
}  // namespace niccolite::registry

namespace niccolite::transport::net {
class Reducer;
class UserBuffers;
}  // namespace niccolite::transport::net

namespace niccolite::comm {

class Lifetime;

/// Device memory of a communicator, in bytes.
struct MemoryUse {
  size_t suspendable = 0;  // connections, scratch blocks: Communicator::suspend() gives them back.
                           // Stays the same meanwhile
  size_t others = 0;       // signals, records of windows, tables, resources of device
                           // communicators, slots that NICs have registered
  bool is_suspended = false;
};

class Buffers {
 public:
  /// `lifetime` outlives this object, and has the error of calls after the end.
  Buffers(gpu::Allocations& allocations, const Lifetime& lifetime);
  ~Buffers();

  /// See Registrations; also while a stream is capturing. They end with the communicator.
  Result<void*> register_range(void* pointer, size_t bytes);
  Status deregister_range(void* handle) EXCLUDES(exports_mutex_);
  registry::Registrations& registrations() { return registrations_; }

  /// With ranks of other processes; before this rank answers them.
  void share(std::shared_ptr<registry::BufferExports> exports,
             std::shared_ptr<registry::BufferImports> imports) EXCLUDES(exports_mutex_);
  /// With the network's reducer. Before the first registration.
  void share(std::shared_ptr<transport::net::Reducer> reducer);
  /// With the network. Before the first registration.
  void share(std::shared_ptr<transport::net::UserBuffers> of_network);
  /// With the multicast team. After open_windows(), before the first registration.
  void share(std::shared_ptr<registry::TeamBuffers> of_team);
  registry::TeamBuffers* of_team() const { return of_team_.get(); }
  /// A window holds that memory of the user's now.
  void note_window(void* user, size_t bytes);
  /// Is all of it registered, or in a window?
  bool is_registered(const void* pointer, size_t bytes) EXCLUDES(windows_mutex_);
  /// Null if no rank can map another's memory.
  const std::shared_ptr<registry::BufferExports>& exports() const { return exports_; }
  const std::shared_ptr<registry::BufferImports>& imports() const { return imports_; }

  void open_windows(std::unique_ptr<registry::Windows> windows,
                    std::unique_ptr<registry::DeviceComms> device_comms) EXCLUDES(windows_mutex_);
  /// Null before open_windows() and after close_windows().
  registry::Windows* windows() const { return windows_.get(); }
  registry::DeviceComms* device_comms() const { return device_comms_.get(); }
  /// See registry::DeviceComms.
  Status withdraw_device_comm(const void* window) EXCLUDES(windows_mutex_);
  void end_device_comm(const void* handle) EXCLUDES(windows_mutex_);
  Status deregister_window(const void* handle) EXCLUDES(windows_mutex_);
  /// Null when `handle` is no window of this communicator.
  std::shared_ptr<const registry::Window> find_window(const void* handle) EXCLUDES(windows_mutex_);
  /// See registry::Windows::find_numbered().
  std::shared_ptr<const registry::Window> find_numbered(uint64_t number) EXCLUDES(windows_mutex_);
  /// See registry::Windows::containing().
  std::shared_ptr<const registry::Window> find_window_of(const void* pointer, size_t bytes)
      EXCLUDES(windows_mutex_);

  /// Device memory of records and tables.
  size_t bytes() const;

  // The end, in this order.
  void close_windows() EXCLUDES(windows_mutex_);
  void close_exports() EXCLUDES(exports_mutex_);
  void close_imports();

 private:
  const Lifetime& lifetime_;
  registry::Registrations registrations_;
  // Both mutexes: of the pointer's end, for threads that do not use the communicator.
  std::mutex exports_mutex_;
  std::shared_ptr<registry::BufferExports> exports_;
  std::shared_ptr<registry::BufferImports> imports_;
  std::shared_ptr<transport::net::Reducer> reducer_;         // null: there is none
  std::shared_ptr<transport::net::UserBuffers> of_network_;  // the same
  std::shared_ptr<registry::TeamBuffers> of_team_;           // the same; uses windows_
  std::mutex windows_mutex_;
  std::unique_ptr<registry::Windows> windows_;
  std::unique_ptr<registry::DeviceComms> device_comms_;  // uses windows_
};

}  // namespace niccolite::comm
