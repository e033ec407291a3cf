// The schedules that a direct list runs (list_access.h). They are made of the functions that its
// kernels call, so the checker's proof of a schedule is a proof of the kernel's accesses.
//
//   direct     each rank gets its tiles from the inputs, reduces them, and puts the result to the
//              outputs. Ranks exchange the addresses of all their buffers before the first tile, and
//              wait for each other after the last one: in the lowered plan these are the
//              advertisements, announcements and releases of all connections
//   in slots   operations whose buffers some rank does not reach: everybody with an input sends it to
//              everybody with an output, who reduces
//
// Thread safety: any thread.
#pragma once

#include <optional>

#include "executor/list_access.h"
#include "lowering/plan.h"
#include "schedule/schedule.h"

namespace niccolite::executor {

/// The operation that each work of a list carries out.
struct ListOperation {
  schedule::Collective collective = schedule::Collective::AllReduce;
  int nranks = 0;
  int root = 0;

  friend auto operator<=>(const ListOperation&, const ListOperation&) = default;
};

/// None: there are no direct lists of that collective.
std::optional<ListAccess> list_access_of(const ListOperation& operation);

/// The direct way of operation number `work` of a list, on which depends who owns which tile. A
/// block of a Whole operation is one of as many tiles as there are ranks; further tiles repeat
/// them.
schedule::Schedule list_schedule(const ListAccess& access, const ListOperation& operation,
                                 uint32_t work = 0);
/// The way through slots, of any of them.
schedule::Schedule list_schedule_in_slots(const ListAccess& access, const ListOperation& operation);

/// list_schedule(), lowered as it runs. InvalidUsage where anything would not be direct.
Result<lowering::AccessPlan> lower_list(const schedule::Schedule& direct);

/// Proves both ways (lowering/check.h), once for all lists of the process. Executors ask before
/// they run a list. Errors: Internal, with the checker's message.
Status prove_list(const ListAccess& access, const ListOperation& operation);
/// Do both ways reduce in the one order that invariant settings ask for (schedule/order.h)?
bool reduces_in_one_order(const ListAccess& access, const ListOperation& operation);

}  // namespace niccolite::executor
