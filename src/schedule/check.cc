#include "schedule/check.h"

#include <utility>

#include "schedule/check_form.h"
#include "schedule/execution.h"
#include "schedule/index.h"

namespace niccolite::schedule {

Status check(const Schedule& schedule, const CheckOptions& options) {
  if (options.depth < 1) return Status::invalid_argument("a FIFO has {} slots", options.depth);
  const std::vector<Ends> ends = TRY(check_form(schedule));
  for (int channel = 0; channel < length(schedule.ranks[0]); ++channel) {
    for (const Placement place : {Placement::OutOfPlace, Placement::InPlace}) {
      if (place == Placement::InPlace && !can_be_in_place(schedule.collective)) continue;
      Execution execution(schedule, ends, channel, place, options.depth);
      TRY(execution.run());
      TRY(execution.check_result());
    }
  }
  return {};
}

Result<int> least_depth(const Schedule& schedule) {
  // A FIFO never holds more chunks than are sent in a round.
  constexpr int kUnbounded = 1 << 30;
  if (check(schedule, {.depth = 1}).is_ok()) return 1;
  TRY(check(schedule, {.depth = kUnbounded}));
  int too_few = 1, enough = 2;
  while (!check(schedule, {.depth = enough}).is_ok()) too_few = std::exchange(enough, 2 * enough);
  while (enough - too_few > 1) {
    const int between = (too_few + enough) / 2;
    (check(schedule, {.depth = between}).is_ok() ? enough : too_few) = between;
  }
  return enough;
}

}  // namespace niccolite::schedule
