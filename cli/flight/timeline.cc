#include "cli/flight/timeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace niccolite::flight {
namespace {

constexpr double kWidth = 1100, kLeft = 220, kRight = 20, kTop = 90, kRow = 26;
constexpr double kLine = 15;
constexpr size_t kLineLetters = 165, kMostLines = 2;

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

/// Where times are in the picture.
struct Scale {
  uint64_t begin = 0, end = 0;
  double x(uint64_t time) const {
    const double share = static_cast<double>(std::clamp(time, begin, end) - begin) /
                         static_cast<double>(std::max<uint64_t>(end - begin, 1));
    return kLeft + share * (kWidth - kLeft - kRight);
  }
};

std::string bar(const Scale& scale, const Span& span, double y, double height, const char* color) {
  if (span.end < scale.begin) return "";
  const double x = scale.x(span.begin);
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}, "
      "{:.3f} ms{}</title></rect>\n",
      x, y, std::max(scale.x(span.end) - x, 1.0), height, color, escape(span.name),
      static_cast<double>(span.end - span.begin) / 1e6, span.is_open ? ", not ended" : "");
}

/// At most kMostLines lines; the text itself stands in the command's output.
std::string draw_text(std::string rest) {
  std::string drawn;
  for (size_t line = 0; line < kMostLines && !rest.empty(); ++line) {
    size_t cut = rest.size() <= kLineLetters ? rest.size() : rest.rfind(' ', kLineLetters);
    if (cut == std::string::npos) cut = kLineLetters;
    const bool is_last = line + 1 == kMostLines && cut < rest.size();
    drawn += fmt::format("<text x=\"10\" y=\"{:.1f}\" fill=\"#b00020\">{}{}</text>\n",
                         38 + kLine * static_cast<double>(line), escape(rest.substr(0, cut)),
                         is_last ? " ..." : "");
    rest.erase(0, std::min(cut + 1, rest.size()));
  }
  return drawn;
}

std::string draw_axis(const Scale& scale, double bottom) {
  std::string text;
  const double seconds = static_cast<double>(scale.end - scale.begin) / 1e9;
  constexpr int kMarks = 5;
  for (int mark = 0; mark <= kMarks; ++mark) {
    const double before = seconds * (kMarks - mark) / kMarks;
    const double x = kLeft + (kWidth - kLeft - kRight) * mark / kMarks;
    text += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\" fill=\"#666\">{4}</text>\n",
        x, kTop - 8, bottom, kTop - 14, mark == kMarks ? "dump" : fmt::format("-{:.3g} s", before));
  }
  return text;
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
  const uint64_t end = last_time(communicator);
  const Scale scale{.begin = end - std::min(end, static_cast<uint64_t>(seconds * 1e9)), .end = end};
  const double bottom = kTop + kRow * communicator.nranks;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"10\" y=\"20\" font-size=\"13\">communicator {2}</text>\n{3}",
      kWidth, bottom + 30, escape(communicator.id), draw_text(finding.verdict));
  svg += draw_axis(scale, bottom);
  for (int number = 0; number < communicator.nranks; ++number) {
    const double y = kTop + kRow * number;
    const bool is_culprit = number == finding.culprit;
    svg += fmt::format("<text x=\"10\" y=\"{:.1f}\" fill=\"{}\">rank {}, {}</text>\n", y + 15,
                       is_culprit ? "#b00020" : "#222", number,
                       escape(communicator.processes[static_cast<size_t>(number)]));
    const auto found = communicator.ranks.find(number);
    if (found == communicator.ranks.end()) {
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#b00020\">left no dump</text>\n",
                         kLeft + 8, y + 15);
      continue;
    }
    const RankDump& rank = found->second;
    for (const Span& span : operations_of(rank)) svg += bar(scale, span, y + 3, 12, "#4878a8");
    for (const Span& span : waits_of(rank)) svg += bar(scale, span, y + 16, 5, "#d9822b");
    for (const Event& event : rank.events)
      if (event.kind == "called" && event.time >= scale.begin)
        svg += fmt::format(
            "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#222\">"
            "<title>{3}</title></line>\n",
            scale.x(event.time), y + 1, y + 17, escape(event.call));
  }
  svg += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#666\">| call of the program   blue: operation on "
      "the "
      "stream (virtual GPUs)   orange: waits for a peer</text>\n</svg>\n",
      kLeft, bottom + 18);
  return svg;
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
