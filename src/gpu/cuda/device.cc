// Devices and contexts.
#include <algorithm>

#include "base/log.h"
#include "gpu/cuda/machine.h"
#include "gpu/cuda/open.h"

namespace niccolite::gpu::cuda {

Result<Machine*> open() {
  struct Opened {
    Opened() : machine(CudaMachine::create()) {}
    Result<CudaMachine*> machine;
  };
  static const Opened* const opened = new Opened;  // never destroyed: owners outlive main()
  if (!opened->machine.is_ok()) return opened->machine.status().copy();
  return static_cast<Machine*>(opened->machine.value());
}

Result<ScopedContext> ScopedContext::enter(const Driver& driver, CuContext context) {
  ScopedContext scoped;
  CuContext current = nullptr;
  TRY(driver.check(driver.cuCtxGetCurrent(&current), "cuCtxGetCurrent"));
  if (current == context) return scoped;
  TRY(driver.check(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent"));
  scoped.driver_ = &driver;
  scoped.previous_ = current;
  return scoped;
}

ScopedContext::~ScopedContext() {
  if (driver_ == nullptr) return;
  const Status status = driver_->check(driver_->cuCtxSetCurrent(previous_), "cuCtxSetCurrent");
  if (!status.is_ok()) LOG(Warn, All, "{}", status.message());
}

ScopedRelaxedCapture::ScopedRelaxedCapture(const Driver& driver) : driver_(driver) {
  // Cannot fail but for a bad mode; a thread that captures nothing is not affected.
  driver_.cuThreadExchangeStreamCaptureMode(&mode_);
}

ScopedRelaxedCapture::~ScopedRelaxedCapture() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }

Result<CudaMachine*> CudaMachine::create() {
  const Driver* driver = TRY(load_driver());
  auto machine = std::unique_ptr<CudaMachine>(new CudaMachine(*driver));
  TRY(machine->find_devices());
  return machine.release();
}

Status CudaMachine::find_devices() {
  int count = 0;
  TRY(driver_.check(driver_.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    auto found = std::make_unique<Device>();
    TRY(driver_.check(driver_.cuDeviceGet(&found->device, ordinal), "cuDeviceGet({})", ordinal));
    int value = 0;
    TRY(driver_.check(
        driver_.cuDeviceGetAttribute(&value, kCuVirtualMemoryManagementSupported, found->device),
        "cuDeviceGetAttribute(virtual memory management, device {})", ordinal));
    found->has_virtual_memory = value != 0;
    value = 0;
    TRY(driver_.check(
        driver_.cuDeviceGetAttribute(&value, kCuGpuDirectRdmaWithVmmSupported, found->device),
        "cuDeviceGetAttribute(GPUDirect RDMA, device {})", ordinal));
    found->can_be_rdma_target = value != 0;
    devices_.push_back(std::move(found));
  }
  return {};
}

Result<CudaMachine::Device*> CudaMachine::device(int ordinal) {
  if (ordinal < 0 || ordinal >= device_count()) {
    return Status::cuda_error("there is no device {}: the CUDA driver shows {}", ordinal,
                              device_count());
  }
  return devices_[static_cast<size_t>(ordinal)].get();
}

Result<CuContext> CudaMachine::context(int ordinal) {
  Device* found = TRY(device(ordinal));
  // acquire: pairs with the release below. Every call of the driver comes by here.
  if (CuContext known = found->context.load(std::memory_order_acquire)) return known;
  const std::lock_guard lock(found->mutex);
  CuContext made = found->context.load(std::memory_order_relaxed);  // under the mutex
  if (made == nullptr) {
    const ScopedRelaxedCapture relaxed(driver_);
    TRY(driver_.check(driver_.cuDevicePrimaryCtxRetain(&made, found->device),
                      "cuDevicePrimaryCtxRetain(device {})", ordinal));
    found->context.store(made, std::memory_order_release);
  }
  return made;
}

Result<ScopedContext> CudaMachine::enter(int ordinal) {
  return ScopedContext::enter(driver_, TRY(context(ordinal)));
}

// Makes a context current for calls that need one, but work with any.
Result<ScopedContext> CudaMachine::enter_any() {
  CuContext current = nullptr;
  TRY(driver_.check(driver_.cuCtxGetCurrent(&current), "cuCtxGetCurrent"));
  if (current != nullptr) return ScopedContext();
  return enter(0);
}

Result<DeviceInfo> CudaMachine::device_info(int ordinal) {
  const CuDevice handle = TRY(device(ordinal))->device;
  DeviceInfo info;
  char text[256] = {};
  TRY(driver_.check(driver_.cuDeviceGetName(text, sizeof text, handle),
                    "cuDeviceGetName(device {})", ordinal));
  info.name = text;
  CuUuid uuid{};
  TRY(driver_.check(driver_.cuDeviceGetUuid(&uuid, handle), "cuDeviceGetUuid(device {})", ordinal));
  std::copy(std::begin(uuid.bytes), std::end(uuid.bytes), info.uuid.begin());
  TRY(driver_.check(driver_.cuDeviceGetPCIBusId(text, sizeof text, handle),
                    "cuDeviceGetPCIBusId(device {})", ordinal));
  info.bus_id = text;
  // As sysfs spells it.
  std::transform(info.bus_id.begin(), info.bus_id.end(), info.bus_id.begin(), [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  TRY(driver_.check(
      driver_.cuDeviceGetAttribute(&info.multiprocessors, kCuMultiprocessorCount, handle),
      "cuDeviceGetAttribute(multiprocessors, device {})", ordinal));
  int major = 0;
  int minor = 0;
  TRY(driver_.check(driver_.cuDeviceGetAttribute(&major, kCuComputeCapabilityMajor, handle),
                    "cuDeviceGetAttribute(compute capability, device {})", ordinal));
  TRY(driver_.check(driver_.cuDeviceGetAttribute(&minor, kCuComputeCapabilityMinor, handle),
                    "cuDeviceGetAttribute(compute capability, device {})", ordinal));
  info.compute_capability = 10 * major + minor;
  TRY(driver_.check(driver_.cuDeviceTotalMem(&info.total_bytes, handle),
                    "cuDeviceTotalMem(device {})", ordinal));
  return info;
}

Result<int> CudaMachine::current_device() {
  CuContext current = nullptr;
  TRY(driver_.check(driver_.cuCtxGetCurrent(&current), "cuCtxGetCurrent"));
  if (current == nullptr) return 0;  // the CUDA runtime's choice for a thread that made none
  CuDevice handle = 0;
  TRY(driver_.check(driver_.cuCtxGetDevice(&handle), "cuCtxGetDevice"));
  const auto found = std::find_if(devices_.begin(), devices_.end(),
                                  [&](const auto& known) { return known->device == handle; });
  if (found == devices_.end()) {
    return Status::internal("the current context is of a device the CUDA driver does not list");
  }
  return static_cast<int>(found - devices_.begin());
}

Status CudaMachine::set_current_device(int ordinal) {
  CuContext primary = TRY(context(ordinal));
  return driver_.check(driver_.cuCtxSetCurrent(primary), "cuCtxSetCurrent(device {})", ordinal);
}

}  // namespace niccolite::gpu::cuda
