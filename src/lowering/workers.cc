#include "lowering/workers.h"

#include <algorithm>

#include "lowering/routes.h"
#include "schedule/index.h"

namespace niccolite::lowering {
namespace {

using schedule::at;
using schedule::Instruction;
using schedule::length;

WorkerShape shape_of(const schedule::Worker& worker) {
  WorkerShape shape{.instructions = static_cast<uint32_t>(worker.instructions.size()),
                    .only_stores = only_stores(worker),
                    .only_sends_input = only_sends_input(worker)};
  for (const Instruction& instruction : worker.instructions) {
    shape.receives.insert(shape.receives.end(), instruction.receive_from.begin(),
                          instruction.receive_from.end());
    shape.sends.insert(shape.sends.end(), instruction.send_to.begin(), instruction.send_to.end());
  }
  if (worker.instructions.size() != 1) {
    for (std::vector<int>* connections : {&shape.receives, &shape.sends}) {
      std::ranges::sort(*connections);
      connections->erase(std::unique(connections->begin(), connections->end()), connections->end());
    }
    return shape;
  }
  const Instruction& only = worker.instructions.front();
  shape.has_source = only.source.has_value();
  shape.reads_input = only.source && only.source->buffer == schedule::Buffer::Input;
  shape.reduces = only.reduce;
  shape.finishes = only.finish;
  return shape;
}

// The conditions of safety. plan_workers() chooses within them, and check_workers() refuses the
// rest.

/// Is every access of the worker to other ranks' data direct, and in no order?
bool is_all_direct(const WorkerShape& worker, std::span<const Route> routes) {
  return std::ranges::all_of(
             worker.receives,
             [&](int connection) { return at(routes, connection).way == Way::DirectGet; }) &&
         std::ranges::all_of(worker.sends, [&](int connection) {
           const Route& route = at(routes, connection);
           return route.way == Way::DirectPut && route.is_final;
         });
}

/// Can bulk copies serve the worker: one instruction that moves what one operand holds, as it is,
/// and not by a team, whose addresses are for the instructions of threads?
bool can_have_bulk_copies(const WorkerShape& worker, std::span<const Route> routes,
                          const Facilities& facilities) {
  const auto goes_by_team = [&](int connection) { return uses_team(at(routes, connection).way); };
  if (std::ranges::any_of(worker.receives, goes_by_team) ||
      std::ranges::any_of(worker.sends, goes_by_team)) {
    return false;
  }
  const bool scales_input = facilities.scales_input && worker.reads_input;
  const bool scales_result = facilities.scales_result && worker.finishes;
  const bool has_bulk_copies =
      facilities.has_bulk_copies || (facilities.has_stages && worker.copies_only());
  return has_bulk_copies && facilities.publishes_chunks && worker.instructions == 1 &&
         worker.receives.size() + worker.has_source == 1 && !scales_input && !scales_result;
}

/// May the CTAs share the tiles of a reduction?
bool may_share_reduction(const WorkerShape& worker, std::span<const Route> routes,
                         const Facilities& facilities) {
  return facilities.has_stages && facilities.publishes_chunks && !facilities.scales_input &&
         worker.instructions == 1 && worker.is_only_work && worker.pattern_channels == 1 &&
         worker.reduces && !worker.receives.empty() && is_all_direct(worker, routes);
}

/// May the CTAs share the tiles that bulk copies move?
bool may_share_copy(const WorkerShape& worker, std::span<const Route> routes) {
  return worker.pattern_channels == 1 &&
         (worker.copies_only() || (!worker.sends.empty() && is_all_direct(worker, routes)));
}

/// Is there a counter for the tiles of a worker that only copies?
bool has_counter_of_copies(const WorkerShape& worker, const Facilities& facilities) {
  return !facilities.reduces && facilities.has_counter && worker.pattern_channels == 1;
}

/// Has the worker a buffer to advertise, and otherwise nothing to do but to wait? (If that is
/// refused, it moves data through slots. An input that is scaled is not advertised.)
bool only_advertises(const WorkerShape& worker, std::span<const Route> routes,
                     const Facilities& facilities) {
  if (worker.instructions != 1 || facilities.scales_input ||
      worker.receives.size() + worker.sends.size() != 1) {
    return false;
  }
  return worker.receives.empty() ? is_get(at(routes, worker.sends.front()).way)
                                 : is_put(at(routes, worker.receives.front()).way);
}

bool takes_puts(const WorkerShape& worker, Mover mover, const Facilities& facilities) {
  return mover == Mover::BulkCopies || facilities.threads_pass_on_puts || !worker.passes_on();
}

bool serves_pulls(const WorkerShape& worker, Mover mover) {
  return mover == Mover::BulkCopies && worker.receives.empty() && worker.sends.size() == 1;
}

/// Null: the worker's connections may go as they do.
const char* fault_of_ways(const WorkerShape& worker, std::span<const Route> routes) {
  const auto has = [&](const std::vector<int>& connections, bool (*is)(Way)) {
    return std::ranges::any_of(connections,
                               [&](int connection) { return is(at(routes, connection).way); });
  };
  if (has(worker.receives, is_put) && !worker.only_stores)
    return "is put to what it does not only store to its output";
  if (has(worker.sends, is_get) && !worker.only_sends_input)
    return "is got from what it does not only send of its input";
  return nullptr;
}

/// Null: the worker may have the plan.
const char* fault_of(const WorkerShape& worker, std::span<const Route> routes,
                     const WorkerPlan& plan, const Facilities& facilities) {
  const bool copies = plan.mover == Mover::BulkCopies;
  if (copies && !can_have_bulk_copies(worker, routes, facilities))
    return "is served by bulk copies, and does more than move one operand";
  if (plan.tiles == Tiles::Dynamic) {
    if (copies && !may_share_copy(worker, routes))
      return "shares the tiles of what goes in an order, or in channels of its own";
    if (!copies && !may_share_reduction(worker, routes, facilities))
      return "shares tiles that it cannot reduce in any order";
  }
  if (plan.only_advertises && !only_advertises(worker, routes, facilities))
    return "is to wait for peers that do not move its data";
  if (plan.takes_puts && !takes_puts(worker, plan.mover, facilities))
    return "passes on by threads what is put elsewhere than to a slot";
  if (plan.serves_pulls && !serves_pulls(worker, plan.mover))
    return "serves pulls of what it cannot send by itself";
  return nullptr;
}

}  // namespace

const char* name_of(Tiles tiles) { return tiles == Tiles::Fixed ? "fixed" : "dynamic"; }
const char* name_of(Mover mover) { return mover == Mover::Threads ? "threads" : "bulk copies"; }

std::vector<WorkerShape> shapes_of(const schedule::Schedule& schedule, int rank) {
  std::vector<WorkerShape> shapes;
  const std::vector<schedule::Channel>& channels = at(schedule.ranks, rank);
  const bool is_messages = schedule.collective == schedule::Collective::PointToPoint;
  for (const schedule::Channel& channel : channels)
    for (const schedule::Worker& worker : channel.workers) {
      WorkerShape& shape = shapes.emplace_back(shape_of(worker));
      shape.is_only_work = !is_messages;
      if (!is_messages) shape.pattern_channels = static_cast<uint32_t>(length(channels));
    }
  return shapes;
}

std::vector<WorkerPlan> plan_workers(std::span<const WorkerShape> workers,
                                     std::span<const Route> routes, const Facilities& facilities) {
  std::vector<WorkerPlan> plans;
  bool is_copy_counted = false, is_reduction_counted = false;  // one counter each
  for (const WorkerShape& worker : workers) {
    WorkerPlan& plan = plans.emplace_back();
    plan.only_advertises = only_advertises(worker, routes, facilities);
    if (!is_reduction_counted && may_share_reduction(worker, routes, facilities)) {
      plan.tiles = Tiles::Dynamic;
      is_reduction_counted = true;
    } else if (can_have_bulk_copies(worker, routes, facilities)) {
      // From the user's buffer to the user's buffer, without a counter and in kernels that reduce:
      // many threads are faster.
      const bool copies = worker.copies_only();
      if (!copies || (!is_copy_counted && has_counter_of_copies(worker, facilities))) {
        plan.mover = Mover::BulkCopies;
        is_copy_counted |= copies;
        if (may_share_copy(worker, routes)) plan.tiles = Tiles::Dynamic;
      }
    }
    plan.takes_puts = takes_puts(worker, plan.mover, facilities);
    plan.serves_pulls = serves_pulls(worker, plan.mover);
  }
  return plans;
}

Status check_workers(std::span<const WorkerShape> workers, std::span<const Route> routes,
                     std::span<const WorkerPlan> plans, const Facilities& facilities) {
  for (size_t w = 0; w < workers.size(); ++w)
    if (const char* const fault = fault_of_ways(workers[w], routes); fault != nullptr)
      return Status::invalid_usage("worker {} {}", w, fault);
  if (!facilities.publishes_chunks && !std::ranges::all_of(routes, [](const Route& route) {
        return route.way == Way::Slot || route.way == Way::TeamStore;
      })) {
    return Status::invalid_usage(
        "bytes go direct, or are loaded of a team, by a protocol that publishes no chunks");
  }
  if (workers.size() != plans.size())
    return Status::invalid_usage("a plan of {} workers for {}", plans.size(), workers.size());
  int copies = 0, reductions = 0;  // that share tiles, by one counter each
  for (size_t w = 0; w < workers.size(); ++w) {
    const WorkerShape& worker = workers[w];
    const char* const fault = fault_of(worker, routes, plans[w], facilities);
    if (fault != nullptr) return Status::invalid_usage("worker {} {}", w, fault);
    if (plans[w].tiles == Tiles::Fixed) continue;
    if (worker.copies_only()) {
      if (++copies > 1 || !has_counter_of_copies(worker, facilities))
        return Status::invalid_usage("worker {} shares tiles of a copy without a counter", w);
    } else if (plans[w].mover == Mover::Threads && ++reductions > 1) {
      return Status::invalid_usage("worker {} is the second reduction that shares tiles", w);
    }
  }
  return {};
}

}  // namespace niccolite::lowering
