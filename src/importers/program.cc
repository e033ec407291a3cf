#include "importers/program.h"

#include <climits>
#include <utility>

#include "importers/order.h"
#include "importers/places.h"
#include "importers/races.h"
#include "importers/writer.h"
#include "schedule/check.h"

namespace niccolite::importers {

bool receives(Action action) {
  return action != Action::Send && action != Action::Copy && action != Action::Reduce &&
         action != Action::Nothing;
}
bool sends(Action action) {
  return action == Action::Send || action == Action::ReceiveCopySend ||
         action == Action::ReceiveReduceSend || action == Action::ReceiveReduceCopySend;
}
bool reads_source(Action action) {
  return action != Action::Receive && action != Action::ReceiveCopySend &&
         action != Action::Nothing;
}
bool writes_target(Action action) {
  return action != Action::Send && action != Action::ReceiveReduceSend && action != Action::Nothing;
}
bool reads_target(Action action) { return action == Action::Reduce; }

schedule::Schedule in_one_order_if_so(schedule::Schedule schedule) {
  if (!schedule.partial_sums) return schedule;
  schedule.partial_sums = false;
  constexpr int kAnyDepth = 1 << 30;
  schedule.partial_sums = !check(schedule, {.depth = kAnyDepth}).is_ok();
  return schedule;
}

Result<Imported> to_schedule(const Program& program) {
  Order order(program);
  Imported imported;
  constexpr int kDeepest = 1024;
  while (!order.run(imported.fifo_depth)) {
    if (imported.fifo_depth < kDeepest) {
      imported.fifo_depth *= 2;
      continue;
    }
    if (!order.run(INT_MAX)) return order.describe_standstill();
    break;
  }
  imported.thread_blocks = order.blocks().size();
  imported.steps = order.order().size();
  const Places places(layout_of(program));
  TRY(check_races(program, order, places));
  schedule::Schedule schedule = TRY(write_schedule(program, order, places));
  imported.file = {.schedule = in_one_order_if_so(std::move(schedule)), .use = program.use};
  return imported;
}

}  // namespace niccolite::importers
