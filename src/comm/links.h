// Links: the access of one rank's kernels to the memory of other ranks, and how ranks tell each
// other. Pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/rank_info.h"
#include "transport/pair.h"

namespace niccolite::comm {

/// The links of one rank, as it tells them to all ranks of the communicator.
struct Links {
  std::vector<bool> opens_buffers;  // by peer: gpu::Peers::open_buffers(); not of the own rank
  // By peer: gpu::Peers::shares_atomics(), as advertisements of memory in windows need; also the
  // own rank.
  std::vector<bool> shares_atomics;
  int torn = -1;  // a peer to which lines are not kept whole (gpu::Peers::keeps_lines_whole())
  // By peer, as this rank's driver, variables and trials have it; of ranks on other machines Works.
  std::vector<transport::PeerAccess> access{};
  bool shares_host = true;  // not NCCL_SHM_DISABLE=1
  int team_limit = 0;       // NCCL_LSA_TEAM_SIZE; 0: none
};

/// The part of another rank's links that `self` needs.
struct PeerLinks {
  bool opens_own_buffers = false;   // buffers of the user of `self`
  bool opens_all_buffers = false;   // buffers of all other ranks' users
  bool shares_own_atomics = false;  // with `self`
  bool shares_all_atomics = false;
  int torn = -1;
  transport::PeerAccess own_access = transport::PeerAccess::Works;  // to the GPU of `self`
  bool lacks_access = false;  // to some GPU of its machine: Absent, Forbidden or Broken
  bool has_untried = false;   // some path of its own is Untried
  bool shares_host = true;
  int team_limit = 0;
};

Bytes encode(const Links& links);
/// Errors: RemoteError for anything but the links of `rank` to `nranks` ranks.
Result<PeerLinks> decode_links(std::span<const std::byte> bytes, int rank, int self, int nranks);

/// The number by which this process knows the device of `info`, or -1: another process's may not be
/// visible here.
int local_device(gpu::Devices& devices, const RankInfo& info);

/// The number by which NVML knows the device; its number in this process where there is no NVML.
int nvml_device(gpu::Devices& devices, int device);

/// "the link between rank 1 (GPU 0000:1b:00.0) and rank 3 (...) is not known to be NVLink ...".
std::string describe_torn(std::span<const RankInfo> ranks, int a, int b);

}  // namespace niccolite::comm
