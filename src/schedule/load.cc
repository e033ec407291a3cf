#include "schedule/load.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "schedule/index.h"
#include "schedule/timeline.h"

namespace niccolite::schedule {
namespace {

int machine_of(std::span<const int> machines, int rank) {
  return machines.empty() ? 0 : machines[static_cast<size_t>(rank)];
}

/// Blocks that go one way and the other.
struct Both {
  int out = 0, in = 0;
  int busier() const { return std::max(out, in); }
};

struct RankLoad {
  Both link, rail;
  int engine = 0;
  int instructions = 0;
};

RankLoad load_of_rank(const Schedule& schedule, std::span<const int> machines, int rank) {
  RankLoad load;
  const auto leaves = [&](int connection) {
    const Connection& c = at(schedule.connections, connection);
    return machine_of(machines, c.sender) != machine_of(machines, c.receiver);
  };
  for (const Channel& channel : at(schedule.ranks, rank)) {
    for (const Lane& lane : channel.lanes) {
      load.instructions += length(lane.instructions);
      for (const Instruction& instruction : lane.instructions) {
        for (const int c : instruction.send_to) ++(leaves(c) ? load.rail : load.link).out;
        for (const int c : instruction.receive_from) ++(leaves(c) ? load.rail : load.link).in;
        load.engine += length(instruction.send_to) + length(instruction.receive_from) +
                       (instruction.source ? 1 : 0) + (instruction.target ? 1 : 0);
      }
    }
  }
  return load;
}

}  // namespace

Load load_of(const Schedule& schedule, std::span<const int> machine_of_rank) {
  struct MachineLoad {
    Both wire;
    int engine = 0, instructions = 0;
  };
  Load load;
  load.blocks = cuts_one_buffer(schedule.collective) ? std::max(1, schedule.nblocks) : 1;
  const double block = 1.0 / load.blocks;
  std::map<int, MachineLoad> machines;
  for (int rank = 0; rank < schedule.nranks; ++rank) {
    const RankLoad own = load_of_rank(schedule, machine_of_rank, rank);
    load.link = std::max(load.link, own.link.busier() * block);
    load.rail = std::max(load.rail, own.rail.busier() * block);
    load.engine = std::max(load.engine, own.engine * block);
    MachineLoad& machine = machines[machine_of(machine_of_rank, rank)];
    machine.wire.out += own.rail.out;
    machine.wire.in += own.rail.in;
    machine.engine += own.engine;
    machine.instructions += own.instructions;
  }
  for (const auto& [number, machine] : machines) {
    load.wire = std::max(load.wire, machine.wire.busier() * block);
    load.machine_engine = std::max(load.machine_engine, machine.engine * block);
    load.machine_instructions = std::max(load.machine_instructions, machine.instructions);
  }
  return load;
}

Result<Chain> longest_chain(const Schedule& schedule, std::span<const int> machine_of_rank,
                            const Delays& delays) {
  const Timeline events = TRY(timeline(schedule));
  const auto longer = [](const Chain& a, const Chain& b) {
    return a.microseconds < b.microseconds ? b : a;
  };
  std::vector<Chain> done(events.events.size());
  std::map<std::tuple<int, int, int>, Chain> lanes;  // up to the last instruction so far
  Chain longest;
  for (size_t i = 0; i < events.events.size(); ++i) {
    const Event& event = events.events[i];
    const Position& p = event.position;
    const Instruction& instruction =
        at(at(at(at(schedule.ranks, p.rank), p.channel).lanes, p.lane).instructions, p.instruction);
    Chain& lane = lanes[{p.rank, p.channel, p.lane}];
    Chain chain = lane;
    for (const int cause : event.causes) {
      Chain arrived = at(done, cause);
      const int sender = at(events.events, cause).position.rank;
      const bool is_inside =
          machine_of(machine_of_rank, sender) == machine_of(machine_of_rank, p.rank);
      ++(is_inside ? arrived.hops_inside : arrived.hops_between);
      arrived.microseconds += is_inside ? delays.inside : delays.between;
      chain = longer(chain, arrived);
    }
    chain.microseconds += delays.instruction + delays.end * (length(instruction.receive_from) +
                                                             length(instruction.send_to));
    done[i] = lane = chain;
    longest = longer(longest, chain);
  }
  return longest;
}

}  // namespace niccolite::schedule
