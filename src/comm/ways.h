// Ways: the ways between this rank and the others: the access of kernels to the memory of other
// ranks, and whether host memory or the network has to connect them. Every rank finds out what its
// GPU can do, ranks try paths that nobody has tried, and all ranks come to the same result. Thread
// safety: as for any value. The thread that makes the communicator ready writes it, later the
// thread inside a call on the communicator.
#pragma once

#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "comm/links.h"
#include "comm/membership.h"
#include "operations/one_sided_call.h"
#include "transport/reach.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::comm {

class Ways {
 public:
  /// One rank has no ways.
  Ways() = default;

  struct Search {
    gpu::Machine& machine;
    const Membership& membership;
    bootstrap::Member& member;
    std::span<const RankInfo> ranks;
    Deadline deadline;
  };
  /// Collective over all ranks.
  static Result<Ways> find(const Search& search);
  /// Combines the links of all ranks: `links` are this rank's own, `peers` are the others' as this
  /// rank decodes them, by rank. `is_here`: is that rank in this process? A pure function.
  static Ways combine(const Links& links, std::span<const PeerLinks> peers,
                      std::span<const RankInfo> ranks, const Membership& membership,
                      const std::function<bool(int)>& is_here);
  /// For a communicator made from another: `ranks` are its members, as ranks of the parent.
  /// `is_whole`: transport::Reach::is_whole among these ranks.
  static Ways derive(const Ways& parent, const Membership& membership, std::span<const int> ranks,
                     bool is_whole);

  /// Gives the planner the ways among which it may choose.
  Status apply(planner::Settings& settings, const Membership& membership) const;

  const transport::Reach& reach() const { return reach_; }
  /// Do some ranks of one machine have no peer access to each other? In a communicator made from
  /// another: some ranks of that one.
  bool lacks_access() const { return lacks_access_; }
  /// Why LL128 is not used here; empty: it may be.
  const std::string& torn_link() const { return torn_link_; }
  /// Does the network connect ranks that have no other way to each other?
  bool needs_network() const { return spans_machines_ || (lacks_access_ && lacks_host_); }
  /// Can every rank map the memory of all ranks of its machine? Else windows are null, and there
  /// are no puts and signals.
  bool has_windows() const { return !lacks_access_; }
  /// Can it map the memory of all ranks? Else windows reach the ranks of its own machine alone.
  bool maps_all_memory() const { return !needs_network() && !lacks_access_; }
  /// Refuses puts and signals to, and waits for, ranks of this machine whose memory cannot be
  /// mapped: InvalidUsage.
  Status check(const operations::OneSidedCall& call, const Membership& membership) const;
  /// The size of the load-store teams (ncclTeamLsa): ranks that follow each other, whose kernels
  /// may use each other's memory. All teams are of one size; see Membership::team_size(). Where
  /// ranks have set NCCL_LSA_TEAM_SIZE: the greatest common divisor of all.
  int load_store_ranks(const Membership& membership) const {
    return lacks_access_ ? 1 : std::gcd(team_limit_, membership.team_size());
  }

  /// The ranks whose kernels can use buffers of this rank's user.
  const std::vector<int>& reaching_peers() const { return reaching_peers_; }
  void add_reaching(int peer);

 private:
  Status check_peer(int peer, const Membership& membership) const;
  static Links describe_links(const Search& search);
  static Result<std::vector<PeerLinks>> gather_links(const Search& search, const Links& links);
  /// Tries the peer paths that no process has tried yet, and warns of broken ones.
  static Status try_peer_access(const Search& search, const Links& links,
                                std::span<const PeerLinks> peers);

  transport::Reach reach_;
  bool spans_machines_ = false;
  bool lacks_access_ = false;
  bool lacks_host_ = false;  // some ranks do not share host memory
  int team_limit_ = 0;       // of the load-store teams; 0: none
  std::string torn_link_;
  std::vector<int> reaching_peers_;
};

}  // namespace niccolite::comm
