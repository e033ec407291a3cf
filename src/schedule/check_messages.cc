#include "schedule/check_messages.h"

#include "schedule/index.h"

namespace niccolite::schedule {
namespace {

std::string describe(const Message& message) {
  return fmt::format("the message from rank {} to rank {}", message.sender, message.receiver);
}

}  // namespace

Status MessageCheck::check_table() {
  const std::vector<Message>& messages = schedule_.messages;
  if (schedule_.collective != Collective::PointToPoint)
    return messages.empty() ? Status::ok()
                            : Status::invalid_usage("the schedule for {} has {} messages",
                                                    name_of(schedule_.collective), messages.size());
  std::vector<int> sends(static_cast<size_t>(schedule_.nranks));
  std::vector<int> receives(static_cast<size_t>(schedule_.nranks));
  for (int i = 0; i < length(messages); ++i) {
    const Message& m = at(messages, i);
    if (!is_within(m.sender, schedule_.nranks) || !is_within(m.receiver, schedule_.nranks))
      return Status::invalid_usage("message {} goes from rank {} to rank {}; there are {} ranks", i,
                                   m.sender, m.receiver, schedule_.nranks);
    if (!by_pair_.insert({{m.sender, m.receiver}, i}).second)
      return Status::invalid_usage("{} exists twice", describe(m));
    if (!by_send_block_.insert({{m.sender, m.send_block}, i}).second)
      return Status::invalid_usage("{} is input block {}, which another message is too",
                                   describe(m), m.send_block);
    if (!by_receive_block_.insert({{m.receiver, m.receive_block}, i}).second)
      return Status::invalid_usage("{} is output block {}, which another message is too",
                                   describe(m), m.receive_block);
    ++at(sends, m.sender);
    ++at(receives, m.receiver);
  }
  // Numbers that are all different and all below their count leave none out.
  for (const Message& m : messages) {
    if (!is_within(m.send_block, at(sends, m.sender)))
      return Status::invalid_usage("{} is input block {}, though rank {} sends {}", describe(m),
                                   m.send_block, m.sender, at(sends, m.sender));
    if (!is_within(m.receive_block, at(receives, m.receiver)))
      return Status::invalid_usage("{} is output block {}, though rank {} receives {}", describe(m),
                                   m.receive_block, m.receiver, at(receives, m.receiver));
  }
  moves_.resize(messages.size());
  return Status::ok();
}

Status MessageCheck::visit(const Position& position, const Instruction& instruction) {
  const int rank = position.rank;
  if (position.instruction > 0)
    return Status::invalid_usage("stands behind another; a worker moves one message");
  if (instruction.chunk_of >= 0)
    return Status::invalid_usage("names a block's chunk; a message has its own size");
  if (!instruction.source && !instruction.target)
    return Status::invalid_usage("passes a chunk on; messages go straight to their receivers");
  if ((instruction.source && instruction.source->buffer != Buffer::Input) ||
      (instruction.target && instruction.target->buffer != Buffer::Output))
    return Status::invalid_usage("names scratch or reads the output; a message has no block there");
  if (length(instruction.send_to) + (instruction.target ? 1 : 0) != 1)
    return Status::invalid_usage("has several destinations; a message has one");

  int message = -1;
  if (instruction.source)
    message = TRY(find(by_send_block_, {rank, instruction.source->block}, "input block"));
  else
    message = TRY(find(by_receive_block_, {rank, instruction.target->block}, "output block"));
  const Message& m = at(schedule_.messages, message);
  const auto peer_of = [&](int connection, bool is_send) {
    const Connection& c = at(schedule_.connections, connection);
    return is_send ? c.receiver : c.sender;
  };
  if (instruction.source) {
    const int receiver = instruction.target ? rank : peer_of(instruction.send_to[0], true);
    if (m.receiver != receiver)
      return Status::invalid_usage("moves {} to rank {}", describe(m), receiver);
    if (at(moves_, message).is_sent)
      return Status::invalid_usage("sends {} a second time", describe(m));
    at(moves_, message).is_sent = true;
  }
  if (instruction.target) {
    const int sender = instruction.source ? rank : peer_of(instruction.receive_from[0], false);
    if (m.sender != sender || m.receive_block != instruction.target->block)
      return Status::invalid_usage(
          "stores a message from rank {} in output block {}, not that of {}", sender,
          instruction.target->block, describe(m));
    if (at(moves_, message).is_received)
      return Status::invalid_usage("stores {} a second time", describe(m));
    at(moves_, message).is_received = true;
  }
  return Status::ok();
}

Result<int> MessageCheck::find(const std::map<Key, int>& table, Key key, const char* end) const {
  const auto found = table.find(key);
  if (found == table.end())
    return Status::invalid_usage("names {} {}, which is no message of rank {}", end, key.second,
                                 key.first);
  return found->second;
}

Status MessageCheck::check_all_moved() const {
  for (int i = 0; i < length(moves_); ++i) {
    const Message& m = at(schedule_.messages, i);
    if (!at(moves_, i).is_sent)
      return Status::invalid_usage("rank {}: no instruction sends {}", m.sender, describe(m));
    if (!at(moves_, i).is_received)
      return Status::invalid_usage("rank {}: no instruction stores {}", m.receiver, describe(m));
  }
  return Status::ok();
}

}  // namespace niccolite::schedule
