// Protection domains and memory regions.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "gpu_copies.h"
#include "objects.h"
#include "options.h"

namespace vverbs {
namespace {

// Returns the error by which a fault refuses a registration; 0: none does.
int refused_by_fault(Context& context, bool is_dma_buffer) {
  const uint64_t before = context.registrations++;
  const uint64_t by_descriptor = context.descriptor_registrations;
  if (is_dma_buffer) ++context.descriptor_registrations;
  for (const Fault& fault : options().faults) {
    if (fault.device != context.index) continue;
    if (fault.kind == FaultKind::MemoryRefused && before >= fault.after) return ENOMEM;
    if (fault.kind == FaultKind::GpuMemoryRefused && is_dma_buffer && by_descriptor >= fault.after)
      return EOPNOTSUPP;
  }
  return 0;
}

ibv_mr* add(ibv_pd* pd, void* address, size_t bytes, uint64_t iova, unsigned access, void* mapping,
            size_t mapped, bool is_shadow = false) {
  Context& context = context_of(pd->context);
  constexpr unsigned kRemoteStores = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  const std::lock_guard lock(context.mutex);
  if ((access & kRemoteStores) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    errno = EINVAL;
    return nullptr;
  }
  if (context.gone) {
    errno = EIO;
    return nullptr;
  }
  if (const int error = refused_by_fault(context, mapping != nullptr); error != 0) {
    errno = error;
    return nullptr;
  }
  auto* region = new Region;
  region->base = {pd->context, pd, address, bytes, 0, 0, 0};
  region->iova = iova;
  // Atomics of a copy would be none.
  region->access = is_shadow ? access & ~unsigned{IBV_ACCESS_REMOTE_ATOMIC} : access;
  region->mapping = mapping;
  region->mapped = mapped;
  region->is_shadow = is_shadow;
  static std::random_device random;  // a key is not guessed
  do region->base.lkey = random();
  while (region->base.lkey == 0 || !context.regions.emplace(region->base.lkey, region).second);
  region->base.rkey = region->base.handle = region->base.lkey;
  ++pd->handle;
  return &region->base;
}

}  // namespace

uint8_t* memory_of(Context& context, ibv_pd* pd, uint32_t key, uint64_t addr, uint64_t bytes,
                   unsigned access) {
  const auto found = context.regions.find(key);
  if (found == context.regions.end()) return nullptr;
  const Region& region = *found->second;
  if (region.base.pd != pd || (region.access & access) != access || addr < region.iova ||
      addr - region.iova > region.base.length || bytes > region.base.length - (addr - region.iova))
    return nullptr;
  return static_cast<uint8_t*>(region.base.addr) + (addr - region.iova);
}

}  // namespace vverbs

using namespace vverbs;

extern "C" {

// A domain counts in `handle` who uses it.
ibv_pd* ibv_alloc_pd(ibv_context* context) { return new ibv_pd{context, 0}; }

int ibv_dealloc_pd(ibv_pd* pd) {
  {
    const std::lock_guard lock(context_of(pd->context).mutex);
    if (pd->handle != 0) return EBUSY;
  }
  delete pd;
  return 0;
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t bytes, uint64_t iova, unsigned access) {
  // The host would fault, where a NIC refuses to register: memory that is not mapped.
  unsigned char present = 0;
  const auto page = reinterpret_cast<uintptr_t>(address) & ~uintptr_t{4095};
  const auto end = reinterpret_cast<uintptr_t>(address) + bytes;
  if (bytes == 0 || end < bytes) {
    errno = EINVAL;
    return nullptr;
  }
  for (const uintptr_t at : {page, (end - 1) & ~uintptr_t{4095}})
    if (mincore(reinterpret_cast<void*>(at), 1, &present) != 0) {
      errno = EFAULT;
      return nullptr;
    }
  return add(pd, address, bytes, iova, access, nullptr, 0);
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t bytes, int access) {
  return ibv_reg_mr_iova2(pd, address, bytes, reinterpret_cast<uintptr_t>(address),
                          static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t bytes, uint64_t iova, int access) {
  return ibv_reg_mr_iova2(pd, address, bytes, iova, static_cast<unsigned>(access));
}

// Memory of a virtual GPU is a file in memory, which is mapped as a NIC's page tables would map a
// GPU's. That of a real GPU cannot be mapped; it lies at `iova`, as a rule, and is copied.
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                          int access) {
  const uint64_t before = offset % 4096;
  if (bytes == 0) {
    errno = EINVAL;
    return nullptr;
  }
  const off_t size = lseek(fd, 0, SEEK_END);
  if (size < 0) return nullptr;
  if (offset > static_cast<uint64_t>(size) || bytes > static_cast<uint64_t>(size) - offset) {
    errno = EINVAL;
    return nullptr;
  }
  void* mapping = mmap(nullptr, bytes + before, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                       static_cast<off_t>(offset - before));
  const bool is_shadow = mapping == MAP_FAILED && is_memory_of_gpu(iova, bytes);
  if (is_shadow)
    mapping = mmap(nullptr, bytes + before, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  ibv_mr* region = add(pd, static_cast<char*>(mapping) + before, bytes, iova,
                       static_cast<unsigned>(access), mapping, bytes + before, is_shadow);
  if (region == nullptr) {
    const int error = errno;
    munmap(mapping, bytes + before);
    errno = error;
  }
  return region;
}

int ibv_dereg_mr(ibv_mr* handle) {
  auto* region = reinterpret_cast<Region*>(handle);
  Context& context = context_of(handle->context);
  {
    const std::lock_guard lock(context.mutex);
    context.regions.erase(handle->lkey);
    --handle->pd->handle;
  }
  if (region->mapping != nullptr) munmap(region->mapping, region->mapped);
  delete region;
  return 0;
}
}
