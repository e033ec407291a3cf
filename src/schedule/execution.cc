#include "schedule/execution.h"

#include <algorithm>

#include "schedule/index.h"
#include "schedule/results.h"

namespace niccolite::schedule {
namespace {

constexpr int kDrawnWaits = 6;  // a deadlock's message shows this many links of the cycle

void merge(std::vector<uint32_t>& clock, const std::vector<uint32_t>& other) {
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

}  // namespace

Execution::Execution(const Schedule& schedule, const std::vector<Ends>& ends, int channel,
                     Placement place, int depth)
    : schedule_(schedule), place_(place), channel_(channel), depth_(depth) {
  for (int rank = 0; rank < schedule.nranks; ++rank) {
    first_worker_.push_back(length(workers_));
    const std::vector<Worker>& workers = at(at(schedule.ranks, rank), channel).workers;
    may_race_ |= workers.size() > 1;
    for (int worker = 0; worker < length(workers); ++worker) {
      WorkerState state{
          .worker = &at(workers, worker), .next = {rank, channel, worker, 0}, .clock = {}};
      workers_.push_back(std::move(state));
    }
    Memory memory;
    for (int block = 0; block < input_blocks(schedule, rank); ++block)
      memory.input.push_back(
          {.value = std::make_shared<Value>(Value{.block = block, .ranks = {rank}}),
           .writer = {},
           .keeper = {},
           .accesses = {}});
    memory.output.resize(static_cast<size_t>(output_blocks(schedule, rank)));
    memory.scratch.resize(static_cast<size_t>(schedule.scratch_blocks));
    memory_.push_back(std::move(memory));
  }
  if (may_race_)
    for (WorkerState& state : workers_) state.clock.resize(workers_.size());
  fifos_.resize(schedule.connections.size());
  for (int i = 0; i < length(fifos_); ++i) {
    const Connection& c = at(schedule.connections, i);
    at(fifos_, i).sender = flat_worker(c.sender, at(ends, i).sending_worker);
    at(fifos_, i).receiver = flat_worker(c.receiver, at(ends, i).receiving_worker);
  }
  for (ReducerGroup& group : reducer_groups(schedule)) {
    if (group.channel != channel) continue;
    for (const ReducerGroup::Member& member : group.members)
      at(fifos_, member.sends).group = length(groups_);
    groups_.push_back({.of = std::move(group)});
  }
}

int Execution::flat_worker(int rank, int worker) const { return at(first_worker_, rank) + worker; }

bool Execution::is_done(const WorkerState& state) const {
  return state.next.instruction == length(state.worker->instructions);
}

/// Has the next instruction all it waits for? Otherwise notes the first thing that it lacks.
bool Execution::can_run(WorkerState& state) const {
  const Instruction& instruction = at(state.worker->instructions, state.next.instruction);
  for (const int connection : instruction.receive_from) {
    if (!at(fifos_, connection).slots.empty()) continue;
    state.waits_for = connection;
    state.waits_for_credit = false;
    return false;
  }
  for (const int connection : instruction.send_to) {
    const Fifo& fifo = at(fifos_, connection);
    if (length(fifo.group < 0 ? fifo.slots : fifo.handed_in) < depth_) continue;
    state.waits_for = connection;
    state.waits_for_credit = true;
    return false;
  }
  state.waits_for = -1;
  return true;
}

Status Execution::run() {
  for (int flat = length(workers_) - 1; flat >= 0; --flat) runnable_.push_back(flat);
  Status status;
  while (!runnable_.empty() && status.is_ok()) {
    const int flat = runnable_.back();
    runnable_.pop_back();
    run_worker(flat, status);
  }
  if (!status.is_ok()) return status;
  const bool all_done = std::all_of(workers_.begin(), workers_.end(),
                                    [&](const WorkerState& state) { return is_done(state); });
  return all_done ? Status::ok() : report_deadlock();
}

void Execution::run_worker(int flat, Status& status) {
  WorkerState& state = at(workers_, flat);
  while (!is_done(state) && can_run(state)) {
    status = step(state, flat);
    if (!status.is_ok()) {
      status = Status::invalid_usage("{} {}{}", describe(state.next), status.message(),
                                     place_ == Placement::InPlace ? " (in place)" : "");
      return;
    }
    // Whoever waited for a chunk sent or a slot freed here tries again. The others still lack
    // something else.
    const Instruction& instruction = at(state.worker->instructions, state.next.instruction);
    for (const int connection : instruction.send_to)
      if (const int receiver = at(fifos_, connection).receiver;
          at(workers_, receiver).waits_for == connection)
        runnable_.push_back(receiver);
    for (const int connection : instruction.receive_from)
      if (const int sender = at(fifos_, connection).sender;
          at(workers_, sender).waits_for == connection)
        runnable_.push_back(sender);
    for (const std::vector<int>* used : {&instruction.send_to, &instruction.receive_from})
      for (const int connection : *used)
        if (const int group = at(fifos_, connection).group; group >= 0)
          wake_members(at(groups_, group));
    ++state.next.instruction;
  }
}

/// Runs one instruction that has all it waits for.
Status Execution::step(WorkerState& state, int flat) {
  const Instruction& instruction = at(state.worker->instructions, state.next.instruction);
  std::vector<Chunk> received;
  for (const int connection : instruction.receive_from) {
    received.push_back(std::move(at(fifos_, connection).slots.front()));
    at(fifos_, connection).slots.pop_front();
    if (may_race_) merge(state.clock, *received.back().clock);
  }
  if (may_race_) at(state.clock, flat) = static_cast<uint32_t>(state.next.instruction) + 1;

  std::vector<Operand> operands;
  for (int i = 0; i < length(received); ++i)
    operands.push_back(
        {at(received, i).value,
         fmt::format("the chunk from rank {}",
                     at(schedule_.connections, at(instruction.receive_from, i)).sender)});
  if (instruction.source) {
    const BlockReference& source = *instruction.source;
    TRY(access(state, flat, source, /*is_write=*/false));
    const Location& from = location(state.next.rank, source);
    std::string name = fmt::format("{} block {}", name_of(source.buffer), source.block);
    if (from.value == nullptr)
      return Status::invalid_usage("reads {}, which nothing was written to", name);
    // The executors scale values that they read from the input, so a result read under this name
    // would be scaled again.
    if (source.buffer == Buffer::Input && from.writer)
      return Status::invalid_usage("reads {} after {} wrote over it", name, describe(*from.writer));
    operands.insert(operands.begin() + instruction.source_position,
                    Operand{from.value, std::move(name)});
  }
  const std::optional<int> block = cuts_one_buffer(schedule_.collective)
                                       ? std::optional(chunk_block(instruction))
                                       : std::nullopt;
  const SharedValue value = TRY(combine(operands, block, instruction.finish, state.next,
                                        {schedule_.nranks, schedule_.partial_sums}));

  if (instruction.target && is_copy_onto_itself(state.next.rank, instruction)) {
    location(state.next.rank, *instruction.target).keeper = state.next;
  } else if (instruction.target) {
    TRY(access(state, flat, *instruction.target, /*is_write=*/true));
    Location& to = location(state.next.rank, *instruction.target);
    to.value = value;
    to.writer = state.next;
  }
  if (!instruction.send_to.empty()) {
    const auto clock = may_race_ ? std::make_shared<const Clock>(state.clock) : nullptr;
    for (const int connection : instruction.send_to) {
      Fifo& fifo = at(fifos_, connection);
      (fifo.group < 0 ? fifo.slots : fifo.handed_in).push_back({value, clock});
    }
  }
  for (const std::vector<int>* used : {&instruction.send_to, &instruction.receive_from})
    for (const int connection : *used)
      if (const int group = at(fifos_, connection).group; group >= 0)
        TRY(carry(at(groups_, group), state.next));
  return Status::ok();
}

/// The network's reducer does all that it can. Whoever receives a result comes after all that
/// handed in a chunk for it.
Status Execution::carry(Group& group, const Position& position) {
  const ReducerGroup& of = group.of;
  using Member = ReducerGroup::Member;
  if (!schedule_.partial_sums && of.through() != Through::Gathering)
    return Status::invalid_usage(
        "has the network reduce, in an order of its own, though the schedule claims ascending rank "
        "order and that no partial sums exist");
  const auto carry_one = [&](int number) -> Status {
    std::vector<Operand> operands;
    Clock clock(may_race_ ? workers_.size() : 0);
    for (const Member& member : of.members) {
      const Chunk& chunk = at(fifos_, member.sends).handed_in.front();
      operands.push_back({chunk.value, fmt::format("the chunk of rank {}", member.rank)});
      if (may_race_) merge(clock, *chunk.clock);
    }
    if (of.through() == Through::Gathering) operands = {at(operands, of.source(number))};
    Result<SharedValue> value = combine(operands, std::nullopt, /*finish=*/false, position,
                                        {schedule_.nranks, schedule_.partial_sums});
    if (!value.is_ok())
      return Status::invalid_usage("completes a reduction of the network that {}",
                                   value.status().message());
    const auto shared = may_race_ ? std::make_shared<const Clock>(std::move(clock)) : nullptr;
    for (int member = 0; member < of.count(); ++member) {
      if (of.receives(number, member))
        at(fifos_, at(of.members, member).receives).slots.push_back({*value, shared});
      if (of.uses_up(number)) at(fifos_, at(of.members, member).sends).handed_in.pop_front();
    }
    return {};
  };
  return carry_all(
      of, group.carried,
      [&](const Member& member) { return !at(fifos_, member.sends).handed_in.empty(); },
      [&](const Member& member) { return length(at(fifos_, member.receives).slots) < depth_; },
      carry_one);
}

void Execution::wake_members(const Group& group) {
  for (const ReducerGroup::Member& member : group.of.members)
    for (const int flat : {at(fifos_, member.sends).sender, at(fifos_, member.receives).receiver})
      if (at(workers_, flat).waits_for >= 0) runnable_.push_back(flat);
}

Execution::Location& Execution::location(int rank, const BlockReference& reference) {
  Memory& memory = at(memory_, rank);
  if (reference.buffer == Buffer::Input) return at(memory.input, reference.block);
  if (reference.buffer == Buffer::Scratch) return at(memory.scratch, reference.block);
  if (place_ == Placement::InPlace)
    if (const auto input = input_in_place(schedule_, rank, reference.block))
      return at(memory.input, *input);
  return at(memory.output, reference.block);
}

/// The executors then leave the block alone.
bool Execution::is_copy_onto_itself(int rank, const Instruction& instruction) {
  return !reduces(schedule_.collective) && instruction.source &&
         &location(rank, *instruction.source) == &location(rank, *instruction.target);
}

/// Records one access, after proving that it comes after each earlier conflicting access. (The
/// clock of a worker has the worker's own accesses.) It cannot come before one: the execution
/// itself follows the order.
Status Execution::access(const WorkerState& state, int flat, const BlockReference& reference,
                         bool is_write) {
  if (!may_race_) return Status::ok();
  Location& place = location(state.next.rank, reference);
  for (const Access& other : place.accesses) {
    if (!is_write && !other.is_write) continue;
    if (at(state.clock, other.worker) > static_cast<uint32_t>(other.instruction)) continue;
    Position position = at(workers_, other.worker).next;
    position.instruction = other.instruction;
    return Status::invalid_usage("{} {} block {}, which {} {} with no order between them",
                                 is_write ? "writes" : "reads", name_of(reference.buffer),
                                 reference.block, describe(position),
                                 other.is_write ? "writes" : "reads");
  }
  for (Access& mine : place.accesses) {
    if (mine.worker != flat || mine.is_write != is_write) continue;
    // Enough to keep: whoever comes after this access comes after the worker's earlier ones.
    mine.instruction = state.next.instruction;
    return Status::ok();
  }
  place.accesses.push_back({flat, state.next.instruction, is_write});
  return Status::ok();
}

/// The worker that keeps the network's reducer from its next carry.
int Execution::obstacle_to(const Group& group) const {
  for (const ReducerGroup::Member& member : group.of.members)
    if (const Fifo& fifo = at(fifos_, member.sends); fifo.handed_in.empty()) return fifo.sender;
  const auto is_full = [&](const ReducerGroup::Member& member) {
    return length(at(fifos_, member.receives).slots) == depth_;
  };
  return at(fifos_, std::ranges::find_if(group.of.members, is_full)->receives).receiver;
}

/// Follows the waits from a blocked worker until they close. Each leads to a worker that is blocked
/// too: counts are balanced, so a worker that is done has sent all its chunks and freed all its
/// slots.
Status Execution::report_deadlock() const {
  int flat = 0;
  while (is_done(at(workers_, flat))) ++flat;
  std::vector<int> path;
  while (std::find(path.begin(), path.end(), flat) == path.end()) {
    path.push_back(flat);
    const WorkerState& state = at(workers_, flat);
    const Fifo& fifo = at(fifos_, state.waits_for);
    flat = fifo.group >= 0          ? obstacle_to(at(groups_, fifo.group))
           : state.waits_for_credit ? fifo.receiver
                                    : fifo.sender;
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), flat));
  std::string waits;
  for (int i = 0; i < std::min(length(path), kDrawnWaits); ++i) {
    const WorkerState& state = at(workers_, at(path, i));
    const Connection& c = at(schedule_.connections, state.waits_for);
    waits += fmt::format("{} waits for {} rank {}; ", describe(state.next),
                         state.waits_for_credit ? "credit from" : "a chunk from",
                         state.waits_for_credit ? c.receiver : c.sender);
  }
  if (length(path) > kDrawnWaits) waits += fmt::format("... {} more; ", length(path) - kDrawnWaits);
  return Status::invalid_usage("deadlock with FIFOs of {} slot{}: {}and so round to the first",
                               depth_, depth_ == 1 ? "" : "s", waits);
}

Status Execution::check_result() {
  for (int rank = 0; rank < schedule_.nranks; ++rank)
    for (int block = 0; block < length(at(memory_, rank).output); ++block)
      TRY(check_block(rank, block));
  return Status::ok();
}

Status Execution::check_block(int rank, int block) {
  const Location& place = location(rank, {Buffer::Output, block});
  const std::optional<Position>& writer = place.writer ? place.writer : place.keeper;
  if (!writer) {
    // A message moves in one channel; that it does in some one, the form has proved.
    if (schedule_.collective == Collective::PointToPoint) return Status::ok();
    return Status::invalid_usage(
        "rank {} channel {}: no instruction of any worker writes output block {}", rank, channel_,
        block);
  }
  const Value& value = *place.value;
  const Wanted wanted = wanted_result(schedule_, rank, block);
  const bool is_sum = wanted.from < 0;
  if (value.block != wanted.block || (!is_sum && value.ranks[0] != wanted.from))
    return Status::invalid_usage(
        "{} leaves output block {} with input block {} of {}, not input block {} of {}",
        describe(*writer), block, value.block,
        is_sum ? "the ranks" : fmt::format("rank {}", value.ranks[0]), wanted.block,
        is_sum ? "all ranks" : fmt::format("rank {}", wanted.from));
  if (!is_sum) return Status::ok();
  const std::string missing = missing_ranks(value, schedule_.nranks);
  if (missing.empty() && value.finished) return Status::ok();
  // The writer may only pass on what another instruction got wrong.
  const std::string origin = value.folder
                                 ? fmt::format("last reduced by {}", describe(*value.folder))
                                 : "an input that nothing was reduced with";
  return Status::invalid_usage(
      "{} leaves output block {} {} ({})", describe(*writer), block,
      missing.empty() ? "unfinished" : "without the contribution of " + missing, origin);
}

}  // namespace niccolite::schedule
