#include "gpu/cuda/multicast.h"

#include <memory>
#include <utility>

#include "gpu/cuda/allocation.h"
#include "gpu/cuda/machine.h"
#include "gpu/multicast_bindings.h"

namespace niccolite::gpu::cuda {

struct CudaMulticast::Team {
  CuAllocation object = 0;
  MulticastBindings bindings;
};

struct CudaMulticast::Mapped {
  int ordinal = -1;
  CuPointer address = 0;
  size_t bytes = 0;
};

bool CudaMulticast::has_multicast(int ordinal) {
  const Driver& driver = machine_.driver();
  const Result<CudaMachine::Device*> device = machine_.device(ordinal);
  int value = 0;
  return device.is_ok() && driver.cuMulticastCreate != nullptr &&
         driver.cuDeviceGetAttribute(&value, kCuMulticastSupported, device.value()->device) ==
             kCuSuccess &&
         value != 0;
}

// The recommended one, which the largest pages of a GPU need.
Result<size_t> CudaMulticast::granularity(int devices) {
  return granularity(devices, kCuGranularityRecommended);
}

Result<size_t> CudaMulticast::binding_granularity(int devices) {
  return granularity(devices, kCuGranularityMinimum);
}

Result<size_t> CudaMulticast::granularity(int devices, int option) {
  const Driver& driver = machine_.driver();
  const ScopedContext scoped = TRY(machine_.enter_any());
  const CuMulticastProperties properties{static_cast<unsigned>(devices), 0, kCuHandlePosixFd, 0};
  size_t granularity = 0;
  TRY(driver.check(driver.cuMulticastGetGranularity(&granularity, &properties, option),
                   "cuMulticastGetGranularity({} devices)", devices));
  return granularity;
}

Result<MulticastTeam> CudaMulticast::create(int devices, size_t bytes) {
  const Driver& driver = machine_.driver();
  const ScopedContext scoped = TRY(machine_.enter_any());
  const CuMulticastProperties properties{static_cast<unsigned>(devices), bytes, kCuHandlePosixFd,
                                         0};
  auto team = std::make_unique<Team>();
  TRY(driver.check(driver.cuMulticastCreate(&team->object, &properties),
                   "cuMulticastCreate({} devices, {} bytes)", devices, bytes));
  return MulticastTeam(this, team.release(), bytes);
}

Result<Fd> CudaMulticast::export_team(const MulticastTeam& team) {
  return machine_.export_allocation(static_cast<Team*>(team.handle())->object);
}

Result<MulticastTeam> CudaMulticast::import_team(Fd fd, size_t bytes) {
  const ScopedContext scoped = TRY(machine_.enter_any());
  auto team = std::make_unique<Team>();
  team->object = TRY(machine_.import_allocation(fd));
  return MulticastTeam(this, team.release(), bytes);
}

Status CudaMulticast::join(const MulticastTeam& team, int ordinal) {
  const Driver& driver = machine_.driver();
  const CuDevice device = TRY(machine_.device(ordinal))->device;
  const ScopedContext scoped = TRY(machine_.enter(ordinal));
  return driver.check(
      driver.cuMulticastAddDevice(static_cast<Team*>(team.handle())->object, device),
      "cuMulticastAddDevice(device {})", ordinal);
}

Status CudaMulticast::bind(const MulticastTeam& team, int ordinal, size_t offset,
                           const void* memory, size_t bytes) {
  const Driver& driver = machine_.driver();
  auto* const held = static_cast<Team*>(team.handle());
  const ScopedContext scoped = TRY(machine_.enter(ordinal));
  const ScopedRelaxedCapture relaxed(driver);
  TRY(driver.check(
      driver.cuMulticastBindAddr(held->object, offset, as_pointer(memory), bytes, /*flags=*/0),
      "cuMulticastBindAddr({} bytes of device {} at offset {})", bytes, ordinal, offset));
  held->bindings.add({ordinal, offset, bytes});
  return {};
}

Status CudaMulticast::unbind(const MulticastTeam& team, int ordinal, size_t offset, size_t bytes) {
  const Driver& driver = machine_.driver();
  auto* const held = static_cast<Team*>(team.handle());
  const CuDevice device = TRY(machine_.device(ordinal))->device;
  if (!held->bindings.take({ordinal, offset, bytes})) {
    return Status::cuda_error("device {} has bound no {} bytes at offset {} of this team", ordinal,
                              bytes, offset);
  }
  const ScopedContext scoped = TRY(machine_.enter(ordinal));
  const ScopedRelaxedCapture relaxed(driver);
  return driver.check(driver.cuMulticastUnbind(held->object, device, offset, bytes),
                      "cuMulticastUnbind({} bytes of device {} at offset {})", bytes, ordinal,
                      offset);
}

Result<MulticastMapping> CudaMulticast::map(const MulticastTeam& team, int ordinal) {
  const Driver& driver = machine_.driver();
  auto* const held = static_cast<Team*>(team.handle());
  const size_t bytes = team.bytes();
  const ScopedContext scoped = TRY(machine_.enter(ordinal));
  const ScopedRelaxedCapture relaxed(driver);
  auto mapped = std::make_unique<Mapped>(Mapped{ordinal, 0, bytes});
  TRY(driver.check(driver.cuMemAddressReserve(&mapped->address, bytes, TRY(granularity(2)), 0, 0),
                   "cuMemAddressReserve({} bytes)", bytes));
  Rollback free_address([&] { driver.cuMemAddressFree(mapped->address, bytes); });
  TRY(driver.check(driver.cuMemMap(mapped->address, bytes, 0, held->object, 0),
                   "cuMemMap({} bytes of a multicast object)", bytes));
  Rollback unmap([&] { driver.cuMemUnmap(mapped->address, bytes); });
  TRY(machine_.allow_access(mapped->address, bytes, {ordinal}));
  unmap.disarm();
  free_address.disarm();
  auto* const data = static_cast<std::byte*>(as_address(mapped->address));
  return MulticastMapping(this, mapped.release(), data);
}

// To its end, whatever fails; the first failure is the result.
Status CudaMulticast::release_team(void* handle) {
  const std::unique_ptr<Team> team(static_cast<Team*>(handle));
  const Driver& driver = machine_.driver();
  const ScopedRelaxedCapture relaxed(driver);
  Status status;
  for (const MulticastBinding& bound : team->bindings.take_all()) {
    const Result<CudaMachine::Device*> device = machine_.device(bound.device);
    if (!device.is_ok()) continue;
    Status unbound = driver.check(
        driver.cuMulticastUnbind(team->object, device.value()->device, bound.offset, bound.bytes),
        "cuMulticastUnbind(device {})", bound.device);
    if (status.is_ok()) status = std::move(unbound);
  }
  Status released = driver.check(driver.cuMemRelease(team->object), "cuMemRelease");
  return status.is_ok() ? std::move(released) : std::move(status);
}

Status CudaMulticast::release_mapping(void* handle) {
  const std::unique_ptr<Mapped> mapped(static_cast<Mapped*>(handle));
  const Driver& driver = machine_.driver();
  const ScopedRelaxedCapture relaxed(driver);
  Status unmapped = driver.check(driver.cuMemUnmap(mapped->address, mapped->bytes),
                                 "cuMemUnmap({} bytes of a multicast object)", mapped->bytes);
  Status freed = driver.check(driver.cuMemAddressFree(mapped->address, mapped->bytes),
                              "cuMemAddressFree({} bytes)", mapped->bytes);
  return unmapped.is_ok() ? std::move(freed) : std::move(unmapped);
}

}  // namespace niccolite::gpu::cuda
