// The accesses of workers to memory and slots.
#include "lowering/execution.h"

#include <algorithm>

#include "schedule/index.h"

namespace niccolite::lowering {

using schedule::at;
using schedule::BlockReference;
using schedule::Buffer;
using schedule::Instruction;
using schedule::length;
using schedule::Operand;
using schedule::SharedValue;

/// Stores the tiles that are asked for to slots. Stays at this step until there is a release.
Status Execution::serve_pulls(Instance& instance, int number, int connection) {
  Link& link = this->link(instance, connection);
  if (link.requests.empty()) {
    merge(instance, link.released);
    link.is_awaited = true;
    return {};
  }
  merge(instance, link.requested);
  instance.clock[static_cast<size_t>(number)] = ++instance.moves;
  if (!link.memory)
    return Status::invalid_usage("is asked for tiles of what it has not advertised");
  const BlockReference& from = link.memory->block;
  for (const int tile : std::exchange(link.requests, {})) {
    TRY(access(instance, number, instance.rank, from, tile, /*is_write=*/false));
    link.delivered.push_back({location(instance.rank, from, tile).value, tile, nullptr});
  }
  for (Chunk& chunk : link.delivered) chunk.clock = share(instance);
  --instance.next;  // the same step again
  return {};
}

Status Execution::move(Instance& instance, int number, const Step& step) {
  instance.instruction = step.instruction;
  const Instruction& instruction = at(instance.worker->instructions, step.instruction);
  const Accesses& accesses = at(instance.lowered->accesses, step.instruction);
  instance.clock[static_cast<size_t>(number)] = ++instance.moves;
  TRY(check_teams(instance, instruction, accesses));
  for (const int tile : tiles_of(instance, step.tiles))
    TRY(move_tile(instance, number, instruction, accesses, tile));
  for (int i = 0; i < length(instruction.receive_from); ++i) {
    const int connection = at(instruction.receive_from, i);
    const Way way = at(accesses.receives, i);
    if (!uses_slots(way) && way != Way::Pull) continue;
    Chunks& received = entry_of(instance.received, connection);
    if (uses_slots(way)) link(instance, connection).read += length(received);
    received.clear();
  }
  instance.own_part.reset();
  return {};
}

/// A store to a team is of all its ranks at once, and a load is from all. (That all of a store's
/// slots, or of a load's, are at one step follows: whoever names one of the connections names all.)
Status Execution::check_teams(const Instance& instance, const Instruction& instruction,
                              const Accesses& accesses) const {
  const auto check = [&](const std::vector<int>& connections, const std::vector<Way>& ways,
                         Way way) -> Status {
    for (int i = 0; i < length(connections); ++i) {
      if (at(ways, i) != way) continue;
      const int tag = at(schedule_.connections, at(connections, i)).tag;
      bool is_whole = reaches_team(schedule_, plan_.machines, instance.rank, connections, tag);
      for (int other = 0; other < length(connections); ++other)
        is_whole &=
            at(schedule_.connections, at(connections, other)).tag != tag || at(ways, other) == way;
      if (is_whole) continue;
      return Status::invalid_usage("goes by a {} that is not of all ranks of its machine",
                                   name_of(way));
    }
    return {};
  };
  for (const Way way : {Way::TeamStore, Way::TeamPut})
    TRY(check(instruction.send_to, accesses.sends, way));
  for (const Way way : {Way::TeamLoad, Way::TeamGet})
    TRY(check(instruction.receive_from, accesses.receives, way));
  if (!instruction.reduce && std::ranges::any_of(accesses.receives, is_load_of_team))
    return Status::invalid_usage("does not reduce what a team load reduces");
  // One address of the team is one place in the buffers of all ranks, the own one included.
  const auto check_places = [&](const std::vector<int>& connections, const std::vector<Way>& ways,
                                Way way, const std::optional<BlockReference>& own) -> Status {
    for (int i = 0; i < length(connections); ++i) {
      if (at(ways, i) != way) continue;
      const auto taken = std::ranges::find(instance.taken, at(connections, i),
                                           [](const auto& entry) { return entry.first; });
      if (taken == instance.taken.end() || !taken->second) continue;  // named where it is used
      if (own && taken->second->block == *own) continue;
      return Status::invalid_usage("goes by a {} to {} of rank {}, and {} of its own", name_of(way),
                                   describe(taken->second->block), taken->second->rank,
                                   own ? describe(*own) : "to nothing");
    }
    return {};
  };
  TRY(check_places(instruction.send_to, accesses.sends, Way::TeamPut, instruction.target));
  TRY(check_places(instruction.receive_from, accesses.receives, Way::TeamGet, instruction.source));
  return {};
}

Result<SharedValue> Execution::read_source(Instance& instance, int number,
                                           const BlockReference& source, int tile) {
  TRY(access(instance, number, instance.rank, source, tile, /*is_write=*/false));
  const Location& from = location(instance.rank, source, tile);
  if (from.value == nullptr)
    return Status::invalid_usage("reads {}, which nothing was written to", describe(source));
  if (source.buffer == Buffer::Input && from.writer)
    return Status::invalid_usage("reads {} after {} wrote over it", describe(source),
                                 schedule::describe(*from.writer));
  return from.value;
}

/// The local operand of a team load goes to the own slot, where the load finds it.
Status Execution::stage(Instance& instance, int number, const Step& step) {
  instance.instruction = step.instruction;
  const Instruction& instruction = at(instance.worker->instructions, step.instruction);
  if (!instruction.source) return Status::invalid_usage("has no part of its own for a team load");
  instance.clock[static_cast<size_t>(number)] = ++instance.moves;
  instance.own_part = TRY(read_source(instance, number, *instruction.source, instance.tile));
  return {};
}

Result<Operand> Execution::operand_of(Instance& instance, int number,
                                      const Instruction& instruction, const Accesses& accesses,
                                      size_t receive, int tile) {
  const int connection = instruction.receive_from[receive];
  const int sender = at(schedule_.connections, connection).sender;
  const Way way = accesses.receives[receive];
  if (uses_slots(way) || way == Way::Pull) {
    for (const Chunk& chunk : entry_of(instance.received, connection))
      if (chunk.tile == tile)
        return Operand{chunk.value, fmt::format("the chunk from rank {}", sender)};
    return Status::invalid_usage("takes tile {} from rank {}, which has sent another", tile,
                                 sender);
  }
  Block from{instance.rank, {}};
  std::string name;
  if (is_put(way)) {
    if (!instruction.target) return Status::invalid_usage("has no memory for what is put");
    from.block = *instruction.target;
    name = fmt::format("{}, which rank {} stores to", describe(from.block), sender);
  } else {
    const std::optional<Block>& taken = entry_of(instance.taken, connection);
    if (!taken)
      return Status::invalid_usage("reads a buffer of rank {} that it has not been told of",
                                   sender);
    TRY(check_not_told(link(instance, connection), "reads", *taken));
    from = *taken;
    name = fmt::format("{} of rank {}", describe(from.block), sender);
  }
  TRY(access(instance, number, from.rank, from.block, tile, /*is_write=*/false));
  const Location& location = this->location(from.rank, from.block, tile);
  if (location.value == nullptr)
    return Status::invalid_usage("reads {}, which nothing was written to", name);
  if (is_get(way) && location.writer)
    return Status::invalid_usage("reads {} after {} wrote over it", name,
                                 schedule::describe(*location.writer));
  return Operand{location.value, std::move(name)};
}

/// Checks that a worker which has told the owner of a buffer that it is done there leaves the
/// buffer alone.
Status Execution::check_not_told(const Link& link, const char* verb, const Block& place) {
  if (link.put == nullptr && link.released == nullptr && link.left == nullptr) return {};
  return Status::invalid_usage("{} {} of rank {}, whose kernel may have ended", verb,
                               describe(place.block), place.rank);
}

Status Execution::move_tile(Instance& instance, int number, const Instruction& instruction,
                            const Accesses& accesses, int tile) {
  std::vector<Operand> operands;
  const bool is_put_here = std::ranges::any_of(accesses.receives, is_put);
  const bool is_put_to_team =
      std::ranges::find(accesses.sends, Way::TeamPut) != accesses.sends.end();
  // The sender has stored it, or another channel's worker of the sender will: nobody looks.
  if (is_put_here && instruction.send_to.empty()) return {};
  for (size_t i = 0; i < instruction.receive_from.size(); ++i) {
    operands.push_back(TRY(operand_of(instance, number, instruction, accesses, i, tile)));
  }
  if (instruction.source) {
    const BlockReference& source = *instruction.source;
    const bool is_kept = !schedule::reduces(schedule_.collective) && instruction.target &&
                         instruction.send_to.empty() &&
                         is_one_memory(instance.rank, source, *instruction.target);
    // A copy onto itself is no access; nor is a block read here that only peers get.
    const bool is_read = !is_kept && (instruction.target || instruction.reduce ||
                                      std::ranges::any_of(accesses.sends, [](Way way) {
                                        return uses_slots(way) || is_put(way);
                                      }));
    SharedValue value;
    if (std::ranges::find(accesses.receives, Way::TeamLoad) != accesses.receives.end()) {
      if (!instance.own_part)
        return Status::invalid_usage("loads from a team before it has stored its own part there");
      value = *instance.own_part;
    } else if (is_read) {
      value = TRY(read_source(instance, number, source, tile));
    } else {
      value = location(instance.rank, source, tile).value;
      if (value == nullptr)
        return Status::invalid_usage("reads {}, which nothing was written to", describe(source));
    }
    operands.insert(operands.begin() + instruction.source_position,
                    Operand{value, describe(source)});
  }
  const std::optional<int> block = schedule::cuts_one_buffer(schedule_.collective)
                                       ? std::optional(schedule::chunk_block(instruction))
                                       : std::nullopt;
  const SharedValue value =
      TRY(schedule::combine(operands, block, instruction.finish, position(instance),
                            {schedule_.nranks, schedule_.partial_sums}));

  const auto store = [&](int rank, const BlockReference& to) -> Status {
    TRY(access(instance, number, rank, to, tile, /*is_write=*/true));
    Location& location = this->location(rank, to, tile);
    location.value = value;
    location.writer = position(instance);
    return {};
  };
  if (instruction.target && !is_put_here) {
    // The team's store writes it, be it the source itself.
    if (!is_put_to_team && !schedule::reduces(schedule_.collective) && instruction.source &&
        is_one_memory(instance.rank, *instruction.source, *instruction.target)) {
      location(instance.rank, *instruction.target, tile).is_kept = true;
    } else {
      TRY(store(instance.rank, *instruction.target));
    }
  }
  for (size_t i = 0; i < instruction.send_to.size(); ++i) {
    const int connection = instruction.send_to[i];
    if (uses_slots(accesses.sends[i])) {
      entry_of(instance.staged, connection) = {value, tile, nullptr};
    } else if (is_put(accesses.sends[i])) {
      const std::optional<Block>& taken = entry_of(instance.taken, connection);
      if (!taken) {
        return Status::invalid_usage("stores to a buffer of rank {} that it has not been told of",
                                     at(schedule_.connections, connection).receiver);
      }
      TRY(check_not_told(link(instance, connection), "writes", *taken));
      TRY(store(taken->rank, taken->block));
    }
  }
  return {};
}

/// Records one access, after proving that it comes after the start of the kernel of the rank whose
/// buffer it is, and after each earlier access that it conflicts with.
Status Execution::access(Instance& instance, int number, int rank, const BlockReference& block,
                         int tile, bool is_write) {
  const char* const verb = is_write ? "writes" : "reads";
  if (instance.clock[instances_.size() + static_cast<size_t>(rank)] == 0)
    return Status::invalid_usage("{} {} of rank {}, whose kernel may not run yet", verb,
                                 describe(block), rank);
  Location& place = location(rank, block, tile);
  for (const Access& other : place.accesses) {
    if (!is_write && !other.is_write) continue;
    if (other.instance == number ||
        instance.clock[static_cast<size_t>(other.instance)] >= other.moves) {
      continue;
    }
    const Instance& who = at(instances_, other.instance);
    return Status::invalid_usage(
        "{} {}{}, which {} {} with no order between them", verb, describe(block),
        rank == instance.rank ? "" : fmt::format(" of rank {}", rank),
        schedule::describe({who.rank, scenario_.channel, who.worker_number, other.instruction}),
        other.is_write ? "writes" : "reads");
  }
  for (Access& mine : place.accesses) {
    if (mine.instance != number || mine.is_write != is_write) continue;
    mine.moves = instance.moves;
    mine.instruction = instance.instruction;
    return {};
  }
  place.accesses.push_back({number, instance.moves, instance.instruction, is_write});
  return {};
}

}  // namespace niccolite::lowering
