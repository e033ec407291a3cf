// Memory that network adapters read and write by themselves.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "gpu/cuda/machine.h"
#include "gpu/cuda/pages.h"

namespace niccolite::gpu::cuda {

// 0 where the driver is too old to know it.
Result<int> CudaMachine::attribute(int ordinal, int number) {
  const CuDevice handle = TRY(device(ordinal))->device;
  int value = 0;
  return driver_.cuDeviceGetAttribute(&value, number, handle) == kCuSuccess ? value : 0;
}

Result<DmaBuffer> CudaMachine::export_range(const void* memory, size_t bytes) {
  const PointerInfo info = TRY(pointer_info(memory));
  if (info.kind != PointerKind::Device)
    return Status::cuda_error("{} bytes at {} are no memory of a GPU", bytes, memory);
  if (driver_.cuMemGetHandleForAddressRange == nullptr ||
      TRY(attribute(info.device, kCuDmaBufSupported)) == 0)
    return Status::cuda_error(
        "the driver has no dma-bufs of device {} (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)",
        info.device);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const std::optional<PageRange> pages =
      pages_around(as_pointer(memory), bytes, as_pointer(info.base), info.bytes, page);
  if (!pages)
    return Status::cuda_error(
        "{} bytes at {} have no pages of {} bytes to themselves: their allocation has {} at {}",
        bytes, memory, page, info.bytes, info.base);
  const ScopedContext scoped = TRY(enter(info.device));
  const ScopedRelaxedCapture relaxed(driver_);
  int fd = -1;
  TRY(driver_.check(driver_.cuMemGetHandleForAddressRange(&fd, pages->begin, pages->bytes,
                                                          kCuRangeHandleDmaBufFd, /*flags=*/0),
                    "cuMemGetHandleForAddressRange({} bytes on device {})", pages->bytes,
                    info.device));
  Fd exported(fd);
  if (fcntl(exported.get(), F_SETFD, FD_CLOEXEC) != 0)
    return Status::from_errno(errno, "fcntl(FD_CLOEXEC) on a dma-buf");
  return DmaBuffer{std::move(exported), as_pointer(memory) - pages->begin};
}

Result<NicWrites> CudaMachine::nic_writes(int ordinal) {
  const int ordering = TRY(attribute(ordinal, kCuGpuDirectRdmaWritesOrdering));
  const int options = TRY(attribute(ordinal, kCuGpuDirectRdmaFlushWritesOptions));
  return NicWrites{.are_ordered = ordering >= kCuWritesOrderingOwner,
                   .can_be_flushed = (options & kCuFlushWritesOptionHost) != 0 &&
                                     driver_.cuFlushGPUDirectRDMAWrites != nullptr};
}

Status CudaMachine::flush_nic_writes(int ordinal) {
  const ScopedContext scoped = TRY(enter(ordinal));
  const ScopedRelaxedCapture relaxed(driver_);
  return driver_.check(
      driver_.cuFlushGPUDirectRDMAWrites(kCuFlushWritesTargetCurrentContext, kCuFlushWritesToOwner),
      "cuFlushGPUDirectRDMAWrites(device {})", ordinal);
}

}  // namespace niccolite::gpu::cuda
