#include "importers/mscclpp_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "importers/names.h"
#include "schedule/index.h"

namespace niccolite::importers {
namespace {

using json::Kind;
using Json = json::Value;
using schedule::at;
using schedule::Buffer;
using schedule::Collective;
using schedule::length;

constexpr int kMostRanks = 1024;
constexpr int kMostChunks = 1 << 16;
constexpr int kMostIds = 1 << 12;       // of channels, buffers, semaphores, barriers of a GPU
constexpr size_t kMostMoves = 1 << 21;  // of chunks
constexpr int kMostParts = 64;          // of a chunk

enum class Action : unsigned char {
  Nothing,
  Signal,
  Wait,
  RelaxedSignal,
  RelaxedWait,
  Acquire,
  Release,
  Barrier,
  Copy,    // target i = source i
  Reduce,  // target 0 = the sum of all sources; other targets = target 0
  Pipeline
};

struct Named {
  std::string_view name;
  Action action;
  bool signals = false;         // afterwards
  bool reads_packets = false;   // the sources from `first_packet_source` on
  int first_packet_source = 0;  //
  bool writes_packets = false;  // the targets from `first_packet_target` on
  int first_packet_target = 0;  //
};
constexpr Named kActions[] = {{"nop", Action::Nothing},
                              {"flush", Action::Nothing},
                              {"signal", Action::Signal},
                              {"wait", Action::Wait},
                              {"rlxsignal", Action::RelaxedSignal},
                              {"rlxwait", Action::RelaxedWait},
                              {"sem_acquire", Action::Acquire},
                              {"sem_release", Action::Release},
                              {"barrier", Action::Barrier},
                              {"put", Action::Copy},
                              {"pws", Action::Copy, true},
                              {"pwsf", Action::Copy, true},
                              {"get", Action::Copy},
                              {"copy", Action::Copy},
                              {"re", Action::Reduce},
                              {"res", Action::Reduce},
                              {"rre", Action::Reduce},
                              {"rres", Action::Reduce},
                              {"ppkt", Action::Copy, false, false, 0, true, 0},
                              {"cpkt", Action::Copy, false, false, 0, true, 0},
                              {"upkt", Action::Copy, false, true, 0},
                              {"rppkt", Action::Reduce, false, true, 0, true, 0},
                              {"repkt", Action::Reduce, false, true, 1},
                              {"respkt", Action::Reduce, false, true, 1, true, 1},
                              {"recpkt", Action::Reduce, false, true, 1, true, 1},
                              {"recspkt", Action::Reduce, false, true, 1, true, 1},
                              {"pipeline", Action::Pipeline}};
constexpr std::string_view kSwitchOperations[] = {"glres", "gstore", "gstorepkt"};

struct NamedCollective {
  std::string_view name;
  Collective collective;
};
constexpr NamedCollective kCollectives[] = {{"allreduce", Collective::AllReduce},
                                            {"allgather", Collective::AllGather},
                                            {"reducescatter", Collective::ReduceScatter},
                                            {"alltoall", Collective::AllToAll},
                                            {"broadcast", Collective::Broadcast}};

template <typename Range>
std::string names_of(const Range& range) {
  std::string names;
  for (const auto& each : range) names += fmt::format("{}{}", names.empty() ? "" : ", ", each.name);
  return names;
}

Result<int> whole(const Json& value, std::string_view name, int least, int most) {
  if (value.kind != Kind::Number || value.number != std::floor(value.number) ||
      value.number < least || value.number > most)
    return refuse(value,
                  fmt::format("\"{}\" must be a whole number from {} to {}", name, least, most));
  return static_cast<int>(value.number);
}
Result<int> whole_in(const Json& object, std::string_view name, int least, int most,
                     std::optional<int> absent = {}) {
  const Json* const found = object.find(name);
  if (found != nullptr) return whole(*found, name, least, most);
  if (absent) return *absent;
  return refuse(object, fmt::format("\"{}\" is missing", name));
}
Result<std::string_view> text_in(const Json& object, std::string_view name) {
  const Json* const found = object.find(name);
  if (found == nullptr) return refuse(object, fmt::format("\"{}\" is missing", name));
  if (found->kind != Kind::Text) return refuse(*found, fmt::format("\"{}\" must be text", name));
  return std::string_view(found->text);
}
/// The items of a list, which may be absent.
Result<const std::vector<Json>*> list_in(const Json& object, std::string_view name) {
  static const std::vector<Json> none;
  const Json* const found = object.find(name);
  if (found == nullptr) return &none;
  if (found->kind != Kind::Array) return refuse(*found, fmt::format("\"{}\" must be a list", name));
  return &found->items;
}

/// Chunks side by side.
struct Span {
  int rank;
  Place first;
  int count;
  bool is_packet = false;
};

/// One end of a channel: the peer, and the number among channels of its type between the
/// two ranks.
struct End {
  std::string type;
  int peer;
  int number;
};

struct Op {
  Action action = Action::Nothing;
  std::string_view name;
  bool signals = false;
  std::vector<Span> sources{}, targets{};
  std::vector<End> ends{};
  std::vector<int> semaphores{};
  int barrier = 0;
  int participants = 0;
  int line = 0;
};

struct ThreadBlock {
  int rank;
  int number;
  std::vector<Op> ops{};
};

struct Plan {
  Flow flow;
  std::vector<ThreadBlock> blocks{};
  std::vector<std::vector<int>> semaphores{};  // first values, by rank
};

class Reader {
 public:
  Result<Plan> read(std::string_view text) {
    const Json document = TRY(json::parse(text));
    if (document.kind != Kind::Object || document.find("gpus") == nullptr)
      return refuse(document, "this is no MSCCL++ plan, which has \"gpus\"");
    const std::vector<Json>& gpus = *TRY(list_in(document, "gpus"));
    if (gpus.empty() || length(gpus) > kMostRanks)
      return refuse(document,
                    fmt::format("\"gpus\" are {}; 1 to {} are possible", gpus.size(), kMostRanks));
    gpus_.resize(gpus.size());
    for (const Json& gpu : gpus) {
      const int rank = TRY(whole_in(gpu, "id", 0, length(gpus) - 1));
      if (at(gpus_, rank).json != nullptr)
        return refuse(gpu, fmt::format("gpu {} is there twice", rank));
      at(gpus_, rank).json = &gpu;
      TRY(find_parts(gpu));
    }
    for (Gpu& gpu : gpus_) TRY(read_ends(gpu));
    TRY(read_head(document));
    for (int rank = 0; rank < length(gpus_); ++rank) TRY(read_blocks(rank));
    return std::move(plan_);
  }

 private:
  struct RemoteBuffer {
    int rank;
    Buffer buffer;
    int chunks;
  };
  struct Gpu {
    const Json* json = nullptr;
    int input_chunks = 0, output_chunks = 0, scratch_chunks = 0;
    std::map<std::string, std::vector<int>> peers{};  // of channels, by type
    std::vector<RemoteBuffer> remote{};
  };
  /// The things that operations of a thread block name by number.
  struct Names {
    int rank;
    std::map<std::string, std::vector<int>> channels{};  // of the GPU, by type
    std::map<std::string, std::vector<int>> buffers{};   // of the GPU, by type of channel
  };

  /// Operations that thread blocks share cut each chunk into a number of parts that they divide.
  Status find_parts(const Json& gpu) {
    for (const Json& block : *TRY(list_in(gpu, "threadblocks")))
      for (const Json& op : *TRY(list_in(block, "ops"))) {
        TRY(find_parts_of_op(op));
        for (const Json& inner : *TRY(list_in(op, "ops"))) TRY(find_parts_of_op(inner));
      }
    return {};
  }
  Status find_parts_of_op(const Json& op) {
    const Json* const shared = op.find("tbg_info");
    if (shared == nullptr) return {};
    parts_ = std::lcm(parts_, TRY(whole_in(*shared, "tbg_size", 1, kMostParts)));
    if (parts_ <= kMostParts) return {};
    return refuse(*shared, fmt::format("a chunk is cut into {} parts; at most {} are possible",
                                       parts_, kMostParts));
  }

  static Result<Buffer> buffer_named(const Json& object, std::string_view field) {
    const std::string_view name = TRY(text_in(object, field));
    if (name == "i") return Buffer::Input;
    if (name == "o") return Buffer::Output;
    if (name == "s") return Buffer::Scratch;
    return refuse(object, fmt::format("\"{}\" is \"{}\", none of i, o, s", field, name));
  }
  static Result<std::string> channel_type(const Json& object, std::string_view field) {
    const std::string_view type = TRY(text_in(object, field));
    if (type == "memory" || type == "port" || type == "none") return std::string(type);
    if (type == "switch")
      return refuse(object, "switch channels are not imported: nothing adds in the switch here");
    return refuse(object,
                  fmt::format("\"{}\" is \"{}\", none of memory, port, switch", field, type));
  }

  Status read_ends(Gpu& gpu) {
    gpu.input_chunks = parts_ * TRY(whole_in(*gpu.json, "input_chunks", 0, kMostChunks / parts_));
    gpu.output_chunks = parts_ * TRY(whole_in(*gpu.json, "output_chunks", 0, kMostChunks / parts_));
    gpu.scratch_chunks =
        parts_ * TRY(whole_in(*gpu.json, "scratch_chunks", 0, kMostChunks / parts_));
    for (const Json& channel : *TRY(list_in(*gpu.json, "channels"))) {
      std::vector<int>& peers = gpu.peers[TRY(channel_type(channel, "channel_type"))];
      for (const Json& peer : *TRY(list_in(channel, "connected_to"))) {
        peers.push_back(TRY(whole(peer, "connected_to", 0, length(gpus_) - 1)));
        if (length(peers) > kMostIds) return refuse(peer, "there are too many channels");
      }
    }
    return {};
  }

  Status read_head(const Json& document) {
    Flow& flow = plan_.flow;
    const std::string_view collective = TRY(text_in(document, "collective"));
    const auto found = std::ranges::find(kCollectives, collective, &NamedCollective::name);
    if (found == std::end(kCollectives))
      return refuse(document, fmt::format("\"collective\" is \"{}\"; those that can be imported "
                                          "are {}",
                                          collective, names_of(kCollectives)));
    flow.name = plain_name(TRY(text_in(document, "name")), "mscclpp");
    Layout& layout = flow.layout;
    layout = {.collective = found->collective,
              .nranks = length(gpus_),
              .root = TRY(whole_in(document, "root", 0, length(gpus_) - 1, 0)),
              .chunks = 0,
              .is_in_place = false,
              .input_chunks = {},
              .output_chunks = {}};
    if (const Json* const in_place = document.find("inplace"))
      layout.is_in_place = in_place->kind == Kind::Bool && in_place->is_true;
    for (const Gpu& gpu : gpus_) {
      layout.input_chunks.push_back(gpu.input_chunks);
      layout.output_chunks.push_back(gpu.output_chunks);
      layout.chunks = std::max({layout.chunks, gpu.input_chunks, gpu.output_chunks});
    }
    const bool is_of_ranks = schedule::has_blocks_of_ranks(layout.collective);
    if (layout.chunks == 0) return refuse(document, "no gpu has a chunk");
    if (is_of_ranks && layout.chunks % layout.nranks != 0)
      return refuse(document, fmt::format("{} chunks, which {} ranks do not divide", layout.chunks,
                                          layout.nranks));
    for (const auto& [name, bound] : {std::pair("min_message_size", &flow.use.min_bytes),
                                      std::pair("max_message_size", &flow.use.max_bytes)}) {
      const Json* const size = document.find(name);
      constexpr double kMost = 1e15;
      if (size == nullptr || size->kind != Kind::Number) continue;
      if (size->number > 0 && size->number < kMost)
        *bound = static_cast<size_t>(size->number) /
                 (is_of_ranks ? static_cast<size_t>(layout.nranks) : 1);
    }
    return {};
  }

  Status read_blocks(int rank) {
    Gpu& gpu = at(gpus_, rank);
    for (const Json& remote : *TRY(list_in(*gpu.json, "remote_buffers"))) {
      const int owner = TRY(whole_in(remote, "rank", 0, length(gpus_) - 1));
      const Buffer buffer = TRY(buffer_named(remote, "type"));
      gpu.remote.push_back({owner, buffer, chunks_of(owner, buffer)});
    }
    std::vector<int>& semaphores = plan_.semaphores.emplace_back();
    for (const Json& semaphore : *TRY(list_in(*gpu.json, "semaphores")))
      semaphores.push_back(TRY(whole_in(semaphore, "init_value", 0, kMostIds, 0)));
    int number = 0;
    for (const Json& block : *TRY(list_in(*gpu.json, "threadblocks"))) {
      Names names{.rank = rank};
      for (const Json& channel : *TRY(list_in(block, "channels"))) {
        const std::string type = TRY(channel_type(channel, "channel_type"));
        for (const Json& id : *TRY(list_in(channel, "channel_ids")))
          names.channels[type].push_back(
              TRY(whole(id, "channel_ids", 0, length(gpu.peers[type]) - 1)));
      }
      for (const Json& reference : *TRY(list_in(block, "remote_buffer_refs"))) {
        const std::string type = TRY(channel_type(reference, "access_channel_type"));
        for (const Json& id : *TRY(list_in(reference, "remote_buffer_ids")))
          names.buffers[type].push_back(
              TRY(whole(id, "remote_buffer_ids", 0, length(gpu.remote) - 1)));
      }
      ThreadBlock read{.rank = rank, .number = number++};
      for (const Json& op : *TRY(list_in(block, "ops"))) TRY(read_op(op, names, read.ops));
      plan_.blocks.push_back(std::move(read));
    }
    return {};
  }

  int chunks_of(int rank, Buffer buffer) const {
    const Gpu& gpu = at(gpus_, rank);
    if (buffer == Buffer::Scratch) return gpu.scratch_chunks;
    // In place, both names stand for the larger one.
    if (plan_.flow.layout.is_in_place) return std::max(gpu.input_chunks, gpu.output_chunks);
    return buffer == Buffer::Input ? gpu.input_chunks : gpu.output_chunks;
  }

  Status read_op(const Json& json, const Names& names, std::vector<Op>& ops) {
    const std::string_view name = TRY(text_in(json, "name"));
    if (std::ranges::find(kSwitchOperations, name) != std::end(kSwitchOperations))
      return refuse(json, fmt::format("\"{}\" is not imported: nothing adds in the switch, or "
                                      "stores through it, here",
                                      name));
    const auto known = std::ranges::find(kActions, name, &Named::name);
    if (known == std::end(kActions))
      return refuse(json, fmt::format("the operation \"{}\" is not known; known are {}", name,
                                      names_of(kActions)));
    if (known->action == Action::Pipeline) {
      for (const Json& inner : *TRY(list_in(json, "ops"))) {
        if (inner.find("ops") != nullptr)
          return refuse(inner, "a pipeline in a pipeline is not imported");
        TRY(read_op(inner, names, ops));
      }
      return {};
    }
    Op op{
        .action = known->action, .name = known->name, .signals = known->signals, .line = json.line};
    std::string type = "none";
    if (json.find("channel_type") != nullptr) type = TRY(channel_type(json, "channel_type"));
    for (const Json& id : *TRY(list_in(json, "channel_ids"))) {
      const auto ids = names.channels.find(type);
      if (ids == names.channels.end()) return refuse(id, "its thread block has no such channel");
      const int channel =
          at(ids->second, TRY(whole(id, "channel_ids", 0, length(ids->second) - 1)));
      op.ends.push_back(end_of(names.rank, type, channel));
    }
    for (const Json& id : *TRY(list_in(json, "semaphore_ids")))
      op.semaphores.push_back(
          TRY(whole(id, "semaphore_ids", 0, length(plan_.semaphores.back()) - 1)));
    if (op.action == Action::Barrier) {
      op.barrier = TRY(whole_in(json, "barrier_id", 0, kMostIds));
      op.participants = TRY(whole_in(json, "num_threadblocks", 1, kMostIds));
    }
    if (op.action == Action::Copy || op.action == Action::Reduce)
      TRY(read_spans(json, *known, type, names, op));
    ops.push_back(std::move(op));
    return {};
  }

  End end_of(int rank, const std::string& type, int channel) {
    const std::vector<int>& peers = at(gpus_, rank).peers[type];
    const int peer = at(peers, channel);
    return {type, peer, static_cast<int>(std::count(peers.begin(), peers.begin() + channel, peer))};
  }

  Status read_spans(const Json& json, const Named& named, const std::string& type,
                    const Names& names, Op& op) {
    for (const bool is_source : {true, false}) {
      std::vector<Span>& spans = is_source ? op.sources : op.targets;
      for (const Json& each : *TRY(list_in(json, is_source ? "src_buff" : "dst_buff"))) {
        Span span = TRY(read_span(each, type, names));
        TRY(take_part(json, span));
        // Ports send packets that are packets already.
        const bool is_port_of_packets = is_source && named.name == "ppkt" && type == "port";
        const bool has_packets = is_source ? named.reads_packets : named.writes_packets;
        const int first = is_source ? named.first_packet_source : named.first_packet_target;
        span.is_packet = is_port_of_packets || (has_packets && length(spans) >= first);
        spans.push_back(span);
      }
    }
    if (op.sources.empty() || op.targets.empty())
      return refuse(json, fmt::format("\"{}\" has no source, or no target", op.name));
    if (op.action == Action::Copy && op.sources.size() != op.targets.size())
      return refuse(json, fmt::format("\"{}\" has {} sources and {} targets", op.name,
                                      op.sources.size(), op.targets.size()));
    for (size_t i = 0; i < op.sources.size() + op.targets.size(); ++i) {
      const size_t sources = op.sources.size();
      const size_t number = i < sources ? i : i - sources;
      const Span& span = i < sources ? op.sources[number] : op.targets[number];
      const Span& like = op.action == Action::Reduce ? op.sources[0] : op.targets[number];
      if (span.count != like.count)
        return refuse(json,
                      fmt::format("\"{}\" has {} chunks for {}", op.name, span.count, like.count));
    }
    if (op.action == Action::Reduce && op.sources.size() > 1) {
      const Json* const operation = json.find("reduce_op");
      if (operation != nullptr && operation->text != "sum")
        return refuse(*operation,
                      "reductions are of the call's operation; only \"sum\" stands "
                      "for it");
      if (!schedule::reduces(plan_.flow.layout.collective))
        return refuse(json, fmt::format("\"{}\" reduces, and {} only moves data", op.name,
                                        name_of(plan_.flow.layout.collective)));
    }
    if (op.signals && op.ends.empty())
      return refuse(json, fmt::format("\"{}\" signals, and has no channel", op.name));
    return {};
  }

  Result<Span> read_span(const Json& json, const std::string& type, const Names& names) {
    Span span{.rank = names.rank, .first = {}, .count = 0};
    int chunks = 0;
    if (json.find("switch_channel_id") != nullptr)
      return refuse(json, "switch channels are not imported: nothing adds in the switch here");
    if (json.find("buffer_id") != nullptr) {
      const auto ids = names.buffers.find(type);
      if (ids == names.buffers.end())
        return refuse(json, "its thread block names no remote buffer by such a channel");
      const int id = at(ids->second, TRY(whole_in(json, "buffer_id", 0, length(ids->second) - 1)));
      const RemoteBuffer& remote = at(at(gpus_, names.rank).remote, id);
      span.rank = remote.rank;
      span.first.buffer = remote.buffer;
      chunks = remote.chunks;
    } else {
      span.first.buffer = TRY(buffer_named(json, "type"));
      chunks = chunks_of(names.rank, span.first.buffer);
    }
    span.count = TRY(whole_in(json, "size", 1, chunks / parts_)) * parts_;
    span.first.chunk = TRY(whole_in(json, "index", 0, (chunks - span.count) / parts_)) * parts_;
    return span;
  }
  /// The share of one of several thread blocks.
  Status take_part(const Json& json, Span& span) const {
    const Json* const shared = json.find("tbg_info");
    if (shared == nullptr) return {};
    const int size = TRY(whole_in(*shared, "tbg_size", 1, kMostParts));
    const int number = TRY(whole_in(*shared, "tb_id", 0, size - 1));
    span.count /= size;
    span.first.chunk += number * span.count;
    return {};
  }

  Plan plan_;
  std::vector<Gpu> gpus_;
  int parts_ = 1;
};

/// Does the operations in an order that the plan allows, and has their moves.
class Execution {
 public:
  explicit Execution(Plan& plan)
      : plan_(plan),
        places_(plan.flow.layout),
        next_(plan.blocks.size()),
        clocks_(plan.blocks.size(), Clock(plan.blocks.size())) {
    for (int rank = 0; rank < length(plan.semaphores); ++rank)
      for (int i = 0; i < length(at(plan.semaphores, rank)); ++i)
        tokens_[{rank, i}].assign(static_cast<size_t>(at(at(plan.semaphores, rank), i)),
                                  Clock(plan.blocks.size()));
  }

  Status run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int flat = 0; flat < length(plan_.blocks); ++flat)
        while (!is_done(flat) && obstacle(flat).empty()) {
          TRY(step(flat));
          ++at(next_, flat);
          moved = true;
        }
    }
    std::string waits;
    int count = 0;
    constexpr int kNamed = 4;
    for (int flat = 0; flat < length(plan_.blocks); ++flat) {
      if (is_done(flat) || count++ >= kNamed) continue;
      waits += fmt::format("{}line {} (gpu {}) waits for {}", waits.empty() ? "" : "; ",
                           op_of(flat).line, at(plan_.blocks, flat).rank, obstacle(flat));
    }
    if (count > kNamed) waits += fmt::format("; and {} more", count - kNamed);
    if (count > 0) return Status::invalid_usage("it never ends: {}", waits);
    return {};
  }

 private:
  using Clock = std::vector<uint32_t>;  // operations done, by flat thread block
  struct Access {
    int flat;
    int op;
    bool is_write;
  };
  using SignalKey = std::tuple<std::string, int, int, int>;  // type, from, to, number
  using Where = std::pair<int, Place>;

  static void join(Clock& clock, const Clock& other) {
    for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
  }
  bool is_done(int flat) const { return at(next_, flat) == length(at(plan_.blocks, flat).ops); }
  const Op& op_of(int flat) const { return at(at(plan_.blocks, flat).ops, at(next_, flat)); }

  /// The condition that the next operation of a thread block waits for; empty: none.
  std::string obstacle(int flat) {
    const Op& op = op_of(flat);
    const int rank = at(plan_.blocks, flat).rank;
    if (op.action == Action::Wait || op.action == Action::RelaxedWait)
      for (const End& end : op.ends)
        if (signals_[{end.type, end.peer, rank, end.number}].empty())
          return fmt::format("a signal from gpu {}", end.peer);
    if (op.action == Action::Acquire)
      for (const int semaphore : op.semaphores)
        if (tokens_[{rank, semaphore}].empty()) return fmt::format("semaphore {}", semaphore);
    if (op.action == Action::Barrier) {
      int arrived = 0;
      for (int other = 0; other < length(plan_.blocks); ++other)
        if (is_at_barrier(other, rank, op)) ++arrived;
      const std::set<int>& passing = passing_[{rank, op.barrier}];
      if (!passing.contains(flat) && (arrived < op.participants || !passing.empty()))
        return fmt::format("barrier {}, to which {} of {} thread blocks have come", op.barrier,
                           arrived, op.participants);
    }
    for (const Span& span : op.sources)
      for (int i = 0; i < span.count && span.is_packet; ++i)
        if (!packets_.contains(where(span, i)))
          return fmt::format("packets in chunk {} of {}", span.first.chunk + i,
                             name_of(span.first.buffer));
    return {};
  }
  bool is_at_barrier(int flat, int rank, const Op& like) const {
    return at(plan_.blocks, flat).rank == rank && !is_done(flat) &&
           op_of(flat).action == Action::Barrier && op_of(flat).barrier == like.barrier;
  }
  Where where(const Span& span, int i) const {
    return {span.rank, places_.plain(span.rank, {span.first.buffer, span.first.chunk + i})};
  }

  Status step(int flat) {
    const Op& op = op_of(flat);
    const int rank = at(plan_.blocks, flat).rank;
    Clock& clock = at(clocks_, flat);
    if (op.action == Action::Wait || op.action == Action::RelaxedWait)
      for (const End& end : op.ends) {
        auto& signals = signals_[{end.type, end.peer, rank, end.number}];
        join(clock, signals.front());
        signals.pop_front();
      }
    if (op.action == Action::Acquire)
      for (const int semaphore : op.semaphores) {
        auto& tokens = tokens_[{rank, semaphore}];
        join(clock, tokens.front());
        tokens.pop_front();
      }
    if (op.action == Action::Barrier) pass_barrier(flat, rank, op);
    at(clock, flat) = static_cast<uint32_t>(at(next_, flat)) + 1;
    if (op.action == Action::Copy)
      for (size_t i = 0; i < op.sources.size(); ++i)
        TRY(move(flat, op, {&op.sources[i], 1}, op.targets[i]));
    if (op.action == Action::Reduce) {
      TRY(move(flat, op, op.sources, op.targets[0]));
      for (size_t i = 1; i < op.targets.size(); ++i)
        TRY(move(flat, op, {&op.targets[0], 1}, op.targets[i], /*is_at_hand=*/true));
    }
    if (op.action == Action::Signal || op.action == Action::RelaxedSignal || op.signals)
      for (const End& end : op.ends)
        // Relaxed signals say that their sender came so far, not that its data are there.
        signals_[{end.type, rank, end.peer, end.number}].push_back(
            op.action == Action::RelaxedSignal ? Clock(clock.size()) : clock);
    if (op.action == Action::Release)
      for (const int semaphore : op.semaphores) tokens_[{rank, semaphore}].push_back(clock);
    return {};
  }

  /// The first that passes joins the clocks of all; the others follow.
  void pass_barrier(int flat, int rank, const Op& op) {
    std::set<int>& passing = passing_[{rank, op.barrier}];
    if (passing.empty()) {
      Clock all(plan_.blocks.size());
      for (int other = 0; other < length(plan_.blocks); ++other)
        if (is_at_barrier(other, rank, op)) {
          join(all, at(clocks_, other));
          all[static_cast<size_t>(other)] = static_cast<uint32_t>(at(next_, other)) + 1;
          passing.insert(other);
        }
      barrier_clocks_[{rank, op.barrier}] = std::move(all);
    }
    passing.erase(flat);
    join(at(clocks_, flat), barrier_clocks_[{rank, op.barrier}]);
  }

  /// `is_at_hand`: the source is what the operation has made.
  Status move(int flat, const Op& op, std::span<const Span> sources, const Span& target,
              bool is_at_hand = false) {
    for (int i = 0; i < target.count; ++i) {
      Move move{.operands = {},
                .rank = target.rank,
                .target = {target.first.buffer, target.first.chunk + i},
                .line = op.line};
      for (const Span& source : sources) {
        move.operands.push_back({source.rank, {source.first.buffer, source.first.chunk + i}});
        if (is_at_hand) continue;
        if (source.is_packet) join(at(clocks_, flat), packets_[where(source, i)]);
        TRY(touch(flat, op, where(source, i), false));
      }
      TRY(touch(flat, op, where(target, i), true));
      if (target.is_packet) packets_[where(target, i)] = at(clocks_, flat);
      plan_.flow.moves.push_back(std::move(move));
    }
    if (plan_.flow.moves.size() > kMostMoves)
      return Status::invalid_usage("line {}: the plan moves more than {} chunks", op.line,
                                   kMostMoves);
    return {};
  }

  Status touch(int flat, const Op& op, const Where& place, bool is_write) {
    const Clock& clock = at(clocks_, flat);
    std::vector<Access>& accesses = accesses_[place];
    for (const Access& access : accesses) {
      if (!is_write && !access.is_write) continue;
      if (at(clock, access.flat) > static_cast<uint32_t>(access.op)) continue;
      return Status::invalid_usage(
          "race: on gpu {} line {} {} and line {} {} chunk {} of {}, and nothing orders them",
          place.first, at(at(plan_.blocks, access.flat).ops, access.op).line,
          access.is_write ? "writes" : "reads", op.line, is_write ? "writes" : "reads",
          place.second.chunk, name_of(place.second.buffer));
    }
    // The newest of each thread block and kind is enough.
    std::erase_if(accesses, [&](const Access& access) {
      return access.flat == flat && access.is_write == is_write;
    });
    accesses.push_back({flat, at(next_, flat), is_write});
    return {};
  }

  Plan& plan_;
  const Places places_;
  std::vector<int> next_;  // operation, by flat thread block
  std::vector<Clock> clocks_;
  std::map<SignalKey, std::deque<Clock>> signals_;
  std::map<std::pair<int, int>, std::deque<Clock>> tokens_;  // rank, semaphore
  std::map<std::pair<int, int>, std::set<int>> passing_;     // rank, barrier: who has to pass yet
  std::map<std::pair<int, int>, Clock> barrier_clocks_;
  std::map<Where, Clock> packets_;  // that were written, and when
  std::map<Where, std::vector<Access>> accesses_;
};

}  // namespace

Result<Flow> read_mscclpp_json(std::string_view text) {
  Plan plan = TRY(Reader().read(text));
  TRY(Execution(plan).run());
  return std::move(plan.flow);
}

}  // namespace niccolite::importers
