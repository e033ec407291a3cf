#include "cli/perf/row_json.h"

#include <nlohmann/json.hpp>

namespace niccolite::perf {

using nlohmann::json;

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
          {"algbw_gbs", algorithm_bandwidth(row, measurement.microseconds)},
          {"busbw_gbs", bus_bandwidth(row, measurement.microseconds)},
          {"wrong", or_null(measurement.wrong)},
          {"differing_ranks", or_null(measurement.differing_ranks)},
          {"alone", measurement.alone ? json{{"operation_us", measurement.alone->operation_us},
                                             {"product_us", measurement.alone->product_us}}
                                      : json()},
          {"allocation_us", or_null(measurement.allocation_us)},
          {"first_us", measurement.first_us}};
}

std::optional<Alone> alone_from_json(const json& value) {
  if (value.is_null()) return std::nullopt;
  return Alone{.operation_us = value.at("operation_us"), .product_us = value.at("product_us")};
}

Measurement measurement_from_json(const json& value) {
  return {.microseconds = value.at("time_us"),
          .samples = value.at("samples_us"),
          .wrong = optional_from<uint64_t>(value.at("wrong")),
          .differing_ranks = optional_from<int>(value.at("differing_ranks")),
          .alone = alone_from_json(value.at("alone")),
          .allocation_us = optional_from<double>(value.at("allocation_us")),
          .first_us = value.at("first_us")};
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
  return {{"collective", row.collective},
          {"bytes", row.bytes},
          {"count", row.count},
          {"type", row.type},
          {"op", row.operation},
          {"root", row.root},
          {"start", row.start},
          {"nranks", row.nranks},
          {"out_of_place", place_to_json(row.out_of_place, row)},
          {"in_place", place_to_json(row.in_place, row)}};
}

Row row_from_json(const json& value) {
  return {.collective = value.at("collective"),
          .bytes = value.at("bytes"),
          .count = value.at("count"),
          .type = value.at("type"),
          .operation = value.at("op"),
          .root = value.at("root"),
          .start = value.at("start"),
          .nranks = value.at("nranks"),
          .out_of_place = place_from_json(value.at("out_of_place")),
          .in_place = place_from_json(value.at("in_place"))};
}

json to_json(const Start& start) {
  json participants = json::array();
  for (const Participant& each : start.participants)
    participants.push_back({{"rank", each.rank},
                            {"pid", each.process_id},
                            {"host", each.host},
                            {"device", each.device},
                            {"bus_id", each.bus_id},
                            {"name", each.device_name}});
  return {{"virtual", start.is_virtual},
          {"driver_version", start.driver_version},
          {"library", name_to_json(start.library)},
          {"vs", start.other ? name_to_json(*start.other) : json()},
          {"ranks", participants},
          {"skipped", start.skipped}};
}

Start start_from_json(const json& value) {
  Start start = {.is_virtual = value.at("virtual"),
                 .driver_version = value.at("driver_version"),
                 .library = name_from_json(value.at("library")),
                 .other = std::nullopt,
                 .participants = {},
                 .skipped = value.at("skipped")};
  if (!value.at("vs").is_null()) start.other = name_from_json(value.at("vs"));
  for (const json& each : value.at("ranks"))
    start.participants.push_back({.rank = each.at("rank"),
                                  .process_id = each.at("pid"),
                                  .device = each.at("device"),
                                  .host = each.at("host"),
                                  .bus_id = each.at("bus_id"),
                                  .device_name = each.at("name")});
  return start;
}

json to_json(const MemoryUse& use) {
  return {{"after_init_bytes", use.after_init_bytes}, {"after_run_bytes", use.after_run_bytes}};
}

MemoryUse memory_use_from_json(const json& value) {
  return {.after_init_bytes = value.at("after_init_bytes"),
          .after_run_bytes = value.at("after_run_bytes")};
}

}  // namespace niccolite::perf
