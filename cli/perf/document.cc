#include "cli/perf/document.h"

#include <sys/utsname.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/grammar/file.h"
#include "cli/perf/page.h"
#include "cli/perf/plot.h"
#include "cli/perf/row_json.h"

namespace niccolite::perf {
namespace {

using nlohmann::json;

std::string first_line_with(const char* file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with(key)) {
      const size_t colon = line.find(": ");
      return colon == std::string::npos ? line : line.substr(colon + 2);
    }
  return "";
}

json describe_machine(const Start& start) {
  utsname names = {};
  uname(&names);
  json gpus = json::object();
  for (const Participant& each : start.participants) {
    json& count = gpus[each.device_name];
    count = count.is_null() ? 1 : count.get<int>() + 1;
  }
  return {{"cpu", first_line_with("/proc/cpuinfo", "model name")},
          {"cpus", std::thread::hardware_concurrency()},
          {"system", std::string(names.sysname) + " " + names.release + " " + names.machine},
          {"virtual", start.is_virtual},
          {"ranks_on", gpus},
          {"cuda_driver_api", start.driver_version},
          {"nvidia_driver", first_line_with("/proc/driver/nvidia/version", "NVRM version")}};
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

json options_to_json(const Options& options, size_t nranks) {
  constexpr const char* kAverages[] = {"rank0", "avg", "min", "max"};
  std::vector<std::string> names;
  for (const Collective* each : options.collectives) names.emplace_back(each->name);
  return {{"collectives", names},
          {"send_recv", options.send_recv},
          {"root", options.root},
          {"device", options.by_kernels() ? json(name_of(options.device_way)) : json()},
          {"local_register", static_cast<int>(options.registration)},
          {"processes", options.processes},
          {"threads", options.threads},
          {"gpus", options.gpus},
          {"nranks", nranks},
          {"iterations", options.iterations},
          {"warmup_iterations", options.warmup_iterations},
          {"aggregated", options.aggregated},
          {"beside", options.beside},
          {"communicators", options.communicators},
          {"allocator", name_of(options.allocator)},
          {"buffers", options.has_fresh_buffers() ? json("new") : json(options.buffer_pairs)},
          {"first", options.first_calls},
          {"check_iterations", options.check_iterations},
          {"bitwise", options.bitwise},
          {"graph_launches", options.graph_launches},
          {"blocking", options.blocking},
          {"cpu_time", options.report_cpu_time},
          {"average", kAverages[static_cast<int>(options.average)]},
          {"rounds", options.rounds}};
}

json memory_to_json(const Document& document) {
  if (document.memory.empty()) return nullptr;
  json value = {{"library", to_json(document.memory[0])}, {"vs", nullptr}};
  if (document.memory.size() > 1) value["vs"] = to_json(document.memory[1]);
  return value;
}

uint64_t wrong_in(const std::optional<PlaceResult>& place) {
  if (!place) return 0;
  return place->ours.wrong.value_or(0) +
         static_cast<uint64_t>(place->ours.differing_ranks.value_or(0));
}
uint64_t other_wrong_in(const std::optional<PlaceResult>& place) {
  if (!place || !place->other) return 0;
  return place->other->wrong.value_or(0) +
         static_cast<uint64_t>(place->other->differing_ranks.value_or(0));
}

}  // namespace

Totals totals_of(const std::vector<Row>& rows) {
  Totals totals;
  double bandwidths = 0;
  int places = 0;
  for (const Row& row : rows)
    for (const auto* place : {&row.out_of_place, &row.in_place}) {
      totals.wrong += wrong_in(*place);
      totals.other_wrong += other_wrong_in(*place);
      if (!*place) continue;
      bandwidths += bus_bandwidth(row, (*place)->ours.microseconds);
      ++places;
    }
  totals.average_bus_bandwidth = places ? bandwidths / places : 0;
  return totals;
}

json to_json(const Document& document) {
  const Totals totals = totals_of(document.rows);
  json rows = json::array();
  for (const Row& row : document.rows) rows.push_back(to_json(row));
  const size_t met = document.start.participants.size();  // none when the run failed before that
  const size_t nranks = met > 0 ? met : static_cast<size_t>(document.options.nranks());
  return {{"schema", "niccolite-perf-2"},
          {"date", utc_now()},
          {"command", document.command},
          {"machine", describe_machine(document.start)},
          {"run", to_json(document.start)},
          {"options", options_to_json(document.options, nranks)},
          {"rows", rows},
          {"device_memory", memory_to_json(document)},
          {"wrong", totals.wrong},
          {"vs_wrong", totals.other_wrong},
          {"average_busbw_gbs", totals.average_bus_bandwidth},
          {"failure", document.failure.empty() ? json() : json(document.failure)}};
}

Status write_files(const Document& document) {
  const Options& options = document.options;
  if (!options.json_path.empty()) TRY(grammar::write_json(options.json_path, to_json(document)));
  if (options.wants_json) TRY(grammar::write_json(grammar::kStandardOutput, to_json(document)));
  if (!options.csv_path.empty()) TRY(grammar::write_text(options.csv_path, to_csv(document.rows)));
  if (!options.svg_path.empty())
    TRY(grammar::write_text(options.svg_path, draw_all(options, document.start, document.rows)));
  if (!options.html_path.empty()) TRY(grammar::write_text(options.html_path, to_html(document)));
  return {};
}

}  // namespace niccolite::perf
