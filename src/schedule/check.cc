#include "schedule/check.h"

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

}  // namespace niccolite::schedule
