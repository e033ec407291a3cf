// Settings: the options among which the planner chooses, and the shapes of connections. Rank 0's
// settings hold for all ranks of a communicator (they are exchanged at init), since all ranks must
// choose alike. Who may use it: planner, comm.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/wire.h"
#include "executor/numeric.h"
#include "executor/protocol/fifo.h"
#include "executor/protocol/team_slots.h"
#include "gpu/devices.h"
#include "planner/shapes.h"
#include "planner/variant.h"

namespace niccolite::planner {

/// How many CTAs operations take from the user's computation (NCCL_CTA_POLICY_*).
enum class CtaPolicy : uint8_t {
  Default,     // the fastest choice
  Efficiency,  // the fewest that lose little
  Zero         // none where copies need none; plain buffers always do, and then as Efficiency
};

/// The abilities of a network's reducer.
struct Reductions {
  /// By type and operation: bit kOperations * DataType + ReduceOp.
  static constexpr int kOperations = 4;
  uint64_t bits = 0;
  bool gathers = false;  // it gathers and scatters, too

  static constexpr uint64_t bit(executor::DataType type, executor::ReduceOp operation) {
    return uint64_t{1} << (kOperations * static_cast<int>(type) + static_cast<int>(operation));
  }
  /// The abilities of a network that can do all.
  static constexpr Reductions all() { return {.bits = UINT64_MAX, .gathers = true}; }
  bool has(executor::DataType type, executor::ReduceOp operation) const {
    return (bits & bit(type, operation)) != 0;
  }
  friend bool operator==(const Reductions&, const Reductions&) = default;
};

/// Some forms of a collective's algorithms, by index_of(); and behind these whether any may go by a
/// team: NCCL's `nvls`, and `nvlstree` of algorithms that follow machines.
using FormSet = std::bitset<32>;
inline constexpr size_t kNvlsBit = kMostForms;
inline constexpr size_t kNvlsTreeBit = kNvlsBit + 1;
/// Some protocols, by number.
using ProtocolSet = std::array<bool, executor::kProtocols>;

struct Settings {
  gpu::Kind machine = gpu::Kind::Virtual;
  std::string gpu{};  // the name of every rank's, "NVIDIA H200"; empty: they differ, or are unknown
  int nranks = 1;
  int min_channels = 1;              // of a protocol's connections; within max_channels
  int max_channels = kMostChannels;  // that a user allows; how many there are: most_channels()
  int threads = 0;                   // of a CTA; 0: the executor's choice
  int chunk_parts = 0;       // chunks that a slot's data are cut into; 0: the model's choice
  int64_t pull_block = -1;   // bytes of a block from which on reductions pull; -1: as measured
  int64_t slots_bytes = -1;  // of a connection and channel, Simple; -1: the machine's
  CtaPolicy policy = CtaPolicy::Default;
  // The environment takes precedence over a single call's configuration (call_settings.h).
  bool are_channels_named = false;  // the bounds of channels
  bool is_policy_named = false;
  bool reaches_users = true;    // every rank's kernels the buffers of all others' users
  bool spans_machines = false;  // ranks are on several, or connected as if they were
  bool shares_host = false;     // some ranks are connected by host memory: set_shares_host()
  bool tears_lines = false;     // some link does: forbid_ll128()
  std::vector<int> machines{};  // that each rank is on, where the network connects some
  int least_of_reducer = 0;  // machines among which the network reduces, if it can; 0: it does not
  Reductions reducible{};    // by the network; empty: there is no reducer
  /// Orders for ring algorithms, a pattern channel each; empty: one ring, in rank order.
  std::vector<std::vector<int>> rings{};
  bool is_invariant = false;  // only variants that reduce in one order (schedule/order.h)
  bool is_tuned = false;      // rank 0 has a tuner plug-in, which is asked (tuner.h)
  /// The type of the operation's elements, where some algorithm of a file is for some types alone
  /// (Planner::type_that_matters()).
  std::optional<executor::DataType> type{};
  // The operation, "int8 by sum", where multicast teams, or the network's reducer, do not carry it
  // out although there are some.
  std::string not_of_teams{};
  std::string not_of_reducer{};
  bool maps_captured = true;  // ranks of other processes map the buffers of captured operations
  // All ranks of each machine are in a multicast team (transport/team.h), of this many at most; 0:
  // there is none.
  int team_ranks = 0;
  bool team_reaches_windows = false;  // and buffers are expected to lie in some
  bool asks_for_team = false;  // NCCL_ALGO or NCCL_NVLS_ENABLE of rank 0 does: else none is made
  int team_channels = 0;       // at most: NCCL_NVLS_NCHANNELS, or nvlsCTAs; 0: as many as fit
  executor::TeamSlots team_slots{};  // of connections by teams
  Shapes shapes{};
  Shapes message_shapes{};  // of messages' own connections; equal to `shapes` where they have none
  // Allowed by NCCL_ALGO (bit i: forms_of(collective)[i]) and NCCL_PROTO, by collective.
  std::array<FormSet, schedule::kCollectives> forms{};
  std::array<ProtocolSet, schedule::kCollectives> protocols{};

  friend bool operator==(const Settings&, const Settings&) = default;
};

/// The channels of the protocol that has the most: the most CTAs of an operation.
int most_channels(const Settings& settings);
/// The channels of connections by `protocol`; 0: the machine has none.
inline int most_channels(const Settings& settings, executor::Protocol protocol) {
  return static_cast<int>(settings.shapes[static_cast<size_t>(protocol)].channels);
}
/// CTAs that operations usually take, one by itself or several together. More CTAs take the GPU
/// from other work. They are for operations that gain much (length_of()), or for a user who asks
/// for them.
inline constexpr int kUsualCtas = 24;
int usual_channels(const Settings& settings);

/// How many machines the ranks are on.
int machines_in(const Settings& settings);
/// The ranks of `rank`'s rail, ascending: the members of its group of the network's reducer, as
/// the schedules of CollNet have them. Empty: it is a member of none. `machines`: by rank.
std::vector<int> members_of_rail(std::span<const int> machines, int rank);

/// Returns the options for all schedules of these ranks: PAT has as many chunks in flight as any
/// protocol's FIFOs have slots. The caller sets rank and root.
algorithms::Options options_of(const Settings& settings);

/// Memory of each rank of a team: its slots of all stores and loads of all ranks. Of that, for
/// words, which are short.
inline constexpr size_t kMostTeamBytes = 32 << 20;
inline constexpr size_t kMostTeamWordBytes = 4 << 20;
/// Sets that there are teams of up to `ranks`; 0: none. The shape of their connections follows.
void set_team(Settings& settings, int ranks);
/// The slots that they would have.
executor::TeamSlots team_slots_for(const Settings& settings, int ranks);
inline bool allows_team(const Settings& settings, const Form& form) {
  return settings.forms[static_cast<size_t>(form.collective)].test(
      form.traits().follows_machines ? kNvlsTreeBit : kNvlsBit);
}

inline bool allows(const Settings& settings, const Form& form) {
  return settings.forms[static_cast<size_t>(form.collective)].test(index_of(form));
}

/// The settings of an operation that shares a launch with others, which the network's reducer does
/// not carry. No team does, either. If NCCL_ALGO leaves nothing else, all algorithms of ranks may
/// carry it.
Settings without_reducer(const Settings& settings);

/// Forbids LL128 to all variants, because some link tears lines of 128 bytes. Errors: InvalidUsage
/// when NCCL_PROTO leaves a function no other protocol.
Status forbid_ll128(Settings& settings);

/// Sets that ranks are on several machines, each on its machine of `machines` (empty: each on its
/// own). No variant uses LL128 then, because only ranks that share the memory see its lines whole.
/// If NCCL_PROTO leaves a function nothing else, the function has Simple all the same.
void span_machines(Settings& settings, std::vector<int> machines);

/// Returns the protocols that the links between the ranks carry, whatever NCCL_PROTO says.
ProtocolSet protocols_between_ranks(const Settings& settings);

/// Sets the orders that the machine graph has found for rings (topology/rings.h). A single ring in
/// rank order is the default of rings. With thousands of ranks the last rings are left out, if a
/// program has no room for the instructions of all.
void set_rings(Settings& settings, std::vector<std::vector<int>> rings);

/// Returns the tag of messages' connections by `protocol`: a tag of their own if they have another
/// shape.
int message_tag(const Settings& settings, executor::Protocol protocol);
/// Returns the shape of the connections that `collective` uses.
const executor::FifoShape& shape_of(const Settings& settings, Collective collective,
                                    executor::Protocol protocol);

/// The limits in a communicator's configuration (ncclConfig_t); 0: not set.
struct Limits {
  int min_ctas = 0;
  int max_ctas = 0;
  int nvls_ctas = 0;
  CtaPolicy policy = CtaPolicy::Default;
};

/// Translates NCCL's bits. Two contradicting bits mean Zero, with a warning that names `origin`.
CtaPolicy policy_of(int bits, std::string_view origin);

/// Limits operations to `most` CTAs, whatever the user has asked for. Before set_reach().
void bound_ctas(Settings& settings, int most);

/// Sets facts that ranks know only when they have met, and the tuning's shapes for such ranks and
/// `settings.gpu`. The result depends only on the settings and the tuning files, which are equal on
/// all ranks, so that rank 0's settings give the same result everywhere.
void set_reach(Settings& settings, bool reaches_users);
/// Sets whether some ranks are connected by host memory, and the shapes, as set_reach() does.
void set_shares_host(Settings& settings, bool shares_host);

/// The form in which settings travel between ranks. The reader rejects values that no rank can
/// have.
void write(Writer& writer, const Settings& settings);
Settings read_settings(Reader& reader, gpu::Kind machine, int nranks);

/// Makes settings from the environment and `limits`, for ranks that reach each other's users'
/// buffers. Errors: InvalidUsage for an unknown token in NCCL_ALGO or NCCL_PROTO, and for files of
/// NICCOLITE_TUNING that cannot be read.
Result<Settings> make_settings(gpu::Kind machine, int nranks, const Limits& limits);

}  // namespace niccolite::planner
