// DeviceComms: the memory behind a communicator's device communicators (ncclDevCommCreate): one
// symmetric window of *resources* for each, which holds barriers and what the user's kernels
// require. A *handle* of a buffer is its offset in the window, in units of 128 bytes; ranks compute
// each other's addresses from their own handles, so that all ranks lay buffers out alike.
//
// Thread safety: make() by one thread at a time, since it is collective; all else by any thread.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "base/thread_annotations.h"
#include "bootstrap/member.h"
#include "gpu/memory.h"
#include "registry/windows.h"

namespace niccolite::registry {

/// The needs of a device communicator's kernels.
struct DeviceNeeds {
  struct Buffer {
    uint64_t bytes = 0;
    uint64_t align = 0;
    uint32_t* handle = nullptr;  // of the caller, who wants to know it; or null
  };
  int lsa_barriers = 0;
  bool multicast = false;  // addresses for it
  std::vector<Buffer> buffers;
};

struct DeviceComm {
  Windows::Handle window = nullptr;  // null: no resources
  std::byte* base = nullptr;         // of the load-store team's first rank
  uint32_t stride_4g = 0;
  Windows::Handle table = nullptr;  // of all windows
  uint32_t lsa_barrier_handle = 0;
  std::byte* multicast_base = nullptr;  // null: not required
  uint32_t multicast_offset_4k = 0;     // of the resources
};

class DeviceComms {
 public:
  /// `windows` outlives this object; `member` is null for one rank.
  DeviceComms(gpu::Machine& machine, int device, bootstrap::Member* member, Windows& windows);
  ~DeviceComms();
  DeviceComms(const DeviceComms&) = delete;

  /// Collective. InvalidArgument on all ranks where their needs differ.
  Result<DeviceComm> make(const DeviceNeeds& needs);
  /// Local; no kernel may use it any more. InvalidArgument: no device communicator has `window`.
  Status end(Windows::Handle window);

  /// Device memory of resources.
  size_t bytes() const;

 private:
  struct Layout {
    uint64_t barriers = 0;          // offset
    std::vector<uint64_t> buffers;  // offsets
    uint64_t bytes = 0;
  };
  struct Prepared {
    Layout layout;
    Windows::Handle table = nullptr;
    gpu::Memory memory;
  };
  Status prepare(const DeviceNeeds& needs, Prepared& into);
  Result<Layout> lay_out(const DeviceNeeds& needs) const;
  Status agree(const DeviceNeeds& needs, const Layout& layout, const Status& mine) const;
  int rank() const { return member_ != nullptr ? member_->rank() : 0; }

  gpu::Machine& machine_;
  const int device_;
  bootstrap::Member* const member_;
  Windows& windows_;
  mutable std::mutex mutex_;
  std::map<Windows::Handle, gpu::Memory> live_ GUARDED_BY(mutex_);
  int without_resources_ GUARDED_BY(mutex_) = 0;
};

}  // namespace niccolite::registry
