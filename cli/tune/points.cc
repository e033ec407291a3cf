#include "cli/tune/points.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace niccolite::tune {
namespace {

using executor::Protocol;
using nlohmann::json;

constexpr const char* kSchema = "niccolite-tune-1";
/// Fields of a file. At most one is true.
constexpr std::pair<const char*, DataPath> kPaths[] = {{"slots", DataPath::Slots},
                                                       {"sockets", DataPath::Network},
                                                       {"host_memory", DataPath::HostMemory}};

Result<const Form*> algorithm_named(Collective collective, const std::string& name) {
  if (const Form* const found = planner::find_form(collective, name)) return found;
  return Status::invalid_argument(
      "\"{}\" is no algorithm of {}; if it is one of a file, "
      "NICCOLITE_ALGORITHMS must name the file's folder",
      name, name_of(collective));
}

Result<Protocol> protocol_named(const std::string& name) {
  for (int id = 0; id < executor::kProtocols; ++id)
    if (const auto protocol = static_cast<Protocol>(id); name == executor::name_of(protocol))
      return protocol;
  return Status::invalid_argument("\"{}\" is no protocol", name);
}

json to_json(const Point& point) {
  return {{"collective", name_of(point.work.collective)},
          {"nranks", point.work.nranks},
          {"bytes", point.work.bytes},
          {"algorithm", point.variant.form->name},
          {"protocol", executor::name_of(point.variant.protocol)},
          {"channels", point.variant.channels},
          {"parts", point.variant.parts},
          {"chunk_bytes", point.chunk_bytes},
          {"time_us", point.microseconds}};
}

json to_json(const OwnTime& time) {
  return {{"collective", name_of(time.work.collective)},
          {"nranks", time.work.nranks},
          {"bytes", time.work.bytes},
          {"time_us", time.microseconds},
          {"predicted_us", time.predicted}};
}

Result<OwnTime> own_time_from(const json& value) {
  OwnTime time;
  time.work.collective = TRY(collective_named(value.at("collective")));
  time.work.nranks = value.at("nranks");
  time.work.bytes = value.at("bytes");
  time.microseconds = value.at("time_us");
  time.predicted = value.at("predicted_us");
  if (time.work.nranks <= 0 || time.work.bytes == 0 || time.microseconds <= 0)
    return Status::invalid_argument("a time that nobody can have measured: {}", value.dump());
  return time;
}

Result<Point> point_from(const json& value) {
  Point point;
  point.work.collective = TRY(collective_named(value.at("collective")));
  point.work.nranks = value.at("nranks");
  point.work.bytes = value.at("bytes");
  point.variant.form = TRY(algorithm_named(point.work.collective, value.at("algorithm")));
  point.variant.protocol = TRY(protocol_named(value.at("protocol")));
  point.variant.channels = value.at("channels");
  point.variant.parts = value.at("parts");
  point.chunk_bytes = value.at("chunk_bytes");
  point.microseconds = value.at("time_us");
  const bool is_sane = point.work.nranks > 0 && point.work.bytes > 0 &&
                       point.variant.channels > 0 && point.variant.parts > 0 &&
                       point.chunk_bytes > 0 && point.microseconds > 0;
  if (!is_sane)
    return Status::invalid_argument("a point that nobody can have measured: {}", value.dump());
  return point;
}

Result<DataPath> path_from(const json& document) {
  std::optional<DataPath> found;
  for (const auto& [field, path] : kPaths) {
    if (!document.value(field, false)) continue;
    if (found) return Status::invalid_argument("it is of data that go two ways at once");
    found = path;
  }
  return found.value_or(DataPath::Best);
}

Result<Measurements> measurements_from(const json& document) {
  Measurements measurements;
  if (document.at("schema") != kSchema)
    return Status::invalid_argument("its schema is {}, not {}", document.at("schema").dump(),
                                    kSchema);
  const gpu::Kind machine = document.at("machine") == "cuda" ? gpu::Kind::Cuda : gpu::Kind::Virtual;
  measurements.machine = machine;
  measurements.path = TRY(path_from(document));
  measurements.devices = document.at("devices");
  measurements.date = document.at("date");
  for (const json& value : document.at("points")) {
    const Point point = TRY(point_from(value));
    measurements.points.push_back(point);
  }
  for (const json& value : document.at("own")) {
    const OwnTime time = TRY(own_time_from(value));
    measurements.own.push_back(time);
  }
  for (const json& value : document.at("failures")) measurements.failures.push_back(value);
  return measurements;
}

Status add(const Measurements& added, Measurements& all) {
  if (all.is_empty()) {
    all.machine = added.machine;
    all.path = added.path;
    all.devices = added.devices;
    all.date = added.date;
  } else if (added.machine_class() != all.machine_class()) {
    return Status::invalid_usage("it is of class {}, the files before it are of {}",
                                 name_of(added.machine_class()), name_of(all.machine_class()));
  }
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(all.points, added.points);
  append(all.own, added.own);
  append(all.failures, added.failures);
  return {};
}

// nlohmann's accessors throw; read() turns that into a Status.
Status add_document(const json& document, Measurements& all) {
  return add(TRY(measurements_from(document)), all);
}

}  // namespace

Result<Collective> collective_named(const std::string& name) {
  for (int i = 0; i < schedule::kCollectives; ++i)
    if (const auto collective = static_cast<Collective>(i); name == name_of(collective))
      return collective;
  return Status::invalid_argument("\"{}\" is no collective", name);
}

void set_path(planner::Settings& settings, DataPath path) {
  planner::set_reach(settings, path == DataPath::Best || path == DataPath::Network);
  planner::set_shares_host(settings, path == DataPath::HostMemory);
  if (path == DataPath::Network) planner::span_machines(settings, {});
}

planner::Settings settings_of(const Measurements& measurements, int nranks) {
  planner::Settings settings;
  settings.machine = measurements.machine;
  settings.nranks = nranks;
  set_path(settings, measurements.path);
  return settings;
}

planner::MachineClass Measurements::machine_class() const {
  int nranks = 0;
  for (const Point& point : points) nranks = std::max(nranks, point.work.nranks);
  for (const OwnTime& time : own) nranks = std::max(nranks, time.work.nranks);
  return planner::class_of(settings_of(*this, nranks));
}

json to_json(const Measurements& measurements) {
  json points = json::array(), own = json::array();
  for (const Point& point : measurements.points) points.push_back(to_json(point));
  for (const OwnTime& time : measurements.own) own.push_back(to_json(time));
  json document = {{"schema", kSchema},
                   {"date", measurements.date},
                   {"machine", measurements.machine == gpu::Kind::Cuda ? "cuda" : "virtual"},
                   {"devices", measurements.devices},
                   {"points", points},
                   {"own", own},
                   {"failures", measurements.failures}};
  for (const auto& [field, path] : kPaths) document[field] = measurements.path == path;
  return document;
}

Status read(const std::string& path, Measurements& measurements) {
  std::ifstream file(path);
  if (!file) return Status::from_errno(errno, "cannot read " + path);
  try {
    return add_document(json::parse(file), measurements).with_context("{}", path);
  } catch (const json::exception& error) {
    return Status::invalid_argument("{} is no file of `niccolite tune`: {}", path, error.what());
  }
}

}  // namespace niccolite::tune
