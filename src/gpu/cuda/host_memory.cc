// Page-locked host memory. Memory that is shared with other processes is a memfd, which each of
// them maps and page-locks for its devices: it needs no /dev/shm, and ends with its last user.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/cuda/allocation.h"
#include "gpu/cuda/machine.h"

namespace niccolite::gpu::cuda {
namespace {

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// A mapping beyond the end of the file would fault on access, and so would one of a file that its
// owner makes shorter later.
Status check_file(const Fd& fd, size_t bytes) {
  struct stat file {};
  if (!fd.valid() || fstat(fd.get(), &file) != 0 || static_cast<size_t>(file.st_size) < bytes)
    return Status::remote_error("shared host memory of another process has fewer than {} bytes",
                                bytes);
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return Status::remote_error("shared host memory of another process may become shorter");
  return {};
}

}  // namespace

Result<Memory> CudaMachine::allocate_host(size_t bytes) {
  const ScopedContext scoped = TRY(enter_any());
  const ScopedRelaxedCapture relaxed(driver_);
  void* address = nullptr;
  TRY(driver_.check(
      driver_.cuMemHostAlloc(&address, bytes, kCuHostAllocPortable | kCuHostAllocDeviceMap),
      "cuMemHostAlloc({} bytes)", bytes));
  __builtin_memset(address, 0, bytes);
  auto* handle = new Allocation{Allocation::Kind::Host, false, address, bytes, 0, {}};
  return Memory(this, handle, address, bytes, -1);
}

Result<Memory> CudaMachine::allocate_shared_host(size_t bytes) {
  const size_t rounded = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  Fd file = TRY(Fd::memfd("nccl-host-memory", rounded));
  Mapping mapping = TRY(Mapping::shared(file, rounded));
  return lock_pages(std::move(file), std::move(mapping));
}

Result<Memory> CudaMachine::import_host(Fd fd, size_t bytes) {
  TRY(check_file(fd, bytes));
  Mapping mapping = TRY(Mapping::shared(fd, bytes));
  return lock_pages({}, std::move(mapping));
}

Result<Memory> CudaMachine::lock_pages(Fd file, Mapping mapping) {
  const ScopedContext scoped = TRY(enter_any());
  const ScopedRelaxedCapture relaxed(driver_);
  void* const address = mapping.data();
  const size_t bytes = mapping.bytes();
  TRY(driver_.check(
      driver_.cuMemHostRegister(address, bytes, kCuHostRegisterPortable | kCuHostRegisterDeviceMap),
      "cuMemHostRegister({} bytes; limit: ulimit -l)", bytes));
  Rollback unregister([&] { driver_.cuMemHostUnregister(address); });
  CuPointer seen = 0;
  TRY(driver_.check(driver_.cuMemHostGetDevicePointer(&seen, address, 0),
                    "cuMemHostGetDevicePointer({} bytes)", bytes));
  if (as_address(seen) != address)
    return Status::cuda_error(
        "the GPU sees page-locked host memory at another address than the host: the machine has no "
        "unified addresses for registered memory");
  unregister.disarm();
  const bool is_shareable = file.valid();
  auto* handle = new Allocation{Allocation::Kind::SharedHost,
                                is_shareable,
                                address,
                                bytes,
                                0,
                                {},
                                std::move(file),
                                std::move(mapping)};
  return Memory(this, handle, address, bytes, -1);
}

Status CudaMachine::release_host(const Allocation& allocation) {
  const ScopedContext scoped = TRY(enter_any());
  if (allocation.kind == Allocation::Kind::Host)
    return driver_.check(driver_.cuMemFreeHost(allocation.address), "cuMemFreeHost({} bytes)",
                         allocation.bytes);
  return driver_.check(driver_.cuMemHostUnregister(allocation.address),
                       "cuMemHostUnregister({} bytes)", allocation.bytes);
}

}  // namespace niccolite::gpu::cuda
