#include "cli/perf/page.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/perf/plot.h"

namespace niccolite::perf {
namespace {

constexpr const char* kStyle =
    R"(body { font: 14px/1.5 system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif;
  color: #1c2733; background: #eef1f4; margin: 0 auto; padding: 24px; max-width: 1130px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 28px 0 8px; }
section { background: #fff; border-radius: 10px; padding: 16px 24px; margin-top: 18px; overflow-x: auto; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; } th { color: #5b6875; font-weight: 600; }
th, td { padding: 2px 12px 2px 0; text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
table.facts th, table.facts td { text-align: left; white-space: normal; vertical-align: top; }
tr:hover td { background: #f5f7f9; } .bad { color: #b83a4b; font-weight: 600; }
@media print { body { font-size: 9px; padding: 0; background: #fff; } section { padding: 4px 0; } }
code { background: #f5f7f9; padding: 2px 6px; border-radius: 4px; overflow-wrap: anywhere; })";

std::string fact(const std::string& name, const std::string& value) {
  if (value.empty()) return "";
  return fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escape_markup(name),
                     escape_markup(value));
}

std::string text_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) return value.dump();
  std::string text;  // GPUs: name and number
  for (const auto& [name, count] : value.items())
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count.dump(), name);
  return text;
}

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

void add_place(std::string& html, const std::optional<PlaceResult>& place, const Row& row,
               bool has_other) {
  if (!place) {
    html += has_other ? "<td colspan=\"6\"></td>" : "<td colspan=\"4\"></td>";
    return;
  }
  const double time = place->ours.microseconds;
  const uint64_t wrong = place->ours.wrong.value_or(0) +
                         static_cast<uint64_t>(place->ours.differing_ranks.value_or(0));
  html += fmt::format("<td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td><td{}>{}</td>", time,
                      algorithm_bandwidth(row, time), bus_bandwidth(row, time),
                      wrong > 0 ? " class=\"bad\"" : "",
                      place->ours.wrong ? std::to_string(wrong) : "not checked");
  if (!has_other) return;
  if (!place->other) {
    html += "<td colspan=\"2\"></td>";
    return;
  }
  html += fmt::format("<td>{:.2f}</td><td{}>{:.2f}</td>", place->other->microseconds,
                      ratio(*place) < 1 ? " class=\"bad\"" : "", ratio(*place));
}

std::string table_of(const Plot& plot, bool has_other) {
  const std::string heads = std::string("<th>us</th><th>algbw</th><th>busbw</th><th>wrong</th>") +
                            (has_other ? "<th>other us</th><th>ratio</th>" : "");
  std::string html = fmt::format(
      "<table>\n<tr><th></th><th></th><th colspan=\"{0}\">out of place</th><th colspan=\"{0}\">in "
      "place</th></tr>\n<tr><th>size</th><th>count</th>{1}{1}</tr>\n",
      has_other ? 6 : 4, heads);
  for (const Row* row : plot.rows) {
    html += fmt::format("<tr><td>{}</td><td>{}</td>", size_text(row->bytes), row->count);
    add_place(html, row->out_of_place, *row, has_other);
    add_place(html, row->in_place, *row, has_other);
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

std::string facts_of(const Document& document, const nlohmann::json& contents) {
  constexpr double kMiB = 1 << 20;
  std::string html = "<table class=\"facts\">\n";
  html += fact("date", text_of(contents.at("date")));
  html += fmt::format("<tr><th>command</th><td><code>{}</code></td></tr>\n",
                      escape_markup(joined(document.command)));
  const auto library = [](const LibraryName& name) {
    return name.path + ", version " + name.version;
  };
  html += fact("library", library(document.start.library));
  if (document.start.other) html += fact("other library", library(*document.start.other));
  for (const auto& [name, value] : contents.at("machine").items())
    html += fact(name == "ranks_on" ? "ranks on" : name, text_of(value));
  for (size_t i = 0; i < document.memory.size(); ++i)
    html += fact(i == 0 ? "device memory" : "device memory of the other library",
                 fmt::format("{:.1f} MiB after init, {:.1f} MiB after the run",
                             static_cast<double>(document.memory[i].after_init_bytes) / kMiB,
                             static_cast<double>(document.memory[i].after_run_bytes) / kMiB));
  for (const std::string& skipped : document.start.skipped) html += fact("skipped", skipped);
  return html + "</table>\n";
}

std::string ranks_of(const Start& start) {
  std::string html =
      "<table class=\"facts\">\n<tr><th>rank</th><th>host</th><th>process</th><th>device</th>"
      "<th>bus</th><th>GPU</th></tr>\n";
  for (const Participant& each : start.participants)
    html +=
        fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                    each.rank, escape_markup(each.host), each.process_id, each.device,
                    escape_markup(each.bus_id), escape_markup(each.device_name));
  return html + "</table>\n";
}

/// A field of a line, in quotes where it has a comma, a quote or a line break.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string to_html(const Document& document) {
  const nlohmann::json contents = to_json(document);
  const Totals totals = totals_of(document.rows);
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" "
      "content=\"width=device-width\">\n<title>niccolite perf</title>\n<style>\n{}\n</style>\n"
      "</head>\n<body>\n<h1>niccolite perf</h1>\n",
      kStyle);
  if (!document.failure.empty())
    html +=
        fmt::format("<p class=\"bad\">The run failed: {}</p>\n", escape_markup(document.failure));
  if (totals.wrong > 0)
    html += fmt::format("<p class=\"bad\">{} wrong values</p>\n", totals.wrong);
  else if (document.options.check_iterations > 0 && document.failure.empty())
    html += "<p>All results are right.</p>\n";
  for (const Plot& plot : plots_of(document.options, document.start, document.rows))
    html += "<section>\n" + draw(plot, document.options, document.start) +
            table_of(plot, document.start.other.has_value()) + "</section>\n";
  html += "<section>\n<h2>Machine</h2>\n" + facts_of(document, contents) + "<h2>Ranks</h2>\n" +
          ranks_of(document.start) + "</section>\n";
  return html +
         "<p>us: microseconds per operation. algbw, busbw: GB/s, bytes / time, and times the "
         "factor "
         "that makes rank counts comparable. Ratio: the other library's time / ours; above 1, ours "
         "is faster.</p>\n</body>\n</html>\n";
}

std::string to_csv(const std::vector<Row>& rows) {
  std::string csv =
      "collective,type,op,root,start,ranks,bytes,count,place,time_us,algbw_gbs,busbw_gbs,wrong,"
      "vs_time_us,ratio\n";
  for (const Row& row : rows)
    for (const bool is_in_place : {false, true}) {
      const std::optional<PlaceResult>& place = is_in_place ? row.in_place : row.out_of_place;
      if (!place) continue;
      const double time = place->ours.microseconds;
      csv += fmt::format("{},{},{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{},{},{}\n",
                         csv_field(row.collective), csv_field(row.type), csv_field(row.operation),
                         row.root, row.start, row.nranks, row.bytes, row.count,
                         is_in_place ? "in_place" : "out_of_place", time,
                         algorithm_bandwidth(row, time), bus_bandwidth(row, time),
                         place->ours.wrong ? std::to_string(*place->ours.wrong) : "",
                         place->other ? fmt::format("{:.3f}", place->other->microseconds) : "",
                         place->other ? fmt::format("{:.3f}", ratio(*place)) : "");
    }
  return csv;
}

}  // namespace niccolite::perf
