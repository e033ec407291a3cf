#include "executor/program.h"

#include <algorithm>
#include <limits>
#include <map>

#include "schedule/index.h"

namespace niccolite::executor {
namespace {

using schedule::at;
using schedule::BlockReference;
using schedule::Buffer;
using schedule::Collective;
using schedule::Connection;
using schedule::Instruction;
using schedule::length;
using schedule::Message;
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

OperandBuffer place_of(const std::optional<BlockReference>& reference) {
  if (!reference) return OperandBuffer::None;
  switch (reference->buffer) {
    case Buffer::Input:
      return OperandBuffer::Input;
    case Buffer::Output:
      return OperandBuffer::Output;
    case Buffer::Scratch:
      return OperandBuffer::Scratch;
  }
  return OperandBuffer::None;
}

/// `count` works in a program of `what`, or InvalidUsage.
Status check_works(size_t count, const char* what) {
  if (count > kMaxWorks)
    return Status::invalid_usage("{} are {} works; a program has room for {}", what, count,
                                 kMaxWorks);
  return {};
}

class Compiler {
 public:
  Compiler(const Schedule& schedule, int rank, const lowering::Routes& routes)
      : schedule_(schedule),
        routes_(routes),
        rank_(rank),
        is_messages_(schedule.collective == Collective::PointToPoint),
        ports_(schedule.connections.size(), -1) {
    program_.rank = rank;
    program_.nranks = schedule.nranks;
    program_.nchannels = length(at(schedule.ranks, rank));
  }

  Status add_works() {
    if (is_messages_) {
      add_messages();
      return check_works(program_.works.size(), "a rank's messages");
    }
    program_.works.push_back({.nblocks = schedule_.nblocks,
                              .input_blocks = schedule::input_blocks(schedule_, rank_),
                              .output_blocks = schedule::output_blocks(schedule_, rank_),
                              .scratch_blocks = schedule_.scratch_blocks,
                              .has_strides = most_blocks() > 1,
                              .first_channel = 0,
                              .nchannels = program_.nchannels});
    return {};
  }

  /// Returns the most blocks of any buffer of any rank: roots have more than others.
  int most_blocks() const {
    int most = schedule_.scratch_blocks;
    for (const int rank : {rank_, schedule_.root}) {
      most = std::max({most, schedule::input_blocks(schedule_, rank),
                       schedule::output_blocks(schedule_, rank)});
    }
    return most;
  }

  Status add_worker(int channel, const schedule::Worker& worker) {
    CompactWorker compact{};
    compact.first = TRY(
        fit<uint16_t>(program_.instructions.size(), "the number of instructions before a worker"));
    compact.count =
        TRY(fit<uint16_t>(worker.instructions.size(), "the number of instructions of a worker"));
    compact.channel = TRY(fit<uint16_t>(static_cast<size_t>(channel), "a channel's number"));
    if (worker.weight < 1) return Status::invalid_usage("a worker's weight is {}", worker.weight);
    compact.weight = TRY(fit<uint8_t>(static_cast<size_t>(worker.weight), "a worker's weight"));
    if (is_messages_) {
      compact.work = TRY(work_of(worker));
      WorkShape& work = program_.works[compact.work];
      work.first_channel = channel;
      work.nchannels = 1;
    }
    program_.workers.push_back(compact);
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
    if (instruction.source && !is_messages_)
      compact.source_block = TRY(fit_block(instruction.source->block, "the source block"));
    if (instruction.target && !is_messages_)
      compact.target_block = TRY(fit_block(instruction.target->block, "the target block"));
    // Blocks that lie side by side are all of one size; a scratch block's number may exceed theirs.
    if (schedule::cuts_one_buffer(schedule_.collective))
      compact.chunk_block =
          TRY(fit_block(schedule::chunk_block(instruction), "the block of the chunk"));
    program_.instructions.push_back(compact);
    return Status::ok();
  }

  /// Adds the shapes of the workers, once all workers are there.
  void add_shapes() {
    program_.worker_shapes = lowering::shapes_of(schedule_, rank_);
    for (lowering::WorkerShape& shape : program_.worker_shapes) {
      for (std::vector<int>* connections : {&shape.receives, &shape.sends})
        for (int& connection : *connections) connection = at(ports_, connection);
    }
  }

  /// Adds the phases of the works, once all workers are there, if the workers have the form for
  /// them.
  void add_phases() {
    const std::vector<schedule::Channel>& channels = at(schedule_.ranks, rank_);
    program_.phases.resize(program_.works.size());
    if (!is_messages_) {
      if (channels.size() == 1)
        program_.phases[0] = in_ports(lowering::phases_of(channels[0].workers));
      return;
    }
    size_t next = 0;
    for (const schedule::Channel& channel : channels)
      for (const schedule::Worker& worker : channel.workers)
        program_.phases[program_.workers[next++].work] =
            in_ports(lowering::phases_of({&worker, 1}));
  }

  Program take() && { return std::move(program_); }

 private:
  std::optional<lowering::Phases> in_ports(std::optional<lowering::Phases> phases) const {
    if (!phases) return phases;
    for_each_connection(*phases, [&](int& connection) { connection = at(ports_, connection); });
    if (!is_messages_) return phases;
    for (std::vector<lowering::Transfer>* transfers : {&phases->sends, &phases->stores})
      for (lowering::Transfer& transfer : *transfers) transfer.block = 0;
    if (phases->copy) phases->copy = {0, 0};
    return phases;
  }

  /// The works of a PointToPoint schedule. A message to oneself is one work, among the sends.
  void add_messages() {
    std::vector<const Message*> sends, receives;
    for (const Message& message : schedule_.messages) {
      if (message.sender == rank_) sends.push_back(&message);
      if (message.receiver == rank_ && message.sender != rank_) receives.push_back(&message);
    }
    std::ranges::sort(sends, {}, &Message::send_block);
    std::ranges::sort(receives, {}, &Message::receive_block);
    for (const Message* message : sends) {
      const bool is_to_self = message->receiver == rank_;
      works_of_input_[message->send_block] = length(program_.works);
      if (is_to_self) works_of_output_[message->receive_block] = length(program_.works);
      program_.works.push_back(
          {.nblocks = 1, .input_blocks = 1, .output_blocks = is_to_self ? 1 : 0});
    }
    for (const Message* message : receives) {
      works_of_output_[message->receive_block] = length(program_.works);
      program_.works.push_back({.nblocks = 1, .output_blocks = 1});
    }
  }

  /// The one message that all instructions of a worker belong to.
  Result<uint8_t> work_of(const schedule::Worker& worker) const {
    int work = -1;
    for (const Instruction& instruction : worker.instructions) {
      for (const auto& reference : {instruction.source, instruction.target}) {
        if (!reference) continue;
        const auto& works = reference->buffer == Buffer::Input ? works_of_input_ : works_of_output_;
        const auto found = works.find(reference->block);
        if (found == works.end() || reference->buffer == Buffer::Scratch)
          return Status::invalid_usage("{} block {} is no message of rank {}",
                                       schedule::name_of(reference->buffer), reference->block,
                                       rank_);
        if (work >= 0 && work != found->second)
          return Status::invalid_usage("a worker moves two messages");
        work = found->second;
      }
    }
    if (work < 0) return Status::invalid_usage("a worker moves no message");
    return static_cast<uint8_t>(work);
  }

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
                                .tag = routes_.tag_in_program(c.tag),
                                .channel = c.channel,
                                .is_send = is_send,
                                .steps = 0,
                                .work = program_.workers.back().work,
                                .route = routes_.of(c.tag)});
    }
    ++at(program_.ports, port).steps;
    return static_cast<uint16_t>(port);
  }

  const Schedule& schedule_;
  const lowering::Routes& routes_;
  const int rank_;
  const bool is_messages_;
  Program program_;
  std::map<int, int> works_of_input_, works_of_output_;  // messages: by block
  std::vector<int> ports_;  // by connection; -1: not used by this rank so far
  std::map<std::vector<uint16_t>, uint16_t> lists_;
};

}  // namespace

Result<Program> compile(const Schedule& schedule, int rank) {
  return compile(schedule, rank, lowering::routes_of(schedule));
}

Result<Program> compile(const Schedule& schedule, int rank, const lowering::Routes& routes) {
  if (rank < 0 || rank >= length(schedule.ranks))
    return Status::invalid_usage("the schedule has no rank {}; it is for {} ranks", rank,
                                 schedule.ranks.size());
  Compiler compiler(schedule, rank, routes);
  TRY(compiler.add_works().with_context("rank {}", rank));
  const std::vector<schedule::Channel>& channels = at(schedule.ranks, rank);
  for (int channel = 0; channel < length(channels); ++channel) {
    const std::vector<schedule::Worker>& workers = at(channels, channel).workers;
    for (int worker = 0; worker < length(workers); ++worker) {
      const schedule::Worker& list = at(workers, worker);
      TRY(compiler.add_worker(channel, list)
              .with_context("rank {} channel {} worker {}", rank, channel, worker));
      for (int i = 0; i < length(list.instructions); ++i) {
        const Position position{rank, channel, worker, i};
        Status status = compiler.add_instruction(position, at(list.instructions, i));
        if (!status.is_ok()) return std::move(status).with_context("{}", describe(position));
      }
    }
  }
  compiler.add_shapes();
  compiler.add_phases();
  return std::move(compiler).take();
}

namespace {

enum class Channels : uint8_t { OneAfterTheOther, Shared };

Result<Program> join(const std::vector<const Program*>& programs, Channels channels) {
  if (programs.empty()) return Status::invalid_usage("no programs to join");
  Program joined;
  joined.rank = programs.front()->rank;
  joined.nranks = programs.front()->nranks;
  for (const Program* program : programs) {
    if (program->rank != joined.rank || program->nranks != joined.nranks)
      return Status::invalid_usage("a program of rank {} of {} cannot join one of rank {} of {}",
                                   program->rank, program->nranks, joined.rank, joined.nranks);
    const size_t first_work = joined.works.size();
    const size_t first_instruction = joined.instructions.size();
    const size_t first_index = joined.indices.size();
    const size_t first_port = joined.ports.size();
    const bool is_shared = channels == Channels::Shared;
    const int first_channel = is_shared ? 0 : joined.nchannels;
    TRY(check_works(first_work + program->works.size(), "joined programs"));
    TRY(fit<uint16_t>(first_instruction + program->instructions.size(),
                      "the number of instructions of joined programs"));
    TRY(fit<uint16_t>(first_index + program->indices.size(),
                      "the number of port indices of joined programs"));
    TRY(fit<uint16_t>(first_port + program->ports.size(),
                      "the number of ports of joined programs"));
    TRY(fit<uint16_t>(static_cast<size_t>(first_channel) + static_cast<size_t>(program->nchannels),
                      "the number of channels of joined programs"));

    joined.nchannels = std::max(joined.nchannels, first_channel + program->nchannels);
    for (WorkShape work : program->works) {
      work.first_channel += first_channel;
      joined.works.push_back(work);
    }
    for (CompactWorker worker : program->workers) {
      worker.first = static_cast<uint16_t>(worker.first + first_instruction);
      worker.channel = static_cast<uint16_t>(worker.channel + first_channel);
      worker.work = static_cast<uint8_t>(worker.work + first_work);
      joined.workers.push_back(worker);
    }
    for (CompactInstruction instruction : program->instructions) {
      instruction.receive = static_cast<uint16_t>(instruction.receive + first_index);
      instruction.send = static_cast<uint16_t>(instruction.send + first_index);
      joined.instructions.push_back(instruction);
    }
    for (const uint16_t index : program->indices)
      joined.indices.push_back(static_cast<uint16_t>(index + first_port));
    for (lowering::WorkerShape shape : program->worker_shapes) {
      for (std::vector<int>* ports : {&shape.receives, &shape.sends})
        for (int& port : *ports) port += static_cast<int>(first_port);
      joined.worker_shapes.push_back(std::move(shape));
    }
    for (std::optional<lowering::Phases> phases : program->phases) {
      if (phases)
        for_each_connection(*phases, [&](int& port) { port += static_cast<int>(first_port); });
      joined.phases.push_back(std::move(phases));
    }
    for (Port port : program->ports) {
      port.channel += first_channel;
      port.work += static_cast<int>(first_work);
      joined.ports.push_back(port);
    }
  }
  for (lowering::WorkerShape& shape : joined.worker_shapes)
    shape.is_only_work = joined.works.size() == 1;
  return joined;
}

}  // namespace

Result<Program> join(const std::vector<const Program*>& programs) {
  return join(programs, Channels::OneAfterTheOther);
}

Result<Program> join_messages(const std::vector<const Program*>& programs) {
  return join(programs, Channels::Shared);
}

}  // namespace niccolite::executor
