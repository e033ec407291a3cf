#include <algorithm>

#include "lowering/plan.h"
#include "schedule/index.h"

namespace niccolite::lowering {
namespace {

using schedule::at;
using schedule::BlockReference;
using schedule::Buffer;
using schedule::Instruction;
using schedule::length;
using schedule::Schedule;
using schedule::Worker;

/// A connection in this launch.
struct Lowered {
  Way way = Way::Slot;
  bool is_final = false;
  /// Its ends make and take an advertisement, though perhaps of nothing.
  bool has_advertisement = false;
  bool is_get = false;  // the sender advertises; else the receiver does

  Route route() const { return {.way = way, .is_final = is_final}; }
};

class Lowering {
 public:
  Lowering(const Schedule& schedule, const Capabilities& capabilities)
      : schedule_(schedule),
        capabilities_(capabilities),
        routes_(routes_of(schedule, capabilities.machines)) {}

  AccessPlan run() {
    set_ways();
    AccessPlan plan{.schedule = schedule_, .routes = routes_, .workers = {}};
    plan.workers.resize(schedule_.ranks.size());
    for (int rank = 0; rank < schedule_.nranks; ++rank) plan_rank(rank, at(plan.workers, rank));
    refuse(plan);
    for (int rank = 0; rank < schedule_.nranks; ++rank) {
      for (int channel = 0; channel < length(at(plan.workers, rank)); ++channel) {
        const std::vector<Worker>& workers = at(at(schedule_.ranks, rank), channel).workers;
        for (int worker = 0; worker < length(workers); ++worker) {
          add_steps(at(workers, worker), at(at(at(plan.workers, rank), channel), worker));
        }
      }
    }
    return plan;
  }

 private:
  Link link_of(int connection) const {
    return capabilities_.links.empty() ? Link{} : at(capabilities_.links, connection);
  }
  bool is_refused(int connection) const {
    return !capabilities_.refused.empty() && capabilities_.refused[static_cast<size_t>(connection)];
  }

  /// As the links can.
  void set_ways() {
    for (int i = 0; i < length(schedule_.connections); ++i) {
      const Route route = routes_.of(at(schedule_.connections, i).tag);
      const bool can = capabilities_.facilities.publishes_chunks &&
                       !leaves_machine(at(schedule_.connections, i), capabilities_.machines) &&
                       (route.way == Way::DirectGet   ? link_of(i).can_get
                        : route.way == Way::DirectPut ? link_of(i).can_put
                                                      : false);
      Lowered& lowered = lowered_.emplace_back();
      if (!can) continue;
      lowered = {.way = route.way,
                 .is_final = route.is_final,
                 .has_advertisement = true,
                 .is_get = route.way == Way::DirectGet};
    }
  }

  WorkerShape shape_of(const Worker& worker) const {
    WorkerShape shape{.instructions = static_cast<uint32_t>(worker.instructions.size())};
    shape.is_only_work = schedule_.collective != schedule::Collective::PointToPoint;
    if (shape.is_only_work)
      shape.pattern_channels = static_cast<uint32_t>(schedule_.ranks.front().size());
    const Instruction& first = worker.instructions.front();
    shape.has_source = first.source.has_value();
    shape.reads_input = first.source && first.source->buffer == Buffer::Input;
    shape.reduces = first.reduce;
    shape.finishes = first.finish;
    for (const int connection : first.receive_from)
      shape.receives.push_back(at(lowered_, connection).route());
    for (const int connection : first.send_to)
      shape.sends.push_back(at(lowered_, connection).route());
    return shape;
  }

  void plan_rank(int rank, std::vector<std::vector<LoweredWorker>>& channels) const {
    std::vector<WorkerShape> shapes;
    Facilities facilities = capabilities_.facilities;
    facilities.reduces |= schedule::reduces(schedule_.collective);
    for (const schedule::Channel& channel : at(schedule_.ranks, rank))
      for (const Worker& worker : channel.workers) shapes.push_back(shape_of(worker));
    facilities.has_counter = std::ranges::any_of(shapes, [](const WorkerShape& shape) {
      return shape.receives.size() + shape.sends.size() > 0;
    });
    const std::vector<WorkerPlan> plans = plan_workers(shapes, facilities);
    size_t next = 0;
    for (const schedule::Channel& channel : at(schedule_.ranks, rank)) {
      std::vector<LoweredWorker>& workers = channels.emplace_back();
      for (size_t worker = 0; worker < channel.workers.size(); ++worker)
        workers.emplace_back().plan = plans[next++];
    }
  }

  /// What the operation's buffers do not allow: the ends still tell each other, and the workers are
  /// those that were planned, with tiles of their own.
  void refuse(AccessPlan& plan) {
    for (int i = 0; i < length(lowered_); ++i)
      if (is_refused(i)) at(lowered_, i).way = Way::Slot;
    for_each_worker(plan, [&](const Worker& worker, LoweredWorker& lowered) {
      for (const Instruction& instruction : worker.instructions) {
        for (const int connection : instruction.receive_from) {
          Lowered& from = at(lowered_, connection);
          // Who passes on what is put reads it where it lies, if it can; an input that is scaled
          // before it is sent is not for others to read.
          if (from.way == Way::DirectPut && !instruction.send_to.empty() &&
              lowered.plan.mover == Mover::Threads &&
              !capabilities_.facilities.threads_pass_on_puts) {
            from.way = Way::Slot;
          }
          if (from.way == Way::DirectGet && capabilities_.facilities.scales_input)
            from.way = Way::Slot;
        }
      }
    });
    for_each_worker(plan, [&](const Worker& worker, LoweredWorker& lowered) {
      if (lowered.plan.tiles == Tiles::Fixed) return;
      const Instruction& only = worker.instructions.front();
      const auto is_slot = [&](int connection) {
        return at(lowered_, connection).way == Way::Slot;
      };
      if (std::ranges::any_of(only.receive_from, is_slot) ||
          std::ranges::any_of(only.send_to, is_slot)) {
        lowered.plan.tiles = Tiles::Fixed;
      } else if (capabilities_.pulls && only.reduce) {
        for (const int connection : only.receive_from) at(lowered_, connection).way = Way::Pull;
      }
    });
  }

  template <typename Function>
  void for_each_worker(AccessPlan& plan, Function&& function) const {
    for (size_t rank = 0; rank < plan.workers.size(); ++rank)
      for (size_t channel = 0; channel < plan.workers[rank].size(); ++channel)
        for (size_t worker = 0; worker < plan.workers[rank][channel].size(); ++worker)
          function(schedule_.ranks[rank][channel].workers[worker],
                   plan.workers[rank][channel][worker]);
  }

  // ---- steps

  void add_steps(const Worker& worker, LoweredWorker& lowered) const {
    for (const Instruction& instruction : worker.instructions) {
      Accesses& accesses = lowered.accesses.emplace_back();
      for (const int connection : instruction.receive_from)
        accesses.receives.push_back(at(lowered_, connection).way);
      for (const int connection : instruction.send_to)
        accesses.sends.push_back(at(lowered_, connection).way);
    }
    advertise(worker.instructions.front(), lowered);
    std::vector<int> taken;
    for (int i = 0; i < length(worker.instructions); ++i) {
      const Instruction& instruction = at(worker.instructions, i);
      begin(instruction, lowered, taken);
      lowered.steps.push_back(
          {.event = Event::Move, .instruction = i, .tiles = lowered.plan.tiles});
      end(instruction, lowered);
    }
    await_releases(worker.instructions.front(), lowered);
    add_abort(lowered);
  }

  void add(LoweredWorker& lowered, Event event, int connection) const {
    lowered.steps.push_back({.event = event, .connection = connection});
  }

  /// Before anything is waited for. Whoever advertises has one instruction.
  void advertise(const Instruction& only, LoweredWorker& lowered) const {
    const auto add_one = [&](int connection, const std::optional<BlockReference>& memory) {
      lowered.steps.push_back({.event = Event::Advertise, .connection = connection});
      if (at(lowered_, connection).way != Way::Slot) lowered.steps.back().memory = memory;
    };
    for (const int connection : only.receive_from)
      if (at(lowered_, connection).has_advertisement && !at(lowered_, connection).is_get)
        add_one(connection, only.target);
    for (const int connection : only.send_to)
      if (at(lowered_, connection).has_advertisement && at(lowered_, connection).is_get)
        add_one(connection, only.source);
  }

  void take(int connection, LoweredWorker& lowered, std::vector<int>& taken) const {
    if (std::ranges::find(taken, connection) != taken.end()) return;
    taken.push_back(connection);
    add(lowered, Event::TakeAdvertisement, connection);
  }

  void begin(const Instruction& instruction, LoweredWorker& lowered,
             std::vector<int>& taken) const {
    for (const int connection : instruction.send_to) {
      const Lowered& to = at(lowered_, connection);
      if (to.has_advertisement && !to.is_get) take(connection, lowered, taken);
      if (to.way == Way::Slot) add(lowered, Event::AwaitCredit, connection);
    }
    for (const int connection : instruction.receive_from) {
      const Lowered& from = at(lowered_, connection);
      if (from.has_advertisement && from.is_get) take(connection, lowered, taken);
      if (from.way == Way::Pull) {
        lowered.steps.push_back(
            {.event = Event::Request, .connection = connection, .tiles = lowered.plan.tiles});
      }
    }
    for (const int connection : instruction.receive_from)
      if (const Way way = at(lowered_, connection).way; way != Way::DirectGet) {
        lowered.steps.push_back({.event = Event::AwaitArrival,
                                 .connection = connection,
                                 .way = way,
                                 .tiles = lowered.plan.tiles});
      }
  }

  void end(const Instruction& instruction, LoweredWorker& lowered) const {
    for (const int connection : instruction.receive_from) {
      const Lowered& from = at(lowered_, connection);
      if (from.way == Way::Slot) add(lowered, Event::GiveCredit, connection);
      if (from.has_advertisement && from.is_get) add(lowered, Event::Release, connection);
    }
    for (const int connection : instruction.send_to) {
      const Way way = at(lowered_, connection).way;
      if (way == Way::Slot || way == Way::DirectPut) {
        lowered.steps.push_back({.event = Event::Announce, .connection = connection, .way = way});
      }
    }
  }

  /// Also where nothing was advertised: the next advertisement takes the place of this one.
  void await_releases(const Instruction& only, LoweredWorker& lowered) const {
    for (const int connection : only.send_to) {
      const Lowered& to = at(lowered_, connection);
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

  const Schedule& schedule_;
  const Capabilities& capabilities_;
  const Routes routes_;
  std::vector<Lowered> lowered_;  // by connection
};

Status check_size(const char* what, size_t size, const Schedule& schedule) {
  if (size == 0 || size == schedule.connections.size()) return {};
  return Status::invalid_argument("{} of {} connections for a schedule of {}", what, size,
                                  schedule.connections.size());
}

}  // namespace

Result<AccessPlan> lower(const Schedule& schedule, const Capabilities& capabilities) {
  TRY(check_size("links", capabilities.links.size(), schedule));
  if (!capabilities.machines.empty() &&
      capabilities.machines.size() != static_cast<size_t>(schedule.nranks))
    return Status::invalid_argument("machines of {} ranks for a schedule of {}",
                                    capabilities.machines.size(), schedule.nranks);
  TRY(check_size("refusals", capabilities.refused.size(), schedule));
  return Lowering(schedule, capabilities).run();
}

}  // namespace niccolite::lowering
