#include "comm/ways.h"

#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"
#include "comm/machine_graph.h"
#include "comm/p2p_level.h"
#include "gpu/machine.h"
#include "topology/detect.h"
#include "transport/path_trial.h"

namespace niccolite::comm {

using topology::PathType;
using transport::PeerAccess;

namespace {

// May this rank's kernels use the memory of another's GPU, as far as this process knows?
PeerAccess access_to(gpu::Machine& machine, int device, const RankInfo& other, bool is_here,
                     int local) {
  const bool is_same_gpu = local == device;
  const bool has_nvlink = is_same_gpu || (local >= 0 && machine.keeps_lines_whole(device, local));
  const auto distance = [&] {
    if (has_nvlink || machine.kind() == gpu::Kind::Virtual) return PathType::NVL;
    Result<gpu::DeviceInfo> own = machine.device_info(device);
    return own.is_ok() ? topology::pci_distance("/", own->bus_id, other.bus_id) : PathType::SYS;
  };
  if (forbids_peer_access(distance)) return PeerAccess::Forbidden;
  // A GPU that this process does not see can be reached all the same, by a descriptor.
  if (local >= 0 && !is_same_gpu &&
      !(machine.can_access_peer(device, local) && machine.can_access_peer(local, device)))
    return PeerAccess::Absent;
  if (!machine.doubts_peer_access() || (is_same_gpu && is_here)) return PeerAccess::Works;
  return transport::find_tried({.machine = &machine,
                                .device = device,
                                .peer_uuid = other.device_uuid,
                                .same_process = is_here});
}

}  // namespace

// Finds out how this rank's kernels can use the memory of the others. Where peer access is known to
// work, lets them reach the buffers of the others' users: now, and not at the first operation,
// since the driver may wait for kernels that wait for this rank.
Links Ways::describe_links(const Search& search) {
  const Membership& membership = search.membership;
  gpu::Machine& machine = search.machine;
  const int device = membership.device(), rank = membership.rank();
  Links links;
  links.shares_host = parameters::shm_disable() != 1;
  links.team_limit = static_cast<int>(parameters::lsa_team_size());
  for (int peer = 0; peer < membership.nranks(); ++peer) {
    const RankInfo& other = search.ranks[static_cast<size_t>(peer)];
    const bool is_here = peer == rank || search.member.same_process(peer);
    const int local = membership.is_remote(peer) ? -1
                      : is_here                  ? other.device
                                                 : local_device(machine, other);
    const PeerAccess access = peer == rank || membership.is_remote(peer)
                                  ? PeerAccess::Works
                                  : access_to(machine, device, other, is_here, local);
    const bool reaches = !membership.is_remote(peer) && access == PeerAccess::Works &&
                         parameters::p2p_direct_disable() == 0;
    links.access.push_back(access);
    links.opens_buffers.push_back(reaches && peer != rank && is_here &&
                                  machine.open_buffers(device, local));
    links.shares_atomics.push_back(reaches && local >= 0 && machine.shares_atomics(device, local));
    if (links.torn < 0 && !membership.is_remote(peer) && access <= PeerAccess::Untried &&
        (local < 0 || !machine.keeps_lines_whole(device, local)))
      links.torn = peer;
  }
  return links;
}

Result<std::vector<PeerLinks>> Ways::gather_links(const Search& search, const Links& links) {
  const int nranks = search.membership.nranks();
  const bootstrap::Gathered of_all = TRY(search.member.all_gather(encode(links), search.deadline));
  std::vector<PeerLinks> peers;
  for (int peer = 0; peer < nranks; ++peer)
    peers.push_back(TRY(decode_links(of_all[peer], peer, search.membership.rank(), nranks)));
  return peers;
}

Status Ways::try_peer_access(const Search& search, const Links& links,
                             std::span<const PeerLinks> peers) {
  const std::span<const RankInfo> ranks = search.ranks;
  const int rank = search.membership.rank();
  std::vector<bool> with;
  std::vector<std::array<uint8_t, 16>> uuids;
  for (size_t peer = 0; peer < ranks.size(); ++peer) {
    const PeerAccess worse = std::max(links.access[peer], peers[peer].own_access);
    with.push_back(worse == PeerAccess::Untried);
    uuids.push_back(ranks[peer].device_uuid);
  }
  const transport::Findings findings = TRY(transport::try_paths(
      search.machine, search.membership.device(), search.member, with, uuids, search.deadline));
  using transport::Finding;
  for (int peer = rank + 1; peer < search.membership.nranks(); ++peer) {  // one of the two says it
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
        rank, ranks[static_cast<size_t>(rank)].bus_id, peer, ranks[at].bus_id,
        is_own ? transport::describe(findings.own[at], rank, peer)
               : transport::describe(findings.of_peers[at], peer, rank),
        links.shares_host && peers[at].shares_host ? "host memory (SHM)" : "the network");
  }
  return {};
}

// All ranks tell the others what their links can do, so that both ends of a connection know the
// same, and all choose alike.
Result<Ways> Ways::find(const Search& search) {
  Links links = describe_links(search);
  std::vector<PeerLinks> peers = TRY(gather_links(search, links));
  if (std::ranges::any_of(peers, &PeerLinks::has_untried)) {
    TRY(try_peer_access(search, links, peers));
    links = describe_links(search);
    peers = TRY(gather_links(search, links));
  }
  return combine(links, peers, search.ranks, search.membership,
                 [&](int peer) { return search.member.same_process(peer); });
}

Ways Ways::combine(const Links& links, std::span<const PeerLinks> peers,
                   std::span<const RankInfo> ranks, const Membership& membership,
                   const std::function<bool(int)>& is_here) {
  Ways ways;
  ways.spans_machines_ = membership.spans_machines();
  ways.reach_ = {.out = links.opens_buffers,
                 .in = {},
                 .is_whole = true,
                 .windows = links.shares_atomics,
                 .has_whole_windows = true};
  transport::Reach& reach = ways.reach_;
  for (int peer = 0; peer < membership.nranks(); ++peer) {
    const auto at = static_cast<size_t>(peer);
    const PeerLinks& of_peer = peers[at];
    transport::Pair pair{.same_process = is_here(peer),
                         .same_machine = !membership.is_remote(peer),
                         .peer_access = std::max(links.access[at], of_peer.own_access),
                         .shares_host = links.shares_host && of_peer.shares_host,
                         .peer_device = ranks[at].device};
    reach.in.push_back(of_peer.opens_own_buffers && pair.has_peer_access());
    if (!pair.has_peer_access()) reach.out[at] = false;
    reach.is_whole &= of_peer.opens_all_buffers;
    if (!of_peer.shares_own_atomics || !pair.has_peer_access()) reach.windows[at] = false;
    reach.has_whole_windows &= of_peer.shares_all_atomics;
    reach.pairs.push_back(pair);
    ways.lacks_access_ |= of_peer.lacks_access;
    ways.lacks_host_ |= !of_peer.shares_host;
    ways.team_limit_ = std::gcd(ways.team_limit_, of_peer.team_limit);
    if (of_peer.torn >= 0 && ways.torn_link_.empty())
      ways.torn_link_ = describe_torn(ranks, peer, of_peer.torn);
    if (reach.in[at]) ways.reaching_peers_.push_back(peer);
  }
  if (ways.lacks_access_) reach.is_whole = reach.has_whole_windows = false;
  if (ways.lacks_access_ && ways.torn_link_.empty())
    ways.torn_link_ =
        "ranks without peer access to each other share host memory, whose lines of 128 bytes may "
        "arrive torn";
  return ways;
}

Ways Ways::derive(const Ways& parent, const Membership& membership, std::span<const int> ranks,
                  bool is_whole) {
  Ways ways;
  ways.spans_machines_ = membership.spans_machines();
  // Which of the parent's links lacks access or may tear lines, its ranks do not keep in mind.
  ways.torn_link_ = parent.torn_link_;
  ways.lacks_access_ = parent.lacks_access_;
  ways.lacks_host_ = parent.lacks_host_;
  ways.team_limit_ = parent.team_limit_;
  ways.reach_.is_whole = is_whole;
  ways.reach_.has_whole_windows = parent.reach_.has_whole_windows;
  for (size_t own = 0; own < ranks.size(); ++own) {
    const auto at = static_cast<size_t>(ranks[own]);
    ways.reach_.out.push_back(parent.reach_.out[at]);
    ways.reach_.in.push_back(parent.reach_.in[at]);
    ways.reach_.windows.push_back(parent.reach_.windows[at]);
    ways.reach_.pairs.push_back(parent.reach_.pairs[at]);
    if (parent.reach_.in[at]) ways.reaching_peers_.push_back(static_cast<int>(own));
  }
  return ways;
}

Status Ways::apply(planner::Settings& settings, const Membership& membership) const {
  if (const Places& places = membership.places(); places.graph != nullptr)
    planner::set_rings(
        settings, find_rings(*places.graph, places.rails, places.graph_ranks, membership.machines(),
                             /*tells=*/membership.rank() == 0));
  if (needs_network()) {
    planner::span_machines(settings, spans_machines_ ? membership.machines() : std::vector<int>{});
    return {};
  }
  if (!torn_link_.empty()) TRY(planner::forbid_ll128(settings).with_context("{}", torn_link_));
  planner::set_shares_host(settings, lacks_access_);
  return {};
}

Status Ways::check(const operations::OneSidedCall& call, const Membership& membership) const {
  if (!call.is_wait()) return check_peer(call.peer, membership);
  for (const operations::OneSidedCall::Wait& wait : call.waits)
    TRY(check_peer(wait.peer, membership));
  return {};
}

Status Ways::check_peer(int peer, const Membership& membership) const {
  if (reach_.pairs.empty() || membership.is_remote(peer)) return {};
  if (!reach_.pairs[static_cast<size_t>(peer)].has_peer_access())
    return Status::invalid_usage(
        "the GPUs of ranks {} and {} have no peer access to each other, which puts and signals "
        "need",
        membership.rank(), peer);
  return {};
}

void Ways::add_reaching(int peer) {
  if (std::ranges::find(reaching_peers_, peer) == reaching_peers_.end())
    reaching_peers_.push_back(peer);
}

}  // namespace niccolite::comm
