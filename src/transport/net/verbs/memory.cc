#include "transport/net/verbs/memory.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace niccolite::transport::net::verbs {

Result<std::unique_ptr<Registered>> Registered::create(const Library& library,
                                                       const std::vector<Rail>& rails, void* data,
                                                       size_t bytes, unsigned rights) {
  std::unique_ptr<Registered> made(new Registered(library));
  for (const Rail& rail : rails) {
    ibv_pd* const domain = rail.port.device->domain();
    ibv_mr* const region =
        (rights & IBV_ACCESS_RELAXED_ORDERING) != 0 && library.reg_mr_iova2 != nullptr
            ? library.reg_mr_iova2(domain, data, bytes, reinterpret_cast<uintptr_t>(data), rights)
            : library.reg_mr(domain, data, bytes,
                             static_cast<int>(rights & ~unsigned{IBV_ACCESS_RELAXED_ORDERING}));
    if (const int error = errno; region == nullptr && !rail.port.device->is_gone())
      return Status::from_errno(
          error, fmt::format("{} on host {} refuses to register {} KiB of memory (ibv_reg_mr; is "
                             "'ulimit -l' unlimited?)",
                             rail.port.name(), host(), (bytes + 1023) / 1024));
    made->regions_.push_back(region);
  }
  return made;
}

Result<std::unique_ptr<Registered>> Registered::create_on_gpu(const Library& library,
                                                              const std::vector<Rail>& rails,
                                                              std::byte* data, size_t bytes,
                                                              const Fd& descriptor, uint64_t offset,
                                                              unsigned rights) {
  std::unique_ptr<Registered> made(new Registered(library));
  for (const Rail& rail : rails) {
    ibv_mr* const region = library.reg_dmabuf_mr(rail.port.device->domain(), offset, bytes,
                                                 reinterpret_cast<uintptr_t>(data),
                                                 descriptor.get(), static_cast<int>(rights));
    if (const int error = errno; region == nullptr && !rail.port.device->is_gone())
      return Status::from_errno(
          error, fmt::format("{} on host {} refuses to register {} KiB of memory of a GPU "
                             "(ibv_reg_dmabuf_mr)",
                             rail.port.name(), host(), (bytes + 1023) / 1024));
    made->regions_.push_back(region);
  }
  return made;
}

Registered::~Registered() {
  for (ibv_mr* const region : regions_)
    if (region != nullptr) static_cast<void>(library_.dereg_mr(region));
}

GpuMemory::GpuMemory(std::vector<Rail> rails, void* data, size_t bytes, gpu::Memory own,
                     std::shared_ptr<Sum> sum)
    : process_(getpid()), rails_(std::move(rails)), own_(std::move(own)), sum_(std::move(sum)) {
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
  if (sum_ != nullptr)
    sum_->fetch_add(own_.bytes(), std::memory_order_relaxed);  // publishes nothing
}

Result<std::shared_ptr<GpuMemory>> GpuMemory::create(const Library& library,
                                                     const std::vector<Rail>& rails,
                                                     Network::GpuAllocation from, size_t bytes,
                                                     unsigned rights, std::shared_ptr<Sum> sum) {
  void* const data = from.memory.data();
  std::shared_ptr<GpuMemory> made(
      new GpuMemory(rails, data, bytes, std::move(from.memory), std::move(sum)));
  made->registered_ = TRY(Registered::create_on_gpu(library, rails, made->data(), bytes,
                                                    from.descriptor, /*offset=*/0, rights));
  return made;
}

Result<std::shared_ptr<GpuMemory>> GpuMemory::create_of_user(const Library& library,
                                                             const std::vector<Rail>& rails,
                                                             void* data, size_t bytes,
                                                             const DeviceMemory& of,
                                                             unsigned rights) {
  std::shared_ptr<GpuMemory> made(new GpuMemory(rails, data, bytes, {}, /*sum=*/nullptr));
  made->registered_ = TRY(Registered::create_on_gpu(library, rails, made->data(), bytes,
                                                    of.descriptor, of.offset, rights));
  return made;
}

GpuMemory::~GpuMemory() {
  if (sum_ != nullptr)
    sum_->fetch_sub(own_.bytes(), std::memory_order_relaxed);  // publishes nothing
  // In a child made by fork() it is the parent's.
  if (process_ != getpid()) static_cast<void>(registered_.release());
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
