#include "cli/tune/tuning_file.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "planner/prices/model.h"
#include "planner/prices/tunings.h"

namespace niccolite::tune {
namespace {

using executor::Protocol;
using planner::CostLine;
using planner::Tuning;

constexpr Protocol kProtocols[] = {Protocol::LL, Protocol::LL128, Protocol::Simple};

std::string quote(const std::string& text) { return nlohmann::json(text).dump(); }
std::string number(double value) { return fmt::format("{:.4g}", value); }

/// "a, b"
class List {
 public:
  explicit List(std::string separator) : separator_(std::move(separator)) {}
  void add(const std::string& item) { text_ += (text_.empty() ? "" : separator_) + item; }
  const std::string& text() const { return text_; }

 private:
  const std::string separator_;
  std::string text_;
};

std::string text_of(const std::array<planner::Properties, executor::kProtocols>& properties) {
  List fields(",\n");
  for (const planner::PropertyField& each : planner::property_fields()) {
    List values(", ");
    for (const Protocol protocol : kProtocols)
      values.add(fmt::format("\"{}\": {}", executor::name_of(protocol),
                             number(properties[static_cast<size_t>(protocol)].*each.field)));
    fields.add(fmt::format("    \"{}\": {{{}}}", each.name, values.text()));
  }
  return fields.text();
}

std::string text_of(const planner::Shapes& slots) {
  List shapes(",\n");
  for (const Protocol protocol : kProtocols) {
    const executor::FifoShape& shape = slots[static_cast<size_t>(protocol)];
    shapes.add(fmt::format(R"(    "{}": {{"channels": {}, "depth": {}, "bytes": {}}})",
                           executor::name_of(protocol), shape.channels, shape.depth,
                           shape.slot_bytes));
  }
  return shapes.text();
}

std::string text_of(const planner::Cost& cost) {
  List numbers(", ");
  for (const planner::CostField& each : planner::cost_fields())
    numbers.add(number(cost.*each.field));
  return "[" + numbers.text() + "]";
}

/// An object of lines that are indented by `depth` more than it is.
std::string object(const std::string& name, const std::string& members, size_t depth) {
  const std::string space(2 * depth, ' ');
  return fmt::format("{}{}: {{\n{}\n{}}}", space, quote(name), members, space);
}

std::string text_of(std::span<const CostLine> lines) {
  std::map<Collective, std::map<const Form*, std::map<Protocol, const planner::Cost*>>> all;
  for (const CostLine& line : lines)
    all[line.form->collective][line.form][line.protocol] = &line.cost;
  List collectives(",\n");
  for (const auto& [collective, of_collective] : all) {
    List algorithms(",\n");
    for (const auto& [form, of_algorithm] : of_collective) {
      List protocols(",\n");
      for (const auto& [protocol, cost] : of_algorithm)
        protocols.add(
            fmt::format("        \"{}\": {}", executor::name_of(protocol), text_of(*cost)));
      algorithms.add(object(form->name, protocols.text(), 3));
    }
    collectives.add(object(name_of(collective), algorithms.text(), 2));
  }
  return collectives.text();
}

/// "NVIDIA H200" of "4 x NVIDIA H200"; empty where there are several kinds, or virtual ones.
std::string gpu_of(const Measurements& measurements) {
  const std::string& devices = measurements.devices;
  const size_t name = devices.find(" x ");
  if (measurements.machine != gpu::Kind::Cuda || name == std::string::npos ||
      devices.find(" x ", name + 1) != std::string::npos)
    return "";
  return devices.substr(name + 3);
}

}  // namespace

std::string text_of(const Tuning& tuning) {
  List columns(", ");
  for (const planner::CostField& each : planner::cost_fields()) columns.add(quote(each.name));
  std::string text = fmt::format("{{\n  \"schema\": \"{}\",\n  \"class\": \"{}\",\n",
                                 planner::kTuningSchema, name_of(tuning.machine));
  if (!tuning.gpu.empty()) text += fmt::format("  \"gpu\": {},\n", quote(tuning.gpu));
  text += fmt::format("  \"about\": {},\n", quote(tuning.about));
  if (tuning.slots) text += object("slots", text_of(*tuning.slots), 1) + ",\n";
  if (tuning.slots_of_two) text += object("slots_of_two", text_of(*tuning.slots_of_two), 1) + ",\n";
  text += object("properties", text_of(tuning.properties), 1) + ",\n";
  text += fmt::format("  \"columns\": [{}],\n", columns.text());
  return text + object("costs", text_of(tuning.costs()), 1) + "\n}\n";
}

Tuning tuning_from(const Measurements& measurements, const Tuning& known,
                   std::span<const CostLine> lines) {
  Tuning tuning = known;
  tuning.machine = measurements.machine_class();
  tuning.gpu = gpu_of(measurements);
  tuning.about =
      fmt::format("{}, {}: niccolite tune", measurements.devices, measurements.date.substr(0, 10));
  // Virtual GPUs that share cores say what their collectives cost there, and nothing of machines
  // with cores of their own, or of other numbers of ranks: prices between those are derived.
  const bool is_derived = tuning.machine == planner::MachineClass::Sockets;
  for (const CostLine& line : lines)
    if (!is_derived || line.form->collective == Collective::PointToPoint) tuning.set(line);
  return tuning;
}

Result<Tuning> read_tuning(const std::string& path) {
  const planner::Tunings read = TRY(planner::Tunings::read(path));
  if (read.all().size() != 1)
    return Status::invalid_usage("{} holds {} tuning files: name one", path, read.all().size());
  return read.all()[0];
}

Candidate within_slots(const Measurements& measurements, const Tuning& tuning) {
  std::map<int, planner::Shapes> by_ranks;
  for (const Point& point : measurements.points) {
    const int nranks = point.work.nranks;
    if (by_ranks.contains(nranks)) continue;
    const std::optional<planner::Shapes>& own = tuning.slots_for(nranks);
    by_ranks[nranks] =
        own ? *own : planner::slots_of(measurements.machine_class(), gpu_of(measurements), nranks);
  }
  return [by_ranks = std::move(by_ranks)](const Point& point) {
    const planner::Variant& variant = point.variant;
    const executor::FifoShape& slots =
        by_ranks.at(point.work.nranks)[static_cast<size_t>(variant.protocol)];
    return variant.channels <= static_cast<int>(slots.channels) &&
           variant.parts <= planner::most_parts(variant.protocol) &&
           point.chunk_bytes <= executor::data_bytes(variant.protocol, slots.slot_bytes);
  };
}

const Tuning& tuning_in_force(const Measurements& measurements) {
  return planner::tuning_of(measurements.machine_class(), gpu_of(measurements));
}

}  // namespace niccolite::tune
