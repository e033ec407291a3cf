#include "lowering/workers.h"

#include <algorithm>

namespace niccolite::lowering {
namespace {

/// Is every access of the worker to other ranks' data direct, and in no order?
bool is_all_direct(const WorkerShape& worker) {
  return std::ranges::all_of(worker.receives,
                             [](const Route& route) { return route.way == Way::DirectGet; }) &&
         std::ranges::all_of(worker.sends, [](const Route& route) {
           return route.way == Way::DirectPut && route.is_final;
         });
}

/// Can bulk copies serve the worker: one instruction that moves what one operand holds, as it is?
bool can_have_bulk_copies(const WorkerShape& worker, const Facilities& facilities) {
  const bool scales_input = facilities.scales_input && worker.reads_input;
  const bool scales_result = facilities.scales_result && worker.finishes;
  const bool has_bulk_copies =
      facilities.has_bulk_copies || (facilities.has_stages && worker.copies_only());
  return has_bulk_copies && facilities.publishes_chunks && worker.instructions == 1 &&
         worker.receives.size() + worker.has_source == 1 && !scales_input && !scales_result;
}

/// May the CTAs share the tiles of a reduction?
bool may_share_reduction(const WorkerShape& worker, const Facilities& facilities) {
  return facilities.has_stages && facilities.publishes_chunks && !facilities.scales_input &&
         worker.instructions == 1 && worker.is_only_work && worker.pattern_channels == 1 &&
         worker.reduces && !worker.receives.empty() && is_all_direct(worker);
}

/// Has the worker a buffer to advertise, and otherwise nothing to do but to wait? (If that is
/// refused, it moves data through slots. An input that is scaled is not advertised.)
bool only_advertises(const WorkerShape& worker, const Facilities& facilities) {
  if (worker.instructions != 1 || facilities.scales_input ||
      worker.receives.size() + worker.sends.size() != 1) {
    return false;
  }
  return worker.receives.empty() ? worker.sends.front().way == Way::DirectGet
                                 : worker.receives.front().way == Way::DirectPut;
}

}  // namespace

const char* name_of(Tiles tiles) { return tiles == Tiles::Fixed ? "fixed" : "dynamic"; }
const char* name_of(Mover mover) { return mover == Mover::Threads ? "threads" : "bulk copies"; }

std::vector<WorkerPlan> plan_workers(std::span<const WorkerShape> workers,
                                     const Facilities& facilities) {
  std::vector<WorkerPlan> plans;
  bool may_share_copy = !facilities.reduces && facilities.has_counter;
  bool may_share = true;  // a reduction
  for (const WorkerShape& worker : workers) {
    WorkerPlan& plan = plans.emplace_back();
    plan.only_advertises = only_advertises(worker, facilities);
    if (may_share && may_share_reduction(worker, facilities)) {
      plan.tiles = Tiles::Dynamic;
      may_share = false;
      continue;
    }
    if (!can_have_bulk_copies(worker, facilities)) continue;
    const bool copies = worker.copies_only();
    const bool has_counter = may_share_copy && worker.pattern_channels == 1;
    // From the user's buffer to the user's buffer, without a counter and in kernels that reduce:
    // many threads are faster.
    if (copies && !has_counter) continue;
    if (copies) may_share_copy = false;
    plan.mover = Mover::BulkCopies;
    const bool is_shared = copies || (!worker.sends.empty() && is_all_direct(worker));
    if (is_shared && worker.pattern_channels == 1) plan.tiles = Tiles::Dynamic;
  }
  return plans;
}

}  // namespace niccolite::lowering
