#include "importers/msccl_xml.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <pugixml.hpp>
#include <tuple>
#include <vector>

#include "importers/names.h"
#include "schedule/index.h"

namespace niccolite::importers {
namespace {

using schedule::Buffer;
using schedule::Collective;

constexpr int kMostRanks = 4096;
constexpr int kMostChunks = 1 << 16;

struct NamedAction {
  const char* name;
  Action action;
  bool receives;
  bool sends;
  bool reads;   // the source
  bool writes;  // the target
};
constexpr NamedAction kActions[] = {{"s", Action::Send, false, true, true, false},
                                    {"r", Action::Receive, true, false, false, true},
                                    {"cpy", Action::Copy, false, false, true, true},
                                    {"re", Action::Reduce, false, false, true, true},
                                    {"rcs", Action::ReceiveCopySend, true, true, false, true},
                                    {"rrs", Action::ReceiveReduceSend, true, true, true, false},
                                    {"rrc", Action::ReceiveReduceCopy, true, false, true, true},
                                    {"rrcs", Action::ReceiveReduceCopySend, true, true, true, true},
                                    {"nop", Action::Nothing, false, false, false, false}};

struct NamedCollective {
  const char* name;
  Collective collective;
};
constexpr NamedCollective kCollectives[] = {{"allreduce", Collective::AllReduce},
                                            {"allgather", Collective::AllGather},
                                            {"reducescatter", Collective::ReduceScatter},
                                            {"reduce_scatter", Collective::ReduceScatter},
                                            {"alltoall", Collective::AllToAll},
                                            {"broadcast", Collective::Broadcast},
                                            {"reduce", Collective::Reduce}};

template <typename Range>
std::string names_of(const Range& range) {
  std::string names;
  for (const auto& each : range) names += fmt::format("{}{}", names.empty() ? "" : ", ", each.name);
  return names;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<Program> read() {
    const pugi::xml_parse_result parsed = document_.load_buffer(text_.data(), text_.size());
    if (!parsed)
      return Status::invalid_argument("line {}: {}", line_at(parsed.offset), parsed.description());
    const pugi::xml_node algorithm = document_.document_element();
    if (std::strcmp(algorithm.name(), "algo") != 0)
      return refuse(algorithm,
                    fmt::format("<{}> is no MSCCL algorithm, which is <algo>", algorithm.name()));
    TRY(read_head(algorithm));
    TRY(read_ranks(algorithm));
    TRY(check_peers());
    return std::move(program_);
  }

 private:
  int line_at(ptrdiff_t offset) const {
    const auto end =
        text_.begin() + std::clamp<ptrdiff_t>(offset, 0, static_cast<ptrdiff_t>(text_.size()));
    return 1 + static_cast<int>(std::count(text_.begin(), end, '\n'));
  }
  /// Lines are asked for in the order of the text, mostly.
  int line_of(const pugi::xml_node& node) {
    const ptrdiff_t offset = node.offset_debug();
    if (offset < known_offset_) {
      known_offset_ = 0;
      known_line_ = 1;
    }
    known_line_ +=
        static_cast<int>(std::count(text_.begin() + known_offset_, text_.begin() + offset, '\n'));
    known_offset_ = offset;
    return known_line_;
  }
  Status refuse(const pugi::xml_node& node, std::string_view what) {
    return Status::invalid_argument("line {}: {}", line_of(node), what);
  }
  Result<int> number(const pugi::xml_node& node, const char* name, int least, int most,
                     std::optional<int> absent = {}) {
    const pugi::xml_attribute attribute = node.attribute(name);
    if (!attribute && absent) return *absent;
    if (!attribute) return refuse(node, fmt::format("<{}> has no {}", node.name(), name));
    return parse(node, name, attribute.value(), least, most);
  }
  Result<int> parse(const pugi::xml_node& node, const char* name, std::string_view text, int least,
                    int most) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
      return refuse(node, fmt::format("{} is \"{}\", and must be a whole number from {} to {}",
                                      name, text, least, most));
    return value;
  }

  Status read_head(const pugi::xml_node& algorithm) {
    program_.name = plain_name(algorithm.attribute("name").value(), "msccl");
    program_.nranks = TRY(number(algorithm, "ngpus", 1, kMostRanks));
    const std::string_view coll = algorithm.attribute("coll").value();
    const auto found = std::ranges::find_if(
        kCollectives, [&](const NamedCollective& each) { return coll == each.name; });
    if (found == std::end(kCollectives))
      return refuse(algorithm, fmt::format("coll is \"{}\"; those that can be imported are {}",
                                           coll, names_of(kCollectives)));
    program_.collective = found->collective;
    program_.root = TRY(number(algorithm, "root", 0, program_.nranks - 1, 0));
    program_.chunks = TRY(number(algorithm, "nchunksperloop", 1, kMostChunks));
    program_.is_in_place = TRY(number(algorithm, "inplace", 0, 1, 0)) == 1;
    if (schedule::has_blocks_of_ranks(program_.collective) &&
        program_.chunks % program_.nranks != 0)
      return refuse(algorithm, fmt::format("nchunksperloop is {}, which {} ranks do not divide",
                                           program_.chunks, program_.nranks));
    for (const auto& [name, bound] : {std::pair("minBytes", &program_.use.min_bytes),
                                      std::pair("maxBytes", &program_.use.max_bytes)}) {
      const std::string_view text = algorithm.attribute(name).value();
      if (text.empty()) continue;
      int64_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size())
        return refuse(algorithm, fmt::format("{} is \"{}\", no number", name, text));
      // MSCCL counts the bytes of the larger buffer, a call's count those of one rank's block.
      const int64_t ranks =
          schedule::has_blocks_of_ranks(program_.collective) ? program_.nranks : 1;
      if (value > 0) *bound = static_cast<size_t>(value / ranks);
    }
    return {};
  }

  Status read_ranks(const pugi::xml_node& algorithm) {
    program_.ranks.resize(static_cast<size_t>(program_.nranks));
    std::vector<bool> seen(program_.ranks.size());
    for (const pugi::xml_node& gpu : algorithm.children()) {
      if (std::strcmp(gpu.name(), "gpu") != 0)
        return refuse(gpu, fmt::format("<{}> is not known in <algo>", gpu.name()));
      const int rank = TRY(number(gpu, "id", 0, program_.nranks - 1));
      if (seen[static_cast<size_t>(rank)])
        return refuse(gpu, fmt::format("gpu {} is there twice", rank));
      seen[static_cast<size_t>(rank)] = true;
      TRY(read_rank(gpu, schedule::at(program_.ranks, rank)));
    }
    for (int rank = 0; rank < program_.nranks; ++rank)
      if (!seen[static_cast<size_t>(rank)])
        return refuse(algorithm, fmt::format("gpu {} of {} is missing", rank, program_.nranks));
    return {};
  }

  Status read_rank(const pugi::xml_node& gpu, RankProgram& rank) {
    rank.input_chunks = TRY(number(gpu, "i_chunks", 0, kMostChunks));
    rank.output_chunks = TRY(number(gpu, "o_chunks", 0, kMostChunks));
    rank.scratch_chunks = TRY(number(gpu, "s_chunks", 0, kMostChunks));
    std::map<int, int> places;  // of thread blocks, by id
    for (const pugi::xml_node& tb : gpu.children()) {
      if (std::strcmp(tb.name(), "tb") != 0)
        return refuse(tb, fmt::format("<{}> is not known in <gpu>", tb.name()));
      const int id = TRY(number(tb, "id", 0, kMostChunks));
      if (!places.emplace(id, schedule::length(rank.blocks)).second)
        return refuse(tb, fmt::format("tb {} is there twice", id));
      ThreadBlock& block = rank.blocks.emplace_back();
      block.line = line_of(tb);
      block.send_to = TRY(number(tb, "send", -1, program_.nranks - 1));
      block.receive_from = TRY(number(tb, "recv", -1, program_.nranks - 1));
      block.channel = TRY(number(tb, "chan", 0, 255));
      int next = 0;
      for (const pugi::xml_node& step : tb.children()) {
        if (std::strcmp(step.name(), "step") != 0)
          return refuse(step, fmt::format("<{}> is not known in <tb>", step.name()));
        if (const int s = TRY(number(step, "s", 0, kMostChunks)); s != next++)
          return refuse(step, fmt::format("step {} stands where step {} is due", s, next - 1));
        block.steps.push_back(TRY(read_step(step, rank, block)));
      }
    }
    // Waits name thread blocks by id; they may come later in the file.
    for (ThreadBlock& block : rank.blocks)
      for (Step& step : block.steps)
        for (Wait& wait : step.waits) {
          const auto found = places.find(wait.block);
          if (found == places.end() ||
              wait.step >= schedule::length(schedule::at(rank.blocks, found->second).steps))
            return Status::invalid_argument(
                "line {}: it waits for step {} of tb {}, which there is not", step.line, wait.step,
                wait.block);
          wait.block = found->second;
        }
    return {};
  }

  Result<Step> read_step(const pugi::xml_node& node, const RankProgram& rank,
                         const ThreadBlock& block) {
    const std::string_view type = node.attribute("type").value();
    const auto known =
        std::ranges::find_if(kActions, [&](const NamedAction& each) { return type == each.name; });
    if (known == std::end(kActions))
      return refuse(node, fmt::format("the type of step \"{}\" is not known; known are {}", type,
                                      names_of(kActions)));
    Step step{.action = known->action, .line = line_of(node)};
    if (known->action != Action::Nothing) step.count = TRY(number(node, "cnt", 1, kMostChunks));
    if (known->receives && block.receive_from < 0)
      return refuse(node, fmt::format("\"{}\" receives, and its tb has recv=\"-1\"", type));
    if (known->sends && block.send_to < 0)
      return refuse(node, fmt::format("\"{}\" sends, and its tb has send=\"-1\"", type));
    if (known->reads) step.source = TRY(place(node, "srcbuf", "srcoff", rank, step.count));
    if (known->writes) step.target = TRY(place(node, "dstbuf", "dstoff", rank, step.count));
    const bool reduces = known->action == Action::Reduce || (known->receives && known->reads);
    if (reduces && !schedule::reduces(program_.collective))
      return refuse(node, fmt::format("\"{}\" reduces, and {} only moves data", type,
                                      name_of(program_.collective)));
    const int block_waited = TRY(number(node, "depid", -1, kMostChunks, -1));
    const int step_waited = TRY(number(node, "deps", -1, kMostChunks, -1));
    if (block_waited >= 0 && step_waited >= 0)
      step.waits.push_back({.block = block_waited, .step = step_waited});
    return step;
  }

  Result<Place> place(const pugi::xml_node& node, const char* buffer, const char* offset,
                      const RankProgram& rank, int count) {
    const std::string_view name = node.attribute(buffer).value();
    struct Named {
      const char* name;
      Buffer buffer;
      int chunks;
    };
    const Named buffers[] = {{"i", Buffer::Input, rank.input_chunks},
                             {"o", Buffer::Output, rank.output_chunks},
                             {"s", Buffer::Scratch, rank.scratch_chunks}};
    for (const Named& each : buffers) {
      if (name != each.name) continue;
      // In place, both names stand for the larger one.
      const int chunks = program_.is_in_place && each.buffer != Buffer::Scratch
                             ? std::max(rank.input_chunks, rank.output_chunks)
                             : each.chunks;
      return Place{each.buffer, TRY(number(node, offset, 0, chunks - count))};
    }
    return refuse(node, fmt::format("{} is \"{}\", none of i, o, s", buffer, name));
  }

  /// A FIFO has one thread block at either end.
  Status check_peers() {
    std::map<std::tuple<int, int, int, bool>, int> ends;
    for (int rank = 0; rank < program_.nranks; ++rank)
      for (const ThreadBlock& block : schedule::at(program_.ranks, rank).blocks)
        for (const bool is_send : {false, true}) {
          const int peer = is_send ? block.send_to : block.receive_from;
          if (peer < 0) continue;
          if (peer == rank)
            return Status::invalid_argument("line {}: gpu {} is connected to itself", block.line,
                                            rank);
          const auto [other, is_new] =
              ends.emplace(std::tuple(rank, peer, block.channel, is_send), block.line);
          if (!is_new)
            return Status::invalid_argument(
                "line {}: the tb of line {} already {} gpu {} on channel {}", block.line,
                other->second, is_send ? "sends to" : "receives from", peer, block.channel);
        }
    return {};
  }

  std::string_view text_;
  pugi::xml_document document_;
  Program program_;
  ptrdiff_t known_offset_ = 0;
  int known_line_ = 1;
};

}  // namespace

bool is_msccl_xml(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  return first != std::string_view::npos && text[first] == '<';
}

Result<Program> read_msccl_xml(std::string_view text) { return Reader(text).read(); }

}  // namespace niccolite::importers
