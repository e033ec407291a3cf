// DeviceComms: the memory behind a communicator's device communicators (ncclDevCommCreate): one
// symmetric window of *resources* for each, which holds barriers and what the user's kernels
// require. A *handle* of a buffer is its offset in the window, in units of 128 bytes; ranks compute
// each other's addresses from their own handles, so that all ranks lay buffers out alike.
//
// Thread safety: make() by one thread at a time, since it is collective; all else by any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/thread_annotations.h"
#include "bootstrap/member.h"
#include "gpu/memory.h"
#include "registry/gins.h"
#include "registry/windows.h"

namespace niccolite::registry {

/// The needs of a device communicator's kernels.
struct DeviceNeeds {
  struct Buffer {
    uint64_t bytes = 0;
    uint64_t align = 0;
    uint32_t* handle = nullptr;  // of the caller, who wants to know it; or null
    int signals = 0;
    int counters = 0;
    uint32_t* first_signal = nullptr;  // as `handle`
    uint32_t* first_counter = nullptr;
  };
  int lsa_barriers = 0;
  bool multicast = false;  // addresses for it
  // Networking. Barriers over it are signals: one for each barrier and member of a team.
  GinNeeds gin;  // its signals and counters: the ones that kernels number themselves
  int hybrid_barriers = 0;
  int rail_barriers = 0;
  int world_barriers = 0;
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
  uint32_t hybrid_barrier_handle = 0;
  // The first signal of barriers over the network.
  uint32_t world_signal = 0;
  uint32_t rail_signal = 0;
  uint32_t dense_signal = 0;
  uint32_t hybrid_rail_signal = 0;
  const std::byte* gin_contexts = nullptr;  // null: no networking
  uint64_t* signal_shadows = nullptr;
  GinNeeds gin;  // with all signals and counters
};

class DeviceComms {
 public:
  /// `windows` and `gins` outlive this object; `member` is null for one rank.
  DeviceComms(gpu::Machine& machine, int device, bootstrap::Member* member, Windows& windows,
              Gins& gins);
  ~DeviceComms();
  DeviceComms(const DeviceComms&) = delete;

  /// Collective. InvalidArgument on all ranks where their needs differ. `deadline`: for
  /// connections to other machines.
  Result<DeviceComm> make(const DeviceNeeds& needs, const Deadline& deadline);
  /// Local: its user is done with it. Memory, windows and proxy stay for kernels that still run.
  /// InvalidArgument: no device communicator has `window`. InvalidUsage, and it stays as it was:
  /// such kernels are known to run.
  Status withdraw(Windows::Handle window);
  /// Local; no kernel may use it any more, and its networking has ended (Gins::end()). Returns its
  /// memory, whose end may wait for kernels. Nothing if it has ended.
  gpu::Memory end(Windows::Handle window);
  /// Is there one that has not ended?
  bool has_any() const;

  /// Device memory of resources.
  size_t bytes() const;

 private:
  struct Layout {
    uint64_t barriers = 0;  // offset
    uint64_t hybrid_barriers = 0;
    std::vector<uint64_t> buffers;  // offsets
    uint64_t shadows = 0;
    uint64_t gin_state = 0;
    uint64_t bytes = 0;
    GinNeeds gin;                      // all
    uint32_t barrier_signals[4] = {};  // the first: world, rail, dense, hybrid rail
    std::vector<uint32_t> signals;     // by buffer: the first
    std::vector<uint32_t> counters;
  };
  struct Prepared {
    Layout layout;
    Windows::Handle table = nullptr;
    gpu::Memory memory;
    std::shared_ptr<Gin> gin;
    std::vector<Gin::Name> names;  // by rank
  };
  struct Live {
    gpu::Memory memory;
    bool is_withdrawn = false;
  };
  bool counts_kernels() const;
  Status number_signals(const DeviceNeeds& needs, Layout& layout) const;
  Result<DeviceComm> make_next(const DeviceNeeds& needs, const Deadline& deadline);
  Status prepare(const DeviceNeeds& needs, Prepared& into);
  Result<Layout> lay_out(const DeviceNeeds& needs) const;
  Status agree(const DeviceNeeds& needs, Prepared& prepared, const Status& mine) const;
  Status begin_network(Prepared& prepared, Windows::Handle window, const Deadline& deadline);
  int nranks() const { return member_ != nullptr ? member_->nranks() : 1; }
  int rank() const { return member_ != nullptr ? member_->rank() : 0; }

  gpu::Machine& machine_;
  const int device_;
  bootstrap::Member* const member_;
  Windows& windows_;
  Gins& gins_;
  uint64_t made_ = 0;  // make() only
  mutable std::mutex mutex_;
  std::map<Windows::Handle, Live> live_ GUARDED_BY(mutex_);
  int without_resources_ GUARDED_BY(mutex_) = 0;
};

}  // namespace niccolite::registry
