#include "schedule/load.h"

#include <algorithm>
#include <map>

#include "schedule/index.h"

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
    for (const Worker& worker : channel.workers) {
      load.instructions += length(worker.instructions);
      for (const Instruction& instruction : worker.instructions) {
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

}  // namespace niccolite::schedule
