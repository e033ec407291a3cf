#include "schedule/order.h"

#include <algorithm>

#include "schedule/index.h"

namespace niccolite::schedule {
namespace {

template <typename Visit>
void for_each_instruction(const Schedule& schedule, const Visit& visit) {
  for (int rank = 0; rank < length(schedule.ranks); ++rank)
    for (const Channel& channel : at(schedule.ranks, rank))
      for (const Worker& worker : channel.workers)
        for (const Instruction& instruction : worker.instructions) visit(rank, instruction);
}

/// Has the instruction one operand of each rank, in ascending order?
bool has_all_in_order(const Schedule& schedule, int rank, const Instruction& instruction) {
  if (!instruction.source || instruction.source->buffer != Buffer::Input ||
      length(instruction.receive_from) != schedule.nranks - 1)
    return false;
  int next = 0;
  for (int i = 0; i <= length(instruction.receive_from); ++i) {
    if (i == instruction.source_position && rank != next++) return false;
    if (i == length(instruction.receive_from)) break;
    if (at(schedule.connections, at(instruction.receive_from, i)).sender != next++) return false;
  }
  return true;
}

}  // namespace

bool reduces_in_one_order(const Schedule& schedule) {
  if (!reduces(schedule.collective)) return true;
  // The network's reducer has an order of its own.
  for (const Connection& c : schedule.connections)
    if (through_of(c.tag) != Through::Nothing) return false;
  bool is_in_order = true;
  std::vector<bool> is_operand(schedule.connections.size());  // by connection
  for_each_instruction(schedule, [&](int rank, const Instruction& instruction) {
    if (!instruction.reduce) return;
    is_in_order = is_in_order && has_all_in_order(schedule, rank, instruction);
    for (const int connection : instruction.receive_from)
      is_operand[static_cast<size_t>(connection)] = true;
  });
  // The connections of the operands must carry the sender's own input.
  for_each_instruction(schedule, [&](int, const Instruction& instruction) {
    const bool sends_operand = std::ranges::any_of(
        instruction.send_to, [&](int c) { return is_operand[static_cast<size_t>(c)]; });
    const bool sends_input = instruction.receive_from.empty() && instruction.source &&
                             instruction.source->buffer == Buffer::Input;
    is_in_order = is_in_order && (!sends_operand || sends_input);
  });
  return is_in_order;
}

}  // namespace niccolite::schedule
