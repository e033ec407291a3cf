#include "planner/prices/tuning.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/json.h"

namespace niccolite::planner {
namespace {

using executor::Protocol;
using json::Kind;
using json::Value;

constexpr const char* kClassNames[] = {
    "virtual",      "cuda",   "cuda_slots_of_two", "cuda_slots", "cuda_host_memory",
    "cuda_sockets", "sockets"};
static_assert(std::size(kClassNames) == kMachineClasses);

// Bounds: the time of an operation is finite, positive, and grows with its size.
constexpr double kMost = 1e9;
constexpr double kLeastRate = 1e-6;
constexpr PropertyField kProperties[] = {
    {"fixed_us", &Properties::fixed, 0, kMost},
    {"instruction_us", &Properties::instruction, 0, kMost},
    {"end_us", &Properties::end, 0, kMost},
    {"slot_hop_us", &Properties::slot_hop, 0, kMost},
    {"put_hop_us", &Properties::put_hop, 0, kMost},
    {"get_hop_us", &Properties::get_hop, 0, kMost},
    {"between_hop_us", &Properties::between_hop, 0, kMost},
    {"message_us", &Properties::message, 0, kMost, /*if_missing=*/0},
    {"work_us", &Properties::work, 0, kMost},
    {"machine_work_us", &Properties::machine_work, 0, kMost},
    {"channel_us", &Properties::channel, 0, kMost},
    {"round_us", &Properties::round, 0, kMost},
    {"round_instruction_us", &Properties::round_instruction, 0, kMost},
    {"link_two_ranks_gbs", &Properties::link_two_ranks, 0, kMost},
    {"link_more_ranks_gbs", &Properties::link_more_ranks, 0, kMost},
    {"rail_gbs", &Properties::rail, 0, kMost},
    {"wire_gbs", &Properties::wire, 0, kMost},
    {"engine_gbs", &Properties::engine, 0, kMost},
    {"machine_engine_gbs", &Properties::machine_engine, 0, kMost},
    {"slot_copy_gbs", &Properties::slot_copy, kLeastRate, kMost},
    {"slot_reduction_gbs", &Properties::slot_reduction, kLeastRate, kMost},
    {"direct_copy_gbs", &Properties::direct_copy, kLeastRate, kMost},
    {"direct_reduction_gbs", &Properties::direct_reduction, kLeastRate, kMost},
    {"team_gbs", &Properties::team, 0, kMost, /*if_missing=*/0},
    {"fill", &Properties::fill, 0, kMost},
    {"direct_fill", &Properties::direct_fill, 0, 1},
    {"overlap", &Properties::overlap, 0, 1},
    {"crowd", &Properties::crowd, 0, kMost},
    {"dynamic_crowd", &Properties::dynamic_crowd, 0, kMost},
    {"spread", &Properties::spread, 0, kMost}};
constexpr CostField kCosts[] = {{"fixed_us", &Cost::fixed, 0, kMost},
                                {"step_us", &Cost::step, 0, kMost},
                                {"channel_us", &Cost::channel, 0, kMost},
                                {"link_two_ranks_gbs", &Cost::link_two_ranks, kLeastRate, kMost},
                                {"link_more_ranks_gbs", &Cost::link_more_ranks, kLeastRate, kMost},
                                {"channel_gbs", &Cost::channel_gigabytes, kLeastRate, kMost},
                                {"round_us", &Cost::round, 0, kMost},
                                {"fill_chunks", &Cost::fill, 0, kMost},
                                {"overlap", &Cost::overlap, 0, 1},
                                {"crowd", &Cost::crowd, 0, kMost}};

/// Joins the names of a range: "a, b, c".
template <typename Range, typename Name>
std::string list(const Range& range, Name name) {
  std::string text;
  for (const auto& each : range) text += fmt::format("{}{}", text.empty() ? "" : ", ", name(each));
  return text;
}

/// Refuses a value. `path` is the field's path, for the message.
Status refuse(const Value& value, const std::string& path, const std::string& what) {
  return Status::invalid_argument("line {}: {} {}", value.line, path, what);
}

Status expect(const Value& value, const std::string& path, Kind kind) {
  if (value.kind == kind) return {};
  return refuse(value, path,
                fmt::format("is {}, not {}", json::describe(value.kind), json::describe(kind)));
}

Result<double> number(const Value& value, const std::string& path, double least, double most) {
  TRY(expect(value, path, Kind::Number));
  if (value.number < least || value.number > most)
    return refuse(value, path,
                  fmt::format("is {}, and must be from {} to {}", value.number, least, most));
  return value.number;
}

/// Checks that the members of an object are `names`: all of them, except for those in `optional`.
Status expect_members(const Value& value, const std::string& path,
                      std::span<const std::string_view> names,
                      std::span<const std::string_view> optional = {}) {
  TRY(expect(value, path, Kind::Object));
  for (const json::Member& member : value.members)
    if (std::ranges::find(names, member.name) == names.end())
      return refuse(member.value, path,
                    fmt::format("has an unknown field \"{}\"; known are {}", member.name,
                                list(names, [](std::string_view name) { return name; })));
  for (const std::string_view name : names)
    if (value.find(name) == nullptr && std::ranges::find(optional, name) == optional.end())
      return refuse(value, path, fmt::format("lacks \"{}\"", name));
  return {};
}

Result<Protocol> protocol_named(const json::Member& member, const std::string& path) {
  constexpr Protocol kAll[] = {Protocol::LL, Protocol::LL128, Protocol::Simple};
  static_assert(std::size(kAll) == executor::kProtocols);
  for (const Protocol protocol : kAll)
    if (member.name == executor::name_of(protocol)) return protocol;
  return refuse(member.value, path,
                fmt::format("names \"{}\", which is none of {}", member.name,
                            list(kAll, [](Protocol each) { return executor::name_of(each); })));
}

Status read_properties(const Value& value, Tuning& tuning) {
  const std::string path = "properties";
  std::vector<std::string_view> names, optional;
  for (const PropertyField& each : kProperties) {
    names.emplace_back(each.name);
    if (each.if_missing) optional.emplace_back(each.name);
  }
  TRY(expect_members(value, path, names, optional));
  for (const PropertyField& each : kProperties) {
    const Value* const found = value.find(each.name);
    if (found == nullptr) {
      for (Properties& properties : tuning.properties) properties.*each.field = *each.if_missing;
      continue;
    }
    const Value& by_protocol = *found;
    const std::string of = fmt::format("{}.{}", path, each.name);
    TRY(expect_members(by_protocol, of, {{"LL", "LL128", "Simple"}}));
    for (const json::Member& member : by_protocol.members) {
      const Protocol protocol = TRY(protocol_named(member, of));
      tuning.properties[static_cast<size_t>(protocol)].*each.field =
          TRY(number(member.value, fmt::format("{}.{}", of, member.name), each.least, each.most));
    }
  }
  return {};
}

/// A whole number; of several, a multiple of `unit`.
Result<uint32_t> whole(const Value& value, const std::string& path, uint32_t least, uint32_t most,
                       uint32_t unit = 1) {
  const double found = TRY(number(value, path, least, most));
  const auto result = static_cast<uint32_t>(found);
  if (result != found || result % unit != 0)
    return refuse(value, path,
                  unit == 1 ? fmt::format("is {}, no whole number", found)
                            : fmt::format("is {}, no multiple of {}", found, unit));
  return result;
}

Result<executor::FifoShape> read_shape(const Value& value, const std::string& path) {
  constexpr uint32_t kMostDepth = 64;
  TRY(expect_members(value, path, {{"channels", "depth", "bytes"}}));
  executor::FifoShape shape;
  shape.channels = TRY(whole(*value.find("channels"), path + ".channels", 1, kMostChannels));
  const Value& depth = *value.find("depth");
  shape.depth = TRY(whole(depth, path + ".depth", 2, kMostDepth));
  if (!std::has_single_bit(shape.depth))
    return refuse(depth, path + ".depth", fmt::format("is {}, no power of two", shape.depth));
  shape.slot_bytes =
      TRY(whole(*value.find("bytes"), path + ".bytes", kLeastSlotBytes, kMostSlotBytes, 128));
  return shape;
}

Result<std::optional<Shapes>> read_slots(const Value& document, const std::string& name) {
  const Value* const value = document.find(name);
  if (value == nullptr) return std::optional<Shapes>{};
  TRY(expect_members(*value, name, {{"LL", "LL128", "Simple"}}));
  Shapes shapes{};
  for (const json::Member& member : value->members) {
    const Protocol protocol = TRY(protocol_named(member, name));
    shapes[static_cast<size_t>(protocol)] =
        TRY(read_shape(member.value, fmt::format("{}.{}", name, member.name)));
  }
  return std::optional(shapes);
}

/// Reads the columns of costs, each once, in the file's own order.
Result<std::vector<const CostField*>> read_columns(const Value& value) {
  TRY(expect(value, "columns", Kind::Array));
  std::vector<const CostField*> columns;
  for (const Value& item : value.items) {
    TRY(expect(item, "columns", Kind::Text));
    const auto* const found =
        std::ranges::find_if(kCosts, [&](const CostField& each) { return each.name == item.text; });
    if (found == std::end(kCosts) || std::ranges::find(columns, found) != columns.end())
      return refuse(item, "columns",
                    fmt::format("has \"{}\" {}", item.text,
                                found == std::end(kCosts) ? "which is unknown" : "twice"));
    columns.push_back(found);
  }
  if (columns.size() != std::size(kCosts))
    return refuse(value, "columns",
                  fmt::format("are not all of {}",
                              list(kCosts, [](const CostField& each) { return each.name; })));
  return columns;
}

Result<Cost> read_cost(const Value& value, const std::string& path,
                       std::span<const CostField* const> columns) {
  TRY(expect(value, path, Kind::Array));
  if (value.items.size() != columns.size())
    return refuse(value, path,
                  fmt::format("has {} numbers for {} columns", value.items.size(), columns.size()));
  Cost cost{};
  for (size_t i = 0; i < columns.size(); ++i) {
    const CostField& column = *columns[i];
    cost.*column.field = TRY(number(value.items[i], fmt::format("{}, {}", path, column.name),
                                    column.least, column.most));
  }
  return cost;
}

Result<Collective> collective_named(const json::Member& member) {
  std::vector<const char*> known;
  for (int i = 0; i < schedule::kCollectives; ++i) {
    const auto collective = static_cast<Collective>(i);
    if (member.name == name_of(collective)) return collective;
    known.push_back(name_of(collective));
  }
  return refuse(member.value, "costs",
                fmt::format("names \"{}\", which is none of {}", member.name,
                            list(known, [](const char* name) { return name; })));
}

Status read_costs(const Value& value, std::span<const CostField* const> columns, Tuning& tuning) {
  TRY(expect(value, "costs", Kind::Object));
  for (const json::Member& of_collective : value.members) {
    const Collective collective = TRY(collective_named(of_collective));
    const std::string path = "costs." + of_collective.name;
    TRY(expect(of_collective.value, path, Kind::Object));
    for (const json::Member& of_algorithm : of_collective.value.members) {
      const Form* const form = find_form(collective, of_algorithm.name);
      if (form == nullptr)
        return refuse(
            of_algorithm.value, path,
            fmt::format("names \"{}\", which is none of {} (nor of a file of NICCOLITE_ALGORITHMS)",
                        of_algorithm.name,
                        list(forms_of(collective), [](const Form& each) { return each.name; })));
      const std::string of = fmt::format("{}.{}", path, of_algorithm.name);
      TRY(expect(of_algorithm.value, of, Kind::Object));
      for (const json::Member& member : of_algorithm.value.members) {
        const Protocol protocol = TRY(protocol_named(member, of));
        const Cost cost =
            TRY(read_cost(member.value, fmt::format("{}.{}", of, member.name), columns));
        tuning.set({form, protocol, cost});
      }
    }
  }
  return {};
}

Result<Tuning> read(const Value& document) {
  constexpr std::string_view kNames[] = {"schema",       "class",      "gpu",     "about", "slots",
                                         "slots_of_two", "properties", "columns", "costs"};
  TRY(expect(document, "the document", Kind::Object));
  Tuning tuning;
  const Value* const schema = document.find("schema");
  if (schema == nullptr || schema->text != kTuningSchema)
    return refuse(schema == nullptr ? document : *schema, "schema",
                  fmt::format("is not \"{}\"", kTuningSchema));
  constexpr std::string_view kOptional[] = {"gpu", "slots", "slots_of_two"};
  TRY(expect_members(document, "the document", kNames, kOptional));
  if (const Value* const gpu = document.find("gpu")) {
    TRY(expect(*gpu, "gpu", Kind::Text));
    tuning.gpu = gpu->text;
  }
  const Value& of_class = *document.find("class");
  const auto machine = machine_class_named(of_class.text);
  if (!machine)
    return refuse(of_class, "class",
                  fmt::format("is \"{}\", which is none of {}", of_class.text,
                              list(kClassNames, [](const char* name) { return name; })));
  tuning.machine = *machine;
  TRY(expect(*document.find("about"), "about", Kind::Text));
  tuning.about = document.find("about")->text;
  tuning.slots = TRY(read_slots(document, "slots"));
  tuning.slots_of_two = TRY(read_slots(document, "slots_of_two"));
  TRY(read_properties(*document.find("properties"), tuning));
  const std::vector<const CostField*> columns = TRY(read_columns(*document.find("columns")));
  TRY(read_costs(*document.find("costs"), columns, tuning));
  return tuning;
}

}  // namespace

const Cost* Tuning::find(const Form& form, Protocol protocol) const {
  for (const CostLine& line : costs_)
    if (line.form == &form && line.protocol == protocol) return &line.cost;
  return nullptr;
}

void Tuning::set(const CostLine& line) {
  for (CostLine& known : costs_)
    if (known.form == line.form && known.protocol == line.protocol) {
      known.cost = line.cost;
      return;
    }
  costs_.push_back(line);
}

const char* name_of(MachineClass machine) { return kClassNames[static_cast<size_t>(machine)]; }

std::optional<MachineClass> machine_class_named(std::string_view name) {
  for (size_t i = 0; i < std::size(kClassNames); ++i)
    if (kClassNames[i] == name) return static_cast<MachineClass>(i);
  return std::nullopt;
}

std::span<const PropertyField> property_fields() { return kProperties; }
std::span<const CostField> cost_fields() { return kCosts; }

Result<Tuning> parse_tuning(std::string_view text, const std::string& origin) {
  Result<Value> document = json::parse(text);
  if (!document.is_ok()) return std::move(document).status().with_context("{}", origin);
  Result<Tuning> tuning = read(document.value());
  if (!tuning.is_ok()) return std::move(tuning).status().with_context("{}", origin);
  tuning->origin = origin;
  return tuning;
}

}  // namespace niccolite::planner
