// Membership: which rank of a communicator this one is, and where its ranks are: machines, devices,
// and their places in the machine graph. Ranks that one process cannot reach by memory are remote.
// Thread safety: as for any value. The thread that makes the communicator ready writes it; then it
// is constant, and any thread may read it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/carrier.h"

namespace niccolite::topology {
class Graph;
enum class PathType : uint8_t;
}  // namespace niccolite::topology

namespace niccolite::comm {

struct Identity {
  uint64_t hash = 0;  // of a communicator made from another; else 0 until the id is known
  int nranks = 0;
  int rank = -1;
  int device = -1;            // current when the user called `function`
  const char* function = "";  // the API call that made it, for log lines
};

/// The machine graph, and the ranks' numbers in the graph.
struct Places {
  // Null where no order of ranks is better than another (see Communicator::find_machine_graph()).
  std::shared_ptr<const topology::Graph> graph;
  std::vector<int> rails;        // topology::rails() of the graph
  std::vector<int> graph_ranks;  // by rank: its number in the graph
};

class Membership {
 public:
  explicit Membership(const Identity& identity) : identity_(identity) {}

  int rank() const { return identity_.rank; }
  int nranks() const { return identity_.nranks; }
  int device() const { return identity_.device; }
  const char* function() const { return identity_.function; }
  /// Equal for the ranks of one communicator, and different from other communicators'. Groups are
  /// sorted by it.
  uint64_t hash() const { return identity_.hash; }

  void set_hash(uint64_t hash) { identity_.hash = hash; }
  /// By rank: the number of its machine, and its device in its process. `gpu`:
  /// planner::Settings::gpu. More ranks than one.
  void set_ranks(std::vector<int> machines, std::vector<int> devices, std::string gpu);
  void set_shares_gpus() { shares_gpus_ = true; }
  /// Has some GPU several ranks? Of a communicator made from another, also if the other's had.
  bool shares_gpus() const { return shares_gpus_; }
  /// `graph` has the same ranks as the communicator.
  void set_graph(std::shared_ptr<const topology::Graph> graph);
  /// For a communicator made from `parent`: `ranks` are its members, as ranks of the parent.
  void derive(const Membership& parent, std::span<const int> ranks);

  /// By rank: the number of its machine in the first communicator, so that a communicator made from
  /// another may lie on the second machine alone. Empty for one rank.
  const std::vector<int>& machines() const { return machines_; }
  const std::string& gpu() const { return gpu_; }
  const Places& places() const { return places_; }
  int device_of(int rank) const {
    return devices_.empty() ? device() : devices_[static_cast<size_t>(rank)];
  }
  /// Is that rank on another machine than this one? More ranks than one.
  bool is_remote(int peer) const {
    return machines_[static_cast<size_t>(peer)] != machines_[static_cast<size_t>(rank())];
  }
  /// Are all ranks of its machines that `parent` has in this communicator, which was made from it?
  bool has_whole_machines_of(const Membership& parent) const;
  bool spans_machines() const;
  int count_machines() const;
  /// The size of the teams of ranks that share a machine: ranks that follow each other. 1 where
  /// machines have different numbers of ranks, or ranks of several machines take turns.
  int team_size() const;
  /// The place of this rank on the network: the device that the machine graph gives it, else that
  /// of its number among the ranks of its machine.
  transport::Carrier place_on_network() const;
  /// How far a port of that name is from this rank's GPU; DIS: the graph lacks one of the two.
  topology::PathType distance_to_port(const std::string& port) const;

 private:
  Identity identity_;
  std::vector<int> machines_;
  std::vector<int> devices_;
  std::string gpu_;
  bool shares_gpus_ = false;
  Places places_;
};

}  // namespace niccolite::comm
