#include "schedule/file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "base/json.h"

namespace niccolite::schedule {
namespace {

using json::Kind;
using Json = json::Value;

constexpr std::string_view kFormat = "niccolite schedule 1";
// Limits of the numbers in a file, far beyond the limits of any executor.
constexpr int kLargestRanks = 65536;
constexpr int kLargestBlock = 1 << 20;
constexpr int kLargestTag = 1 << 20;
constexpr int kLargestWeight = 1 << 10;
constexpr int kMostMachines = 65536;
constexpr int kMostPriority = 1000;
constexpr std::array kBuffers{Buffer::Input, Buffer::Output, Buffer::Scratch};

/// "a, b, c".
template <typename Range>
std::string list_of(const Range& range) {
  std::string text;
  for (const auto& each : range) text += fmt::format("{}{}", text.empty() ? "" : ", ", each);
  return text;
}

/// The names of Use::types.
std::vector<std::string_view> types_of(const Use& use) {
  std::vector<std::string_view> names;
  for (size_t type = 0; type < kTypeNames.size() && use.types != 0; ++type)
    if (use.is_for_type(static_cast<int>(type))) names.push_back(kTypeNames[type]);
  return names;
}

// ---- writing

class Writer {
 public:
  Writer(const Schedule& schedule, const Use& use) : schedule_(schedule), use_(use) {}

  std::string write() {
    add("{{\n");
    add("  \"format\": \"{}\",\n", kFormat);
    add("  \"collective\": \"{}\",\n", name_of(schedule_.collective));
    add("  \"algorithm\": ");
    quote(schedule_.algorithm);
    add(",\n  \"ranks\": {},\n", schedule_.nranks);
    add("  \"blocks\": {},\n", schedule_.nblocks);
    if (schedule_.root != 0) add("  \"root\": {},\n", schedule_.root);
    if (schedule_.scratch_blocks != 0) add("  \"scratch_blocks\": {},\n", schedule_.scratch_blocks);
    if (schedule_.partial_sums) add("  \"partial_sums\": true,\n");
    write_use();
    if (!schedule_.messages.empty()) {
      list("  \"messages\": [\n", schedule_.messages, "  ],\n", [&](const Message& message) {
        add("    [{}, {}, {}, {}]", message.sender, message.receiver, message.send_block,
            message.receive_block);
      });
    }
    list("  \"connections\": [\n", schedule_.connections, "  ],\n", [&](const Connection& each) {
      add("    [{}, {}, {}, {}]", each.sender, each.receiver, each.channel, each.tag);
    });
    list("  \"programs\": [\n", schedule_.ranks, "  ]\n", [&](const std::vector<Channel>& rank) {
      list("    [\n", rank, "    ]", [&](const Channel& channel) {
        list("      [\n", channel.workers, "      ]",
             [&](const Worker& worker) { write_worker(worker); });
      });
    });
    add("}}\n");
    return std::move(text_);
  }

 private:
  template <typename... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }
  template <typename Range, typename Function>
  void list(std::string_view begin, const Range& range, std::string_view end, Function&& write) {
    text_ += begin;
    bool is_first = true;
    for (const auto& each : range) {
      if (!std::exchange(is_first, false)) text_ += ",\n";
      write(each);
    }
    if (!is_first) text_ += "\n";
    text_ += end;
  }
  void quote(std::string_view text) {
    text_ += '"';
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < 0x20) {
        add("\\u{:04x}", static_cast<unsigned>(c));
        continue;
      }
      if (c == '"' || c == '\\') text_ += '\\';
      text_ += c;
    }
    text_ += '"';
  }
  std::string quoted_types() const {
    std::vector<std::string> names;
    for (const std::string_view name : types_of(use_)) names.push_back(fmt::format("\"{}\"", name));
    return fmt::format("[{}]", list_of(names));
  }
  void write_use() {
    if (use_ == Use{}) return;
    std::string fields;
    const auto field = [&](std::string_view name, const auto& value, const auto& usual) {
      if (value != usual)
        fields += fmt::format("{}\"{}\": {}", fields.empty() ? "" : ", ", name, value);
    };
    field("min_bytes", use_.min_bytes, size_t{0});
    field("max_bytes", use_.max_bytes, size_t{SIZE_MAX});
    field("types", quoted_types(), std::string("[]"));
    field("machines", use_.machines, 0);
    field("priority", use_.priority, 0);
    add("  \"use\": {{{}}},\n", fields);
  }
  void write_worker(const Worker& worker) {
    add("        {{");
    if (worker.weight != 1) add("\"weight\": {}, ", worker.weight);
    list("\"steps\": [\n", worker.instructions, "        ]}",
         [&](const Instruction& instruction) { write_instruction(instruction); });
  }
  void write_instruction(const Instruction& instruction) {
    text_ += "          {";
    bool is_first = true;
    const auto field = [&](std::string_view name) {
      add("{}\"{}\": ", std::exchange(is_first, false) ? "" : ", ", name);
    };
    const auto block = [&](std::string_view name, const std::optional<BlockReference>& reference) {
      if (!reference) return;
      field(name);
      add("[\"{}\", {}]", name_of(reference->buffer), reference->block);
    };
    const auto connections = [&](std::string_view name, const std::vector<int>& indices) {
      if (indices.empty()) return;
      field(name);
      add("[{}]", list_of(indices));
    };
    const auto flag = [&](std::string_view name, bool is_set) {
      if (!is_set) return;
      field(name);
      text_ += "true";
    };
    connections("receive", instruction.receive_from);
    block("source", instruction.source);
    if (instruction.source_position != 0) {
      field("source_position");
      add("{}", instruction.source_position);
    }
    flag("reduce", instruction.reduce);
    flag("finish", instruction.finish);
    block("target", instruction.target);
    connections("send", instruction.send_to);
    if (instruction.chunk_of >= 0) {
      field("chunk_of");
      add("{}", instruction.chunk_of);
    }
    text_ += "}";
  }

  const Schedule& schedule_;
  const Use& use_;
  std::string text_;
};

// ---- reading

Status expect(const Json& value, std::string_view name, Kind kind) {
  if (value.kind == kind) return {};
  return refuse(value, fmt::format("\"{}\" is {}, not {}", name, json::describe(value.kind),
                                   json::describe(kind)));
}

Result<int> whole(const Json& value, std::string_view name, int least, int most) {
  TRY(expect(value, name, Kind::Number));
  if (value.number != std::floor(value.number) || value.number < least || value.number > most)
    return refuse(value, fmt::format("\"{}\" is {}, and must be a whole number from {} to {}", name,
                                     value.number, least, most));
  return static_cast<int>(value.number);
}

Result<size_t> bytes(const Json& value, std::string_view name) {
  constexpr double kMost = 1e15;  // far from where doubles stop being exact
  TRY(expect(value, name, Kind::Number));
  if (value.number != std::floor(value.number) || value.number < 0 || value.number > kMost)
    return refuse(value, fmt::format("\"{}\" is {}, and must be a whole number of bytes", name,
                                     value.number));
  return static_cast<size_t>(value.number);
}

Result<bool> flag(const Json& value, std::string_view name) {
  TRY(expect(value, name, Kind::Bool));
  return value.is_true;
}

/// `value` is an object, and has no other members than `names`.
Status expect_names(const Json& value, std::string_view what,
                    std::span<const std::string_view> names) {
  TRY(expect(value, what, Kind::Object));
  for (const json::Member& member : value.members)
    if (std::ranges::find(names, member.name) == names.end())
      return refuse(member.value, fmt::format("\"{}\" is no field of {}; known are {}", member.name,
                                              what, list_of(names)));
  return {};
}

Result<const Json*> require(const Json& object, std::string_view name) {
  const Json* const found = object.find(name);
  if (found == nullptr) return refuse(object, fmt::format("\"{}\" is missing", name));
  return found;
}

class Reader {
 public:
  explicit Reader(const Json& document) : document_(document) {}

  Result<File> read() {
    constexpr std::string_view kNames[] = {"format", "collective", "algorithm",      "ranks",
                                           "blocks", "root",       "scratch_blocks", "partial_sums",
                                           "use",    "messages",   "connections",    "programs"};
    TRY(expect_names(document_, "a schedule", kNames));
    const Json& format = *TRY(require(document_, "format"));
    TRY(expect(format, "format", Kind::Text));
    if (format.text != kFormat)
      return refuse(format, fmt::format("\"format\" is \"{}\"; this version reads \"{}\"",
                                        format.text, kFormat));
    schedule_.collective = TRY(collective());
    const Json& algorithm = *TRY(require(document_, "algorithm"));
    TRY(expect(algorithm, "algorithm", Kind::Text));
    if (algorithm.text.empty()) return refuse(algorithm, "\"algorithm\" is an empty name");
    schedule_.algorithm = algorithm.text;
    schedule_.nranks = TRY(whole(*TRY(require(document_, "ranks")), "ranks", 1, kLargestRanks));
    // A schedule of messages has a block for each message of a rank, and no number of its own.
    const int least_blocks = schedule_.collective == Collective::PointToPoint ? 0 : 1;
    schedule_.nblocks =
        TRY(whole(*TRY(require(document_, "blocks")), "blocks", least_blocks, kLargestBlock));
    schedule_.root = TRY(optional("root", schedule_.nranks - 1));
    schedule_.scratch_blocks = TRY(optional("scratch_blocks", kLargestBlock));
    if (const Json* const found = document_.find("partial_sums"))
      schedule_.partial_sums = TRY(flag(*found, "partial_sums"));
    const Use use = TRY(read_use());
    TRY(read_messages());
    TRY(read_connections());
    TRY(read_programs());
    return File{.schedule = std::move(schedule_), .use = use};
  }

 private:
  Result<Collective> collective() const {
    const Json& name = *TRY(require(document_, "collective"));
    TRY(expect(name, "collective", Kind::Text));
    std::string names;
    for (int i = 0; i < kCollectives; ++i) {
      const auto each = static_cast<Collective>(i);
      if (name.text == name_of(each)) return each;
      names += fmt::format("{}{}", i == 0 ? "" : ", ", name_of(each));
    }
    return refuse(name,
                  fmt::format("\"collective\" is \"{}\", which is none of {}", name.text, names));
  }
  Result<int> optional(std::string_view name, int most) const {
    const Json* const found = document_.find(name);
    return found == nullptr ? Result<int>(0) : whole(*found, name, 0, most);
  }
  Result<Use> read_use() const {
    constexpr std::string_view kNames[] = {"min_bytes", "max_bytes", "types", "machines",
                                           "priority"};
    Use use;
    const Json* const found = document_.find("use");
    if (found == nullptr) return use;
    TRY(expect_names(*found, "use", kNames));
    for (const json::Member& member : found->members) {
      const std::string_view name = member.name;
      if (name == "machines")
        use.machines = TRY(whole(member.value, name, 1, kMostMachines));
      else if (name == "priority")
        use.priority = TRY(whole(member.value, name, 0, kMostPriority));
      else if (name == "types")
        use.types = TRY(types(member.value));
      else
        (name == "min_bytes" ? use.min_bytes : use.max_bytes) = TRY(bytes(member.value, name));
    }
    if (use.min_bytes > use.max_bytes)
      return refuse(*found, fmt::format("\"min_bytes\" is {}, above \"max_bytes\", which is {}",
                                        use.min_bytes, use.max_bytes));
    return use;
  }
  Result<uint16_t> types(const Json& value) const {
    TRY(expect(value, "types", Kind::Array));
    if (!reduces(schedule_.collective))
      return refuse(value, fmt::format("\"types\" of {}, which moves bytes of any type; they are "
                                       "for collectives that reduce",
                                       name_of(schedule_.collective)));
    unsigned bits = 0;
    for (const Json& each : value.items) {
      TRY(expect(each, "one of types", Kind::Text));
      const auto found = std::ranges::find(kTypeNames, each.text);
      if (found == kTypeNames.end())
        return refuse(each, fmt::format("\"{}\" is no data type; known are {}", each.text,
                                        list_of(kTypeNames)));
      bits |= 1u << (found - kTypeNames.begin());
    }
    if (bits == 0) return refuse(value, "\"types\" names no data type");
    return static_cast<uint16_t>(bits);
  }
  Result<std::array<int, 4>> four(const Json& value, std::string_view name,
                                  std::array<int, 4> most) const {
    TRY(expect(value, name, Kind::Array));
    std::array<int, 4> numbers{};
    if (value.items.size() != numbers.size())
      return refuse(value,
                    fmt::format("one of \"{}\" has {} numbers, not 4", name, value.items.size()));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = TRY(whole(value.items[i], name, 0, most[i]));
    return numbers;
  }
  Status read_messages() {
    const Json* const found = document_.find("messages");
    if (found == nullptr) return {};
    TRY(expect(*found, "messages", Kind::Array));
    const int last = schedule_.nranks - 1;
    for (const Json& each : found->items) {
      const auto [sender, receiver, send_block, receive_block] =
          TRY(four(each, "messages", {last, last, kLargestBlock, kLargestBlock}));
      schedule_.messages.push_back({sender, receiver, send_block, receive_block});
    }
    return {};
  }
  Status read_connections() {
    const Json& found = *TRY(require(document_, "connections"));
    TRY(expect(found, "connections", Kind::Array));
    const int last = schedule_.nranks - 1;
    for (const Json& each : found.items) {
      const auto [sender, receiver, channel, tag] =
          TRY(four(each, "connections", {last, last, kLargestBlock, kLargestTag}));
      schedule_.connections.push_back({sender, receiver, channel, tag});
    }
    return {};
  }
  Status read_programs() {
    const Json& found = *TRY(require(document_, "programs"));
    TRY(expect(found, "programs", Kind::Array));
    if (found.items.size() != static_cast<size_t>(schedule_.nranks))
      return refuse(found, fmt::format("\"programs\" are of {} ranks, not {}", found.items.size(),
                                       schedule_.nranks));
    for (const Json& rank : found.items) {
      TRY(expect(rank, "a rank's program", Kind::Array));
      std::vector<Channel>& channels = schedule_.ranks.emplace_back();
      for (const Json& channel : rank.items) {
        TRY(expect(channel, "a channel", Kind::Array));
        Channel& made = channels.emplace_back();
        for (const Json& worker : channel.items) made.workers.push_back(TRY(read_worker(worker)));
      }
    }
    return {};
  }
  Result<Worker> read_worker(const Json& value) const {
    constexpr std::string_view kNames[] = {"weight", "steps"};
    TRY(expect_names(value, "a worker", kNames));
    Worker worker;
    if (const Json* const weight = value.find("weight"))
      worker.weight = TRY(whole(*weight, "weight", 1, kLargestWeight));
    const Json& steps = *TRY(require(value, "steps"));
    TRY(expect(steps, "steps", Kind::Array));
    for (const Json& step : steps.items) worker.instructions.push_back(TRY(read_instruction(step)));
    return worker;
  }
  Result<Instruction> read_instruction(const Json& value) const {
    constexpr std::string_view kNames[] = {
        "receive", "source", "source_position", "reduce", "finish", "target", "send", "chunk_of"};
    TRY(expect_names(value, "a step", kNames));
    Instruction instruction;
    for (const json::Member& member : value.members) {
      const std::string_view name = member.name;
      if (name == "receive")
        instruction.receive_from = TRY(connections(member.value, name));
      else if (name == "send")
        instruction.send_to = TRY(connections(member.value, name));
      else if (name == "source")
        instruction.source = TRY(block(member.value, name));
      else if (name == "target")
        instruction.target = TRY(block(member.value, name));
      else if (name == "source_position")
        instruction.source_position = TRY(whole(member.value, name, 0, kLargestRanks));
      else if (name == "chunk_of")
        instruction.chunk_of = TRY(whole(member.value, name, 0, kLargestBlock));
      else if (name == "reduce")
        instruction.reduce = TRY(flag(member.value, name));
      else
        instruction.finish = TRY(flag(member.value, name));
    }
    return instruction;
  }
  Result<std::vector<int>> connections(const Json& value, std::string_view name) const {
    TRY(expect(value, name, Kind::Array));
    if (!value.items.empty() && schedule_.connections.empty())
      return refuse(value, fmt::format("\"{}\" names a connection, and there is none", name));
    std::vector<int> indices;
    for (const Json& each : value.items)
      indices.push_back(
          TRY(whole(each, name, 0, static_cast<int>(schedule_.connections.size()) - 1)));
    return indices;
  }
  static Result<BlockReference> block(const Json& value, std::string_view name) {
    TRY(expect(value, name, Kind::Array));
    if (value.items.size() != 2 || value.items.front().kind != Kind::Text)
      return refuse(value,
                    fmt::format("\"{}\" is not a buffer and a number, as [\"input\", 0]", name));
    const std::string& buffer = value.items.front().text;
    const auto found =
        std::ranges::find_if(kBuffers, [&](Buffer each) { return buffer == name_of(each); });
    if (found == kBuffers.end())
      return refuse(value, fmt::format("\"{}\" is of \"{}\", which is none of input, output, "
                                       "scratch",
                                       name, buffer));
    return BlockReference{*found, TRY(whole(value.items.back(), name, 0, kLargestBlock))};
  }

  const Json& document_;
  Schedule schedule_{};
};

}  // namespace

std::string names_of_types(const Use& use) { return list_of(types_of(use)); }

std::string to_file(const Schedule& schedule, const Use& use) {
  return Writer(schedule, use).write();
}

Result<File> read_file(std::string_view text) {
  const Json document = TRY(json::parse(text));
  return Reader(document).read();
}

Result<Schedule> from_file(std::string_view text) { return TRY(read_file(text)).schedule; }

}  // namespace niccolite::schedule
