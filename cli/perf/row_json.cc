#include "cli/perf/row_json.h"

#include <nlohmann/json.hpp>

namespace niccolite::perf {

using nlohmann::json;

double algorithm_bandwidth(size_t bytes, double microseconds) {
  return microseconds > 0 ? static_cast<double>(bytes) / microseconds / 1e3 : 0;
}
double bus_bandwidth(size_t bytes, double microseconds, int nranks) {
  return algorithm_bandwidth(bytes, microseconds) * 2 * (nranks - 1) / nranks;
}
double ratio(const PlaceResult& result) {
  return result.ours.microseconds > 0 ? result.other->microseconds / result.ours.microseconds : 0;
}

namespace {

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

template <typename T>
std::optional<T> optional_from(const json& value) {
  if (value.is_null()) return std::nullopt;
  return value.get<T>();
}

json measurement_to_json(const Measurement& measurement, const Row& row) {
  return {{"time_us", measurement.microseconds},
          {"samples_us", measurement.samples},
          {"algbw_gbs", algorithm_bandwidth(row.bytes, measurement.microseconds)},
          {"busbw_gbs", bus_bandwidth(row.bytes, measurement.microseconds, row.nranks)},
          {"wrong", or_null(measurement.wrong)},
          {"differing_ranks", or_null(measurement.differing_ranks)}};
}

Measurement measurement_from_json(const json& value) {
  return {.microseconds = value.at("time_us"),
          .samples = value.at("samples_us"),
          .wrong = optional_from<uint64_t>(value.at("wrong")),
          .differing_ranks = optional_from<int>(value.at("differing_ranks"))};
}

json place_to_json(const std::optional<PlaceResult>& place, const Row& row) {
  if (!place) return nullptr;
  json value = measurement_to_json(place->ours, row);
  if (place->other) {
    value["vs"] = measurement_to_json(*place->other, row);
    value["ratio"] = ratio(*place);
  }
  return value;
}

std::optional<PlaceResult> place_from_json(const json& value) {
  if (value.is_null()) return std::nullopt;
  PlaceResult place = {.ours = measurement_from_json(value), .other = std::nullopt};
  if (value.contains("vs")) place.other = measurement_from_json(value.at("vs"));
  return place;
}

json name_to_json(const LibraryName& name) {
  return {{"path", name.path}, {"version", name.version}};
}
LibraryName name_from_json(const json& value) { return {value.at("path"), value.at("version")}; }

}  // namespace

json to_json(const Row& row) {
  return {{"bytes", row.bytes},
          {"count", row.count},
          {"type", row.type},
          {"op", row.operation},
          {"root", -1},
          {"nranks", row.nranks},
          {"out_of_place", place_to_json(row.out_of_place, row)},
          {"in_place", place_to_json(row.in_place, row)}};
}

Row row_from_json(const json& value) {
  return {.bytes = value.at("bytes"),
          .count = value.at("count"),
          .type = value.at("type"),
          .operation = value.at("op"),
          .nranks = value.at("nranks"),
          .out_of_place = place_from_json(value.at("out_of_place")),
          .in_place = place_from_json(value.at("in_place"))};
}

json to_json(const Start& start) {
  json participants = json::array();
  for (const Participant& each : start.participants)
    participants.push_back({{"rank", each.rank},
                            {"pid", each.process_id},
                            {"device", each.device},
                            {"bus_id", each.bus_id},
                            {"name", each.device_name}});
  return {{"virtual", start.is_virtual},
          {"driver_version", start.driver_version},
          {"library", name_to_json(start.library)},
          {"vs", start.other ? name_to_json(*start.other) : json()},
          {"ranks", participants}};
}

Start start_from_json(const json& value) {
  Start start = {.is_virtual = value.at("virtual"),
                 .driver_version = value.at("driver_version"),
                 .library = name_from_json(value.at("library")),
                 .other = std::nullopt,
                 .participants = {}};
  if (!value.at("vs").is_null()) start.other = name_from_json(value.at("vs"));
  for (const json& each : value.at("ranks"))
    start.participants.push_back({.rank = each.at("rank"),
                                  .process_id = each.at("pid"),
                                  .device = each.at("device"),
                                  .bus_id = each.at("bus_id"),
                                  .device_name = each.at("name")});
  return start;
}

}  // namespace niccolite::perf
