// PathTrial: tries peer access before it is trusted. An IOMMU, or PCIe switches that send
// everything by the root (ACS), let a driver offer peer access that loses stores or reads zeros,
// without any error. The result would be a hang, or wrong data.
//
//   rank a                                              rank b
//   copies a pattern to b's memory, over the path  -->  finds it in its own memory
//   reads its own pattern back, over the path
//                          (and the other way round at the same time)
//
// Everything is bounded in time. A process remembers each outcome, because it is a property of the
// machine. Thread safety: any thread.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/member.h"
#include "transport/pair.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::transport {

/// A path from a GPU of this process to another.
struct Path {
  const gpu::Machine* machine = nullptr;
  int device = -1;
  std::array<uint8_t, 16> peer_uuid{};
  bool same_process = false;
  friend auto operator<=>(const Path&, const Path&) = default;
};

/// Works or Broken, as a trial in this process has shown; else Untried.
PeerAccess find_tried(const Path& path);

/// A rank's finding about its path to another rank.
enum class Finding : uint8_t {
  Works,
  NotMapped,     // the peer's memory could not be mapped
  StoreNotDone,  // a copy to it did not end
  StoreLost,     // the peer's stores did not arrive, or not in time
  LoadIsWrong,   // a value read back differs from the stored one
};
/// "stores of rank 1's GPU do not arrive in the memory of rank 3's", of a finding of `rank`.
std::string describe(Finding finding, int rank, int peer);

/// Collective over all ranks of `member`. Tries the paths to the ranks for which `with` is true;
/// they must be on this machine, and have this rank in their own `with`. `uuids` are the ranks'
/// GPUs. Returns by rank the findings of both ends; find_tried() knows the outcome.
struct Findings {
  std::vector<Finding> own;
  std::vector<Finding> of_peers;
};
Result<Findings> try_paths(gpu::Machine& machine, int device, bootstrap::Member& member,
                           const std::vector<bool>& with,
                           const std::vector<std::array<uint8_t, 16>>& uuids,
                           const Deadline& deadline);

}  // namespace niccolite::transport
