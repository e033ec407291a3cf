#include "tests/algorithms/find_instruction.h"

#include "schedule/index.h"

namespace niccolite::algorithms {

using namespace schedule;

void Found::erase() const {
  std::vector<Instruction>& list = at(*lanes, position.lane).instructions;
  list.erase(list.begin() + position.instruction);
  if (list.empty()) lanes->erase(lanes->begin() + position.lane);
}

std::optional<Found> find(Schedule& schedule, Which which, const Fits& fits) {
  return find(schedule, which, fits, [](int) { return true; });
}

std::optional<Found> find(Schedule& schedule, Which which, const Fits& fits,
                          const std::function<bool(int)>& is_meant) {
  std::optional<Found> found;
  for (int rank = schedule.nranks - 1; rank >= 0 && !found; --rank) {
    if (!is_meant(rank)) continue;
    std::vector<Lane>& lanes = at(schedule.ranks, rank)[0].lanes;
    for (int lane = 0; lane < length(lanes); ++lane) {
      for (int i = 0; i < length(at(lanes, lane).instructions); ++i) {
        Instruction& instruction = at(at(lanes, lane).instructions, i);
        if (!fits(instruction) || (found && which == Which::First)) continue;
        found = Found{&instruction, &lanes, {rank, 0, lane, i}};
      }
    }
  }
  return found;
}

}  // namespace niccolite::algorithms
