// RankInfo: the message of every rank to the others when a communicator is made, and the checks on
// all of it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/member.h"
#include "planner/fingerprint.h"
#include "planner/settings.h"
#include "planner/variables.h"

namespace niccolite::comm {

struct RankInfo {
  uint32_t version = 0;  // NCCL version code of the library
  int device = -1;       // ordinal in its process
  gpu::Kind machine = gpu::Kind::Virtual;
  // NCCL_HOSTID, or the boot id of the kernel with transport::reach_of_sockets(): equal for
  // processes of one machine, also across containers that can hand memory to each other.
  std::string host;
  std::string host_name;
  std::array<uint8_t, 16> device_uuid{};
  std::string bus_id;
  std::string gpu;                            // its name
  int places = 0;                             // CTAs that its GPU runs at a time; 0: any number
  bool may_share_gpu = false;                 // rank 0's holds for all
  bool asks_for_graph = false;                // it wants the graph of machines; one such rank is
                                              // enough
  planner::Fingerprint fingerprint;           // of the compiled and tuned constants
  std::optional<planner::Settings> settings;  // of rank 0, which tells them alone: hold for all
  std::vector<planner::Variable> variables;   // that choices depend on
};

/// Does this process's environment ask for the machine graph (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE)?
bool asks_for_machine_graph();

/// The settings that this rank would have a communicator use; rank 0's hold for all.
Result<planner::Settings> make_own_settings(gpu::Kind machine, int nranks,
                                            const planner::Limits& limits);

/// `settings` and `limits` as this rank's environment and configuration have them.
Result<RankInfo> describe_this_rank(gpu::Devices& devices, int device, int rank,
                                    const planner::Settings& settings,
                                    const planner::Limits& limits);

/// Version, host name and fingerprint stand first, so that other builds can be told whatever else
/// they send.
Bytes encode(const RankInfo& info);
/// Decodes the information of `rank` of `nranks`. Of another build it decodes these three fields
/// only. Errors: InvalidUsage of another version; RemoteError of bytes that no rank sends.
Result<RankInfo> decode(std::span<const std::byte> bytes, int rank, int nranks);

/// Refuses ranks that cannot work together, with both ranks and the remedy in the message:
/// different builds or tunings, virtual and real GPUs together, one GPU used twice (unless rank 0
/// allows it). All ranks come to the same. InvalidUsage.
Status check(std::span<const RankInfo> ranks);

/// By rank: the number of its machine, in the order of their first ranks.
std::vector<int> machines_of(std::span<const RankInfo> ranks);

/// Returns the most CTAs that an operation may have, so that operations of all ranks of any GPU
/// have a place beside each other. Ranks wait for each other: an operation without a place would
/// wait for one that waits for it. None: no GPU has more ranks than one.
std::optional<int> most_ctas_of_sharers(std::span<const RankInfo> ranks);

/// The name of every rank's GPU; empty: they differ.
std::string gpu_of(std::span<const RankInfo> ranks);

/// Collective over all ranks: sends `self`, and decodes and checks the descriptions of all. Rank 0
/// warns of variables that it and others have set differently.
Result<std::vector<RankInfo>> exchange(const RankInfo& self, bootstrap::Member& member,
                                       const Deadline& deadline);

}  // namespace niccolite::comm
