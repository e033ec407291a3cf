#include "schedule/check_form.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "schedule/check_messages.h"
#include "schedule/index.h"
#include "schedule/reducers.h"

namespace niccolite::schedule {
namespace {

Status check_head(const Schedule& schedule) {
  if (schedule.nranks < 1)
    return Status::invalid_usage("the schedule has {} ranks", schedule.nranks);
  if (length(schedule.ranks) != schedule.nranks)
    return Status::invalid_usage("the schedule is for {} ranks and describes {}", schedule.nranks,
                                 schedule.ranks.size());
  if (schedule.nblocks < 1)
    return Status::invalid_usage("the schedule has {} blocks", schedule.nblocks);
  if (!cuts_one_buffer(schedule.collective) && schedule.nblocks != schedule.nranks)
    return Status::invalid_usage("the schedule for {} has {} blocks for {} ranks",
                                 name_of(schedule.collective), schedule.nblocks, schedule.nranks);
  if (has_root(schedule.collective) && !is_within(schedule.root, schedule.nranks))
    return Status::invalid_usage("the root is rank {} of {}", schedule.root, schedule.nranks);
  if (schedule.scratch_blocks < 0)
    return Status::invalid_usage("the schedule has {} scratch blocks", schedule.scratch_blocks);
  const size_t nchannels = schedule.ranks[0].size();
  if (nchannels == 0) return Status::invalid_usage("rank 0 has no channel");
  for (int rank = 0; rank < schedule.nranks; ++rank)
    if (at(schedule.ranks, rank).size() != nchannels)
      return Status::invalid_usage("rank {} has {} channels, rank 0 has {}", rank,
                                   at(schedule.ranks, rank).size(), nchannels);
  return Status::ok();
}

Status check_connections(const Schedule& schedule) {
  const int nchannels = length(schedule.ranks[0]);
  std::set<std::tuple<int, int, int, int>> known;
  for (int i = 0; i < length(schedule.connections); ++i) {
    const Connection& c = at(schedule.connections, i);
    if (!is_within(c.sender, schedule.nranks) || !is_within(c.receiver, schedule.nranks) ||
        !is_within(c.channel, nchannels))
      return Status::invalid_usage(
          "connection {} goes from rank {} to rank {} on channel {}; there are {} ranks and {} "
          "channels",
          i, c.sender, c.receiver, c.channel, schedule.nranks, nchannels);
    if (c.sender == c.receiver)
      return Status::invalid_usage("connection {} goes from rank {} to itself", i, c.sender);
    if (!known.insert({c.sender, c.receiver, c.channel, c.tag}).second)
      return Status::invalid_usage(
          "connection {} from rank {} to rank {} on channel {} with tag {} exists twice", i,
          c.sender, c.receiver, c.channel, c.tag);
  }
  return Status::ok();
}

/// How many blocks one rank has of each buffer; counted once, as messages take long to count.
struct Extent {
  int input;
  int output;
};

int blocks_of(const Schedule& schedule, const Extent& extent, Buffer buffer) {
  switch (buffer) {
    case Buffer::Input:
      return extent.input;
    case Buffer::Output:
      return extent.output;
    case Buffer::Scratch:
      return schedule.scratch_blocks;
  }
  return 0;
}

/// A block that an instruction names: the rank has it, and where blocks differ in size it is the
/// one whose chunk the instruction handles.
Status check_block(const Schedule& schedule, const Extent& extent, const BlockReference& reference,
                   int chunk) {
  const int blocks = blocks_of(schedule, extent, reference.buffer);
  if (blocks == 0 && reference.buffer != Buffer::Scratch && has_root(schedule.collective))
    return Status::invalid_usage("names {} block {}, but only the root, rank {}, has an {}",
                                 name_of(reference.buffer), reference.block, schedule.root,
                                 name_of(reference.buffer));
  if (!is_within(reference.block, blocks))
    return Status::invalid_usage("names {} block {} of {}", name_of(reference.buffer),
                                 reference.block, blocks);
  if (cuts_one_buffer(schedule.collective) && reference.buffer != Buffer::Scratch &&
      reference.block != chunk)
    return Status::invalid_usage("handles block {}, but names {} block {}", chunk,
                                 name_of(reference.buffer), reference.block);
  return Status::ok();
}

/// Checks the number of operands, and their use.
Status check_operands(const Schedule& schedule, const Instruction& instruction) {
  const int receives = length(instruction.receive_from);
  const int operands = receives + (instruction.source ? 1 : 0);
  if (operands == 0) return Status::invalid_usage("has no operand");
  if (!instruction.target && instruction.send_to.empty())
    return Status::invalid_usage("has no destination");
  if (!instruction.reduce && operands != 1)
    return Status::invalid_usage("copies, but has {} operands", operands);
  if (instruction.reduce && operands == 1)
    return Status::invalid_usage("reduces, but has only one operand");
  if (!reduces(schedule.collective) && (instruction.reduce || instruction.finish))
    return Status::invalid_usage("{}, but {} only moves data",
                                 instruction.reduce ? "reduces" : "finishes",
                                 name_of(schedule.collective));
  const int positions = instruction.source ? receives + 1 : 1;
  if (!is_within(instruction.source_position, positions))
    return Status::invalid_usage("has source position {}, with {}{} receives",
                                 instruction.source_position,
                                 instruction.source ? "" : "no source and ", receives);
  return Status::ok();
}

/// Checks one instruction by itself.
Status check_instruction(const Schedule& schedule, const Extent& extent,
                         const Instruction& instruction) {
  TRY(check_operands(schedule, instruction));
  const int chunk = chunk_block(instruction);
  if (!is_within(chunk, schedule.nblocks))
    return Status::invalid_usage("handles the chunk of block {}; there are {} blocks", chunk,
                                 schedule.nblocks);
  if (instruction.source) TRY(check_block(schedule, extent, *instruction.source, chunk));
  if (!instruction.target) return Status::ok();
  TRY(check_block(schedule, extent, *instruction.target, chunk));
  if (instruction.target->buffer == Buffer::Input)
    return Status::invalid_usage("writes to the input");
  return Status::ok();
}

/// Finds the ends of all connections, and counts their sends and receives.
class EndFinder {
 public:
  explicit EndFinder(const Schedule& schedule)
      : schedule_(schedule),
        ends_(schedule.connections.size()),
        sends_(schedule.connections.size()),
        receives_(schedule.connections.size()),
        groups_(reducer_groups(schedule)),
        group_of_(groups_by_connection(groups_, schedule.connections.size())) {}

  Status visit(const Position& position, const Instruction& instruction) {
    for (int i = 0; i < length(instruction.receive_from); ++i)
      TRY(visit_end(position, instruction.receive_from, i, /*is_send=*/false));
    for (int i = 0; i < length(instruction.send_to); ++i)
      TRY(visit_end(position, instruction.send_to, i, /*is_send=*/true));
    return Status::ok();
  }

  /// Checks, after all instructions, that as many chunks enter each connection as leave it.
  Status check_balance() const {
    for (int i = 0; i < length(ends_); ++i) {
      const Connection& c = at(schedule_.connections, i);
      // The reducer takes a chunk for several, or gives several for one.
      int chunks_of_send = 1, chunks_of_receive = 1;
      if (const int group = at(group_of_, i); group >= 0) {
        TRY(check_handed_in(at(groups_, group)));
        const int members = at(groups_, group).count();
        if (at(groups_, group).through() == Through::Gathering) chunks_of_send = members;
        if (at(groups_, group).through() == Through::Scattering) chunks_of_receive = members;
      }
      const int sent = at(sends_, i) * chunks_of_send;
      const int received = at(receives_, i) * chunks_of_receive;
      if (sent == 0 && received == 0)
        return Status::invalid_usage(
            "connection {} from rank {} to rank {} on channel {} is used by no instruction", i,
            c.sender, c.receiver, c.channel);
      if (received > sent)
        return Status::invalid_usage(
            "{} waits for a chunk from rank {} that is never sent (rank {} sends {} in a round, "
            "rank {} takes {})",
            describe(nth_use(i, sent / chunks_of_receive, /*is_send=*/false)), c.sender, c.sender,
            at(sends_, i), c.receiver, at(receives_, i));
      if (sent > received)
        return Status::invalid_usage(
            "{} sends a chunk to rank {} that is never taken (rank {} sends {} in a round, rank {} "
            "takes {})",
            describe(nth_use(i, received / chunks_of_send, /*is_send=*/true)), c.receiver, c.sender,
            at(sends_, i), c.receiver, at(receives_, i));
    }
    return Status::ok();
  }

  std::vector<Ends> take() && { return std::move(ends_); }

 private:
  /// The network's reducer takes equally many chunks of each member.
  Status check_handed_in(const ReducerGroup& group) const {
    const auto sends = [&](const ReducerGroup::Member& member) { return at(sends_, member.sends); };
    const auto [fewest, most] = std::ranges::minmax_element(group.members, {}, sends);
    if (sends(*fewest) == sends(*most)) return {};
    const int receiver = at(schedule_.connections, fewest->sends).receiver;
    const std::string who = at(receives_, fewest->sends) == 0
                                ? fmt::format("rank {}", receiver)
                                : describe(nth_use(fewest->sends, 0, /*is_send=*/false));
    return Status::invalid_usage(
        "{} waits for a chunk from rank {} that is never sent (rank {} hands {} to the network's "
        "reducer in a round, rank {} {})",
        who, fewest->rank, fewest->rank, sends(*fewest), most->rank, sends(*most));
  }

  Status visit_end(const Position& position, const std::vector<int>& list, int i, bool is_send) {
    const char* verb = is_send ? "sends to" : "receives from";
    const int index = at(list, i);
    if (!is_within(index, length(schedule_.connections)))
      return Status::invalid_usage("{} connection {}; there are {}", verb, index,
                                   schedule_.connections.size());
    const Connection& c = at(schedule_.connections, index);
    if ((is_send ? c.sender : c.receiver) != position.rank || c.channel != position.channel)
      return Status::invalid_usage(
          "{} connection {}, which goes from rank {} to rank {} on channel {}", verb, index,
          c.sender, c.receiver, c.channel);
    if (std::count(list.begin(), list.begin() + i, index) > 0)
      return Status::invalid_usage("{} the connection {} rank {} twice", verb,
                                   is_send ? "to" : "from", is_send ? c.receiver : c.sender);
    Ends& ends = at(ends_, index);
    int& worker = is_send ? ends.sending_worker : ends.receiving_worker;
    if (worker >= 0 && worker != position.worker)
      return Status::invalid_usage("{} the connection {} rank {} that worker {} uses", verb,
                                   is_send ? "to" : "from", is_send ? c.receiver : c.sender,
                                   worker);
    worker = position.worker;
    ++(is_send ? at(sends_, index) : at(receives_, index));
    return Status::ok();
  }

  /// The instruction that uses one end of `connection` for the n-th time, counted from 0.
  Position nth_use(int connection, int n, bool is_send) const {
    const Connection& c = at(schedule_.connections, connection);
    const Ends& ends = at(ends_, connection);
    Position position{is_send ? c.sender : c.receiver, c.channel,
                      is_send ? ends.sending_worker : ends.receiving_worker, 0};
    const Channel& channel = at(at(schedule_.ranks, position.rank), position.channel);
    for (const Instruction& instruction : at(channel.workers, position.worker).instructions) {
      const std::vector<int>& list = is_send ? instruction.send_to : instruction.receive_from;
      if (std::count(list.begin(), list.end(), connection) > 0 && n-- == 0) break;
      ++position.instruction;
    }
    return position;
  }

  const Schedule& schedule_;
  std::vector<Ends> ends_;
  std::vector<int> sends_;  // chunks per round, by connection
  std::vector<int> receives_;
  const std::vector<ReducerGroup> groups_;
  const std::vector<int> group_of_;  // by connection; -1: of none
};

Status check_worker(const Schedule& schedule, const Extent& extent, Position position,
                    const Worker& worker, EndFinder& ends, MessageCheck& messages) {
  if (worker.weight < 1 || worker.instructions.empty())
    return Status::invalid_usage("rank {} channel {} worker {} has weight {} and {} instructions",
                                 position.rank, position.channel, position.worker, worker.weight,
                                 worker.instructions.size());
  for (; position.instruction < length(worker.instructions); ++position.instruction) {
    const Instruction& instruction = at(worker.instructions, position.instruction);
    Status status = check_instruction(schedule, extent, instruction);
    if (status.is_ok()) status = ends.visit(position, instruction);
    if (status.is_ok() && schedule.collective == Collective::PointToPoint)
      status = messages.visit(position, instruction);
    if (!status.is_ok())
      return Status::invalid_usage("{} {}", describe(position), status.message());
  }
  return Status::ok();
}

}  // namespace

Result<std::vector<Ends>> check_form(const Schedule& schedule) {
  TRY(check_head(schedule));
  TRY(check_connections(schedule));
  TRY(check_reducers(schedule));
  MessageCheck messages(schedule);
  TRY(messages.check_table());
  EndFinder ends(schedule);
  for (int rank = 0; rank < schedule.nranks; ++rank) {
    const Extent extent{input_blocks(schedule, rank), output_blocks(schedule, rank)};
    const std::vector<Channel>& channels = at(schedule.ranks, rank);
    for (int channel = 0; channel < length(channels); ++channel) {
      const std::vector<Worker>& workers = at(channels, channel).workers;
      for (int worker = 0; worker < length(workers); ++worker)
        TRY(check_worker(schedule, extent, {rank, channel, worker, 0}, at(workers, worker), ends,
                         messages));
    }
  }
  TRY(ends.check_balance());
  TRY(messages.check_all_moved());
  return std::move(ends).take();
}

}  // namespace niccolite::schedule
