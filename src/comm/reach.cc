// Communicator: the ways between its ranks. Every rank finds out what its GPU can do in the memory
// of the others', paths that nobody has tried are tried, and all come to the same.
#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"
#include "comm/communicator.h"
#include "comm/machine_graph.h"
#include "comm/p2p_level.h"
#include "topology/detect.h"
#include "transport/path_trial.h"

namespace niccolite::comm {

using topology::PathType;
using transport::PeerAccess;

// May this rank's kernels use the memory of another's GPU, as far as this process knows?
PeerAccess Communicator::access_to(const RankInfo& other, bool is_here, int local) {
  const bool is_same_gpu = local == device();
  const bool has_nvlink =
      is_same_gpu || (local >= 0 && machine_.keeps_lines_whole(device(), local));
  const auto distance = [&] {
    if (has_nvlink || machine_.kind() == gpu::Kind::Virtual) return PathType::NVL;
    Result<gpu::DeviceInfo> own = machine_.device_info(device());
    return own.is_ok() ? topology::pci_distance("/", own->bus_id, other.bus_id) : PathType::SYS;
  };
  if (forbids_peer_access(distance)) return PeerAccess::Forbidden;
  // A GPU that this process does not see can be reached all the same, by a descriptor.
  if (local >= 0 && !is_same_gpu &&
      !(machine_.can_access_peer(device(), local) && machine_.can_access_peer(local, device())))
    return PeerAccess::Absent;
  if (!machine_.doubts_peer_access() || (is_same_gpu && is_here)) return PeerAccess::Works;
  return transport::find_tried({.machine = &machine_,
                                .device = device(),
                                .peer_uuid = other.device_uuid,
                                .same_process = is_here});
}

// What this rank's kernels can do in the memory of the others. Where peer access is known to work,
// lets them reach the buffers of the others' users: now, and not at the first operation, since the
// driver may wait for kernels that wait for this rank.
Links Communicator::describe_links(const std::vector<RankInfo>& ranks) {
  Links links;
  links.shares_host = parameters::shm_disable() != 1;
  for (int peer = 0; peer < nranks(); ++peer) {
    const RankInfo& other = ranks[static_cast<size_t>(peer)];
    const bool is_here = peer == rank() || member_->same_process(peer);
    const int local = is_remote(peer) ? -1 : is_here ? other.device : local_device(machine_, other);
    const PeerAccess access =
        peer == rank() || is_remote(peer) ? PeerAccess::Works : access_to(other, is_here, local);
    const bool reaches =
        !is_remote(peer) && access == PeerAccess::Works && parameters::p2p_direct_disable() == 0;
    links.access.push_back(access);
    links.opens_buffers.push_back(reaches && peer != rank() && is_here &&
                                  machine_.open_buffers(device(), local));
    links.shares_atomics.push_back(reaches && local >= 0 &&
                                   machine_.shares_atomics(device(), local));
    if (links.torn < 0 && !is_remote(peer) && access <= PeerAccess::Untried &&
        (local < 0 || !machine_.keeps_lines_whole(device(), local)))
      links.torn = peer;
  }
  return links;
}

Result<std::vector<PeerLinks>> Communicator::gather_links(const Links& links,
                                                          const Deadline& deadline) {
  const bootstrap::Gathered of_all = TRY(member_->all_gather(encode(links), deadline));
  std::vector<PeerLinks> of_peers;
  for (int peer = 0; peer < nranks(); ++peer) {
    PeerLinks of_peer = TRY(decode_links(of_all[peer], peer, rank(), nranks()));
    of_peers.push_back(of_peer);
  }
  return of_peers;
}

Status Communicator::try_peer_access(const std::vector<RankInfo>& ranks, const Links& links,
                                     const std::vector<PeerLinks>& of_peers,
                                     const Deadline& deadline) {
  std::vector<bool> with;
  std::vector<std::array<uint8_t, 16>> uuids;
  for (size_t peer = 0; peer < ranks.size(); ++peer) {
    const PeerAccess worse = std::max(links.access[peer], of_peers[peer].own_access);
    with.push_back(worse == PeerAccess::Untried);
    uuids.push_back(ranks[peer].device_uuid);
  }
  const transport::Findings findings =
      TRY(transport::try_paths(machine_, device(), *member_, with, uuids, deadline));
  using transport::Finding;
  for (int peer = rank() + 1; peer < nranks(); ++peer) {  // one of the two says it
    const auto at = static_cast<size_t>(peer);
    if (!with[at]) continue;
    const bool is_own = findings.own[at] != Finding::Works;
    if (!is_own && findings.of_peers[at] == Finding::Works) continue;
    LOG(Warn, P2p,
        "peer access between the GPUs of ranks {} ({}) and {} ({}) is offered by the driver and "
        "does "
        "not work: {}. {} connects them instead, which is slower. Mostly an IOMMU or PCIe ACS "
        "stands "
        "in the way: boot with iommu=pt, or switch ACS off in the firmware or with setpci; "
        "NCCL_P2P_DISABLE=1 says nothing and does the same",
        rank(), ranks[static_cast<size_t>(rank())].bus_id, peer, ranks[at].bus_id,
        is_own ? transport::describe(findings.own[at], rank(), peer)
               : transport::describe(findings.of_peers[at], peer, rank()),
        links.shares_host && of_peers[at].shares_host ? "host memory (SHM)" : "the network");
  }
  return {};
}

// All ranks tell the others what their links can do, so that both ends of a connection know the
// same, and all choose alike.
Result<transport::Reach> Communicator::exchange_links(const std::vector<RankInfo>& ranks,
                                                      planner::Settings& settings,
                                                      const Deadline& deadline) {
  Links links = describe_links(ranks);
  std::vector<PeerLinks> of_peers = TRY(gather_links(links, deadline));
  if (std::ranges::any_of(of_peers, &PeerLinks::has_untried)) {
    TRY(try_peer_access(ranks, links, of_peers, deadline));
    links = describe_links(ranks);
    of_peers = TRY(gather_links(links, deadline));
  }
  transport::Reach reach{.out = links.opens_buffers,
                         .in = {},
                         .is_whole = true,
                         .windows = links.shares_atomics,
                         .has_whole_windows = true};
  for (int peer = 0; peer < nranks(); ++peer) {
    const auto at = static_cast<size_t>(peer);
    const PeerLinks& of_peer = of_peers[at];
    transport::Pair pair{.same_process = member_->same_process(peer),
                         .same_machine = !is_remote(peer),
                         .peer_access = std::max(links.access[at], of_peer.own_access),
                         .shares_host = links.shares_host && of_peer.shares_host,
                         .peer_device = ranks[at].device};
    reach.in.push_back(of_peer.opens_own_buffers && pair.has_peer_access());
    if (!pair.has_peer_access()) reach.out[at] = false;
    reach.is_whole &= of_peer.opens_all_buffers;
    if (!of_peer.shares_own_atomics || !pair.has_peer_access()) reach.windows[at] = false;
    reach.has_whole_windows &= of_peer.shares_all_atomics;
    reach.pairs.push_back(pair);
    lacks_access_ |= of_peer.lacks_access;
    lacks_host_ |= !of_peer.shares_host;
    if (of_peer.torn >= 0 && torn_link_.empty())
      torn_link_ = describe_torn(ranks, peer, of_peer.torn);
  }
  if (lacks_access_) reach.is_whole = reach.has_whole_windows = false;
  if (lacks_access_ && torn_link_.empty())
    torn_link_ =
        "ranks without peer access to each other share host memory, whose lines of 128 bytes may "
        "arrive torn";
  TRY(find_machine_graph(ranks, deadline));
  TRY(apply_ways(settings));
  return reach;
}

Status Communicator::apply_ways(planner::Settings& settings) {
  if (machine_graph_ != nullptr)
    planner::set_rings(settings, find_rings(*machine_graph_, rails_, graph_ranks_, machine_of_,
                                            /*tells=*/rank() == 0));
  if (needs_network()) {
    planner::span_machines(settings, spans_machines() ? machine_of_ : std::vector<int>{});
    return {};
  }
  if (!torn_link_.empty()) TRY(planner::forbid_ll128(settings).with_context("{}", torn_link_));
  planner::set_shares_host(settings, lacks_access_);
  return {};
}

}  // namespace niccolite::comm
