#include "schedule/draw_style.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "schedule/index.h"

namespace niccolite::schedule {
namespace {

/// The number that tells data apart where one does; else the sender's.
int number_of(Collective collective, const Data& data) {
  switch (collective) {
    case Collective::AllReduce:
    case Collective::Reduce:
    case Collective::Broadcast:
    case Collective::ReduceScatter:
    case Collective::Scatter:
      return data.block;
    case Collective::AllGather:
    case Collective::Gather:
    case Collective::AllToAll:
    case Collective::PointToPoint:
      return data.owner;
  }
  return data.block;
}

/// Eight that differ well, then hues a golden angle apart.
std::string color_of(int number) {
  static constexpr std::array kColors{"#3367b0", "#c9601a", "#2f8a4c", "#b83a4b",
                                      "#7a4fae", "#1b8a94", "#8a6d1c", "#b5488c"};
  if (number < length(kColors)) return at(kColors, number);
  const double hue = std::fmod(number * 137.508, 360.0);
  return fmt::format("hsl({:.0f}, 48%, {}%)", hue, 34 + 5 * (number % 3));
}

std::string plural(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

Style style_of(const Schedule& schedule, const Data& data) {
  const int number = number_of(schedule.collective, data);
  if (schedule.collective == Collective::AllToAll)
    return {color_of(number), fmt::format("{}:{}", data.owner, data.block)};
  if (schedule.collective == Collective::PointToPoint)
    for (const Message& message : schedule.messages)
      if (message.sender == data.owner && message.send_block == data.block)
        return {color_of(number), fmt::format("{}:{}", message.sender, message.receiver)};
  return {color_of(number), std::to_string(number)};
}

const char* legend_of(Collective collective) {
  switch (collective) {
    case Collective::AllReduce:
    case Collective::Reduce:
    case Collective::Broadcast:
      return "block of the buffer";
    case Collective::AllGather:
    case Collective::Gather:
      return "rank whose block it is";
    case Collective::ReduceScatter:
    case Collective::Scatter:
      return "rank that the block is for";
    case Collective::AllToAll:
    case Collective::PointToPoint:
      return "from rank : to rank";
  }
  return "block";
}

std::string describe_data(const Schedule& schedule, const Data& data) {
  const Style style = style_of(schedule, data);
  return fmt::format("{} {}", legend_of(schedule.collective), style.label);
}

std::string describe_cost(const Schedule& schedule, const Timeline& timeline) {
  std::string text = plural(schedule.nranks, "rank");
  if (has_root(schedule.collective)) text += fmt::format(", root {}", schedule.root);
  const bool is_messages = schedule.collective == Collective::PointToPoint;
  text += ", " + (is_messages ? plural(length(schedule.messages), "message")
                              : plural(schedule.nblocks, "block"));
  if (length(schedule.ranks[0]) > 1) text += ", " + plural(length(schedule.ranks[0]), "channel");
  text += fmt::format("; {}, {}", plural(timeline.steps, "step"),
                      timeline.latencies == 1
                          ? "1 network latency"
                          : fmt::format("{} network latencies", timeline.latencies));
  if (is_messages) return text;
  int least = blocks_sent(schedule, 0), most = least;
  for (int rank = 1; rank < schedule.nranks; ++rank) {
    least = std::min(least, blocks_sent(schedule, rank));
    most = std::max(most, blocks_sent(schedule, rank));
  }
  // Each channel moves its part of every block.
  const double data = schedule.nblocks * static_cast<double>(schedule.ranks[0].size());
  if (least == most)
    return text + fmt::format("; each rank sends {:.3g} times the data", most / data);
  return text +
         fmt::format("; ranks send {:.3g} to {:.3g} times the data", least / data, most / data);
}

}  // namespace niccolite::schedule
