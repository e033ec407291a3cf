#include "executor/program.h"

#include <limits>
#include <map>

#include "schedule/index.h"

namespace niccolite::executor {
namespace {

using schedule::at;
using schedule::BlockReference;
using schedule::Buffer;
using schedule::Connection;
using schedule::Instruction;
using schedule::length;
using schedule::Position;
using schedule::Schedule;

/// `value` in a field of type Field, or InvalidUsage that names it.
template <typename Field>
Result<Field> fit(size_t value, const char* what) {
  if (value > std::numeric_limits<Field>::max())
    return Status::invalid_usage("{} is {}; a program has room for {}", what, value,
                                 std::numeric_limits<Field>::max());
  return static_cast<Field>(value);
}

Result<uint16_t> fit_block(int block, const char* what) {
  if (block < 0) return Status::invalid_usage("{} is {}", what, block);
  return fit<uint16_t>(static_cast<size_t>(block), what);
}

Place place_of(const std::optional<BlockReference>& reference) {
  if (!reference) return Place::None;
  switch (reference->buffer) {
    case Buffer::Input:
      return Place::Input;
    case Buffer::Output:
      return Place::Output;
    case Buffer::Scratch:
      return Place::Scratch;
  }
  return Place::None;
}

class Compiler {
 public:
  Compiler(const Schedule& schedule, int rank)
      : schedule_(schedule), ports_(schedule.connections.size(), -1) {
    program_.rank = rank;
    program_.nranks = schedule.nranks;
    program_.nblocks = schedule.nblocks;
    program_.scratch_blocks = schedule.scratch_blocks;
    program_.nchannels = length(at(schedule.ranks, rank));
  }

  Status add_lane(int channel, const schedule::Lane& lane) {
    CompactLane compact{};
    compact.first = TRY(
        fit<uint16_t>(program_.instructions.size(), "the number of instructions before a lane"));
    compact.count =
        TRY(fit<uint16_t>(lane.instructions.size(), "the number of instructions of a lane"));
    compact.channel = TRY(fit<uint16_t>(static_cast<size_t>(channel), "a channel's number"));
    if (lane.weight < 1) return Status::invalid_usage("a lane's weight is {}", lane.weight);
    compact.weight = TRY(fit<uint16_t>(static_cast<size_t>(lane.weight), "a lane's weight"));
    program_.lanes.push_back(compact);
    return Status::ok();
  }

  Status add_instruction(const Position& position, const Instruction& instruction) {
    CompactInstruction compact{};
    compact.receive_count =
        TRY(fit<uint8_t>(instruction.receive_from.size(), "the number of receives"));
    compact.send_count = TRY(fit<uint8_t>(instruction.send_to.size(), "the number of sends"));
    compact.receive = TRY(add_ports(position, instruction.receive_from, /*is_send=*/false));
    compact.send = TRY(add_ports(position, instruction.send_to, /*is_send=*/true));
    if (instruction.source_position < 0 || instruction.source_position > compact.receive_count)
      return Status::invalid_usage("the source position is {} with {} receives",
                                   instruction.source_position, compact.receive_count);
    compact.source_position = static_cast<uint8_t>(instruction.source_position);
    compact.flags = static_cast<uint8_t>((instruction.reduce ? kReduce : 0) |
                                         (instruction.finish ? kFinish : 0));
    compact.source = place_of(instruction.source);
    compact.target = place_of(instruction.target);
    if (instruction.source)
      compact.source_block = TRY(fit_block(instruction.source->block, "the source block"));
    if (instruction.target)
      compact.target_block = TRY(fit_block(instruction.target->block, "the target block"));
    compact.chunk_block =
        TRY(fit_block(schedule::chunk_block(instruction), "the block of the chunk"));
    program_.instructions.push_back(compact);
    return Status::ok();
  }

  Program take() && { return std::move(program_); }

 private:
  /// The first index of a list of ports. Equal lists are stored once: a ring of any size needs two
  /// indices.
  Result<uint16_t> add_ports(const Position& position, const std::vector<int>& connections,
                             bool is_send) {
    if (connections.empty()) return uint16_t{0};
    std::vector<uint16_t> list;
    for (const int connection : connections) {
      const uint16_t port = TRY(add_port(position, connection, is_send));
      list.push_back(port);
    }
    if (const auto known = lists_.find(list); known != lists_.end()) return known->second;
    const auto first = static_cast<uint16_t>(program_.indices.size());
    TRY(fit<uint16_t>(program_.indices.size() + list.size(), "the number of port indices"));
    program_.indices.insert(program_.indices.end(), list.begin(), list.end());
    lists_.emplace(std::move(list), first);
    return first;
  }

  /// The port of `connection`, numbered by first use, one step busier than before.
  Result<uint16_t> add_port(const Position& position, int connection, bool is_send) {
    if (connection < 0 || connection >= length(schedule_.connections))
      return Status::invalid_usage("there is no connection {}", connection);
    const Connection& c = at(schedule_.connections, connection);
    if ((is_send ? c.sender : c.receiver) != position.rank || c.channel != position.channel)
      return Status::invalid_usage(
          "connection {} from rank {} to rank {} on channel {} has its {} elsewhere", connection,
          c.sender, c.receiver, c.channel, is_send ? "sender" : "receiver");
    int& port = at(ports_, connection);
    if (port < 0) {
      port = TRY(fit<uint16_t>(program_.ports.size(), "the number of ports"));
      program_.ports.push_back({.peer = is_send ? c.receiver : c.sender,
                                .tag = c.tag,
                                .channel = c.channel,
                                .is_send = is_send,
                                .steps = 0});
    }
    ++at(program_.ports, port).steps;
    return static_cast<uint16_t>(port);
  }

  const Schedule& schedule_;
  Program program_;
  std::vector<int> ports_;  // by connection; -1: not used by this rank so far
  std::map<std::vector<uint16_t>, uint16_t> lists_;
};

}  // namespace

Result<Program> compile(const Schedule& schedule, int rank) {
  if (rank < 0 || rank >= length(schedule.ranks))
    return Status::invalid_usage("the schedule has no rank {}; it is for {} ranks", rank,
                                 schedule.ranks.size());
  Compiler compiler(schedule, rank);
  const std::vector<schedule::Channel>& channels = at(schedule.ranks, rank);
  for (int channel = 0; channel < length(channels); ++channel) {
    const std::vector<schedule::Lane>& lanes = at(channels, channel).lanes;
    for (int lane = 0; lane < length(lanes); ++lane) {
      const schedule::Lane& list = at(lanes, lane);
      TRY(compiler.add_lane(channel, list)
              .with_context("rank {} channel {} lane {}", rank, channel, lane));
      for (int i = 0; i < length(list.instructions); ++i) {
        const Position position{rank, channel, lane, i};
        Status status = compiler.add_instruction(position, at(list.instructions, i));
        if (!status.is_ok()) return std::move(status).with_context("{}", describe(position));
      }
    }
  }
  return std::move(compiler).take();
}

}  // namespace niccolite::executor
