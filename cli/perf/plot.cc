#include "cli/perf/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

namespace niccolite::perf {
namespace {

// All in pixels.
constexpr double kWidth = 1080, kMargin = 28;
constexpr double kHeader = 78, kPanelHeight = 300, kLegend = 44;
constexpr double kPanelGap = 22;
// Inside a panel: room for its title and for the labels of values and sizes.
constexpr double kTop = 40, kLeft = 52, kBottom = 42, kRight = 16;
constexpr double kHeight = kHeader + kPanelHeight + kLegend;

constexpr size_t kLastOfLatency = size_t{64} << 10;  // beyond it, bandwidth says more than time

constexpr const char* kOurs = "#3367b0";
constexpr const char* kOther = "#c9601a";

struct Point {
  size_t bytes;
  double value;
};
struct Curve {
  const char* color;
  std::vector<Point> points;
};

/// One of the three charts of a plot.
struct Panel {
  std::string title;
  std::string unit;  // of values, for their tooltips
  std::vector<Curve> curves;
  double lowest = 0, highest = 0;  // values that the axis must show
  std::string limit_name;          // empty: there is no line
  double limit = 0;
  bool is_ratio = false;

  bool is_empty() const { return curves.empty() || curves.front().points.empty(); }
};

const PlaceResult* place_of(const Row& row) {
  if (row.out_of_place) return &*row.out_of_place;
  return row.in_place ? &*row.in_place : nullptr;
}

/// The distance between marks of an axis: 1, 2 or 5 times a power of ten.
double step_of(double range) {
  constexpr double kMarks = 6;
  const double least = range / kMarks;
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least) return factor * power;
  return 10 * power;
}

std::string short_size(double bytes) {
  for (const auto& [unit, name] : {std::pair{0x1p30, "G"}, {0x1p20, "M"}, {0x1p10, "K"}})
    if (bytes >= unit) return fmt::format("{:g}{}", bytes / unit, name);
  return fmt::format("{:g}", bytes);
}

/// The place of values and sizes in a panel whose left upper corner is at (left, top).
class Axes {
 public:
  Axes(const Panel& panel, double left, double top, double width)
      : left_(left + kLeft),
        right_(left + width - kRight),
        top_(top + kTop),
        bottom_(top + kPanelHeight - kBottom) {
    first_ = std::log2(static_cast<double>(panel.curves[0].points.front().bytes));
    last_ = first_;
    for (const Curve& curve : panel.curves)
      for (const Point& point : curve.points) {
        first_ = std::min(first_, std::log2(static_cast<double>(point.bytes)));
        last_ = std::max(last_, std::log2(static_cast<double>(point.bytes)));
      }
    const double range = std::max(panel.highest - panel.lowest, 1e-6);
    step_ = step_of(range);
    // Not rounded to steps, so that the chart has no empty edge.
    lowest_ = panel.lowest;
    highest_ = panel.lowest + range * 1.04;
  }

  double x(double bytes) const {
    if (last_ <= first_) return (left_ + right_) / 2;
    return left_ + (std::log2(bytes) - first_) / (last_ - first_) * (right_ - left_);
  }
  double y(double value) const {
    return bottom_ - (value - lowest_) / (highest_ - lowest_) * (bottom_ - top_);
  }
  std::vector<double> sizes() const {
    const double first = std::ceil(first_ - 1e-9), last = std::floor(last_ + 1e-9);
    constexpr double kMost = 7;
    const double step = std::max(1.0, std::ceil((last - first) / kMost));
    std::vector<double> all;
    for (double power = first; power <= last; power += step) all.push_back(std::exp2(power));
    if (all.empty()) all.push_back(std::exp2(first_));
    return all;
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (double number = std::ceil(lowest_ / step_ - 1e-9) + 0.0; number * step_ <= highest_;
         ++number)
      all.push_back(number * step_);
    return all;
  }
  double left() const { return left_; }
  double right() const { return right_; }
  double top() const { return top_; }
  double bottom() const { return bottom_; }

 private:
  double left_, right_, top_, bottom_;
  double first_ = 0, last_ = 0;  // powers of two
  double lowest_ = 0, highest_ = 0, step_ = 1;
};

void draw_frame(std::string& svg, const Panel& panel, const Axes& axes, double left, double top,
                double width) {
  svg += fmt::format(
      R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="8" fill="#f5f7f9"/>)"
      R"(<text x="{:.1f}" y="{:.1f}" font-weight="600" fill="#3a4652" text-anchor="start">{}</text>)"
      "\n",
      left, top, width, kPanelHeight, left + 14, top + 23, escape_markup(panel.title));
  if (panel.is_ratio && axes.y(1) < axes.bottom())
    svg +=
        fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="#f7e3e5"/>)"
                    "\n",
                    axes.left(), axes.y(1), axes.right() - axes.left(), axes.bottom() - axes.y(1));
  for (const double value : axes.values())
    svg += fmt::format(
        R"(<path d="M{0:.1f} {2:.1f}H{1:.1f}" stroke="#dfe4e9"/>)"
        R"(<text x="{3:.1f}" y="{4:.1f}" font-size="11" fill="#7a8794" text-anchor="end">{5:g}</text>)"
        "\n",
        axes.left(), axes.right(), axes.y(value), axes.left() - 7, axes.y(value) + 4,
        std::round(value * 1e6) / 1e6);
  for (const double size : axes.sizes())
    svg += fmt::format(R"(<path d="M{0:.1f} {1:.1f}v4" stroke="#9aa5b0"/>)"
                       R"(<text x="{0:.1f}" y="{2:.1f}" font-size="11" fill="#7a8794">{3}</text>)"
                       "\n",
                       axes.x(size), axes.bottom(), axes.bottom() + 17, short_size(size));
  svg += fmt::format(
      R"(<text x="{:.1f}" y="{:.1f}" font-size="11" fill="#9aa5b0">size in bytes</text>)"
      "\n",
      (axes.left() + axes.right()) / 2, axes.bottom() + 33);
}

void draw_limit(std::string& svg, const Panel& panel, const Axes& axes) {
  if (panel.limit_name.empty()) return;
  const double y = axes.y(panel.limit);
  svg += fmt::format(
      R"(<path d="M{:.1f} {:.1f}H{:.1f}" stroke="#b07a1e" stroke-dasharray="5 4"/>)"
      R"(<text x="{:.1f}" y="{:.1f}" font-size="11" fill="#b07a1e" text-anchor="start">{}</text>)"
      "\n",
      axes.left(), y, axes.right(), axes.left() + 4, y - 5, escape_markup(panel.limit_name));
}

void draw_curve(std::string& svg, const Curve& curve, const Panel& panel, const Axes& axes) {
  std::string line;
  for (const Point& point : curve.points)
    line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ",
                        axes.x(static_cast<double>(point.bytes)), axes.y(point.value));
  svg += fmt::format(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>)"
                     "\n",
                     line, curve.color);
  for (const Point& point : curve.points)
    svg += fmt::format(
        R"(<circle cx="{:.1f}" cy="{:.1f}" r="2.6" fill="{}"><title>{}: {:.4g}{}</title></circle>)"
        "\n",
        axes.x(static_cast<double>(point.bytes)), axes.y(point.value), curve.color,
        size_text(point.bytes), point.value, panel.unit);
}

/// Points of both libraries, of the sizes that `shows` takes.
std::vector<Curve> curves_of(const Plot& plot, const std::function<bool(size_t)>& shows,
                             const std::function<double(const Row&, const Measurement&)>& value) {
  Curve ours{.color = kOurs, .points = {}}, other{.color = kOther, .points = {}};
  for (const Row* row : plot.rows) {
    const PlaceResult* const place = place_of(*row);
    if (place == nullptr || !shows(row->bytes)) continue;
    ours.points.push_back({row->bytes, value(*row, place->ours)});
    if (place->other) other.points.push_back({row->bytes, value(*row, *place->other)});
  }
  if (other.points.empty()) return {ours};
  return {other, ours};  // ours is drawn above the other
}

void include_values(Panel& panel) {
  for (const Curve& curve : panel.curves)
    for (const Point& point : curve.points) {
      panel.lowest = std::min(panel.lowest, point.value);
      panel.highest = std::max(panel.highest, point.value);
    }
}

std::vector<Panel> panels_of(const Plot& plot, const Options& options) {
  std::vector<Panel> panels;
  panels.push_back({.title = "Latency, microseconds",
                    .unit = " us",
                    .curves = curves_of(
                        plot, [](size_t bytes) { return bytes <= kLastOfLatency; },
                        [](const Row&, const Measurement& each) { return each.microseconds; }),
                    .limit_name = {}});
  panels.push_back({.title = "Bus bandwidth, GB/s",
                    .unit = " GB/s",
                    .curves = curves_of(
                        plot, [](size_t bytes) { return bytes >= kLastOfLatency; },
                        [](const Row& row, const Measurement& each) {
                          return bus_bandwidth(row, each.microseconds);
                        }),
                    .limit_name = {}});
  for (Panel& panel : panels) include_values(panel);
  if (Panel& bandwidth = panels.back(); options.limit_gbs > 0) {
    bandwidth.limit = options.limit_gbs;
    bandwidth.limit_name = fmt::format("{} {:g} GB/s", options.limit_name, options.limit_gbs);
  } else if (bandwidth.highest > 0) {
    bandwidth.limit = bandwidth.highest;
    bandwidth.limit_name = fmt::format("highest {:.4g} GB/s", bandwidth.highest);
  }
  panels.back().highest = std::max(panels.back().highest, panels.back().limit * 1.04);
  Panel ratios{.title = "Ratio: the other library's time / ours",
               .unit = "",
               .curves = {{.color = kOurs, .points = {}}},
               .lowest = 0.9,
               .highest = 1.1,
               .limit_name = "equal",
               .limit = 1,
               .is_ratio = true};
  for (const Row* row : plot.rows)
    if (const PlaceResult* const place = place_of(*row); place != nullptr && place->other)
      ratios.curves[0].points.push_back({row->bytes, ratio(*place)});
  include_values(ratios);
  panels.push_back(std::move(ratios));
  std::erase_if(panels, [](const Panel& panel) { return panel.is_empty(); });
  return panels;
}

std::string legend_of(const Start& start) {
  std::string svg;
  double x = kMargin;
  const double y = kHeight - 18;
  const auto add = [&](const char* color, const std::string& text) {
    svg += fmt::format(R"(<path d="M{:.1f} {:.1f}h22" stroke="{}" stroke-width="2.5"/>)"
                       R"(<text x="{:.1f}" y="{:.1f}" fill="#5b6875" text-anchor="start">{}</text>)"
                       "\n",
                       x, y - 4, color, x + 29, y, escape_markup(text));
    x += 70 + 7.2 * static_cast<double>(text.size());
  };
  const auto name = [](const LibraryName& library) {
    return fmt::format("{} {}", library.path.substr(library.path.rfind('/') + 1), library.version);
  };
  add(kOurs, start.other ? "ours: " + name(start.library) : name(start.library));
  if (start.other) add(kOther, "the other: " + name(*start.other));
  return svg;
}

std::string open_svg(double height) {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="12" text-anchor="middle">)"
      "\n"
      R"(<rect width="{0:.0f}" height="{1:.0f}" rx="10" fill="#ffffff"/>)"
      "\n",
      kWidth, height);
}

std::string draw_inside(const Plot& plot, const Options& options, const Start& start) {
  std::string svg = fmt::format(
      R"(<text x="{0:.0f}" y="38" font-size="20" font-weight="600" fill="#1c2733" text-anchor="start">{1}</text>)"
      R"(<text x="{0:.0f}" y="60" font-size="13" fill="#5b6875" text-anchor="start">{2}</text>)"
      "\n",
      kMargin, escape_markup(plot.title), escape_markup(plot.subtitle));
  const std::vector<Panel> panels = panels_of(plot, options);
  const auto count = static_cast<double>(panels.size());
  const double width = (kWidth - 2 * kMargin - kPanelGap * (count - 1)) / std::max(count, 1.0);
  double left = kMargin;
  for (const Panel& panel : panels) {
    const Axes axes(panel, left, kHeader, width);
    draw_frame(svg, panel, axes, left, kHeader, width);
    draw_limit(svg, panel, axes);
    for (const Curve& curve : panel.curves) draw_curve(svg, curve, panel, axes);
    left += width + kPanelGap;
  }
  return svg + legend_of(start);
}

std::string describe_ranks(const Start& start) {
  std::map<std::string, int> devices;
  for (const Participant& each : start.participants) ++devices[each.device_name];
  std::string text;
  for (const auto& [name, count] : devices)
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, name);
  return text;
}

}  // namespace

std::string escape_markup(const std::string& text) {
  std::string safe;
  for (const char c : text) switch (c) {
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '&':
        safe += "&amp;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  return safe;
}

std::string size_text(size_t bytes) {
  const auto size = static_cast<double>(bytes);
  for (const auto& [unit, name] : {std::pair{0x1p30, "GiB"}, {0x1p20, "MiB"}, {0x1p10, "KiB"}})
    if (size >= unit) return fmt::format("{:.4g} {}", size / unit, name);
  return fmt::format("{} B", bytes);
}

std::vector<Plot> plots_of(const Options& options, const Start& start,
                           const std::vector<Row>& rows) {
  std::vector<Plot> plots;
  for (const Row& row : rows) {
    if (row.bytes == 0 || place_of(row) == nullptr) continue;  // sizes are on a logarithmic axis
    std::string subtitle = row.type;
    if (row.start > 0) subtitle += fmt::format("+{}", row.start);
    if (row.operation != "none") subtitle += " " + row.operation;
    if (row.root >= 0) subtitle += fmt::format(", root {}", row.root);
    subtitle += fmt::format(", {}, {}, {}", describe_ranks(start),
                            options.graph_launches > 0 ? "graph replays" : "stream launches",
                            row.out_of_place ? "out of place" : "in place");
    const auto same = std::find_if(plots.begin(), plots.end(), [&](const Plot& plot) {
      return plot.title == row.collective && plot.subtitle == subtitle;
    });
    if (same != plots.end())
      same->rows.push_back(&row);
    else
      plots.push_back({.title = row.collective, .subtitle = subtitle, .rows = {&row}});
  }
  for (Plot& plot : plots) std::ranges::stable_sort(plot.rows, {}, &Row::bytes);
  return plots;
}

std::string draw(const Plot& plot, const Options& options, const Start& start) {
  return open_svg(kHeight) + draw_inside(plot, options, start) + "</svg>\n";
}

std::string draw_all(const Options& options, const Start& start, const std::vector<Row>& rows) {
  const std::vector<Plot> plots = plots_of(options, start, rows);
  std::string svg = open_svg(kHeight * static_cast<double>(std::max<size_t>(plots.size(), 1)));
  double top = 0;
  for (const Plot& plot : plots) {
    svg += fmt::format("<g transform=\"translate(0 {:.0f})\">\n{}</g>\n", top,
                       draw_inside(plot, options, start));
    top += kHeight;
  }
  return svg + "</svg>\n";
}

}  // namespace niccolite::perf
