#include "transport/net/verbs/memory.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "gpu/machine.h"

namespace niccolite::transport::net::verbs {

template <typename Add>
Result<std::unique_ptr<Registered>> Registered::create_by(const Library& library,
                                                          const std::vector<Rail>& rails,
                                                          size_t bytes, const char* what,
                                                          Add&& add) {
  std::unique_ptr<Registered> made(new Registered(library));
  for (const Rail& rail : rails) {
    ibv_mr* const region = add(rail.port.device->domain());
    if (const int error = errno; region == nullptr && !rail.port.device->is_gone())
      return Status::from_errno(
          error, fmt::format("{} on host {} refuses to register {} KiB of {}", rail.port.name(),
                             host(), (bytes + 1023) / 1024, what));
    made->regions_.push_back(region);
  }
  return made;
}

Result<std::unique_ptr<Registered>> Registered::create(const Library& library,
                                                       const std::vector<Rail>& rails, void* data,
                                                       size_t bytes, unsigned rights) {
  return create_by(
      library, rails, bytes, "memory (ibv_reg_mr; is 'ulimit -l' unlimited?)", [&](ibv_pd* domain) {
        return (rights & IBV_ACCESS_RELAXED_ORDERING) != 0 && library.reg_mr_iova2 != nullptr
                   ? library.reg_mr_iova2(domain, data, bytes, reinterpret_cast<uintptr_t>(data),
                                          rights)
                   : library.reg_mr(
                         domain, data, bytes,
                         static_cast<int>(rights & ~unsigned{IBV_ACCESS_RELAXED_ORDERING}));
      });
}

Result<std::unique_ptr<Registered>> Registered::create_on_gpu(const Library& library,
                                                              const std::vector<Rail>& rails,
                                                              const GpuAccess& access, void* data,
                                                              size_t bytes, unsigned rights) {
  const auto by_dma_buffer = [&]() -> Result<std::unique_ptr<Registered>> {
    const gpu::DmaBuffer buffer = TRY(access.machine.export_range(data, bytes));
    return create_by(
        library, rails, bytes, "memory of a GPU (ibv_reg_dmabuf_mr)", [&](ibv_pd* domain) {
          return library.reg_dmabuf_mr(domain, buffer.offset, bytes,
                                       reinterpret_cast<uintptr_t>(data), buffer.descriptor.get(),
                                       static_cast<int>(rights));
        });
  };
  if (access.has_dma_buffers) {
    Result<std::unique_ptr<Registered>> made = by_dma_buffer();
    if (made.is_ok() || !access.has_peer_memory) return made;
  }
  return create_by(library, rails, bytes, "memory of a GPU (ibv_reg_mr, by nvidia_peermem)",
                   [&](ibv_pd* domain) {
                     return library.reg_mr(domain, data, bytes, static_cast<int>(rights));
                   });
}

Registered::~Registered() {
  for (ibv_mr* const region : regions_)
    if (region != nullptr) static_cast<void>(library_.dereg_mr(region));
}

GpuMemory::GpuMemory(std::vector<Rail> rails, const GpuAccess& access, void* data, size_t bytes,
                     gpu::Memory own, std::shared_ptr<Sum> sum)
    : process_(getpid()),
      access_(access),
      rails_(std::move(rails)),
      own_(std::move(own)),
      sum_(std::move(sum)) {
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
  if (sum_ != nullptr)
    sum_->fetch_add(own_.bytes(), std::memory_order_relaxed);  // publishes nothing
}

Result<std::shared_ptr<GpuMemory>> GpuMemory::create(const Library& library,
                                                     const std::vector<Rail>& rails,
                                                     const GpuAccess& access, size_t bytes,
                                                     unsigned rights, std::shared_ptr<Sum> sum) {
  gpu::Memory memory = TRY(access.machine.allocate(access.device, bytes, /*shareable=*/true));
  void* const data = memory.data();
  std::shared_ptr<GpuMemory> made(
      new GpuMemory(rails, access, data, bytes, std::move(memory), std::move(sum)));
  made->registered_ = TRY(Registered::create_on_gpu(library, rails, access, data, bytes, rights));
  return made;
}

Result<std::shared_ptr<GpuMemory>> GpuMemory::create_of_user(const Library& library,
                                                             const std::vector<Rail>& rails,
                                                             const GpuAccess& access, void* data,
                                                             size_t bytes, unsigned rights) {
  std::shared_ptr<GpuMemory> made(new GpuMemory(rails, access, data, bytes, {}, /*sum=*/nullptr));
  made->registered_ = TRY(Registered::create_on_gpu(library, rails, access, data, bytes, rights));
  return made;
}

GpuMemory::~GpuMemory() {
  if (sum_ != nullptr)
    sum_->fetch_sub(own_.bytes(), std::memory_order_relaxed);  // publishes nothing
  // In a child made by fork() it is the parent's.
  if (process_ != getpid()) static_cast<void>(registered_.release());
}

Status GpuMemory::store(std::byte* to, const void* from, size_t bytes) const {
  return access_.machine.upload(access_.device, to, from, bytes);
}

Status GpuMemory::load(void* to, const std::byte* from, size_t bytes) const {
  if (access_.flush == Flush::Call) TRY(access_.machine.flush_nic_writes(access_.device));
  return access_.machine.download(access_.device, to, from, bytes);
}

DirectName GpuMemory::name() const {
  DirectPlace place{.address = reinterpret_cast<uintptr_t>(data())};
  for (size_t rail = 0; rail < rails_.size(); ++rail)
    place.keys[rail] = registered_->remote_key(rail);
  DirectName name;
  std::memcpy(name.data(), &place, sizeof place);
  return name;
}

}  // namespace niccolite::transport::net::verbs
