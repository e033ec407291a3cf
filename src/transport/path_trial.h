// PathTrial: peer access is tried before it is trusted. An IOMMU, or PCIe switches that send
// everything by the root (ACS), let a driver offer peer access that loses stores or brings zeros,
// without any error; what would follow is a hang, or wrong results.
//
//   rank a                                              rank b
//   copies a pattern to b's memory, over the path  -->  finds it in its own memory
//   finds, over the path, what it has stored
//                          (and the same the other way round)
//
// Everything is bounded in time. What was tried once in a process is known there from then on, as
// it is a property of the machine. Thread safety: any thread.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/member.h"
#include "gpu/machine.h"
#include "transport/pair.h"

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

/// What one rank has found out about the path to another.
enum class Finding : uint8_t {
  Works,
  NotMapped,     // the peer's memory could not be mapped
  StoreNotDone,  // a copy to it did not end
  StoreLost,     // what the peer stored did not arrive, or not in time
  LoadIsWrong,   // what was stored is not what is read back
};
/// "stores of rank 1's GPU do not arrive in the memory of rank 3's", of a finding of `rank`.
std::string describe(Finding finding, int rank, int peer);

/// Collective over all ranks of `member`: tries the paths to the ranks that `with` has true, which
/// are on this machine, and each of which has this one in its own list; `uuids` are their GPUs', by
/// rank. find_tried() knows the outcome. By rank, what either end found.
struct Findings {
  std::vector<Finding> own;
  std::vector<Finding> of_peers;
};
Result<Findings> try_paths(gpu::Machine& machine, int device, bootstrap::Member& member,
                           const std::vector<bool>& with,
                           const std::vector<std::array<uint8_t, 16>>& uuids,
                           const Deadline& deadline);

}  // namespace niccolite::transport
