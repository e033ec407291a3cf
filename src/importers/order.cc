#include "importers/order.h"

#include <fmt/core.h>

#include <algorithm>

#include "schedule/index.h"

namespace niccolite::importers {

using schedule::at;
using schedule::length;

Order::Order(const Program& program) {
  for (int rank = 0; rank < program.nranks; ++rank) {
    first_.push_back(length(blocks_));
    for (const ThreadBlock& block : at(program.ranks, rank).blocks) {
      const int flat = length(blocks_);
      blocks_.push_back({rank, &block});
      if (block.send_to >= 0) senders_[{rank, block.send_to, block.channel}] = flat;
      if (block.receive_from >= 0) receivers_[{block.receive_from, rank, block.channel}] = flat;
    }
  }
}

bool Order::run(int depth) {
  order_.clear();
  next_.assign(blocks_.size(), 0);
  filled_.clear();
  for (bool moved = true; moved;) {
    moved = false;
    for (int flat = 0; flat < length(blocks_); ++flat)
      while (can_run(flat, depth)) {
        step(flat);
        step_locally(at(blocks_, flat).rank, depth);
        moved = true;
      }
  }
  for (int flat = 0; flat < length(blocks_); ++flat)
    if (!is_done(flat)) return false;
  return true;
}

Status Order::describe_standstill() const {
  int flat = 0;
  while (is_done(flat)) ++flat;
  std::vector<int> way;
  std::string text;
  while (std::ranges::find(way, flat) == way.end()) {
    way.push_back(flat);
    const auto [what, next] = obstacle(flat);
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", describe(flat), what);
    if (next < 0 || is_done(next))
      return Status::invalid_usage("it never ends: {}, which nobody does", text);
    flat = next;
  }
  return Status::invalid_usage("deadlock with FIFOs of any depth: {}; and so round to line {}",
                               text, next_step(flat).line);
}

const Step& Order::next_step(int flat) const {
  return at(at(blocks_, flat).block->steps, at(next_, flat));
}

FifoKey Order::fifo_in(int flat) const {
  const auto& [rank, block] = at(blocks_, flat);
  return {block->receive_from, rank, block->channel};
}

FifoKey Order::fifo_out(int flat) const {
  const auto& [rank, block] = at(blocks_, flat);
  return {rank, block->send_to, block->channel};
}

bool Order::can_run(int flat, int depth) {
  if (is_done(flat)) return false;
  const Step& step = next_step(flat);
  for (const Wait& wait : step.waits)
    if (at(next_, this->flat(at(blocks_, flat).rank, wait.block)) <= wait.step) return false;
  if (receives(step.action) && filled_[fifo_in(flat)].empty()) return false;
  return !sends(step.action) || length(filled_[fifo_out(flat)]) < depth;
}

void Order::step(int flat) {
  const Step& step = next_step(flat);
  if (receives(step.action)) filled_[fifo_in(flat)].pop_front();
  if (sends(step.action)) filled_[fifo_out(flat)].push_back(step.count);
  order_.emplace_back(flat, at(next_, flat));
  ++at(next_, flat);
}

void Order::step_locally(int rank, int depth) {
  const int end = rank + 1 < length(first_) ? at(first_, rank + 1) : length(blocks_);
  while (true) {
    int best = -1;
    const auto chunk_of = [&](int flat) {
      const Step& step = next_step(flat);
      return step.action == Action::Reduce ? step.target.chunk : -1;
    };
    for (int flat = at(first_, rank); flat < end; ++flat) {
      if (is_done(flat) || receives(next_step(flat).action) || sends(next_step(flat).action))
        continue;
      if ((best < 0 || chunk_of(flat) < chunk_of(best)) && can_run(flat, depth)) best = flat;
    }
    if (best < 0) return;
    step(best);
  }
}

std::string Order::describe(int flat) const {
  return fmt::format("line {} (gpu {})", next_step(flat).line, at(blocks_, flat).rank);
}

std::pair<std::string, int> Order::obstacle(int flat) const {
  const int rank = at(blocks_, flat).rank;
  const Step& step = next_step(flat);
  for (const Wait& wait : step.waits) {
    const int other = this->flat(rank, wait.block);
    if (at(next_, other) <= wait.step)
      return {fmt::format("waits for line {}", at(at(blocks_, other).block->steps, wait.step).line),
              other};
  }
  const FifoKey key = fifo_in(flat);
  const auto sender = senders_.find(key);
  return {fmt::format("waits for a chunk from gpu {}", std::get<0>(key)),
          sender == senders_.end() ? -1 : sender->second};
}

}  // namespace niccolite::importers
