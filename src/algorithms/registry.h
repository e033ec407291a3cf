// The algorithms there are, by collective and name. An algorithm is known to the rest of the
// library by its entry here alone: whatever chooses, prices, names or selects algorithms reads the
// entry. Algorithms of files (loaded.h) follow the built-in ones, collective by collective.
// Constant from the first use on: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "algorithms/options.h"
#include "schedule/schedule.h"

namespace niccolite::algorithms {

/// The quantities with which the time of an operation grows. n: ranks.
struct Load {
  double steps;  // that the fixed latency is multiplied by: hops, or peers that a rank waits for
  double sent;   // bytes that the busiest rank sends or receives, per byte of the operation
  int blocks;    // parts of the buffer that is cut
};

/// The conditions under which an algorithm makes sense, beyond the ranks that it can be built for.
enum class Suits : uint8_t {
  Anything,
  LowestLatency,    // holds all operands of a chunk at once: small data, or two ranks
  SeveralMachines,  // of one it does what another algorithm does
  ThreeRanks,       // or more: of two it does what `direct` does, in more steps
};

/// How data go from rank to rank. Tuner plug-ins know algorithms by it, and so do estimates where a
/// schedule is too large to be looked at.
enum class Pattern : uint8_t {
  Direct,         // straight to whom they are for
  Ring,           // round all ranks, or along a chain of them
  Tree,           // along trees or hypercubes: the depth grows with the logarithm of the ranks
  Forwarding,     // over log2 n intermediate ranks
  Hierarchical,   // inside machines, then between them
  NetworkDirect,  // straight inside machines, and the network reduces
  NetworkChain,   // along a chain inside machines, and the network reduces
};

/// Facts about an algorithm, beside its schedule, that the planner needs.
struct Traits {
  Load (*load)(int nranks) = nullptr;
  bool connects_all = false;       // every rank with every other (or with the root)
  bool connects_machines = false;  // each machine with all others
  bool is_one_step = false;        // what a rank sends comes from its input, and ends where it goes
  Suits suits = Suits::Anything;
  Pattern pattern = Pattern::Direct;
  bool through_network = false;   // the network reduces (schedule::Through)
  bool follows_machines = false;  // who sends what to whom depends on which ranks share a machine
  // Other workers than the algorithm's own may be faster (planner/form.h):
  bool gains_by_workers = false;  // one for each instruction, among few ranks
  bool gains_by_halves = false;   // two in the place of one
};

struct Loaded;

/// Builds schedules: a function of this library, or files (loaded.h).
class Build {
 public:
  using Function = Result<schedule::Schedule> (*)(int nranks, const Options& options);
  constexpr Build(Function function) : function_(function) {}
  constexpr explicit Build(const Loaded& loaded) : loaded_(&loaded) {}

  Result<schedule::Schedule> operator()(int nranks, const Options& options) const;
  /// Null: it is built in.
  constexpr const Loaded* loaded() const { return loaded_; }
  friend constexpr bool operator==(const Build& build, std::nullptr_t) {
    return build.function_ == nullptr && build.loaded_ == nullptr;
  }

 private:
  Function function_ = nullptr;
  const Loaded* loaded_ = nullptr;
};

struct Algorithm {
  const char* name;  // equals Schedule::algorithm of its schedules
  schedule::Collective collective;
  int min_ranks;
  int max_ranks;
  Build build;  // null: of messages
  Traits traits{};
};

/// Adds the algorithm in `text` (schedule/file.h) to the registry, before its first use. `origin`
/// names it in messages. Errors: as of LoadedSet::add(); InvalidUsage after the first use.
Status register_file(const std::string& origin, std::string_view text);

/// Why files of NICCOLITE_ALGORITHMS were left out; empty: none was.
std::span<const std::string> refused_files();

/// Returns all algorithms that build a schedule from a number of ranks; the algorithms of one
/// collective lie side by side.
std::span<const Algorithm> all();

/// Returns the algorithms of one collective. PointToPoint has one, `direct`, whose schedules are
/// built from messages (point_to_point.h).
std::span<const Algorithm> of(schedule::Collective collective);

/// The most forms (planner/form.h) that the algorithms of a collective may have: sets of them
/// travel as bits, beside planner::kNvlsBit.
inline constexpr size_t kMostFormsOfCollective = 30;
/// Suffixes that follow an algorithm's name in the names of its forms.
inline constexpr std::string_view kPlain = "_plain", kByWorkers = "_workers", kByHalves = "_halves";

/// Null when there is none of that name.
const Algorithm* find(schedule::Collective collective, std::string_view name);

/// That of messages (PointToPoint).
const Algorithm& of_messages();

}  // namespace niccolite::algorithms
