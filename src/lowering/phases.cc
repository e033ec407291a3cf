#include "lowering/phases.h"

#include <algorithm>
#include <set>

namespace niccolite::lowering {
namespace {

using schedule::Buffer;
using schedule::Instruction;
using schedule::Worker;

/// An instruction as a part of the phases.
class Sorter {
 public:
  /// False: it is no part of any.
  bool add(const Instruction& instruction) {
    if (!uses_each_once(instruction.receive_from) || !uses_each_once(instruction.send_to))
      return false;
    if (instruction.source && instruction.source->buffer != Buffer::Input) return false;
    if (instruction.target && instruction.target->buffer != Buffer::Output) return false;
    if (instruction.receive_from.empty()) return !has_received_ && add_send(instruction);
    has_received_ = true;
    return instruction.source ? add_reduce(instruction) : add_store(instruction);
  }
  void begin_worker() { has_received_ = false; }

  Phases take() && { return std::move(phases_); }

 private:
  bool uses_each_once(const std::vector<int>& connections) {
    return std::ranges::all_of(connections,
                               [&](int connection) { return used_.insert(connection).second; });
  }

  bool add_send(const Instruction& instruction) {
    if (!instruction.source || instruction.finish) return false;
    if (!instruction.target && instruction.send_to.empty()) return false;
    if (instruction.target) {
      if (phases_.copy) return false;
      phases_.copy = {instruction.source->block, instruction.target->block};
    }
    for (const int connection : instruction.send_to)
      phases_.sends.push_back({connection, instruction.source->block});
    return true;
  }

  bool add_reduce(const Instruction& instruction) {
    if (phases_.reduce || !instruction.reduce) return false;
    phases_.reduce = {.source = instruction.source->block,
                      .source_position = instruction.source_position,
                      .receives = instruction.receive_from,
                      .target = std::nullopt,
                      .sends = instruction.send_to,
                      .finishes = instruction.finish};
    if (instruction.target) phases_.reduce->target = instruction.target->block;
    return true;
  }

  bool add_store(const Instruction& instruction) {
    if (instruction.receive_from.size() != 1 || !instruction.send_to.empty() ||
        instruction.reduce || instruction.finish || !instruction.target) {
      return false;
    }
    phases_.stores.push_back({instruction.receive_from.front(), instruction.target->block});
    return true;
  }

  Phases phases_;
  std::set<int> used_;
  bool has_received_ = false;  // the worker has
};

}  // namespace

std::optional<Phases> phases_of(std::span<const Worker> workers) {
  Sorter sorter;
  for (const Worker& worker : workers) {
    sorter.begin_worker();
    for (const Instruction& instruction : worker.instructions)
      if (!sorter.add(instruction)) return std::nullopt;
  }
  return std::move(sorter).take();
}

bool sends_one_block(const Phases& phases) {
  if (phases.sends.empty()) return true;
  const int block = phases.sends.front().block;
  if (phases.copy && phases.copy->from != block) return false;
  if (phases.reduce && phases.reduce->source != block) return false;
  return std::ranges::all_of(phases.sends,
                             [&](const Transfer& send) { return send.block == block; });
}

}  // namespace niccolite::lowering
