#include <algorithm>

#include "schedule/index.h"
#include "tests/algorithms/find_instruction.h"
#include "tests/algorithms/mutations.h"

namespace niccolite::algorithms {
namespace {

using namespace schedule;

using Outcome = std::optional<Expected>;

bool always(const Schedule&) { return true; }
bool has_a_root(const Schedule& s) { return has_root(s.collective); }
bool is_cut(const Schedule& s) { return cuts_one_buffer(s.collective); }
bool is_not_cut(const Schedule& s) { return !cuts_one_buffer(s.collective); }

Outcome target_of_another_block(Schedule& schedule) {
  const Found found = find(schedule, Which::Last, only_stores).value();
  const int blocks = output_blocks(schedule, found.rank());
  const int right = found.instruction->target->block;
  const int wrong = blocks == 1 ? 1 : (right + 1) % blocks;
  const bool has_source = found.instruction->source.has_value();
  found.instruction->target->block = wrong;
  if (blocks > 1 && is_not_cut(schedule))  // one block too few, or written twice
    return {{fmt::format("rank {} channel 0", found.rank()), "output block"}};
  if (blocks > 1 && has_source)
    return {
        {found.name(), fmt::format("handles block {}, but names output block {}", right, wrong)}};
  if (blocks > 1) return {{found.name(), "but the chunk from rank", "is of block"}};
  if (is_cut(schedule) && !has_source)
    return {{found.name(), "handles the chunk of block 1; there are 1 blocks"}};
  return {{found.name(), "names output block 1 of 1"}};
}

/// The sender takes another block than its receiver expects: right by itself, wrong at the peer.
bool sends_many_blocks_unseen(const Schedule& s) {
  return s.nblocks > 1 && s.collective != Collective::AllGather &&
         s.collective != Collective::Gather && s.collective != Collective::Broadcast;
}
Outcome source_of_another_block(Schedule& schedule) {
  const Found found = find(schedule, Which::First, only_sends).value();
  const int right = found.instruction->source->block;
  const int wrong = (right + 1) % schedule.nblocks;
  found.instruction->source->block = wrong;
  const Connection& c = at(schedule.connections, found.instruction->send_to[0]);
  // The network reduces when the last rank hands its chunk in, whoever that is.
  const std::string receiver = through_of(c.tag) != Through::Nothing
                                   ? "rank "
                                   : fmt::format("rank {} channel 0 worker ", c.receiver);
  if (is_cut(schedule))
    return {{receiver, fmt::format("handles block {}, but the chunk from rank {} is of block {}",
                                   right, c.sender, wrong)}};
  if (reduces(schedule.collective))
    return {{receiver, "reduces ", fmt::format("of block {}", wrong),
             fmt::format("of block {}", right)}};
  // Whoever passes it on, it is the block of that rank.
  return {{fmt::format("rank {} channel 0 worker ", right),
           fmt::format("with input block {} of rank {}, not input block {} of rank {}", wrong,
                       c.sender, right, c.sender)}};
}

Outcome block_out_of_range(Schedule& schedule) {
  const Found found = find(schedule, Which::First, only_sends).value();
  found.instruction->source->block = schedule.nblocks;
  return {{found.name(), fmt::format("handles the chunk of block {}", schedule.nblocks)}};
}

Outcome number_of_blocks(Schedule& schedule) {
  ++schedule.nblocks;
  return {{fmt::format("has {} blocks for {} ranks", schedule.nblocks, schedule.nranks)}};
}

Outcome receive_missing(Schedule& schedule) {
  const Found found = find(schedule, Which::Last, [](const Instruction& i) {
                        return only_stores(i) && receives(i);
                      }).value();
  const int connection = found.instruction->receive_from.back();
  found.instruction->receive_from.pop_back();
  const int left = length(found.instruction->receive_from);
  found.instruction->source_position = std::min(found.instruction->source_position, left);
  if (left == 0) {
    found.instruction->reduce = false;
    if (!found.instruction->source) found.erase();
  }
  const Connection& c = at(schedule.connections, connection);
  return {{fmt::format("rank {} channel 0 worker ", c.sender), " instruction ",
           fmt::format("sends a chunk to rank {} that is never taken", found.rank())}};
}

Outcome send_missing(Schedule& schedule) {
  const Found found = find(schedule, Which::First, only_sends).value();
  const int connection = found.instruction->send_to.back();
  found.instruction->send_to.pop_back();
  if (found.instruction->send_to.empty() && !found.instruction->target) found.erase();
  const Connection& c = at(schedule.connections, connection);
  return {{fmt::format("rank {} channel 0 worker ", c.receiver), " instruction ",
           fmt::format("waits for a chunk from rank {} that is never sent", found.rank())}};
}

void join_workers(std::vector<Worker>& workers) {
  Worker all;
  for (const Worker& worker : workers)
    all.instructions.insert(all.instructions.end(), worker.instructions.begin(),
                            worker.instructions.end());
  workers = {all};
}

/// Everybody receives before it sends. (Where sums stand in the output, they are missed first.)
bool has_circles(const Schedule& s) {
  return !has_root(s.collective) && s.algorithm != "recursive_doubling";
}
Outcome wait_in_a_circle(Schedule& schedule) {
  for (std::vector<Channel>& channels : schedule.ranks) {
    join_workers(channels[0].workers);
    std::vector<Instruction>& list = channels[0].workers[0].instructions;
    std::reverse(list.begin(), list.end());
  }
  return {{"deadlock with FIFOs of 2 slots", "and so round to the first",
           " channel 0 worker 0 instruction ", " waits for a chunk"}};
}

/// The last rank alone starts with its last instruction.
/// The workers of a tree may be run in any order.
bool is_all_reduce(const Schedule& s) {
  return s.collective == Collective::AllReduce && s.algorithm != "tree";
}
Outcome last_instruction_first(Schedule& schedule) {
  const int rank = schedule.nranks - 1;
  std::vector<Worker>& workers = at(schedule.ranks, rank)[0].workers;
  join_workers(workers);
  std::vector<Instruction>& list = workers[0].instructions;
  std::rotate(list.begin(), list.end() - 1, list.end());
  const std::string first = fmt::format("rank {} channel 0 worker 0 instruction ", rank);
  if (schedule.algorithm == "ring")  // it takes for the last chunk what arrives first
    return {{first, "but the chunk from rank"}};
  if (schedule.algorithm == "recursive_doubling") return {{first}};
  if (schedule.algorithm == "one_shot")  // out of place it makes no difference
    return {{first, "reads input block 0 after", "wrote over it (in place)"}};
  return {{"deadlock", first + "0 waits for a chunk from rank"}};
}

Outcome result_not_stored(Schedule& schedule) {
  const Found found = find(schedule, Which::First, stores).value();
  const int block = found.instruction->target->block;
  if (!found.instruction->source && found.instruction->chunk_of < 0)
    found.instruction->chunk_of = block;
  found.instruction->target.reset();
  if (found.instruction->send_to.empty()) return {{found.name(), "has no destination"}};
  return {{fmt::format("rank {} channel 0: no instruction of any worker writes output block {}",
                       found.rank(), block)}};
}

/// A second worker that writes what another worker writes, at a rank that has something to read.
Outcome workers_race(Schedule& schedule) {
  const auto has_input = [&](int rank) { return input_blocks(schedule, rank) > 0; };
  const Found found = find(schedule, Which::Last, stores, has_input).value();
  const BlockReference to = *found.instruction->target;
  const int from = is_cut(schedule) ? to.block : 0;
  found.workers->push_back(
      {.weight = 1, .instructions = {{.source = {{Buffer::Input, from}}, .target = to}}});
  return {{fmt::format("rank {} channel 0 worker ", found.rank()), " instruction ",
           fmt::format("writes output block {}, which rank {} channel 0 worker ", to.block,
                       found.rank()),
           "with no order between them"}};
}

Outcome input_overwritten(Schedule& schedule) {
  const auto has_input = [&](int rank) { return input_blocks(schedule, rank) > 0; };
  const Found found = find(schedule, Which::First, stores, has_input).value();
  found.instruction->target = {Buffer::Input,
                               is_cut(schedule) ? found.instruction->target->block : 0};
  return {{found.name(), "writes to the input"}};
}

Outcome output_read_as_operand(Schedule& schedule) {
  const Found found = find(schedule, Which::First, only_sends).value();
  BlockReference& source = *found.instruction->source;
  source.buffer = Buffer::Output;
  const int blocks = output_blocks(schedule, found.rank());
  if (blocks == 0)
    return {{found.name(), fmt::format("names output block {}, but only the root, rank {}, has an "
                                       "output",
                                       source.block, schedule.root)}};
  source.block = std::min(source.block, blocks - 1);
  return {{found.name(),
           fmt::format("reads output block {}, which nothing was written to", source.block)}};
}

bool has_several_senders(const Schedule& s) {
  return std::any_of(s.connections.begin(), s.connections.end(),
                     [&](const Connection& c) { return c.sender != s.connections[0].sender; });
}
Outcome sent_to_a_stranger(Schedule& schedule) {
  const Found found = find(schedule, Which::First, only_sends).value();
  for (int i = 0; i < length(schedule.connections); ++i) {
    const int sender = at(schedule.connections, i).sender;
    if (sender == found.rank()) continue;
    found.instruction->send_to = {i};
    return {{found.name(),
             fmt::format("sends to connection {}, which goes from rank {} to rank", i, sender)}};
  }
  return std::nullopt;
}

/// The roles are as they were, but the result is wanted elsewhere.
Outcome another_root(Schedule& schedule) {
  schedule.root = (schedule.root + 1) % schedule.nranks;
  return {{" instruction ", fmt::format("but only the root, rank {}, has an ", schedule.root)}};
}

Outcome root_out_of_range(Schedule& schedule) {
  schedule.root = schedule.nranks;
  return {{fmt::format("the root is rank {} of {}", schedule.nranks, schedule.nranks)}};
}

/// A rank that is not the root touches what the root alone has.
Outcome root_buffer_used_elsewhere(Schedule& schedule) {
  const int rank = schedule.root == schedule.nranks - 1 ? 0 : schedule.nranks - 1;
  std::vector<Worker>& workers = at(schedule.ranks, rank)[0].workers;
  workers.push_back(
      {.weight = 1,
       .instructions = {{.source = {{Buffer::Input, 0}}, .target = {{Buffer::Output, 0}}}}});
  const bool has_input = input_blocks(schedule, rank) > 0;
  return {
      {describe({rank, 0, length(workers) - 1, 0}),
       fmt::format("names {} block 0, but only the root, rank {}, has an {}",
                   has_input ? "output" : "input", schedule.root, has_input ? "output" : "input")}};
}

}  // namespace

std::span<const Mutation> mutations_of_moves() {
  static constexpr Mutation kMutations[] = {
      {"TargetOfAnotherBlock", always, target_of_another_block},
      {"SourceOfAnotherBlock", sends_many_blocks_unseen, source_of_another_block},
      {"BlockOutOfRange", always, block_out_of_range},
      {"NumberOfBlocks", is_not_cut, number_of_blocks},
      {"ReceiveMissing", always, receive_missing},
      {"SendMissing", always, send_missing},
      {"WaitInACircle", has_circles, wait_in_a_circle},
      {"LastInstructionFirst", is_all_reduce, last_instruction_first},
      {"ResultNotStored", always, result_not_stored},
      {"WorkersRace", always, workers_race},
      {"InputOverwritten", always, input_overwritten},
      {"OutputReadAsOperand", always, output_read_as_operand},
      {"SentToAStranger", has_several_senders, sent_to_a_stranger},
      {"AnotherRoot", has_a_root, another_root},
      {"RootOutOfRange", has_a_root, root_out_of_range},
      {"RootBufferUsedElsewhere", has_a_root, root_buffer_used_elsewhere},
  };
  return kMutations;
}

}  // namespace niccolite::algorithms
