// Memory that the devices of this machine may read and write: of the host, or of a GPU. Thread
// safety: values, one thread at a time.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "gpu/memory.h"
#include "transport/net/network.h"
#include "transport/net/verbs/gpu_access.h"
#include "transport/net/verbs/library.h"
#include "transport/net/verbs/ports.h"

namespace niccolite::transport::net::verbs {

/// A port that is in use, with its GID.
struct Rail {
  Port port;
  Gid gid;
  bool is_spare = false;  // carries data only where queue pairs of other ports are not left
};

/// Memory that all devices of a pair have registered. Devices that are gone have not.
class Registered {
 public:
  /// `rights`: of ibv_access_flags.
  static Result<std::unique_ptr<Registered>> create(const Library& library,
                                                    const std::vector<Rail>& rails, void* data,
                                                    size_t bytes, unsigned rights);
  /// Memory of a GPU, by its dma-buf, else by peer memory. Errors name the NIC and a remedy.
  static Result<std::unique_ptr<Registered>> create_on_gpu(const Library& library,
                                                           const std::vector<Rail>& rails,
                                                           const GpuAccess& access, void* data,
                                                           size_t bytes, unsigned rights);
  ~Registered();
  Registered(const Registered&) = delete;
  uint32_t local_key(size_t rail) const {
    return regions_[rail] != nullptr ? regions_[rail]->lkey : 0;
  }
  uint32_t remote_key(size_t rail) const {
    return regions_[rail] != nullptr ? regions_[rail]->rkey : 0;
  }

 private:
  explicit Registered(const Library& library) : library_(library) {}
  /// `add(rail)` registers the memory with a device; errors begin with `what`.
  template <typename Add>
  static Result<std::unique_ptr<Registered>> create_by(const Library& library,
                                                       const std::vector<Rail>& rails, size_t bytes,
                                                       const char* what, Add&& add);
  const Library& library_;
  std::vector<ibv_mr*> regions_;  // by rail; null: its device is gone
};

/// Memory of a GPU that all devices of a network have registered: the network's own, or the user's.
class GpuMemory final : public DirectMemory {
 public:
  using Sum = std::atomic<size_t>;
  /// `sum`: of the bytes of such memory.
  static Result<std::shared_ptr<GpuMemory>> create(const Library& library,
                                                   const std::vector<Rail>& rails,
                                                   const GpuAccess& access, size_t bytes,
                                                   unsigned rights, std::shared_ptr<Sum> sum);
  static Result<std::shared_ptr<GpuMemory>> create_of_user(const Library& library,
                                                           const std::vector<Rail>& rails,
                                                           const GpuAccess& access, void* data,
                                                           size_t bytes, unsigned rights);
  ~GpuMemory() override;
  /// By the GPU.
  Status store(std::byte* to, const void* from, size_t bytes) const override;
  /// By the GPU. Has what NICs have written and the host has heard of.
  Status load(void* to, const std::byte* from, size_t bytes) const override;
  const Registered& registered() const { return *registered_; }
  DirectName name() const;

 private:
  GpuMemory(std::vector<Rail> rails, const GpuAccess& access, void* data, size_t bytes,
            gpu::Memory own, std::shared_ptr<Sum> sum);
  const pid_t process_;
  const GpuAccess access_;
  const std::vector<Rail> rails_;  // their devices are open as long
  const gpu::Memory own_;          // none: the user's
  std::unique_ptr<Registered> registered_;
  const std::shared_ptr<Sum> sum_;
};

/// The content of a DirectName.
struct DirectPlace {
  uint64_t address = 0;
  uint32_t keys[kMostPorts]{};  // by the receiver's rail
};
static_assert(sizeof(DirectPlace) == sizeof(DirectName));

}  // namespace niccolite::transport::net::verbs
