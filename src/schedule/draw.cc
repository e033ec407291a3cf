#include "schedule/draw.h"

#include <algorithm>

#include "schedule/index.h"

namespace niccolite::schedule {
namespace {

enum class End : unsigned char { Receive, Send };

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

/// Has `buffer` one block at every rank that has it?
bool has_one_block(const Schedule& schedule, Buffer buffer) {
  switch (schedule.collective) {
    case Collective::AllGather:
    case Collective::Gather:
      return buffer == Buffer::Input;
    case Collective::ReduceScatter:
    case Collective::Scatter:
      return buffer == Buffer::Output;
    default:
      return false;
  }
}

/// Names a block by its number, unless the number is clear: from the row, if the row is about one
/// block, or from the buffer, if it has only one block.
std::string name(const Schedule& schedule, const BlockReference& reference, int block) {
  const bool is_said = cuts_one_buffer(schedule.collective)
                           ? reference.block == block
                           : reference.block == 0 && has_one_block(schedule, reference.buffer);
  if (is_said) return name_of(reference.buffer);
  return fmt::format("{} {}", name_of(reference.buffer), reference.block);
}

/// The peers of connections[first, last), neighbours drawn together.
void append_peers(std::vector<std::string>& parts, const Schedule& schedule,
                  const std::vector<int>& connections, int first, int last, End end) {
  struct Peer {
    int rank;
    int tag;
  };
  const auto peer_at = [&](int i) -> Peer {
    const int index = at(connections, i);
    if (index < 0 || index >= length(schedule.connections)) return {-1, 0};
    const Connection& connection = at(schedule.connections, index);
    return {end == End::Send ? connection.receiver : connection.sender, connection.tag};
  };
  for (int i = first; i < last;) {
    const Peer peer = peer_at(i);
    int run = 1;
    while (i + run < last && peer_at(i + run).rank == peer.rank + run &&
           peer_at(i + run).tag == peer.tag)
      ++run;
    const std::string tag = peer.tag == 0 ? "" : fmt::format("/{}", peer.tag);
    if (peer.rank >= 0 && through_of(peer.tag) != Through::Nothing) {
      parts.push_back(fmt::format("the network's {} {}", name_of(through_of(peer.tag)),
                                  (peer.tag - kReducerTag) / 4));
      run = 1;
    } else if (peer.rank < 0) {
      parts.push_back(fmt::format("no connection {}", at(connections, i)));
      run = 1;
    } else if (run < 3) {
      parts.push_back(fmt::format("rank {}{}", peer.rank, tag));
      run = 1;
    } else {
      parts.push_back(fmt::format("ranks {}..{}{}", peer.rank, peer.rank + run - 1, tag));
    }
    i += run;
  }
}

struct Row {
  std::string block;
  std::string operands;
  std::string destinations;
};

Row draw_row(const Schedule& schedule, const Instruction& instruction) {
  const int block = chunk_block(instruction);
  std::vector<std::string> operands;
  const int receives = length(instruction.receive_from);
  const int before = instruction.source ? std::clamp(instruction.source_position, 0, receives) : 0;
  append_peers(operands, schedule, instruction.receive_from, 0, before, End::Receive);
  if (instruction.source) operands.push_back(name(schedule, *instruction.source, block));
  append_peers(operands, schedule, instruction.receive_from, before, receives, End::Receive);

  std::vector<std::string> destinations;
  if (instruction.target) destinations.push_back(name(schedule, *instruction.target, block));
  append_peers(destinations, schedule, instruction.send_to, 0, length(instruction.send_to),
               End::Send);

  if (destinations.empty()) destinations.push_back("nothing");

  std::string reduction = join(operands, instruction.reduce ? " + " : " | ");
  if (instruction.finish) reduction = "finish(" + reduction + ")";
  // Which block sets the size says something only where blocks are parts of one buffer.
  const std::string about =
      cuts_one_buffer(schedule.collective) ? fmt::format("block {}  ", block) : "";
  return {about, std::move(reduction), join(destinations, ", ")};
}

void draw_worker(std::string& text, const Schedule& schedule, const Worker& worker) {
  std::vector<Row> rows;
  size_t block_width = 0, operands_width = 0;
  for (const Instruction& instruction : worker.instructions) {
    rows.push_back(draw_row(schedule, instruction));
    block_width = std::max(block_width, rows.back().block.size());
    // A very long operand list keeps to its own line instead of pushing all others to the right.
    if (rows.back().operands.size() <= 48)
      operands_width = std::max(operands_width, rows.back().operands.size());
  }
  const size_t number_width = std::to_string(rows.size()).size();
  for (size_t i = 0; i < rows.size(); ++i)
    text += fmt::format("  {:>{}}  {:<{}}{:<{}}  -> {}\n", i, number_width, rows[i].block,
                        block_width, rows[i].operands, operands_width, rows[i].destinations);
}

std::string plural(size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string draw_head(const Schedule& schedule) {
  std::string text = fmt::format("{} {}: {}", name_of(schedule.collective), schedule.algorithm,
                                 plural(static_cast<size_t>(schedule.nranks), "rank"));
  if (has_root(schedule.collective)) text += fmt::format(", root {}", schedule.root);
  text += ", " + (schedule.collective == Collective::PointToPoint
                      ? plural(schedule.messages.size(), "message")
                      : plural(static_cast<size_t>(schedule.nblocks), "block"));
  text += ", " + plural(schedule.connections.size(), "connection");
  if (schedule.partial_sums) text += ", partial sums travel";
  return text + "\n";
}

}  // namespace

std::string draw_text(const Schedule& schedule) {
  std::string text = draw_head(schedule);
  for (int rank = 0; rank < length(schedule.ranks); ++rank) {
    const std::vector<Channel>& channels = at(schedule.ranks, rank);
    for (int channel = 0; channel < length(channels); ++channel) {
      const std::vector<Worker>& workers = at(channels, channel).workers;
      for (int worker = 0; worker < length(workers); ++worker) {
        const int weight = at(workers, worker).weight;
        text += fmt::format("rank {}, channel {}, worker {}{}\n", rank, channel, worker,
                            weight == 1 ? "" : fmt::format(", weight {}", weight));
        draw_worker(text, schedule, at(workers, worker));
      }
    }
  }
  return text;
}

}  // namespace niccolite::schedule
