// FlatRange: the memory of a machine's ranks in a window, mapped in one range of this process's
// addresses, as FlatLayout says. The ranks of one process share one range: on 256 virtual GPUs a
// range of each rank would have 65,536 mappings. Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/wait.h"
#include "gpu/mappings.h"
#include "registry/window_part.h"

namespace niccolite::registry {

class FlatRange {
 public:
  /// The memory of the parts, and the way to map it.
  struct Source {
    std::span<const WindowPart> parts;  // in the order of `ranks`, as the layout has them
    const FlatLayout& layout;
    std::span<const int> ranks;             // of the machine
    std::function<bool(int rank)> is_here;  // in this process?
    int device;                             // of this rank
  };

  /// The process's range of that window; the first rank to come maps it, the others wait for it.
  static Result<std::shared_ptr<FlatRange>> obtain(gpu::Mappings& mappings, const Source& source,
                                                   const Deadline& deadline);

  std::byte* data() const { return range_.data; }

 private:
  FlatRange() = default;
  Status map(gpu::Mappings& mappings, const Source& source, const Deadline& deadline);
  Status map_part(gpu::Mappings& mappings, const Source& source, size_t place,
                  const std::vector<int>& devices, const Deadline& deadline);

  std::mutex mutex_;  // held while it is mapped
  bool is_mapped_ = false;
  Status failure_;  // of mapping
  gpu::AddressRange range_;
};

}  // namespace niccolite::registry
