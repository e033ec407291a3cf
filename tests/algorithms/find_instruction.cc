#include "tests/algorithms/find_instruction.h"

#include "schedule/index.h"

namespace niccolite::algorithms {

using namespace schedule;

void Found::erase() const {
  std::vector<Instruction>& list = at(*workers, position.worker).instructions;
  list.erase(list.begin() + position.instruction);
  if (list.empty()) workers->erase(workers->begin() + position.worker);
}

std::optional<Found> find(Schedule& schedule, Which which, const Fits& fits) {
  return find(schedule, which, fits, [](int) { return true; });
}

std::optional<Found> find(Schedule& schedule, Which which, const Fits& fits,
                          const std::function<bool(int)>& is_meant) {
  std::optional<Found> found;
  for (int rank = schedule.nranks - 1; rank >= 0 && !found; --rank) {
    if (!is_meant(rank)) continue;
    std::vector<Worker>& workers = at(schedule.ranks, rank)[0].workers;
    for (int worker = 0; worker < length(workers); ++worker) {
      for (int i = 0; i < length(at(workers, worker).instructions); ++i) {
        Instruction& instruction = at(at(workers, worker).instructions, i);
        if (!fits(instruction) || (found && which == Which::First)) continue;
        found = Found{&instruction, &workers, {rank, 0, worker, i}};
      }
    }
  }
  return found;
}

}  // namespace niccolite::algorithms
