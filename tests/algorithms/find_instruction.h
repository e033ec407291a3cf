// Finding an instruction to break.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "schedule/schedule.h"

namespace niccolite::algorithms {

/// An instruction, and the words by which a message must name it.
struct Found {
  schedule::Instruction* instruction;
  std::vector<schedule::Worker>* workers;
  schedule::Position position;

  int rank() const { return position.rank; }
  std::string name() const { return describe(position); }
  /// Takes the instruction out, and its worker if that was all it had.
  void erase() const;
};

enum class Which : unsigned char { First, Last };
using Fits = std::function<bool(const schedule::Instruction&)>;

/// The first or the last instruction that fits, in order of workers, of the last rank that has one:
/// a checker that looks at the first rank only does not see what is broken there.
std::optional<Found> find(schedule::Schedule& schedule, Which which, const Fits& fits);

/// The same among ranks for which `is_meant(rank)`.
std::optional<Found> find(schedule::Schedule& schedule, Which which, const Fits& fits,
                          const std::function<bool(int)>& is_meant);

inline bool only_sends(const schedule::Instruction& i) {
  return i.receive_from.empty() && !i.send_to.empty();
}
inline bool only_stores(const schedule::Instruction& i) { return i.target && i.send_to.empty(); }
inline bool receives(const schedule::Instruction& i) { return !i.receive_from.empty(); }
inline bool stores(const schedule::Instruction& i) { return i.target.has_value(); }
inline bool finishes(const schedule::Instruction& i) { return i.finish; }

}  // namespace niccolite::algorithms
