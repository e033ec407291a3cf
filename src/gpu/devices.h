// Devices: the devices of a machine, and which of them is current. Thread safety: any thread, as
// all of Machine (machine.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace niccolite::gpu {

enum class Kind : unsigned char { Cuda, Virtual };

struct DeviceInfo {
  std::string name;  // "NVIDIA H200", "Virtual GPU"
  std::array<uint8_t, 16>
      uuid{};  // equal in all processes that see the same device, differs between devices and hosts
  std::string bus_id;  // "0000:1b:00.0"
  int multiprocessors = 0;
  int compute_capability = 0;  // 90 for 9.0
  size_t total_bytes = 0;
};

class EventWorkers;

class Devices {
 public:
  virtual Kind kind() const = 0;
  /// The threads that run kernels and can serve descriptors meanwhile; null: there are none.
  virtual EventWorkers* event_workers() { return nullptr; }
  virtual int device_count() const = 0;
  virtual Result<DeviceInfo> device_info(int device) = 0;
  /// Version of the CUDA driver, as cuDriverGetVersion gives it (13000 for 13.0); virtual GPUs
  /// report the version of their shim.
  virtual int driver_version() const = 0;

  /// The calling thread's current device; 0 when it never chose one.
  virtual Result<int> current_device() = 0;
  virtual Status set_current_device(int device) = 0;

 protected:
  ~Devices() = default;
};

/// Makes `device` current in the calling thread for its lifetime.
class ScopedDevice {
 public:
  ScopedDevice(Devices& devices, int device);
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;

 private:
  Devices& devices_;
  int previous_ = -1;
};

}  // namespace niccolite::gpu
