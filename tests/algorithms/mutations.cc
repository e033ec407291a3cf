#include "tests/algorithms/mutations.h"

#include <algorithm>
#include <functional>

#include "schedule/builder.h"
#include "schedule/index.h"

namespace niccolite::algorithms {
namespace {

using namespace schedule;

using Expected = std::optional<std::vector<std::string>>;

/// An instruction, and the words by which a message must name it.
struct Found {
  Instruction* instruction;
  std::vector<Lane>* lanes;
  Position position;
  std::string name() const { return describe(position); }
  /// Takes the instruction out, and its lane if that was all it had.
  void erase() const {
    std::vector<Instruction>& list = at(*lanes, position.lane).instructions;
    list.erase(list.begin() + position.instruction);
    if (list.empty()) lanes->erase(lanes->begin() + position.lane);
  }
};

enum class Which : unsigned char { First, Last };

/// The first or the last instruction of `rank` that fits, in order of lanes.
std::optional<Found> find(Schedule& schedule, int rank, Which which,
                          const std::function<bool(const Instruction&)>& fits) {
  std::optional<Found> found;
  std::vector<Lane>& lanes = schedule.ranks[static_cast<size_t>(rank)][0].lanes;
  for (int lane = 0; lane < length(lanes); ++lane) {
    for (int i = 0; i < length(at(lanes, lane).instructions); ++i) {
      Instruction& instruction = at(at(lanes, lane).instructions, i);
      if (!fits(instruction) || (found && which == Which::First)) continue;
      found = Found{&instruction, &lanes, {rank, 0, lane, i}};
    }
  }
  return found;
}

bool only_sends(const Instruction& i) { return i.receive_from.empty() && !i.send_to.empty(); }
bool only_stores(const Instruction& i) { return i.target && i.send_to.empty(); }
bool finishes(const Instruction& i) { return i.finish; }

/// The last rank: a checker that looks at the first only does not see what is broken here.
int victim(const Schedule& schedule) { return schedule.nranks - 1; }

Expected target_of_another_block(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::Last, only_stores).value();
  found.instruction->target->block = (found.instruction->target->block + 1) % schedule.nblocks;
  found.instruction->chunk_of = -1;
  if (schedule.nblocks == 1) {
    found.instruction->target->block = 1;
    return {{found.name(), "names output block 1 of 1"}};
  }
  return {{found.name(), "but the chunk from rank", "is of block"}};
}

/// The sender takes another block than its receiver expects: consistent in itself, wrong at the
/// peer.
Expected source_of_another_block(Schedule& schedule) {
  if (schedule.nblocks == 1) return std::nullopt;
  const Found found = find(schedule, victim(schedule), Which::First, only_sends).value();
  const int right = found.instruction->source->block;
  const int wrong = (right + 1) % schedule.nblocks;
  found.instruction->source->block = wrong;
  const Connection& c = at(schedule.connections, found.instruction->send_to[0]);
  return {{fmt::format("rank {} channel 0 lane ", c.receiver),
           fmt::format("handles block {}, but the chunk from rank {} is of block {}", right,
                       c.sender, wrong)}};
}

Expected block_out_of_range(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::First, finishes).value();
  found.instruction->source->block = found.instruction->target->block = schedule.nblocks;
  return {{found.name(), fmt::format("handles the chunk of block {}", schedule.nblocks)}};
}

Expected receive_missing(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::Last, only_stores).value();
  const int connection = found.instruction->receive_from.back();
  found.instruction->receive_from.pop_back();
  const int left = length(found.instruction->receive_from);
  found.instruction->source_position = std::min(found.instruction->source_position, left);
  if (left == 0) {
    found.instruction->reduce = false;
    if (!found.instruction->source) found.erase();
  }
  const Connection& c = at(schedule.connections, connection);
  return {{fmt::format("rank {} channel 0 lane ", c.sender), " instruction ",
           fmt::format("sends a chunk to rank {} that is never taken", victim(schedule))}};
}

Expected send_missing(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::First, only_sends).value();
  const int connection = found.instruction->send_to.back();
  found.instruction->send_to.pop_back();
  if (found.instruction->send_to.empty()) found.erase();
  const Connection& c = at(schedule.connections, connection);
  return {{fmt::format("rank {} channel 0 lane ", c.receiver), " instruction ",
           fmt::format("waits for a chunk from rank {} that is never sent", victim(schedule))}};
}

/// Everybody receives before it sends.
Expected wait_in_a_circle(Schedule& schedule) {
  for (std::vector<Channel>& channels : schedule.ranks) {
    Lane all;
    for (const Lane& lane : channels[0].lanes)
      all.instructions.insert(all.instructions.begin(), lane.instructions.rbegin(),
                              lane.instructions.rend());
    channels[0].lanes = {all};
  }
  std::vector<std::string> expected{"deadlock with FIFOs of 2 slots", "and so round to the first"};
  // In a one-shot the first two ranks wait for each other; elsewhere all are in the circle. Long
  // ones are cut short.
  const int circle = schedule.algorithm == "one_shot" ? 2 : schedule.nranks;
  const int named = circle > 4 ? 1 : circle;
  for (int rank = 0; rank < named; ++rank)
    expected.push_back(
        fmt::format("rank {} channel 0 lane 0 instruction 0 waits for a chunk", rank));
  return expected;
}

/// The victim alone starts with its last instruction.
Expected last_instruction_first(Schedule& schedule) {
  std::vector<Lane>& lanes = schedule.ranks[static_cast<size_t>(victim(schedule))][0].lanes;
  Lane all;
  for (const Lane& lane : lanes)
    all.instructions.insert(all.instructions.end(), lane.instructions.begin(),
                            lane.instructions.end());
  std::rotate(all.instructions.begin(), all.instructions.end() - 1, all.instructions.end());
  lanes = {all};
  const std::string first = fmt::format("rank {} channel 0 lane 0 instruction ", victim(schedule));
  if (schedule.algorithm == "ring")  // it takes for the last chunk what arrives first
    return {{first, "but the chunk from rank"}};
  if (schedule.algorithm == "one_shot")  // out of place it makes no difference
    return {{first, "reads input block 0 after", "wrote over it (in place)"}};
  return {{"deadlock", first + "0 waits for a chunk from rank"}};
}

Expected operands_swapped(Schedule& schedule) {
  if (schedule.partial_sums) return std::nullopt;  // it claims no order
  const Found found = find(schedule, victim(schedule), Which::First, finishes).value();
  std::vector<int>& from = found.instruction->receive_from;
  if (from.size() > 1)
    std::swap(from[0], from[1]);
  else
    found.instruction->source_position = 0;
  return {{found.name(), "folds rank 1 before rank 0", "claims ascending rank order"}};
}

Expected source_in_the_wrong_place(Schedule& schedule) {
  if (schedule.partial_sums) return std::nullopt;
  const Found found = find(schedule, victim(schedule), Which::First, finishes).value();
  found.instruction->source_position = 0;
  return {{found.name(), fmt::format("folds rank {} before rank 0", victim(schedule))}};
}

Expected source_position_out_of_range(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::First, finishes).value();
  const int receives = length(found.instruction->receive_from);
  found.instruction->source_position = receives + 1;
  return {{found.name(),
           fmt::format("has source position {}, with {} receives", receives + 1, receives)}};
}

Expected order_claimed_but_rotated(Schedule& schedule) {
  if (!schedule.partial_sums) return std::nullopt;
  schedule.partial_sums = false;
  if (schedule.nranks == 2) return {{"folds rank 1 before rank 0"}};
  return {{"though the schedule claims"}};
}

Expected finished_before_the_fold(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::First, only_sends).value();
  found.instruction->finish = true;
  return {{found.name(), fmt::format("finishes block {} with 1 of {} contributions",
                                     found.instruction->source->block, schedule.nranks)}};
}

Expected finished_twice(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::Last, only_stores).value();
  if (found.instruction->finish) return std::nullopt;  // one fold, nothing behind it
  found.instruction->finish = true;
  return {{found.name(),
           fmt::format("finishes block {} a second time", found.instruction->target->block)}};
}

Expected never_finished(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::First, finishes).value();
  found.instruction->finish = false;
  return {{fmt::format("leaves output block {} unfinished", found.instruction->target->block),
           "(last folded by " + found.name()}};
}

Expected result_not_stored(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::First, finishes).value();
  const int block = found.instruction->target->block;
  found.instruction->target.reset();
  if (found.instruction->send_to.empty()) return {{found.name(), "has no destination"}};
  return {{fmt::format("rank {} channel 0: no instruction of any lane writes output block {}",
                       victim(schedule), block)}};
}

/// A second lane that writes what another lane writes.
Expected lanes_race(Schedule& schedule) {
  const int rank = victim(schedule);
  const Found found = find(schedule, rank, Which::Last, only_stores).value();
  const int block = found.instruction->target->block;
  std::vector<Lane>& lanes = schedule.ranks[static_cast<size_t>(rank)][0].lanes;
  lanes.push_back(
      {.weight = 1, .instructions = {{.source = input(block), .target = output(block)}}});
  return {{fmt::format("rank {} channel 0 lane ", rank), " instruction ",
           fmt::format("writes output block {}, which rank {} channel 0 lane ", block, rank),
           "with no order between them"}};
}

/// Another connection brings a contribution that the fold already has.
Expected contribution_counted_twice(Schedule& schedule) {
  const int rank = victim(schedule);
  const Found found = find(schedule, rank, Which::First, finishes).value();
  const int block = found.instruction->target->block;
  const int extra = length(schedule.connections);
  schedule.connections.push_back({0, rank, 0, /*tag=*/99});
  found.instruction->receive_from.push_back(extra);
  schedule.ranks[0][0].lanes.push_back(
      {.weight = 1, .instructions = {{.source = input(block), .send_to = {extra}}}});
  return {{found.name(), fmt::format("folds the contribution of rank 0 to block {} twice", block)}};
}

Expected contribution_left_out(Schedule& schedule) {
  const int rank = victim(schedule);
  const Found found = find(schedule, rank, Which::First, finishes).value();
  found.instruction->source.reset();
  found.instruction->source_position = 0;
  found.instruction->reduce = found.instruction->receive_from.size() > 1;
  return {{found.name(),
           fmt::format("{} of {} contributions (rank {} missing)", rank, schedule.nranks, rank)}};
}

Expected two_operands_copied(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::First, finishes).value();
  found.instruction->reduce = false;
  return {{found.name(),
           fmt::format("copies, but has {} operands", found.instruction->receive_from.size() + 1)}};
}

Expected input_overwritten(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::First, finishes).value();
  found.instruction->target->buffer = Buffer::Input;
  return {{found.name(), "writes to the input"}};
}

Expected output_read_as_operand(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::First, only_sends).value();
  found.instruction->source->buffer = Buffer::Output;
  return {{found.name(), fmt::format("reads output block {}, which nothing was written to",
                                     found.instruction->source->block)}};
}

Expected sent_to_a_stranger(Schedule& schedule) {
  const Found found = find(schedule, victim(schedule), Which::First, only_sends).value();
  const Found other = find(schedule, 0, Which::First, only_sends).value();
  found.instruction->send_to = {other.instruction->send_to[0]};
  return {{found.name(), "sends to connection", "which goes from rank 0 to rank"}};
}

}  // namespace

const std::vector<Mutation>& mutations() {
  static const std::vector<Mutation> list{
      {"TargetOfAnotherBlock", target_of_another_block, {}},
      {"SourceOfAnotherBlock", source_of_another_block, {"one_shot"}},
      {"BlockOutOfRange", block_out_of_range, {}},
      {"ReceiveMissing", receive_missing, {}},
      {"SendMissing", send_missing, {}},
      {"WaitInACircle", wait_in_a_circle, {}},
      {"LastInstructionFirst", last_instruction_first, {}},
      {"OperandsSwapped", operands_swapped, {"ring"}},
      {"SourceInTheWrongPlace", source_in_the_wrong_place, {"ring"}},
      {"SourcePositionOutOfRange", source_position_out_of_range, {}},
      {"OrderClaimedButRotated",
       order_claimed_but_rotated,
       {"one_shot", "two_shot", "two_shot_lane"}},
      {"FinishedBeforeTheFold", finished_before_the_fold, {}},
      {"FinishedTwice", finished_twice, {"one_shot"}},
      {"NeverFinished", never_finished, {}},
      {"ResultNotStored", result_not_stored, {}},
      {"LanesRace", lanes_race, {}},
      {"ContributionCountedTwice", contribution_counted_twice, {}},
      {"ContributionLeftOut", contribution_left_out, {}},
      {"TwoOperandsCopied", two_operands_copied, {}},
      {"InputOverwritten", input_overwritten, {}},
      {"OutputReadAsOperand", output_read_as_operand, {}},
      {"SentToAStranger", sent_to_a_stranger, {}},
  };
  return list;
}

}  // namespace niccolite::algorithms
