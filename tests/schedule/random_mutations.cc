#include <algorithm>

#include "schedule/index.h"
#include "tests/schedule/random_schedule.h"

namespace niccolite::schedule {
namespace {

using Outcome = std::optional<Reason>;

int below(int bound, std::mt19937& random) {
  return static_cast<int>(random() % static_cast<unsigned>(bound));
}

Instruction& instruction_at(Schedule& schedule, const Position& position) {
  Channel& channel = at(at(schedule.ranks, position.rank), position.channel);
  return at(at(channel.workers, position.worker).instructions, position.instruction);
}

template <typename Function>
void for_each_instruction(Schedule& schedule, Function&& function) {
  for (Position p{}; p.rank < length(schedule.ranks); ++p.rank)
    for (p.channel = 0; p.channel < length(at(schedule.ranks, p.rank)); ++p.channel) {
      const std::vector<Worker>& workers = at(at(schedule.ranks, p.rank), p.channel).workers;
      for (p.worker = 0; p.worker < length(workers); ++p.worker)
        for (p.instruction = 0; p.instruction < length(at(workers, p.worker).instructions);
             ++p.instruction)
          function(p, instruction_at(schedule, p));
    }
}

/// A random one of the instructions that fit.
template <typename Fits>
std::optional<Position> pick(Schedule& schedule, std::mt19937& random, Fits&& fits) {
  std::vector<Position> all;
  for_each_instruction(schedule, [&](const Position& position, const Instruction& instruction) {
    if (fits(position, instruction)) all.push_back(position);
  });
  if (all.empty()) return {};
  return at(all, below(length(all), random));
}

bool sends(const Position&, const Instruction& i) { return !i.send_to.empty(); }
bool receives(const Position&, const Instruction& i) { return !i.receive_from.empty(); }

/// The block of the value, where the instruction says it.
std::optional<int> block_of_sum(const Schedule& schedule, const Instruction& instruction) {
  if (instruction.chunk_of >= 0) return instruction.chunk_of;
  if (instruction.source && instruction.source->buffer == Buffer::Input)
    return instruction.source->block;
  if (cuts_one_buffer(schedule.collective)) return chunk_block(instruction);
  return {};
}

int new_connection(Schedule& schedule, int sender, int receiver, int channel) {
  schedule.connections.push_back({sender, receiver, channel, /*tag=*/1000});
  return length(schedule.connections) - 1;
}

Outcome send_dropped(Schedule& schedule, std::mt19937& random) {
  const auto place = pick(schedule, random, sends);
  if (!place) return {};
  Instruction& instruction = instruction_at(schedule, *place);
  instruction.send_to.erase(instruction.send_to.begin() +
                            below(length(instruction.send_to), random));
  if (instruction.send_to.empty() && !instruction.target)
    return {{describe(*place), "has no destination"}};
  return {{fmt::format("waits for a chunk from rank {} that is never sent", place->rank)}};
}

Outcome receive_dropped(Schedule& schedule, std::mt19937& random) {
  const auto place = pick(schedule, random, receives);
  if (!place) return {};
  Instruction& instruction = instruction_at(schedule, *place);
  std::vector<int>& from = instruction.receive_from;
  from.erase(from.begin() + below(length(from), random));
  const int operands = length(from) + (instruction.source ? 1 : 0);
  if (operands == 0) return {{describe(*place), "has no operand"}};
  if (operands == 1) return {{describe(*place), "reduces, but has only one operand"}};
  if (instruction.source_position > length(from))
    return {{describe(*place), fmt::format("has source position {}", instruction.source_position)}};
  return {{fmt::format("sends a chunk to rank {} that is never taken", place->rank)}};
}

Outcome block_out_of_range(Schedule& schedule, std::mt19937& random) {
  const auto place = pick(
      schedule, random, [](const Position&, const Instruction& i) { return i.target || i.source; });
  if (!place) return {};
  Instruction& instruction = instruction_at(schedule, *place);
  const bool is_source = instruction.source && (!instruction.target || below(2, random) == 0);
  BlockReference& block = is_source ? *instruction.source : *instruction.target;
  block.block = 1 << 15;
  if (chunk_block(instruction) == block.block)
    return {{describe(*place), fmt::format("handles the chunk of block {}", block.block)}};
  return {{describe(*place), fmt::format("names {} block {} of", name_of(block.buffer), 1 << 15)}};
}

/// A result that nobody reads, and that is written once.
Outcome result_not_stored(Schedule& schedule, std::mt19937& random) {
  const auto uses = [&](const Position& at, const BlockReference& block) {
    int count = 0;
    for_each_instruction(schedule, [&](const Position& p, const Instruction& i) {
      if (p.rank == at.rank && p.channel == at.channel)
        count += (i.source == block ? 1 : 0) + (i.target == block ? 1 : 0);
    });
    return count;
  };
  const auto place = pick(schedule, random, [&](const Position& p, const Instruction& i) {
    return i.target && i.target->buffer == Buffer::Output && uses(p, *i.target) == 1;
  });
  if (!place) return {};
  Instruction& instruction = instruction_at(schedule, *place);
  const int block = instruction.target->block;
  if (instruction.chunk_of < 0) instruction.chunk_of = chunk_block(instruction);
  instruction.target.reset();
  if (instruction.send_to.empty()) return {{describe(*place), "has no destination"}};
  return {{fmt::format("rank {} channel {}: no instruction of any worker writes output block {}",
                       place->rank, place->channel, block)}};
}

/// A sum that is a result; others may serve nobody.
Outcome never_finished(Schedule& schedule, std::mt19937& random) {
  const auto place = pick(schedule, random, [](const Position&, const Instruction& i) {
    return i.finish && i.target && i.target->buffer == Buffer::Output;
  });
  if (!place) return {};
  instruction_at(schedule, *place).finish = false;
  return {{"unfinished"}};
}

Outcome finished_too_often(Schedule& schedule, std::mt19937& random) {
  if (!reduces(schedule.collective)) return {};
  const auto place =
      pick(schedule, random, [](const Position&, const Instruction& i) { return !i.finish; });
  if (!place) return {};
  instruction_at(schedule, *place).finish = true;
  return {{describe(*place), " finishes block "}};
}

Outcome finished_where_data_only_move(Schedule& schedule, std::mt19937& random) {
  if (reduces(schedule.collective)) return {};
  const auto place =
      pick(schedule, random, [](const Position&, const Instruction&) { return true; });
  instruction_at(schedule, *place).finish = true;
  return {{describe(*place),
           fmt::format("finishes, but {} only moves data", name_of(schedule.collective))}};
}

Outcome source_of_another_block(Schedule& schedule, std::mt19937& random) {
  const auto place = pick(schedule, random, [&](const Position& p, const Instruction& i) {
    return i.source && i.source->buffer == Buffer::Input && input_blocks(schedule, p.rank) > 1;
  });
  if (!place) return {};
  Instruction& instruction = instruction_at(schedule, *place);
  const int right = instruction.source->block;
  const int wrong = (right + 1) % schedule.nblocks;
  const bool is_cut = cuts_one_buffer(schedule.collective);
  if (instruction.chunk_of < 0) instruction.chunk_of = right;
  instruction.source->block = wrong;
  if (is_cut)
    return {{describe(*place),
             fmt::format("handles block {}, but names input block {}", right, wrong)}};
  if (reduces(schedule.collective)) return {{fmt::format("of block {}", wrong)}};
  return {{fmt::format("with input block {} of rank {}, not input block", wrong, place->rank)}};
}

Outcome contribution_counted_twice(Schedule& schedule, std::mt19937& random) {
  const auto place = pick(schedule, random, [&](const Position&, const Instruction& i) {
    return i.reduce && block_of_sum(schedule, i);
  });
  if (!place) return {};
  Instruction& instruction = instruction_at(schedule, *place);
  const int block = *block_of_sum(schedule, instruction);
  const int sender = (place->rank + 1 + below(schedule.nranks - 1, random)) % schedule.nranks;
  const int extra = new_connection(schedule, sender, place->rank, place->channel);
  instruction.receive_from.push_back(extra);
  at(at(schedule.ranks, sender), place->channel)
      .workers.push_back(
          {.instructions = {{.source = {{Buffer::Input, block}}, .send_to = {extra}}}});
  return {{fmt::format("reduces the contribution of rank {} to block {} twice", sender, block)}};
}

Outcome operands_swapped(Schedule& schedule, std::mt19937& random) {
  if (schedule.partial_sums) return {};
  const auto place =
      pick(schedule, random, [](const Position&, const Instruction& i) { return i.reduce; });
  if (!place) return {};
  Instruction& instruction = instruction_at(schedule, *place);
  std::vector<int>& from = instruction.receive_from;
  if (from.size() > 1)
    std::swap(from[0], from[1]);
  else
    instruction.source_position ^= 1;
  return {{describe(*place), "though the schedule claims ascending rank order"}};
}

Outcome copied_instead_of_reduced(Schedule& schedule, std::mt19937& random) {
  const auto place =
      pick(schedule, random, [](const Position&, const Instruction& i) { return i.reduce; });
  if (!place) return {};
  instruction_at(schedule, *place).reduce = false;
  return {{describe(*place), "copies, but has"}};
}

Outcome workers_race(Schedule& schedule, std::mt19937& random) {
  const auto place = pick(schedule, random, [&](const Position& p, const Instruction& i) {
    return i.target && i.target->buffer == Buffer::Output && input_blocks(schedule, p.rank) > 0;
  });
  if (!place) return {};
  const BlockReference to = *instruction_at(schedule, *place).target;
  const int from = cuts_one_buffer(schedule.collective) ? to.block : 0;
  at(at(schedule.ranks, place->rank), place->channel)
      .workers.push_back({.instructions = {{.source = {{Buffer::Input, from}}, .target = to}}});
  return {{fmt::format("rank {} channel {} worker", place->rank, place->channel),
           fmt::format("output block {}, which rank", to.block), "with no order between them"}};
}

/// Two ranks each pass on to the other one what they receive from it.
Outcome wait_in_a_circle(Schedule& schedule, std::mt19937& random) {
  if (schedule.nranks < 2) return {};
  const int channel = below(length(schedule.ranks[0]), random);
  const int a = below(schedule.nranks, random);
  const int b = (a + 1 + below(schedule.nranks - 1, random)) % schedule.nranks;
  const int there = new_connection(schedule, a, b, channel);
  const int back = new_connection(schedule, b, a, channel);
  const auto insert = [&](int rank, int from, int to) {
    std::vector<Worker>& workers = at(at(schedule.ranks, rank), channel).workers;
    if (workers.empty()) workers.emplace_back();
    std::vector<Instruction>& list = at(workers, below(length(workers), random)).instructions;
    list.insert(list.begin() + below(length(list) + 1, random),
                {.receive_from = {from}, .send_to = {to}, .chunk_of = 0});
  };
  insert(a, back, there);
  insert(b, there, back);
  return {{"deadlock with FIFOs of", "waits for a chunk from", "and so round to the first"}};
}

Outcome input_overwritten(Schedule& schedule, std::mt19937& random) {
  const auto place = pick(schedule, random, [&](const Position& p, const Instruction& i) {
    return i.target && input_blocks(schedule, p.rank) > 0;
  });
  if (!place) return {};
  Instruction& instruction = instruction_at(schedule, *place);
  instruction.chunk_of = chunk_block(instruction);
  instruction.target = {Buffer::Input,
                        cuts_one_buffer(schedule.collective) ? instruction.chunk_of : 0};
  return {{describe(*place), "writes to the input"}};
}

Outcome nothing_to_read(Schedule& schedule, std::mt19937& random) {
  const auto place =
      pick(schedule, random, [](const Position&, const Instruction& i) { return i.source; });
  if (!place) return {};
  Instruction& instruction = instruction_at(schedule, *place);
  instruction.chunk_of = chunk_block(instruction);
  instruction.source = {Buffer::Scratch, schedule.scratch_blocks++};
  return {{describe(*place), fmt::format("reads scratch block {}, which nothing was written to",
                                         schedule.scratch_blocks - 1)}};
}

Outcome sent_to_a_stranger(Schedule& schedule, std::mt19937& random) {
  const auto place = pick(schedule, random, sends);
  if (!place) return {};
  for (int i = 0; i < length(schedule.connections); ++i) {
    const Connection& c = at(schedule.connections, i);
    if (c.sender == place->rank && c.channel == place->channel) continue;
    instruction_at(schedule, *place).send_to = {i};
    return {{describe(*place),
             fmt::format("sends to connection {}, which goes from rank {}", i, c.sender)}};
  }
  return {};
}

Outcome connection_twice(Schedule& schedule, std::mt19937& random) {
  if (schedule.connections.empty()) return {};
  const int i = below(length(schedule.connections), random);
  const Connection c = at(schedule.connections, i);
  schedule.connections.push_back(c);
  return {{fmt::format("connection {} from rank {} to rank {}", schedule.connections.size() - 1,
                       c.sender, c.receiver),
           "exists twice"}};
}

Outcome connection_to_itself(Schedule& schedule, std::mt19937& random) {
  if (schedule.connections.empty()) return {};
  const int i = below(length(schedule.connections), random);
  Connection& c = at(schedule.connections, i);
  c.receiver = c.sender;
  return {{fmt::format("connection {} goes from rank {} to itself", i, c.sender)}};
}

Outcome root_out_of_range(Schedule& schedule, std::mt19937&) {
  if (!has_root(schedule.collective)) return {};
  schedule.root = schedule.nranks;
  return {{fmt::format("the root is rank {} of {}", schedule.nranks, schedule.nranks)}};
}

Outcome worker_without_work(Schedule& schedule, std::mt19937& random) {
  const int rank = below(schedule.nranks, random);
  std::vector<Worker>& workers = at(at(schedule.ranks, rank), 0).workers;
  workers.emplace_back();
  return {{fmt::format("rank {} channel 0 worker {} has weight 1 and 0 instructions", rank,
                       workers.size() - 1)}};
}

}  // namespace

std::span<const RandomMutation> random_mutations() {
  static constexpr RandomMutation kMutations[] = {
      {"send dropped", send_dropped},
      {"receive dropped", receive_dropped},
      {"block out of range", block_out_of_range},
      {"result not stored", result_not_stored},
      {"never finished", never_finished},
      {"finished too often", finished_too_often},
      {"finished where data only move", finished_where_data_only_move},
      {"source of another block", source_of_another_block},
      {"contribution counted twice", contribution_counted_twice},
      {"operands swapped", operands_swapped},
      {"copied instead of reduced", copied_instead_of_reduced},
      {"workers race", workers_race},
      {"wait in a circle", wait_in_a_circle},
      {"input overwritten", input_overwritten},
      {"nothing to read", nothing_to_read},
      {"sent to a stranger", sent_to_a_stranger},
      {"connection twice", connection_twice},
      {"connection to itself", connection_to_itself},
      {"root out of range", root_out_of_range},
      {"worker without work", worker_without_work},
  };
  return kMutations;
}

}  // namespace niccolite::schedule
