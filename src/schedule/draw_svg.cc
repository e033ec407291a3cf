#include "schedule/draw_svg.h"

#include <algorithm>

#include "schedule/draw_style.h"
#include "schedule/index.h"
#include "schedule/timeline.h"

namespace niccolite::schedule {
namespace {

// All in pixels.
constexpr double kMargin = 28;
constexpr double kHeader = 78;
constexpr double kColumnHead = 36;
constexpr double kStepWidth = 30;  // of the numbers at the left
constexpr double kBoxWidth = 44;
constexpr double kBoxHeight = 24;
constexpr double kLanePitch = 58;
constexpr double kColumnPadding = 12;
constexpr double kColumnGap = 26;
constexpr double kRowPitch = 62;
constexpr double kLegend = 46;
constexpr double kPanelGap = 26;
constexpr double kLetterWidth = 7.2;  // of the heading, about
constexpr double kLegendWidth = 560;

constexpr int kLabelledFan = 2;  // chunks of one instruction whose arrows still have room for names

struct Point {
  double x;
  double y;
};

/// Where things stand: the columns are the same in all panels.
class Layout {
 public:
  Layout(const Schedule& schedule, const Timeline& timeline)
      : nchannels_(length(schedule.ranks[0])), steps_(timeline.steps) {
    double left = kMargin + kStepWidth;
    for (const std::vector<Channel>& channels : schedule.ranks) {
      int lanes = 1;
      for (const Channel& channel : channels) lanes = std::max(lanes, length(channel.lanes));
      const double width = lanes * kLanePitch + 2 * kColumnPadding;
      columns_.push_back({left, width});
      left += width + kColumnGap;
    }
    // The heading has no line break.
    const double heading =
        kLetterWidth * static_cast<double>(describe_cost(schedule, timeline).size());
    width_ = std::max({left - kColumnGap + kMargin, heading + 2 * kMargin, kLegendWidth});
  }

  double width() const { return width_; }
  double height() const { return panel_top(nchannels_) - kPanelGap + kLegend; }
  double column_left(int rank) const { return at(columns_, rank).left; }
  double column_width(int rank) const { return at(columns_, rank).width; }
  double left_edge() const { return kMargin + kStepWidth - kColumnGap / 2; }
  double right_edge() const {
    return columns_.back().left + columns_.back().width + kColumnGap / 2;
  }
  double panel_top(int channel) const { return kHeader + channel * (panel_height() + kPanelGap); }
  double panel_height() const { return kColumnHead + steps_ * kRowPitch; }
  double row(int channel, int step) const {
    return panel_top(channel) + kColumnHead + (step + 0.5) * kRowPitch;
  }
  /// The middle of an instruction's box.
  Point box(const Event& event) const {
    const Position& p = event.position;
    return {column_left(p.rank) + kColumnPadding + (p.lane + 0.5) * kLanePitch,
            row(p.channel, event.step)};
  }

 private:
  struct Column {
    double left;
    double width;
  };
  int nchannels_;
  int steps_;
  double width_ = 0;
  std::vector<Column> columns_;
};

class Drawing {
 public:
  Drawing(const Schedule& schedule, const Timeline& timeline)
      : schedule_(schedule), timeline_(timeline), layout_(schedule, timeline) {}

  std::string draw() {
    open();
    for (int channel = 0; channel < length(schedule_.ranks[0]); ++channel) draw_panel(channel);
    for (const Event& event : timeline_.events) draw_arrows(event);
    text_ += labels_;  // above all arrows
    for (const Event& event : timeline_.events) draw_box(event);
    draw_legend();
    text_ += "</svg>\n";
    return std::move(text_);
  }

 private:
  template <typename... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    text_ += fmt::format(format, std::forward<Arguments>(arguments)...);
    text_ += '\n';
  }

  const Instruction& instruction_of(const Event& event) const {
    const Position& p = event.position;
    return at(at(at(at(schedule_.ranks, p.rank), p.channel).lanes, p.lane).instructions,
              p.instruction);
  }

  void open() {
    const double width = layout_.width(), height = layout_.height();
    add(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.0f} {:.0f}" width="{:.0f}" height="{:.0f}" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="12" text-anchor="middle">)",
        width, height, width, height);
    add(R"(<title>{} {}, {} ranks</title>)", name_of(schedule_.collective), schedule_.algorithm,
        schedule_.nranks);
    add(R"(<rect width="{:.0f}" height="{:.0f}" rx="10" fill="#ffffff"/>)", width, height);
    add(R"(<text x="{:.0f}" y="38" font-size="20" font-weight="600" fill="#1c2733" text-anchor="start">{} <tspan fill="#7a8794" font-weight="400">{}</tspan></text>)",
        kMargin, name_of(schedule_.collective), schedule_.algorithm);
    add(R"(<text x="{:.0f}" y="60" font-size="13" fill="#5b6875" text-anchor="start">{}</text>)",
        kMargin, describe_cost(schedule_, timeline_));
  }

  void draw_panel(int channel) {
    const double top = layout_.panel_top(channel);
    for (int rank = 0; rank < schedule_.nranks; ++rank) {
      const double left = layout_.column_left(rank), width = layout_.column_width(rank);
      const bool is_root = has_root(schedule_.collective) && rank == schedule_.root;
      add(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="8" fill="{}"/>)", left,
          top, width, layout_.panel_height(), is_root ? "#fdf6e9" : "#f5f7f9");
      add(R"(<text x="{:.1f}" y="{:.1f}" font-weight="600" fill="#3a4652">rank {}</text>)",
          left + width / 2, top + 21, rank);
      if (is_root)
        add(R"(<text x="{:.1f}" y="{:.1f}" font-size="11" fill="#b07a1e">root</text>)",
            left + width / 2, top + 36);
    }
    for (int step = 0; step < timeline_.steps; ++step)
      add(R"(<text x="{:.1f}" y="{:.1f}" font-size="11" fill="#9aa5b0" text-anchor="end">{}</text>)",
          layout_.left_edge() - 4, layout_.row(channel, step) + 4, step);
    if (length(schedule_.ranks[0]) > 1)
      add(R"(<text x="{:.1f}" y="{:.1f}" font-size="11" fill="#7a8794" text-anchor="start">channel {}</text>)",
          4.0, top + 21, channel);
  }

  void draw_arrows(const Event& event) {
    for (const int cause : event.causes) {
      const Event& sent = at(timeline_.events, cause);
      const Point tail = layout_.box(sent), head = layout_.box(event);
      const Style style = style_of(schedule_, sent.data);
      const Point from{tail.x, tail.y + kBoxHeight / 2}, to{head.x, head.y - kBoxHeight / 2};
      add(R"(<g stroke="{}" fill="none" stroke-width="1.6" stroke-opacity="0.75"><title>{}: rank {} step {} to rank {} step {}</title>)",
          style.color, describe_data(schedule_, sent.data), sent.position.rank, sent.step,
          event.position.rank, event.step);
      const bool is_labelled = length(instruction_of(sent).send_to) <= kLabelledFan &&
                               length(event.causes) <= kLabelledFan;
      if (goes_round(sent.position.rank, event.position.rank))
        draw_round(from, to, style, is_labelled);
      else
        draw_curve(from, to, style, is_labelled);
      add(R"(<path d="M{:.1f} {:.1f}l-4 -7h8z" fill="{}" fill-opacity="0.9" stroke="none"/></g>)",
          to.x, to.y, style.color);
    }
  }

  /// From the last column to the first or back: neighbours on the ring that ranks form.
  bool goes_round(int sender, int receiver) const {
    const int last = schedule_.nranks - 1;
    return last > 1 && ((sender == last && receiver == 0) || (sender == 0 && receiver == last));
  }

  void draw_curve(Point from, Point to, const Style& style, bool is_labelled) {
    const double end = to.y - 6;
    const double bend = std::min((end - from.y) * 0.55, kRowPitch);
    add(R"(<path d="M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}"/>)", from.x, from.y,
        from.x, from.y + bend, to.x, end - bend, to.x, end);
    if (is_labelled) label({(from.x + to.x) / 2, (from.y + end) / 2}, style);
  }

  /// Out at one edge and in at the other, so that no line crosses the whole picture.
  void draw_round(Point from, Point to, const Style& style, bool is_labelled) {
    const double middle = (from.y + to.y) / 2 - 3;
    const bool is_rightward = from.x > to.x;
    const double out = is_rightward ? layout_.right_edge() : layout_.left_edge();
    const double in = is_rightward ? layout_.left_edge() : layout_.right_edge();
    add(R"(<path d="M{0:.1f} {1:.1f}C{0:.1f} {2:.1f} {0:.1f} {2:.1f} {3:.1f} {2:.1f}"/>)", from.x,
        from.y, middle, out);
    add(R"(<path d="M{0:.1f} {1:.1f}C{2:.1f} {1:.1f} {2:.1f} {1:.1f} {2:.1f} {3:.1f}"/>)", in,
        middle, to.x, to.y - 6);
    if (!is_labelled) return;
    label({(from.x + out) / 2, middle}, style);
    label({(in + to.x) / 2, middle}, style);
  }

  /// On a ground of its own: lines run beneath it.
  void label(Point where, const Style& style) {
    const double width = 6 + 6.2 * static_cast<double>(style.label.size());
    labels_ += fmt::format(
        R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="13" rx="6" fill="#ffffff" fill-opacity="0.9"/><text x="{:.1f}" y="{:.1f}" font-size="10" fill="{}">{}</text>)"
        "\n",
        where.x - width / 2, where.y - 6.5, width, where.x, where.y + 3.6, style.color,
        style.label);
  }

  void draw_box(const Event& event) {
    const Instruction& instruction = instruction_of(event);
    const Point middle = layout_.box(event);
    const Style style = style_of(schedule_, event.data);
    const bool is_stored = instruction.target.has_value();
    add(R"(<g><title>{}</title>)", describe(event.position));
    add(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="6" fill="{}" stroke="{}" stroke-width="1.8"/>)",
        middle.x - kBoxWidth / 2, middle.y - kBoxHeight / 2, kBoxWidth, kBoxHeight,
        is_stored ? style.color : "#ffffff", style.color);
    add(R"(<text x="{:.1f}" y="{:.1f}" font-weight="600" fill="{}">{}{}{}</text></g>)", middle.x,
        middle.y + 4.3, is_stored ? "#ffffff" : style.color, instruction.reduce ? "&#931; " : "",
        style.label, instruction.finish ? " &#10003;" : "");
  }

  void draw_legend() {
    const double y = layout_.height() - 20;
    double x = kMargin;
    const auto box = [&](const char* fill, const char* what, double width) {
      add(R"(<rect x="{:.1f}" y="{:.1f}" width="22" height="14" rx="4" fill="{}" stroke="#6b7783" stroke-width="1.6"/>)",
          x, y - 11, fill);
      add(R"(<text x="{:.1f}" y="{:.1f}" fill="#5b6875" text-anchor="start">{}</text>)", x + 29, y,
          what);
      x += width;
    };
    box("#ffffff", "passed on", 104);
    box("#6b7783", "stored here", 114);
    std::string words = fmt::format("box: {}", legend_of(schedule_.collective));
    if (reduces(schedule_.collective)) words += "; &#931; folds; &#10003; finishes";
    add(R"(<text x="{:.1f}" y="{:.1f}" fill="#5b6875" text-anchor="start">{}</text>)", x, y, words);
  }

  const Schedule& schedule_;
  const Timeline& timeline_;
  Layout layout_;
  std::string text_;
  std::string labels_;
};

}  // namespace

Result<std::string> draw_svg(const Schedule& schedule) {
  const Timeline events = TRY(timeline(schedule));
  return Drawing(schedule, events).draw();
}

}  // namespace niccolite::schedule
