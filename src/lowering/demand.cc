#include "lowering/demand.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "schedule/index.h"
#include "schedule/timeline.h"

namespace niccolite::lowering {
namespace {

using schedule::at;
using schedule::Instruction;
using schedule::length;
using schedule::Schedule;

/// The weights by which the longest chain is found: about the microseconds that its parts take.
/// The price then decides what the chain takes.
constexpr double kInstruction = 0.3, kEnd = 0.1, kSlot = 1.5, kDirect = 2, kBetween = 25;

int machine_of(std::span<const int> machines, int rank) {
  return machines.empty() ? 0 : machines[static_cast<size_t>(rank)];
}

/// A schedule with its plan, or with slots alone.
class Reader {
 public:
  Reader(const Schedule& schedule, const AccessPlan* plan, std::span<const int> machines)
      : schedule_(schedule), plan_(plan), machines_(machines) {}

  Result<Demand> read() const {
    Demand demand;
    demand.load = load_of(schedule_, machines_);
    if (plan_ != nullptr && plan_->routes.use_team()) set_load_of_teams(demand.load);
    for (int rank = 0; rank < schedule_.nranks; ++rank) {
      const Work work = work_of(rank, demand.load.blocks);
      const int instructions = std::max(demand.work.instructions, work.instructions);
      if (work.moved.bytes() > demand.work.moved.bytes()) demand.work = work;
      demand.work.instructions = instructions;
    }
    const schedule::Timeline events = TRY(timeline(schedule_));
    demand.chain = longest_chain(events);
    demand.messages = most_messages(events);
    return demand;
  }

 private:
  const LoweredWorker* worker_of(int rank, int channel, int worker) const {
    return plan_ == nullptr ? nullptr : &at(at(at(plan_->workers, rank), channel), worker);
  }

  /// Counts the bytes of switches: a store goes to it once, and comes from it to every rank of the
  /// team, the storing one included; of a load, every rank of the team gives its part to the
  /// switch, the loading one included, which gets one result.
  void set_load_of_teams(schedule::Load& load) const {
    struct Both {
      double out = 0, in = 0;
      double busier() const { return std::max(out, in); }
    };
    std::vector<Both> link(static_cast<size_t>(schedule_.nranks)), team = link;
    const auto of_machine = [&](int rank, auto&& add) {
      for (int other = 0; other < schedule_.nranks; ++other)
        if (machine_of(machines_, other) == machine_of(machines_, rank)) add(at(team, other));
    };
    const auto look = [&](int rank, const Instruction& instruction, const Accesses& accesses) {
      int stores = 0, loads = 0;  // of a team; an instruction has one of either at most
      for (int i = 0; i < length(instruction.send_to); ++i) {
        const int to = at(schedule_.connections, at(instruction.send_to, i)).receiver;
        if (machine_of(machines_, to) != machine_of(machines_, rank)) continue;
        if (uses_team(at(accesses.sends, i))) {
          stores |= is_store_to_team(at(accesses.sends, i));
        } else {
          ++at(link, rank).out;
          ++at(link, to).in;
        }
      }
      for (const Way way : accesses.receives) loads |= is_load_of_team(way);
      at(team, rank).out += stores;
      at(team, rank).in += loads;
      if (stores > 0) of_machine(rank, [](Both& of) { ++of.in; });
      if (loads > 0) of_machine(rank, [](Both& of) { ++of.out; });
    };
    for (int rank = 0; rank < schedule_.nranks; ++rank)
      for (int channel = 0; channel < length(at(schedule_.ranks, rank)); ++channel) {
        const std::vector<schedule::Worker>& workers =
            at(at(schedule_.ranks, rank), channel).workers;
        for (int worker = 0; worker < length(workers); ++worker)
          for (int i = 0; i < length(at(workers, worker).instructions); ++i)
            look(rank, at(at(workers, worker).instructions, i),
                 at(worker_of(rank, channel, worker)->accesses, i));
      }
    load.link = 0;
    for (const Both& of_rank : link)
      load.link = std::max(load.link, of_rank.busier() / load.blocks);
    for (const Both& of_rank : team)
      load.team = std::max(load.team, of_rank.busier() / load.blocks);
  }

  Work work_of(int rank, int blocks) const {
    Work work;
    int worker_count = 0, dynamic = 0;
    for (int channel = 0; channel < length(at(schedule_.ranks, rank)); ++channel) {
      const std::vector<schedule::Worker>& workers = at(at(schedule_.ranks, rank), channel).workers;
      int of_channel = 0;
      double weights = 0;
      for (int worker = 0; worker < length(workers); ++worker) {
        const LoweredWorker* const lowered = worker_of(rank, channel, worker);
        if (lowered != nullptr && lowered->plan.only_advertises) continue;
        if (at(workers, worker).instructions.empty()) continue;
        const int weight = at(workers, worker).weight;
        work.by_worker.push_back(
            {.channel = channel,
             .share = static_cast<double>(weight),
             .moved = moved_by(at(workers, worker).instructions, lowered, blocks, work)});
        weights += weight;
        ++of_channel;
        if (lowered != nullptr && lowered->plan.tiles == Tiles::Dynamic) ++dynamic;
      }
      for (WorkerMoved& each : work.by_worker)
        if (each.channel == channel) each.share /= weights;
      worker_count += of_channel;
      work.workers = std::max(work.workers, of_channel);
    }
    for (const WorkerMoved& each : work.by_worker) {
      work.moved.slot_copies += each.moved.slot_copies;
      work.moved.slot_reductions += each.moved.slot_reductions;
      work.moved.direct_copies += each.moved.direct_copies;
      work.moved.direct_reductions += each.moved.direct_reductions;
    }
    work.dynamic = worker_count == 0 ? 0 : static_cast<double>(dynamic) / worker_count;
    return work;
  }

  /// Returns the bytes that a worker moves; its instructions are counted in `work`.
  static Moved moved_by(const std::vector<Instruction>& instructions, const LoweredWorker* lowered,
                        int blocks, Work& work) {
    Moved result;
    bool has_slots = false;
    for (int i = 0; i < length(instructions); ++i) {
      const Instruction& instruction = at(instructions, i);
      const Accesses* const accesses = lowered == nullptr ? nullptr : &at(lowered->accesses, i);
      int moved = (instruction.source ? 1 : 0) + (instruction.target ? 1 : 0);
      bool uses_slots = false;
      // The peer moves its own puts to, and gets from, this rank. A store to a team, or a load from
      // one, is one access, whatever the number of connections.
      const auto add = [&](int connections, const std::vector<Way>* ways, bool (*is_of_peer)(Way),
                           bool (*is_of_all)(Way)) {
        for (int c = 0; c < connections; ++c) {
          const Way way = ways == nullptr ? Way::Slot : at(*ways, c);
          moved += is_of_peer(way) || (is_of_all(way) && c > 0) ? 0 : 1;
          uses_slots |= lowering::uses_slots(way);
        }
      };
      // The own part of a load is stored first.
      if (accesses != nullptr &&
          std::ranges::find(accesses->receives, Way::TeamLoad) != accesses->receives.end()) {
        ++moved;
      }
      // A store to windows reaches the own one, too.
      if (accesses != nullptr && instruction.target &&
          std::ranges::find(accesses->sends, Way::TeamPut) != accesses->sends.end()) {
        --moved;
      }
      add(length(instruction.receive_from), accesses ? &accesses->receives : nullptr, is_put,
          is_load_of_team);
      add(length(instruction.send_to), accesses ? &accesses->sends : nullptr, is_get,
          is_store_to_team);
      double& bytes = instruction.reduce
                          ? (uses_slots ? result.slot_reductions : result.direct_reductions)
                          : (uses_slots ? result.slot_copies : result.direct_copies);
      bytes += static_cast<double>(moved) / blocks;
      has_slots |= uses_slots;
      ++work.instructions;
    }
    if (has_slots) work.slot_instructions = std::max(work.slot_instructions, length(instructions));
    return result;
  }

  /// How `connection` reaches its receiver, at `receiver`.
  Way way_of(const schedule::Position& receiver, const Instruction& instruction,
             int connection) const {
    const LoweredWorker* const lowered =
        worker_of(receiver.rank, receiver.channel, receiver.worker);
    if (lowered == nullptr) return Way::Slot;
    const auto& all = instruction.receive_from;
    const auto place = std::ranges::find(all, connection) - all.begin();
    return at(at(lowered->accesses, receiver.instruction).receives, static_cast<int>(place));
  }

  struct Weighed {
    Chain chain;
    double weight = 0;
  };
  static const Weighed& longer(const Weighed& a, const Weighed& b) {
    return a.weight < b.weight ? b : a;
  }

  Weighed after_hop(Weighed chain, bool is_inside, Way way) const {
    if (!is_inside) {
      ++chain.chain.between;
      chain.weight += kBetween;
      return chain;
    }
    ++(uses_slots(way) ? chain.chain.slots : is_put(way) ? chain.chain.puts : chain.chain.gets);
    chain.weight += uses_slots(way) ? kSlot : kDirect;
    return chain;
  }

  /// Chunks that one connection takes behind equally many others, one after the other, leave at
  /// once: proxies send them by one call.
  int most_messages(const schedule::Timeline& events) const {
    std::set<std::pair<int, int>> seen;          // connection and latency
    std::map<int, std::pair<int, int>> of_rank;  // out and in
    for (const schedule::Event& event : events.events) {
      const schedule::Position& p = event.position;
      const Instruction& instruction =
          at(at(at(at(schedule_.ranks, p.rank), p.channel).workers, p.worker).instructions,
             p.instruction);
      for (const int connection : instruction.send_to) {
        const schedule::Connection& c = at(schedule_.connections, connection);
        if (machine_of(machines_, c.sender) == machine_of(machines_, c.receiver)) continue;
        if (!seen.emplace(connection, event.latency).second) continue;
        ++of_rank[c.sender].first;
        ++of_rank[c.receiver].second;
      }
    }
    int most = 0;
    for (const auto& [rank, counts] : of_rank) most = std::max({most, counts.first, counts.second});
    return most;
  }

  Chain longest_chain(const schedule::Timeline& events) const {
    std::vector<Weighed> done(events.events.size());
    std::map<std::tuple<int, int, int>, Weighed> workers;  // up to the last instruction so far
    Weighed longest;
    for (size_t i = 0; i < events.events.size(); ++i) {
      const schedule::Event& event = events.events[i];
      const schedule::Position& p = event.position;
      const Instruction& instruction =
          at(at(at(at(schedule_.ranks, p.rank), p.channel).workers, p.worker).instructions,
             p.instruction);
      Weighed& worker = workers[{p.rank, p.channel, p.worker}];
      Weighed chain = worker;
      for (int c = 0; c < length(event.causes); ++c) {  // in the order of receive_from
        const int cause = at(event.causes, c);
        const int sender = at(events.events, cause).position.rank;
        const bool is_inside = machine_of(machines_, sender) == machine_of(machines_, p.rank);
        const Way way = way_of(p, instruction, at(instruction.receive_from, c));
        chain = longer(chain, after_hop(at(done, cause), is_inside, way));
      }
      const int ends = length(instruction.receive_from) + length(instruction.send_to);
      ++chain.chain.instructions;
      chain.chain.ends += ends;
      chain.weight += kInstruction + kEnd * ends;
      done[i] = worker = chain;
      longest = longer(longest, chain);
    }
    return longest.chain;
  }

  const Schedule& schedule_;
  const AccessPlan* const plan_;
  const std::span<const int> machines_;
};

}  // namespace

Result<Demand> demand_of(const AccessPlan& plan, std::span<const int> machine_of_rank) {
  return Reader(plan.schedule, &plan, machine_of_rank).read();
}

Result<Demand> demand_of(const Schedule& schedule, std::span<const int> machine_of_rank) {
  return Reader(schedule, nullptr, machine_of_rank).read();
}

}  // namespace niccolite::lowering
