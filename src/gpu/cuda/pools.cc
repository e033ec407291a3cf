// Memory pools that processes share: a pool by a descriptor, and its allocations by name.
#include <fcntl.h>

#include <array>
#include <bit>
#include <cerrno>

#include "gpu/cuda/machine.h"

namespace niccolite::gpu::cuda {

const void* CudaMachine::pool_of(const void* pointer) {
  unsigned is_plain = 0;
  CuMemoryPool pool = nullptr;
  constexpr std::array kAttributes{kCuPointerIsLegacyIpcCapable, kCuPointerMemoryPool};
  std::array<void*, kAttributes.size()> values{&is_plain, &pool};
  const Result<ScopedContext> scoped = enter_any();
  const bool is_known =
      scoped.is_ok() &&
      driver_.cuPointerGetAttributes(static_cast<unsigned>(kAttributes.size()), kAttributes.data(),
                                     values.data(), as_pointer(pointer)) == kCuSuccess;
  return is_known && is_plain == 0 ? pool : nullptr;
}

Result<Fd> CudaMachine::export_pool(const void* pointer) {
  const ScopedContext scoped = TRY(enter_any());
  const ScopedRelaxedCapture relaxed(driver_);
  int fd = -1;
  auto* const pool = static_cast<CuMemoryPool>(const_cast<void*>(pool_of(pointer)));
  TRY(driver_.check(driver_.cuMemPoolExportToShareableHandle(&fd, pool, kCuHandlePosixFd, 0),
                    "cuMemPoolExportToShareableHandle"));
  Fd exported(fd);
  if (fcntl(exported.get(), F_SETFD, FD_CLOEXEC) != 0)
    return Status::from_errno(errno, "fcntl(FD_CLOEXEC) on an exported memory pool");
  return exported;
}

Result<PoolImport> CudaMachine::import_pool(int ordinal, Fd fd) {
  const ScopedContext scoped = TRY(enter(ordinal));
  const ScopedRelaxedCapture relaxed(driver_);
  CuMemoryPool pool = nullptr;
  // The descriptor travels in the pointer itself.
  void* const handle = std::bit_cast<void*>(static_cast<uintptr_t>(fd.get()));
  TRY(driver_.check(driver_.cuMemPoolImportFromShareableHandle(&pool, handle, kCuHandlePosixFd, 0),
                    "cuMemPoolImportFromShareableHandle"));
  PoolImport made(this, pool);
  const CuAccess access{{kCuLocationDevice, ordinal}, kCuAccessReadWrite};
  TRY(driver_.check(driver_.cuMemPoolSetAccess(pool, &access, 1),
                    "cuMemPoolSetAccess(an imported pool, device {})", ordinal));
  return made;
}

Status CudaMachine::release_pool_import(void* handle) {
  const ScopedContext scoped = TRY(enter_any());
  const ScopedRelaxedCapture relaxed(driver_);
  return driver_.check(driver_.cuMemPoolDestroy(static_cast<CuMemoryPool>(handle)),
                       "cuMemPoolDestroy");
}

}  // namespace niccolite::gpu::cuda
