// Devices: the GPUs of this process as far as the package needs them. Two implementations: the CUDA
// driver (libcuda.so.1, opened at run time) and Niccolite's virtual GPUs (vcuda's runtime, opened
// from the library's folder). The choice follows the library's (NICCOLITE_DEVICES).
//
// Streams and events are the handles of CUDA. Failures throw RuntimeError, which needs the GIL;
// functions marked "any thread" do not throw and do not need it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace niccolite::python {

using Stream = uintptr_t;
using Event = void*;

/// Where a pointer points to.
struct Place {
  enum class Kind : unsigned char { Pageable, Host, Device } kind = Kind::Pageable;
  int device = -1;  // of Kind::Device
};

class Devices {
 public:
  virtual ~Devices() = default;
  virtual bool is_virtual() const = 0;
  virtual int count() = 0;
  /// The current device of the calling thread.
  virtual int current() = 0;
  /// Returns current(), or kNone if neither the thread nor CUDA has chosen a device for the thread.
  virtual int chosen() { return current(); }
  static constexpr int kNone = -1;
  virtual void set_current(int device) = 0;

  virtual Stream create_stream(int device) = 0;
  virtual void destroy_stream(Stream stream) = 0;
  /// Is all that was queued done? Any thread, whose device the default stream is; a stream that has
  /// failed is done.
  virtual bool is_idle(Stream stream) = 0;
  /// Waits until it is. Any thread, as is_idle().
  virtual void wait_idle(Stream stream) = 0;
  virtual bool is_capturing(Stream stream) = 0;  // any thread

  virtual Event record(Stream stream) = 0;  // null: the driver refuses. Any thread
  virtual bool is_done(Event event) = 0;    // any thread
  virtual void destroy(Event event) = 0;    // any thread

  virtual Place place_of(const void* pointer) = 0;  // any thread
  /// Lets the device reach memory of the host in place; false when it cannot be. Any thread.
  virtual bool register_host(void* base, size_t bytes) = 0;
  virtual void unregister_host(void* base) = 0;  // any thread
  /// Between any two places; done when it returns.
  virtual void copy(void* target, const void* source, size_t bytes) = 0;
};

/// The process's devices, chosen by the first call. Never destroyed. The GIL must be held at the
/// first call.
Devices& devices();
/// Has devices() been called?
bool are_devices_chosen();

/// Makes `device` current in the calling thread for its lifetime, and for longer where none was.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;

 private:
  int previous_ = Devices::kNone;  // none: nothing to restore
};

}  // namespace niccolite::python
