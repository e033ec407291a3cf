#include <algorithm>

#include "lowering/plan.h"
#include "schedule/index.h"

namespace niccolite::lowering {
namespace {

using schedule::at;
using schedule::BlockReference;
using schedule::Instruction;
using schedule::length;
using schedule::Schedule;
using schedule::Worker;

template <typename Function>
void for_each_worker(AccessPlan& plan, Function&& function) {
  for (size_t rank = 0; rank < plan.workers.size(); ++rank)
    for (size_t channel = 0; channel < plan.workers[rank].size(); ++channel)
      for (size_t worker = 0; worker < plan.workers[rank][channel].size(); ++worker)
        function(plan.schedule.ranks[rank][channel].workers[worker],
                 plan.workers[rank][channel][worker]);
}

/// Decides about connections and workers.
class Lowering {
 public:
  Lowering(const Schedule& schedule, const Capabilities& capabilities)
      : schedule_(schedule), capabilities_(capabilities) {}

  AccessPlan run() {
    AccessPlan plan{.schedule = schedule_,
                    .routes = routes_of(schedule_, capabilities_.machines, capabilities_.has_team,
                                        capabilities_.facilities.publishes_chunks),
                    .facilities = capabilities_.facilities,
                    .machines = capabilities_.machines,
                    .connections = {},
                    .workers = {}};
    set_ways(plan);
    const std::vector<Route> routes = planned_routes(plan);
    for (int rank = 0; rank < schedule_.nranks; ++rank) plan_rank(rank, routes, plan);
    refuse(plan);
    return plan;
  }

 private:
  Link link_of(int connection) const {
    if (leaves_machine(at(schedule_.connections, connection), capabilities_.machines))
      return {.can_put = false, .can_get = false};
    Link link = capabilities_.links.empty() ? Link{} : at(capabilities_.links, connection);
    link.has_team = capabilities_.has_team;
    link.has_windows = capabilities_.has_windows;
    return link;
  }
  bool is_refused(int connection) const {
    return !capabilities_.refused.empty() && capabilities_.refused[static_cast<size_t>(connection)];
  }

  /// Sets the way of each connection as its link allows.
  void set_ways(AccessPlan& plan) const {
    for (int i = 0; i < length(schedule_.connections); ++i) {
      const Route route = plan.routes.of(at(schedule_.connections, i).tag);
      const Way way = way_over(route, link_of(i), capabilities_.facilities.publishes_chunks);
      LoweredConnection& connection = plan.connections.emplace_back();
      connection.way = way;
      if (uses_slots(way)) continue;
      connection = {
          .way = way, .is_final = route.is_final, .has_advertisement = true, .is_get = is_get(way)};
    }
  }

  void plan_rank(int rank, std::span<const Route> routes, AccessPlan& plan) const {
    const std::vector<WorkerShape> shapes = shapes_of(schedule_, rank);
    const std::vector<WorkerPlan> plans =
        plan_workers(shapes, routes, facilities_of(schedule_, shapes, capabilities_.facilities));
    auto& channels = plan.workers.emplace_back();
    size_t next = 0;
    for (const schedule::Channel& channel : at(schedule_.ranks, rank)) {
      std::vector<LoweredWorker>& workers = channels.emplace_back();
      for (size_t worker = 0; worker < channel.workers.size(); ++worker)
        workers.emplace_back().plan = plans[next++];
    }
  }

  /// Withdraws what the operation's buffers do not allow: the ends still tell each other, and the
  /// workers stay as planned, with tiles of their own.
  void refuse(AccessPlan& plan) const {
    const auto of = [&](int connection) -> LoweredConnection& {
      return at(plan.connections, connection);
    };
    for (int i = 0; i < length(plan.connections); ++i)
      if (is_refused(i) && of(i).has_advertisement) of(i).way = through_slots(of(i).way);
    for_each_worker(plan, [&](const Worker& worker, LoweredWorker& lowered) {
      for (const Instruction& instruction : worker.instructions) {
        for (const int connection : instruction.receive_from) {
          LoweredConnection& from = of(connection);
          // An input that is scaled before it is sent is not for others to read.
          if ((is_put(from.way) && !lowered.plan.takes_puts) ||
              (is_get(from.way) && capabilities_.facilities.scales_input))
            from.way = through_slots(from.way);
        }
      }
    });
    for_each_worker(plan, [&](const Worker& worker, LoweredWorker& lowered) {
      if (lowered.plan.tiles == Tiles::Fixed) return;
      const Instruction& only = worker.instructions.front();
      const auto is_slot = [&](int connection) { return uses_slots(of(connection).way); };
      if (std::ranges::any_of(only.receive_from, is_slot) ||
          std::ranges::any_of(only.send_to, is_slot)) {
        lowered.plan.tiles = Tiles::Fixed;
      } else if (capabilities_.pulls && only.reduce) {
        for (const int connection : only.receive_from) of(connection).way = Way::Pull;
      }
    });
  }

  const Schedule& schedule_;
  const Capabilities& capabilities_;
};

/// Writes the steps of one worker, and its steps after an abort.
class Writer {
 public:
  explicit Writer(const AccessPlan& plan) : connections_(plan.connections) {}

  void write(const Worker& worker, LoweredWorker& lowered) const {
    lowered.accesses.clear();
    lowered.steps.clear();
    lowered.abort.clear();
    for (const Instruction& instruction : worker.instructions) {
      Accesses& accesses = lowered.accesses.emplace_back();
      for (const int connection : instruction.receive_from)
        accesses.receives.push_back(at(connections_, connection).way);
      for (const int connection : instruction.send_to)
        accesses.sends.push_back(at(connections_, connection).way);
    }
    advertise(worker.instructions.front(), lowered);
    std::vector<int> taken;
    for (int i = 0; i < length(worker.instructions); ++i) {
      const Instruction& instruction = at(worker.instructions, i);
      begin(i, instruction, lowered, taken);
      lowered.steps.push_back(
          {.event = Event::Move, .instruction = i, .tiles = lowered.plan.tiles});
      end(instruction, lowered);
    }
    await_releases(worker.instructions.front(), lowered);
    add_abort(lowered);
  }

 private:
  void add(LoweredWorker& lowered, Event event, int connection) const {
    lowered.steps.push_back({.event = event, .connection = connection});
  }

  /// Called before any wait. A worker that advertises has one instruction.
  void advertise(const Instruction& only, LoweredWorker& lowered) const {
    const auto add_one = [&](int connection, const std::optional<BlockReference>& memory) {
      lowered.steps.push_back({.event = Event::Advertise, .connection = connection});
      if (!uses_slots(at(connections_, connection).way)) lowered.steps.back().memory = memory;
    };
    for (const int connection : only.receive_from)
      if (at(connections_, connection).has_advertisement && !at(connections_, connection).is_get)
        add_one(connection, only.target);
    for (const int connection : only.send_to)
      if (at(connections_, connection).has_advertisement && at(connections_, connection).is_get)
        add_one(connection, only.source);
  }

  void take(int connection, LoweredWorker& lowered, std::vector<int>& taken) const {
    if (std::ranges::find(taken, connection) != taken.end()) return;
    taken.push_back(connection);
    add(lowered, Event::TakeAdvertisement, connection);
  }

  void begin(int number, const Instruction& instruction, LoweredWorker& lowered,
             std::vector<int>& taken) const {
    for (const int connection : instruction.send_to) {
      const LoweredConnection& to = at(connections_, connection);
      if (to.has_advertisement && !to.is_get) take(connection, lowered, taken);
      if (uses_slots(to.way)) add(lowered, Event::AwaitCredit, connection);
    }
    const auto loaded = std::ranges::find_if(instruction.receive_from, [&](int connection) {
      return at(connections_, connection).way == Way::TeamLoad;
    });
    if (loaded != instruction.receive_from.end()) {
      lowered.steps.push_back({.event = Event::Stage,
                               .connection = *loaded,
                               .instruction = number,
                               .way = Way::TeamLoad});
    }
    for (const int connection : instruction.receive_from) {
      const LoweredConnection& from = at(connections_, connection);
      if (from.has_advertisement && from.is_get) take(connection, lowered, taken);
      if (from.way == Way::Pull) {
        lowered.steps.push_back(
            {.event = Event::Request, .connection = connection, .tiles = lowered.plan.tiles});
      }
    }
    for (const int connection : instruction.receive_from)
      if (const Way way = at(connections_, connection).way; !is_get(way)) {
        lowered.steps.push_back({.event = Event::AwaitArrival,
                                 .connection = connection,
                                 .way = way,
                                 .tiles = lowered.plan.tiles});
      }
  }

  void end(const Instruction& instruction, LoweredWorker& lowered) const {
    for (const int connection : instruction.receive_from) {
      const LoweredConnection& from = at(connections_, connection);
      if (uses_slots(from.way)) add(lowered, Event::GiveCredit, connection);
      if (from.has_advertisement && from.is_get) add(lowered, Event::Release, connection);
    }
    for (const int connection : instruction.send_to) {
      const Way way = at(connections_, connection).way;
      if (uses_slots(way) || is_put(way)) {
        lowered.steps.push_back({.event = Event::Announce, .connection = connection, .way = way});
      }
    }
  }

  /// Also where nothing was advertised: the next advertisement takes the place of this one.
  void await_releases(const Instruction& only, LoweredWorker& lowered) const {
    for (const int connection : only.send_to) {
      const LoweredConnection& to = at(connections_, connection);
      if (!to.has_advertisement || !to.is_get) continue;
      add(lowered, to.way == Way::Pull ? Event::ServePulls : Event::AwaitRelease, connection);
    }
  }

  /// All leave before any waits for others to leave.
  void add_abort(LoweredWorker& lowered) const {
    std::vector<int> made, taken;
    for (const Step& step : lowered.steps) {
      if (step.event == Event::Advertise && step.memory) made.push_back(step.connection);
      if (step.event == Event::TakeAdvertisement) taken.push_back(step.connection);
    }
    for (const int connection : taken)
      lowered.abort.push_back({.event = Event::Leave, .connection = connection});
    for (const int connection : made)
      lowered.abort.push_back({.event = Event::Withdraw, .connection = connection});
    for (const int connection : made)
      lowered.abort.push_back({.event = Event::AwaitLeave, .connection = connection});
  }

  const std::vector<LoweredConnection>& connections_;
};

Status check_size(const char* what, size_t size, const Schedule& schedule) {
  if (size == 0 || size == schedule.connections.size()) return {};
  return Status::invalid_argument("{} of {} connections for a schedule of {}", what, size,
                                  schedule.connections.size());
}

}  // namespace

std::vector<Route> planned_routes(const AccessPlan& plan) {
  std::vector<Route> routes;
  for (const LoweredConnection& connection : plan.connections)
    routes.push_back(connection.planned());
  return routes;
}

Facilities facilities_of(const Schedule& schedule, std::span<const WorkerShape> shapes,
                         Facilities facilities) {
  facilities.reduces |= schedule::reduces(schedule.collective);
  facilities.has_counter = !std::ranges::all_of(shapes, &WorkerShape::copies_only);
  return facilities;
}

void write_steps(AccessPlan& plan) {
  const Writer writer(plan);
  for_each_worker(
      plan, [&](const Worker& worker, LoweredWorker& lowered) { writer.write(worker, lowered); });
}

Result<AccessPlan> lower(const Schedule& schedule, const Capabilities& capabilities) {
  TRY(check_size("links", capabilities.links.size(), schedule));
  if (!capabilities.machines.empty() &&
      capabilities.machines.size() != static_cast<size_t>(schedule.nranks))
    return Status::invalid_argument("machines of {} ranks for a schedule of {}",
                                    capabilities.machines.size(), schedule.nranks);
  TRY(check_size("refusals", capabilities.refused.size(), schedule));
  AccessPlan plan = Lowering(schedule, capabilities).run();
  write_steps(plan);
  return plan;
}

}  // namespace niccolite::lowering
