#include "lowering/draw.h"

#include <algorithm>

#include "schedule/index.h"

namespace niccolite::lowering {
namespace {

using schedule::at;
using schedule::BlockReference;
using schedule::Connection;
using schedule::Instruction;
using schedule::length;

std::string name(const BlockReference& reference) {
  return fmt::format("{} {}", schedule::name_of(reference.buffer), reference.block);
}

void append(std::string& text, const std::string& part, const char* separator) {
  text += (text.empty() ? "" : separator) + part;
}

/// "rank 1 + input 0 + rank 2 (get) -> output 0, rank 3 (put)".
std::string describe_move(const AccessPlan& plan, const Instruction& instruction,
                          const Accesses& accesses) {
  const auto end = [&](int connection, Way way, bool is_send) {
    const Connection& c = at(plan.schedule.connections, connection);
    return fmt::format("rank {}{}", is_send ? c.receiver : c.sender,
                       way == Way::Slot ? "" : fmt::format(" ({})", name_of(way)));
  };
  std::string operands, destinations;
  for (int i = 0; i <= length(instruction.receive_from); ++i) {
    if (instruction.source && i == instruction.source_position)
      append(operands, name(*instruction.source), " + ");
    if (i < length(instruction.receive_from))
      append(operands, end(at(instruction.receive_from, i), at(accesses.receives, i), false),
             " + ");
  }
  if (instruction.target) append(destinations, name(*instruction.target), ", ");
  for (int i = 0; i < length(instruction.send_to); ++i)
    append(destinations, end(at(instruction.send_to, i), at(accesses.sends, i), true), ", ");
  return fmt::format("{} -> {}",
                     instruction.finish ? fmt::format("finish({})", operands) : operands,
                     destinations);
}

std::string describe_step(const AccessPlan& plan, int rank, const schedule::Worker& worker,
                          const LoweredWorker& lowered, const Step& step) {
  if (step.event == Event::Move)
    return describe_move(plan, at(worker.instructions, step.instruction),
                         at(lowered.accesses, step.instruction));
  const Connection& c = at(plan.schedule.connections, step.connection);
  std::string text = fmt::format("rank {}", c.sender == rank ? c.receiver : c.sender);
  if (c.tag != 0) text += fmt::format("/{}", c.tag);
  if (step.event == Event::Advertise)
    text += step.memory ? ": " + name(*step.memory) : ": through slots";
  return text;
}

}  // namespace

std::string draw_text(const AccessPlan& plan) {
  std::string text;
  for (const auto& [tag, route] : plan.routes.of_tags())
    text += fmt::format("connections of tag {}: {}{}\n", tag, name_of(route.way),
                        route.is_final ? ", final" : "");
  for (int rank = 0; rank < length(plan.workers); ++rank) {
    for (int channel = 0; channel < length(at(plan.workers, rank)); ++channel) {
      const std::vector<LoweredWorker>& workers = at(at(plan.workers, rank), channel);
      for (int worker = 0; worker < length(workers); ++worker) {
        const LoweredWorker& lowered = at(workers, worker);
        const schedule::Worker& list =
            at(at(at(plan.schedule.ranks, rank), channel).workers, worker);
        text += fmt::format("rank {}, channel {}, worker {}: {}, {} tiles\n", rank, channel, worker,
                            name_of(lowered.plan.mover), name_of(lowered.plan.tiles));
        for (const Step& step : lowered.steps)
          text += fmt::format("  {:<19} {}\n", name_of(step.event),
                              describe_step(plan, rank, list, lowered, step));
      }
    }
  }
  if (!text.empty()) text.pop_back();
  return text;
}

}  // namespace niccolite::lowering
