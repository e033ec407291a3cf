#include "cli/flight/timeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace niccolite::flight {
namespace {

// All in pixels.
constexpr double kWidth = 1100, kMargin = 28;
constexpr double kFirstLine = 60, kLine = 17;  // of the verdict
constexpr double kAxis = 34;                   // between the heading and the first row
constexpr double kRow = 34, kLegend = 52;
constexpr double kLetter = 6.3;  // width of a small letter, about
constexpr size_t kLineLetters = 165, kMostLines = 3;
constexpr int kMostRows = 64;  // so that the picture of a large job fits a page

constexpr const char* kOperation = "#3367b0";
constexpr const char* kWait = "#c9601a";
constexpr const char* kCall = "#3a4652";
constexpr const char* kCulprit = "#b83a4b";

std::string escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '&':
        escaped += "&amp;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

const Event* find_call(const RankDump& rank, uint64_t launch) {
  for (const Event& event : rank.events)
    if (event.kind == "called" && event.launch == launch) return &event;
  return nullptr;
}

std::string name_of_launch(const RankDump& rank, uint64_t launch) {
  const Event* const call = find_call(rank, launch);
  return call != nullptr ? call->call : fmt::format("launch {}", launch);
}

uint64_t last_time(const CommunicatorDump& communicator) {
  uint64_t last = 0;
  for (const auto& [number, rank] : communicator.ranks) last = std::max(last, rank.time);
  return last;
}

/// The places of times in the picture.
struct Scale {
  uint64_t begin = 0, end = 0;
  double left = 0, right = 0;
  double x(uint64_t time) const {
    const double share = static_cast<double>(std::clamp(time, begin, end) - begin) /
                         static_cast<double>(std::max<uint64_t>(end - begin, 1));
    return left + share * (right - left);
  }
};

uint64_t first_time(const CommunicatorDump& communicator, uint64_t last) {
  uint64_t first = last;
  for (const auto& [number, rank] : communicator.ranks) {
    for (const Event& event : rank.events) first = std::min(first, event.time);
    for (const Span& span : waits_of(rank)) first = std::min(first, span.begin);
  }
  return first;
}

/// From the first event, but at most `seconds`, to the last dump.
Scale scale_of(const CommunicatorDump& communicator, double seconds, double left) {
  const uint64_t end = last_time(communicator);
  const uint64_t longest = std::min(end, static_cast<uint64_t>(seconds * 1e9));
  const uint64_t begin = std::max(first_time(communicator, end), end - longest);
  const uint64_t margin = (end - begin) / 50;  // the first event is off the edge
  return {.begin = begin - std::min(begin, margin),
          .end = end,
          .left = left,
          .right = kWidth - kMargin};
}

std::string bar(const Scale& scale, const Span& span, double y, double height, const char* color) {
  if (span.end < scale.begin) return "";
  const double x = scale.x(span.begin);
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\" fill=\"{}\"{}>"
      "<title>{}, {:.3f} ms{}</title></rect>\n",
      x, y, std::max(scale.x(span.end) - x, 1.0), height, color,
      span.is_open ? " fill-opacity=\"0.55\"" : "", escape(span.name),
      static_cast<double>(span.end - span.begin) / 1e6, span.is_open ? ", not ended" : "");
}

/// `text` in at most kMostLines lines; the whole of it stands in the command's output.
std::vector<std::string> wrap(std::string rest) {
  std::vector<std::string> lines;
  while (lines.size() < kMostLines && !rest.empty()) {
    size_t cut = rest.size() <= kLineLetters ? rest.size() : rest.rfind(' ', kLineLetters);
    if (cut == std::string::npos) cut = kLineLetters;
    const bool is_cut_off = lines.size() + 1 == kMostLines && cut < rest.size();
    lines.push_back(rest.substr(0, cut) + (is_cut_off ? " ..." : ""));
    rest.erase(0, std::min(cut + 1, rest.size()));
  }
  return lines;
}

std::string time_text(double seconds) {
  if (seconds >= 1) return fmt::format("-{:.3g} s", seconds);
  return seconds >= 1e-3 ? fmt::format("-{:.3g} ms", seconds * 1e3)
                         : fmt::format("-{:.3g} us", seconds * 1e6);
}

std::string draw_axis(const Scale& scale, double top, double bottom) {
  const double seconds = static_cast<double>(scale.end - scale.begin) / 1e9;
  std::string text;
  const auto mark = [&](double before, const std::string& label) {
    const double x = scale.right - before / std::max(seconds, 1e-9) * (scale.right - scale.left);
    text += fmt::format(
        "<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#dfe4e9\"/><text x=\"{0:.1f}\" "
        "y=\"{3:.1f}\" text-anchor=\"{5}\" fill=\"#7a8794\">{4}</text>\n",
        x, top - 6, bottom, top - 12, label, before == 0 ? "end" : "middle");
  };
  constexpr double kMarks = 6;
  const double power = std::pow(10.0, std::floor(std::log10(std::max(seconds, 1e-9) / kMarks)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0})
    if (factor * power >= seconds / kMarks) step = factor * power;
  for (double before = step; before < seconds; before += step) mark(before, time_text(before));
  mark(0, "last dump");
  return text;
}

/// The ranks that have a row: all, or the first ones and the culprit.
std::vector<int> rows_of(const CommunicatorDump& communicator, const Finding& finding) {
  std::vector<int> rows;
  for (int rank = 0; rank < communicator.nranks; ++rank)
    if (rank < kMostRows - 1 || rank == finding.culprit || communicator.nranks <= kMostRows)
      rows.push_back(rank);
  return rows;
}

/// The ground of a row, and the name of its rank.
std::string draw_head(const CommunicatorDump& communicator, int number, bool is_culprit, double y) {
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"6\" fill=\"{}\"/>"
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-weight=\"600\" fill=\"{}\">rank {}{}</text>"
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" fill=\"#7a8794\">{}</text>\n",
      kMargin, y + 1, kWidth - 2 * kMargin, kRow - 2, is_culprit ? "#fbeaec" : "#f5f7f9",
      kMargin + 10, y + 15, is_culprit ? kCulprit : "#3a4652", number,
      is_culprit ? " &#9733; culprit" : "", kMargin + 10, y + 28,
      escape(communicator.processes[static_cast<size_t>(number)]));
}

std::string draw_events(const CommunicatorDump& communicator, int number, const Scale& scale,
                        double y) {
  const auto found = communicator.ranks.find(number);
  if (found == communicator.ranks.end())
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">left no dump</text>\n",
                       scale.left + 8, y + 21, kCulprit);
  const RankDump& rank = found->second;
  std::string svg;
  for (const Span& span : operations_of(rank)) svg += bar(scale, span, y + 6, 12, kOperation);
  for (const Span& span : waits_of(rank)) svg += bar(scale, span, y + 21, 7, kWait);
  for (const Event& event : rank.events)
    if (event.kind == "called" && event.time >= scale.begin)
      svg += fmt::format("<path d=\"M{:.1f} {:.1f}v16\" stroke=\"{}\"><title>{}</title></path>\n",
                         scale.x(event.time), y + 4, kCall, escape(event.call));
  return svg;
}

std::string draw_legend(double y) {
  std::string svg;
  double x = kMargin;
  const auto entry = [&](const std::string& mark, const char* text) {
    svg += fmt::format("<g transform=\"translate({:.0f} {:.0f})\">{}</g>", x, y, mark) +
           fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"#5b6875\">{}</text>\n", x + 32, y,
                       text);
    x += 60 + kLetter * static_cast<double>(std::string_view(text).size());
  };
  const auto box = [](const char* color, int height) {
    return fmt::format("<rect y=\"{}\" width=\"24\" height=\"{}\" rx=\"2\" fill=\"{}\"/>", -height,
                       height, color);
  };
  entry(fmt::format("<path d=\"M12 -12v14\" stroke=\"{}\"/>", kCall), "call of the program");
  entry(box(kOperation, 11), "operation on the stream; pale: has not ended");
  entry(box(kWait, 7), "waits for another rank");
  entry(fmt::format("<text x=\"6\" fill=\"{}\">&#9733;</text>", kCulprit),
        "the rank that the others wait for");
  return svg;
}

}  // namespace

std::vector<Span> operations_of(const RankDump& rank) {
  std::vector<Span> spans;
  for (const Event& event : rank.events) {
    if (event.kind == "begun")
      spans.push_back({.begin = event.time,
                       .end = rank.time,
                       .name = name_of_launch(rank, event.launch),
                       .is_open = true});
    // A launch in a graph runs again and again under one number.
    if (event.kind == "ended" && !spans.empty() && spans.back().is_open) {
      spans.back().end = event.time;
      spans.back().is_open = false;
    }
  }
  return spans;
}

std::vector<Span> waits_of(const RankDump& rank) {
  std::vector<Span> spans;
  for (const Event& event : rank.events) {
    if (event.kind != "waiting") continue;
    const uint64_t begin = event.time - std::min(event.time, event.milliseconds * 1'000'000);
    const std::string name = fmt::format("waits for rank {}", event.peer);
    // A wait that lasts is reported again.
    if (!spans.empty() && spans.back().end > begin && spans.back().name == name)
      spans.back().end = event.time;
    else
      spans.push_back({.begin = begin, .end = event.time, .name = name});
  }
  if (!spans.empty() && rank.waits_for >= 0) spans.back().end = rank.time;
  return spans;
}

std::string draw(const CommunicatorDump& communicator, const Finding& finding, double seconds) {
  const std::vector<int> rows = rows_of(communicator, finding);
  const std::vector<std::string> verdict = wrap(finding.verdict);
  size_t letters = std::string_view("rank 1000 * culprit").size();
  for (const int rank : rows)
    letters = std::max(letters, communicator.processes[static_cast<size_t>(rank)].size());
  const Scale scale =
      scale_of(communicator, seconds,
               kMargin + 30 + kLetter * static_cast<double>(std::min<size_t>(letters, 50)));
  const double top = kFirstLine + kLine * static_cast<double>(verdict.size()) + kAxis;
  const double bottom = top + kRow * static_cast<double>(rows.size());
  const auto left_out = communicator.nranks - static_cast<int>(rows.size());
  const double height = bottom + kLegend + (left_out > 0 ? kLine : 0);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', "
      "sans-serif\" font-size=\"12\">\n<rect width=\"{0:.0f}\" height=\"{1:.0f}\" rx=\"10\" "
      "fill=\"white\"/>\n<text x=\"{2:.0f}\" y=\"38\" font-size=\"20\" font-weight=\"600\" "
      "fill=\"#1c2733\">communicator {3} <tspan fill=\"#7a8794\" font-weight=\"400\">{4} ranks"
      "</tspan></text>\n",
      kWidth, height, kMargin, escape(communicator.id), communicator.nranks);
  for (size_t line = 0; line < verdict.size(); ++line)
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"{}\">{}</text>\n", kMargin,
                       kFirstLine + kLine * static_cast<double>(line), kCulprit,
                       escape(verdict[line]));
  const auto y_of = [&](size_t row) { return top + kRow * static_cast<double>(row); };
  for (size_t row = 0; row < rows.size(); ++row)
    svg += draw_head(communicator, rows[row], rows[row] == finding.culprit, y_of(row));
  svg += draw_axis(scale, top, bottom);
  for (size_t row = 0; row < rows.size(); ++row)
    svg += draw_events(communicator, rows[row], scale, y_of(row));
  if (left_out > 0)
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"#b07a1e\">{} more ranks</text>\n",
                       kMargin, bottom + kLine, left_out);
  return svg + draw_legend(height - 18) + "</svg>\n";
}

std::string to_trace(const Flight& flight) {
  using nlohmann::json;
  constexpr int kCalls = 1, kStream = 2, kWaits = 3;
  json events = json::array();
  uint64_t first = UINT64_MAX;
  for (const auto& [id, communicator] : flight.communicators)
    for (const auto& [number, rank] : communicator.ranks)
      if (!rank.events.empty()) first = std::min(first, rank.events.front().time);
  const auto microseconds = [first](uint64_t time) {
    return static_cast<double>(static_cast<int64_t>(time - first)) / 1e3;
  };
  int process = 0;
  for (const auto& [id, communicator] : flight.communicators) {
    for (const auto& [number, rank] : communicator.ranks) {
      ++process;
      const auto name = [&](const char* what, int thread, const std::string& text) {
        events.push_back({{"ph", "M"},
                          {"name", what},
                          {"pid", process},
                          {"tid", thread},
                          {"args", {{"name", text}}}});
      };
      name("process_name", 0,
           fmt::format("rank {} of {} ({})", number, communicator.id, rank.process));
      name("thread_name", kCalls, "calls");
      name("thread_name", kStream, "stream");
      name("thread_name", kWaits, "waits");
      const auto add_spans = [&](const std::vector<Span>& spans, int thread) {
        for (const Span& span : spans)
          events.push_back({{"ph", "X"},
                            {"name", span.name},
                            {"pid", process},
                            {"tid", thread},
                            {"ts", microseconds(span.begin)},
                            {"dur", static_cast<double>(span.end - span.begin) / 1e3},
                            {"args", {{"ended", !span.is_open}}}});
      };
      add_spans(operations_of(rank), kStream);
      add_spans(waits_of(rank), kWaits);
      for (const Event& event : rank.events) {
        if (event.kind == "begun" || event.kind == "ended" || event.kind == "waiting") continue;
        const bool is_call = event.kind == "called";
        json args = json::object();
        if (is_call) args = {{"number", event.number}, {"stream", event.stream}};
        if (event.peer >= 0) args["rank"] = event.peer;
        events.push_back({{"ph", "i"},
                          {"s", "t"},
                          {"name", is_call ? event.call : event.kind},
                          {"pid", process},
                          {"tid", kCalls},
                          {"ts", microseconds(event.time)},
                          {"args", args}});
      }
    }
  }
  return json{{"displayTimeUnit", "ns"}, {"traceEvents", events}}.dump() + "\n";
}

}  // namespace niccolite::flight
