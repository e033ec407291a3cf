#include "lowering/spread.h"

#include <algorithm>
#include <utility>

namespace niccolite::lowering {
namespace {

using schedule::BlockReference;
using schedule::Channel;
using schedule::Connection;
using schedule::Instruction;
using schedule::Schedule;
using schedule::Worker;

constexpr int kHalves = 2;

/// A reduction takes as many chunks as it has senders.
int weight_of(const Instruction& instruction) {
  return std::max(1, static_cast<int>(instruction.receive_from.size()));
}

/// Notes that an instruction uses these connections. False: another one uses one of them.
bool claim(const std::vector<int>& connections, std::vector<bool>& used) {
  for (const int connection : connections) {
    if (used.at(static_cast<size_t>(connection))) return false;
    used[static_cast<size_t>(connection)] = true;
  }
  return true;
}

Result<Schedule> by_instruction(Schedule schedule) {
  std::vector<bool> sent(schedule.connections.size()), received(schedule.connections.size());
  for (std::vector<Channel>& channels : schedule.ranks)
    for (Channel& channel : channels) {
      std::vector<Worker> workers;
      for (Worker& worker : channel.workers)
        for (Instruction& instruction : worker.instructions) {
          if (!claim(instruction.send_to, sent) || !claim(instruction.receive_from, received))
            return Status::invalid_argument(
                "{} {}: two instructions use one connection, so that they cannot have a worker "
                "each",
                schedule::name_of(schedule.collective), schedule.algorithm);
          const int weight = weight_of(instruction);
          workers.push_back({.weight = weight, .instructions = {std::move(instruction)}});
        }
      channel.workers = std::move(workers);
    }
  return schedule;
}

/// Returns the part of an instruction that one of two workers has.
Instruction half_of(Instruction instruction, int half) {
  const auto move = [&](int number) { return kHalves * number + half; };
  const auto move_block = [&](std::optional<BlockReference>& reference) {
    if (reference) reference->block = move(reference->block);
  };
  for (int& connection : instruction.receive_from) connection = move(connection);
  for (int& connection : instruction.send_to) connection = move(connection);
  move_block(instruction.source);
  move_block(instruction.target);
  if (instruction.chunk_of >= 0) instruction.chunk_of = move(instruction.chunk_of);
  return instruction;
}

Result<Schedule> by_halves(Schedule schedule) {
  const auto has_tag = [](const Connection& connection) { return connection.tag != 0; };
  if (!schedule::cuts_one_buffer(schedule.collective) ||
      std::ranges::any_of(schedule.connections, has_tag))
    return Status::invalid_argument(
        "{} {}: only schedules that cut one buffer, and whose connections have tag 0, can be done "
        "by halves",
        schedule::name_of(schedule.collective), schedule.algorithm);
  if (schedule.nranks == 1) return schedule;  // a copy, which nobody waits for
  schedule.nblocks *= kHalves;
  schedule.scratch_blocks *= kHalves;
  std::vector<Connection> connections;
  for (Connection connection : schedule.connections)
    for (connection.tag = 0; connection.tag < kHalves; ++connection.tag)
      connections.push_back(connection);
  schedule.connections = std::move(connections);
  for (std::vector<Channel>& channels : schedule.ranks)
    for (Channel& channel : channels) {
      std::vector<Worker> workers;
      for (const Worker& worker : channel.workers)
        for (int half = 0; half < kHalves; ++half) {
          Worker& added = workers.emplace_back(worker);
          for (Instruction& each : added.instructions) each = half_of(std::move(each), half);
        }
      channel.workers = std::move(workers);
    }
  return schedule;
}

}  // namespace

Result<Schedule> spread(Schedule schedule, Spread how) {
  switch (how) {
    case Spread::AsBuilt:
      break;
    case Spread::ByInstruction:
      return by_instruction(std::move(schedule));
    case Spread::ByHalves:
      return by_halves(std::move(schedule));
  }
  return schedule;
}

}  // namespace niccolite::lowering
