// Phases: what one rank does in an operation, as a short sequence instead of lists of instructions:
// for kernels that do each phase for all peers at once.
//
//   send     blocks of the input go to peers; one may be copied to the output beside
//   reduce   one block of the input with what peers sent; the result is stored, sent, or both
//   store    blocks that peers send, as they are, go to the output
//
//   one-shot all-reduce      send    reduce
//   two-shot all-reduce      send    reduce, and send    store
//   direct reduce-scatter    send    reduce
//   direct all-gather        send                        store
//
// They are derived from the form of a rank's workers, for any schedule that has it, and nothing is
// declared by algorithms. All bytes go through slots, each connection carries one chunk a round.
//
// The kernel's duty, on which the proof (check_phases()) rests: the thread or warp that moves a
// part of a block moves that part of all blocks, in all phases, and goes through these in order. So
// parts are to each other as channels are, and one worker stands for them all.
//
// Who may use it: executors, tools. Thread safety: values.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "schedule/schedule.h"

namespace niccolite::lowering {

/// A block that goes over a connection.
struct Transfer {
  int connection;
  int block;  // of the sender's input, or of the receiver's output
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

struct Phases {
  /// A copy of a block of the input to one of the output.
  struct Copy {
    int from;
    int to;
    friend bool operator==(const Copy&, const Copy&) = default;
  };
  struct Reduce {
    int source;                 // block of the input
    int source_position;        // among the operands: before receives[source_position]
    std::vector<int> receives;  // connections, in the order of the operands
    std::optional<int> target;  // block of the output
    std::vector<int> sends;     // connections that get the result
    bool finishes;              // Instruction::finish
    friend bool operator==(const Reduce&, const Reduce&) = default;
  };

  std::vector<Transfer> sends{};
  std::optional<Copy> copy{};
  std::optional<Reduce> reduce{};
  std::vector<Transfer> stores{};

  friend bool operator==(const Phases&, const Phases&) = default;
};

/// The phases of workers that share a work's data; none when they do anything else, receive before
/// they send, or use a connection twice in a round. In the order of the workers' instructions.
std::optional<Phases> phases_of(std::span<const schedule::Worker> workers);

/// function(connection), by reference, for all that the phases use.
template <typename Function>
void for_each_connection(Phases& phases, Function&& function) {
  for (Transfer& send : phases.sends) function(send.connection);
  for (Transfer& store : phases.stores) function(store.connection);
  if (!phases.reduce) return;
  for (int& connection : phases.reduce->receives) function(connection);
  for (int& connection : phases.reduce->sends) function(connection);
}

/// Do all peers get one block, which is also the block that is copied or reduced, if there is one?
bool sends_one_block(const Phases& phases);

/// How far a kernel lets the phases of different rounds overlap: in stage s it sends round s,
/// reduces round s - reduce_lag, and stores round s - store_lag, in this order, where these rounds
/// exist. It gives credit when a stage is over.
struct Pace {
  int reduce_lag = 0;
  int store_lag = 0;

  static constexpr Pace round_by_round() { return {}; }
  /// Each phase is a round behind the one before.
  static constexpr Pace staggered() { return {.reduce_lag = 1, .store_lag = 2}; }
  /// Lets receives lag behind sends by as much as connections of `depth` slots allow.
  static constexpr Pace sends_ahead(int depth) {
    return {.reduce_lag = depth - 1, .store_lag = depth - 1};
  }
  /// Slots that connections need, where an operation has several rounds. In collectives that
  /// reduce, a block that is stored as it is holds all ranks' inputs: it was sent by a reduce
  /// phase, and never by a send phase.
  constexpr int least_depth(bool reduces) const {
    return 1 + std::max(reduce_lag, reduces ? store_lag - reduce_lag : store_lag);
  }
};

struct PhasesCheck {
  Pace pace{};
  int depth = 2;   // slots of each connection
  int rounds = 8;  // beyond the largest lag and the depth together, rounds add nothing new
};

/// Proves that `schedule`, of one channel, comes to its result, in place too, without a race and
/// without a deadlock, when each rank with phases goes through them, and the others run their
/// workers. `by_rank` has an entry for each rank. Errors: InvalidUsage, naming the rank and the
/// fault.
Status check_phases(const schedule::Schedule& schedule,
                    const std::vector<std::optional<Phases>>& by_rank,
                    const PhasesCheck& options = {});

}  // namespace niccolite::lowering
