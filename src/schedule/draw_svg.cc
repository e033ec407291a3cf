#include "schedule/draw_svg.h"

#include <algorithm>
#include <map>
#include <set>

#include "schedule/draw_style.h"
#include "schedule/excerpt.h"
#include "schedule/index.h"
#include "schedule/timeline.h"

namespace niccolite::schedule {
namespace {

// All in pixels.
constexpr double kMargin = 28;
constexpr double kHeader = 78;
constexpr double kNote = 18;  // a line of the heading about omitted parts
constexpr double kColumnHead = 36;
constexpr double kStepWidth = 30;  // of the numbers at the left
constexpr double kBoxWidth = 44;
constexpr double kBoxHeight = 24;
constexpr double kWorkerPitch = 58;
constexpr double kColumnPadding = 12;
constexpr double kColumnGap = 26;
constexpr double kRowPitch = 62;
constexpr double kRowGap = kRowPitch - kBoxHeight;  // between boxes, where lines may cross workers
constexpr double kRankGapWidth = 92;                // of the gap for omitted ranks
constexpr double kWorkerGapWidth = 24;
constexpr double kStepGapHeight = 42;
constexpr double kStub = 13;  // length of an arrow whose other end is left out
constexpr double kLegend = 46;
constexpr double kPanelGap = 26;
constexpr double kLetterWidth = 7.2;  // of the heading, about
constexpr double kLegendWidth = 560;

constexpr int kLabelledFan = 2;  // chunks of one instruction whose arrows still have room for names

struct Point {
  double x;
  double y;
};

/// The positions of all parts: the columns are the same in all panels.
class Layout {
 public:
  Layout(const Schedule& schedule, const Timeline& timeline, const Excerpt& excerpt)
      : nchannels_(length(schedule.ranks[0])),
        header_(kHeader + kNote * static_cast<double>(excerpt.notes.size())) {
    double left = kMargin + kStepWidth;
    for (const Axis::Entry& entry : excerpt.ranks.entries()) {
      const Column column = entry.is_gap ? Column{left, kRankGapWidth, {}}
                                         : column_of(schedule, excerpt, entry.first, left);
      columns_.resize(static_cast<size_t>(entry.last) + 1, column);
      left += column.width + kColumnGap;
    }
    double top = kColumnHead;
    for (const Axis::Entry& entry : excerpt.steps.entries()) {
      const double height = entry.is_gap ? kStepGapHeight : kRowPitch;
      rows_.resize(static_cast<size_t>(entry.last) + 1, top + height / 2);
      top += height;
    }
    panel_height_ = top;
    // The heading has no line break.
    size_t letters = describe_cost(schedule, timeline).size();
    for (const std::string& note : excerpt.notes) letters = std::max(letters, note.size());
    width_ = std::max({left - kColumnGap + kMargin,
                       kLetterWidth * static_cast<double>(letters) + 2 * kMargin, kLegendWidth});
  }

  double width() const { return width_; }
  double height() const { return panel_top(nchannels_) - kPanelGap + kLegend; }
  double column_left(int rank) const { return at(columns_, rank).left; }
  double column_width(int rank) const { return at(columns_, rank).width; }
  double left_edge() const { return kMargin + kStepWidth - kColumnGap / 2; }
  double right_edge() const {
    return columns_.back().left + columns_.back().width + kColumnGap / 2;
  }
  double panel_top(int channel) const { return header_ + channel * (panel_height() + kPanelGap); }
  double panel_height() const { return panel_height_; }
  double row(int channel, int step) const { return panel_top(channel) + at(rows_, step); }
  double worker(int rank, int worker) const {
    const Column& column = at(columns_, rank);
    return column.left + at(column.workers, worker);
  }
  /// The middle of an instruction's box.
  Point box(const Event& event) const {
    const Position& p = event.position;
    return {worker(p.rank, p.worker), row(p.channel, event.step)};
  }

 private:
  struct Column {
    double left;
    double width;
    std::vector<double> workers;  // their middles, from the left; omitted workers share one
  };

  static Column column_of(const Schedule& schedule, const Excerpt& excerpt, int rank, double left) {
    int count = 1;
    for (const Channel& channel : at(schedule.ranks, rank))
      count = std::max(count, length(channel.workers));
    Column column{left, kColumnPadding, {}};
    for (const Axis::Entry& entry : excerpt.workers.entries()) {
      if (entry.first >= count) break;
      const double width = entry.is_gap ? kWorkerGapWidth : kWorkerPitch;
      column.workers.resize(static_cast<size_t>(entry.last) + 1, column.width + width / 2);
      column.width += width;
    }
    column.width += kColumnPadding;
    return column;
  }

  int nchannels_;
  double header_;
  double panel_height_ = 0;
  double width_ = 0;
  std::vector<Column> columns_;  // by rank; the ranks of a gap share one
  std::vector<double> rows_;     // the middles of steps, below the panel's top; a gap has one
};

class Drawing {
 public:
  Drawing(const Schedule& schedule, const Timeline& timeline)
      : schedule_(schedule),
        timeline_(timeline),
        excerpt_(excerpt_of(schedule, timeline)),
        layout_(schedule, timeline, excerpt_) {}

  std::string draw() {
    open();
    for (int channel = 0; channel < length(schedule_.ranks[0]); ++channel) draw_panel(channel);
    for (const Event& event : timeline_.events) draw_arrows(event);
    draw_stubs();
    text_ += labels_;  // above all arrows
    for (const Event& event : timeline_.events)
      if (excerpt_.shows(event)) draw_box(event);
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
    return at(at(at(at(schedule_.ranks, p.rank), p.channel).workers, p.worker).instructions,
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
    for (int i = 0; i < length(excerpt_.notes); ++i)
      add(R"(<text x="{:.0f}" y="{:.0f}" fill="#b07a1e" text-anchor="start">{}</text>)", kMargin,
          60 + kNote * (i + 1), at(excerpt_.notes, i));
  }

  void draw_panel(int channel) {
    for (const Axis::Entry& entry : excerpt_.ranks.entries())
      entry.is_gap ? draw_rank_gap(channel, entry) : draw_column(channel, entry.first);
    for (const Axis::Entry& entry : excerpt_.steps.entries())
      if (entry.is_gap)
        draw_step_gap(channel, entry);
      else
        add(R"(<text x="{:.1f}" y="{:.1f}" font-size="11" fill="#9aa5b0" text-anchor="end">{}</text>)",
            layout_.left_edge() - 4, layout_.row(channel, entry.first) + 4, entry.first);
    if (length(schedule_.ranks[0]) > 1)
      add(R"(<text x="{:.1f}" y="{:.1f}" font-size="11" fill="#7a8794" text-anchor="start">channel {}</text>)",
          4.0, layout_.panel_top(channel) + 21, channel);
  }

  void draw_column(int channel, int rank) {
    const double top = layout_.panel_top(channel);
    const double left = layout_.column_left(rank), width = layout_.column_width(rank);
    const bool is_root = has_root(schedule_.collective) && rank == schedule_.root;
    add(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="8" fill="{}"/>)", left,
        top, width, layout_.panel_height(), is_root ? "#fdf6e9" : "#f5f7f9");
    add(R"(<text x="{:.1f}" y="{:.1f}" font-weight="600" fill="#3a4652">rank {}</text>)",
        left + width / 2, top + 21, rank);
    if (is_root)
      add(R"(<text x="{:.1f}" y="{:.1f}" font-size="11" fill="#b07a1e">root</text>)",
          left + width / 2, top + 36);
    const auto workers = length(at(at(schedule_.ranks, rank), channel).workers);
    for (const Axis::Entry& entry : excerpt_.workers.entries())
      if (entry.is_gap && entry.first < workers)
        draw_gap({layout_.worker(rank, entry.first), top + layout_.panel_height() / 2}, {});
  }

  /// Three dots, with words beneath them.
  void draw_gap(Point where, const std::vector<std::string>& words) {
    add(R"(<text x="{:.1f}" y="{:.1f}" font-size="16" font-weight="600" fill="#b07a1e">&#8943;</text>)",
        where.x, where.y);
    for (const std::string& line : words)
      add(R"(<text x="{:.1f}" y="{:.1f}" font-size="11" fill="#b07a1e">{}</text>)", where.x,
          where.y += 15, line);
  }

  void draw_rank_gap(int channel, const Axis::Entry& gap) {
    const double middle = layout_.column_left(gap.first) + layout_.column_width(gap.first) / 2;
    std::vector<std::string> words{gap.first == gap.last
                                       ? fmt::format("rank {}", gap.first)
                                       : fmt::format("{} to {}", gap.first, gap.last)};
    if (gap.is_alike) words.push_back(fmt::format("as rank {}", gap.first - 1));
    draw_gap({middle, layout_.panel_top(channel) + 21}, words);
  }

  /// A band that cuts the columns.
  void draw_step_gap(int channel, const Axis::Entry& gap) {
    const double middle = layout_.row(channel, gap.first);
    const double left = layout_.left_edge(), right = layout_.right_edge();
    add(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="#ffffff"/>)", left,
        middle - kStepGapHeight / 4, right - left, kStepGapHeight / 2);
    const std::string steps = gap.first == gap.last
                                  ? fmt::format("step {}", gap.first)
                                  : fmt::format("steps {} to {}", gap.first, gap.last);
    add(R"(<text x="{:.1f}" y="{:.1f}" font-size="11" fill="#b07a1e" text-anchor="start">&#8942; {}{}</text>)",
        left, middle + 4, steps,
        gap.is_alike ? fmt::format(", as step {}", gap.first - 1) : " left out");
  }

  void draw_arrows(const Event& event) {
    for (const int cause : event.causes) {
      const Event& sent = at(timeline_.events, cause);
      if (!excerpt_.shows(sent) || !excerpt_.shows(event)) {
        if (excerpt_.shows(sent)) hidden_receivers_[&sent].insert(event.position.rank);
        if (excerpt_.shows(event)) hidden_senders_[&event].insert(sent.position.rank);
        continue;
      }
      draw_arrow(sent, event);
    }
  }

  void draw_arrow(const Event& sent, const Event& event) {
    const Point tail = layout_.box(sent), head = layout_.box(event);
    const Style style = style_of(schedule_, sent.data);
    const Point from{tail.x, tail.y + kBoxHeight / 2}, to{head.x, head.y - kBoxHeight / 2};
    add(R"(<g stroke="{}" fill="none" stroke-width="1.6" stroke-opacity="0.75"><title>{}: rank {} step {} to rank {} step {}</title>)",
        style.color, describe_data(schedule_, sent.data), sent.position.rank, sent.step,
        event.position.rank, event.step);
    const bool is_labelled = length(instruction_of(sent).send_to) <= kLabelledFan &&
                             length(event.causes) <= kLabelledFan;
    if (goes_round(sent.position.rank, event.position.rank))
      draw_round(from, to, style);
    else if (event.step == sent.step + 1)
      draw_curve(from, to, style, is_labelled);
    else
      draw_detour(from, to, event, style, is_labelled);
    add(R"(<path d="M{:.1f} {:.1f}l-4 -7h8z" fill="{}" fill-opacity="0.9" stroke="none"/></g>)",
        to.x, to.y, style.color);
  }

  /// Arrows whose other end is left out: one for all chunks of an instruction.
  void draw_stubs() {
    for (const auto& [event, ranks] : hidden_receivers_) {
      const Point box = layout_.box(*event);
      draw_stub({box.x, box.y + kBoxHeight / 2}, *event, ranks);
    }
    for (const auto& [event, ranks] : hidden_senders_) {
      const Point box = layout_.box(*event);
      draw_stub({box.x, box.y - kBoxHeight / 2 - kStub}, *event, ranks);
    }
  }

  void draw_stub(Point from, const Event& event, const std::set<int>& ranks) {
    const std::string color = style_of(schedule_, event.data).color;
    static_assert(kLabelledFan == 2);
    const std::string words = length(ranks) > kLabelledFan ? fmt::format("{} ranks", ranks.size())
                              : length(ranks) == 1
                                  ? std::to_string(*ranks.begin())
                                  : fmt::format("{}, {}", *ranks.begin(), *ranks.rbegin());
    add(R"(<path d="M{0:.1f} {1:.1f}v{2:.1f}" stroke="{3}" stroke-width="1.6"/><path d="M{0:.1f} {4:.1f}l-3 -6h6z" fill="{3}"/>)",
        from.x, from.y, kStub - 5, color, from.y + kStub);
    add(R"(<text x="{:.1f}" y="{:.1f}" font-size="9" fill="{}" text-anchor="start">{}</text>)",
        from.x + 5, from.y + 9, color, words);
  }

  /// True for an arrow between the last column and the first: they are neighbours on the ring of
  /// ranks.
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

  /// Draws an arrow past the boxes of the steps between: down beside the receiver's worker, across
  /// in the gaps of rows.
  void draw_detour(Point from, Point to, const Event& event, const Style& style, bool is_labelled) {
    const double x = to.x + beside(from, to, event);
    const double turn = std::min(kRowGap - 4, (to.y - from.y) / 2);
    const double half = turn / 2;
    add(R"(<path d="M{0:.1f} {1:.1f}C{0:.1f} {2:.1f} {3:.1f} {2:.1f} {3:.1f} {4:.1f}V{5:.1f}C{3:.1f} {6:.1f} {7:.1f} {6:.1f} {7:.1f} {8:.1f}"/>)",
        from.x, from.y, from.y + half, x, from.y + turn, to.y - turn, to.y - half, to.x, to.y - 6);
    if (is_labelled) label({x, to.y - turn - 2}, style);
  }

  /// How far from the middle of its worker an arrow comes down, on the side of its sender.
  /// Neighbours in time keep apart.
  double beside(Point from, Point to, const Event& event) const {
    const Position& p = event.position;
    const bool is_left = from.x <= to.x;
    const int last = length(at(at(schedule_.ranks, p.rank), p.channel).workers) - 1;
    const bool is_outer = p.worker == (is_left ? 0 : last);
    const double distance = is_outer ? kBoxWidth / 2 + 7 + 6 * (p.instruction % 4)
                                     : kWorkerPitch / 2 + 2 * (p.instruction % 3 - 1);
    return is_left ? -distance : distance;
  }

  /// Out at one edge and in at the other, so that no line crosses the whole picture. Always
  /// labelled: its halves are far apart.
  void draw_round(Point from, Point to, const Style& style) {
    const bool is_rightward = from.x > to.x;
    // The two directions run at heights of their own.
    const double level = kRowGap * (is_rightward ? 0.3 : 0.7);
    const double below = from.y + level, above = to.y - kRowGap + level;
    const double out = is_rightward ? layout_.right_edge() : layout_.left_edge();
    const double in = is_rightward ? layout_.left_edge() : layout_.right_edge();
    add(R"(<path d="M{0:.1f} {1:.1f}C{0:.1f} {2:.1f} {0:.1f} {2:.1f} {3:.1f} {2:.1f}"/>)", from.x,
        from.y, below, out);
    add(R"(<path d="M{0:.1f} {1:.1f}C{2:.1f} {1:.1f} {2:.1f} {1:.1f} {2:.1f} {3:.1f}"/>)", in,
        above, to.x, to.y - 6);
    label({out + (is_rightward ? -6 : 6), below}, style);
    label({in + (is_rightward ? 6 : -6), above}, style);
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
    if (reduces(schedule_.collective)) words += "; &#931; reduces; &#10003; finishes";
    add(R"(<text x="{:.1f}" y="{:.1f}" fill="#5b6875" text-anchor="start">{}</text>)", x, y, words);
  }

  const Schedule& schedule_;
  const Timeline& timeline_;
  const Excerpt excerpt_;
  Layout layout_;
  std::map<const Event*, std::set<int>> hidden_receivers_, hidden_senders_;  // ranks, by event
  std::string text_;
  std::string labels_;
};

}  // namespace

Result<std::string> draw_svg(const Schedule& schedule) {
  const Timeline events = TRY(timeline(schedule));
  return Drawing(schedule, events).draw();
}

}  // namespace niccolite::schedule
