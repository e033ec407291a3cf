#include "schedule/draw.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "schedule/builder.h"
#include "schedule/draw_svg.h"
#include "schedule/excerpt.h"

namespace niccolite::schedule {
namespace {

/// The ring of algorithms/all_reduce_ring.cc, written out: this module's tests know nothing above
/// it.
Schedule ring_of_three() {
  Builder builder({.collective = Collective::AllReduce,
                   .algorithm = "ring",
                   .nranks = 3,
                   .nblocks = 3,
                   .partial_sums = true});
  for (int rank = 0; rank < 3; ++rank) {
    WorkerBuilder worker = builder.add_worker(rank);
    const Connections next = worker.to((rank + 1) % 3), prev = worker.from((rank + 2) % 3);
    const int first = (rank + 2) % 3, second = (rank + 1) % 3;
    worker.add({.source = input(first), .send_to = next});
    worker.add({.receive_from = prev,
                .source = input(second),
                .source_position = 1,
                .reduce = true,
                .send_to = next});
    worker.add({.receive_from = prev,
                .source = input(rank),
                .source_position = 1,
                .reduce = true,
                .target = output(rank),
                .send_to = next,
                .finish = true});
    worker.add({.receive_from = prev, .target = output(first), .send_to = next});
    worker.add({.receive_from = prev, .target = output(second)});
  }
  return std::move(builder).take();
}

TEST(DrawText, ShowsARingAsPeopleWouldWriteIt) {
  EXPECT_EQ(draw_text(ring_of_three()),
            R"(all_reduce ring: 3 ranks, 3 blocks, 3 connections, partial sums travel
rank 0, channel 0, worker 0
  0  block 2  input                   -> rank 1
  1  block 1  rank 2 + input          -> rank 1
  2  block 0  finish(rank 2 + input)  -> output, rank 1
  3  block 2  rank 2                  -> output, rank 1
  4  block 1  rank 2                  -> output
rank 1, channel 0, worker 0
  0  block 0  input                   -> rank 2
  1  block 2  rank 0 + input          -> rank 2
  2  block 1  finish(rank 0 + input)  -> output, rank 2
  3  block 0  rank 0                  -> output, rank 2
  4  block 2  rank 0                  -> output
rank 2, channel 0, worker 0
  0  block 1  input                   -> rank 0
  1  block 0  rank 1 + input          -> rank 0
  2  block 2  finish(rank 1 + input)  -> output, rank 0
  3  block 1  rank 1                  -> output, rank 0
  4  block 0  rank 1                  -> output
)");
}

TEST(DrawText, ShowsTagsRunsOfRanksScratchAndWeights) {
  Builder builder({.collective = Collective::AllReduce,
                   .algorithm = "sketch",
                   .nranks = 6,
                   .nblocks = 1,
                   .scratch_blocks = 2});
  WorkerBuilder worker = builder.add_worker(0, 0, 3);
  const std::vector<int> peers{1, 2, 3, 5};
  worker.add({.receive_from = worker.from(peers),
              .source = input(0),
              .source_position = 3,
              .reduce = true,
              .target = scratch(1)});
  worker.add({.source = scratch(1), .send_to = worker.to(4, 7), .chunk_of = 0});
  EXPECT_EQ(draw_text(std::move(builder).take()),
            R"(all_reduce sketch: 6 ranks, 1 block, 5 connections
rank 0, channel 0, worker 0, weight 3
  0  block 0  ranks 1..3 + input + rank 5  -> scratch 1
  1  block 0  scratch 1                    -> rank 4/7
)");
}

TEST(DrawText, NamesEachBlockWhereBlocksAreSideBySide) {
  Builder builder({.collective = Collective::Gather,
                   .algorithm = "sketch",
                   .nranks = 2,
                   .nblocks = 2,
                   .root = 1});
  WorkerBuilder sender = builder.add_worker(0), root = builder.add_worker(1);
  sender.add({.source = input(0), .send_to = sender.to(1)});
  root.add({.source = input(0), .target = output(1)});
  root.add({.receive_from = root.from(0), .target = output(0)});
  EXPECT_EQ(draw_text(std::move(builder).take()),
            R"(gather sketch: 2 ranks, root 1, 2 blocks, 1 connection
rank 0, channel 0, worker 0
  0  input  -> rank 1
rank 1, channel 0, worker 0
  0  input   -> output 1
  1  rank 0  -> output 0
)");
}

TEST(DrawText, ShowsMessages) {
  Builder builder({.collective = Collective::PointToPoint,
                   .algorithm = "sketch",
                   .nranks = 2,
                   .nblocks = 2,
                   .nchannels = 1,
                   .messages = {{0, 1, 0, 1}, {1, 1, 0, 0}}});
  WorkerBuilder sender = builder.add_worker(0), receiver = builder.add_worker(1);
  sender.add({.source = input(0), .send_to = sender.to(1)});
  receiver.add({.receive_from = receiver.from(0), .target = output(1)});
  builder.add_worker(1).add({.source = input(0), .target = output(0)});
  EXPECT_EQ(draw_text(std::move(builder).take()),
            R"(point_to_point sketch: 2 ranks, 2 messages, 1 connection
rank 0, channel 0, worker 0
  0  input 0  -> rank 1
rank 1, channel 0, worker 0
  0  rank 0  -> output 1
rank 1, channel 0, worker 1
  0  input 0  -> output 0
)");
}

TEST(DrawText, ShowsBrokenInstructionsToo) {
  Builder builder(
      {.collective = Collective::AllReduce, .algorithm = "broken", .nranks = 1, .nblocks = 1});
  builder.add_worker(0).add({.receive_from = {9}, .source = input(3), .source_position = 8});
  EXPECT_EQ(draw_text(std::move(builder).take()),
            R"(all_reduce broken: 1 rank, 1 block, 0 connections
rank 0, channel 0, worker 0
  0  block 3  no connection 9 | input  -> nothing
)");
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

/// Every element is closed where it must be, and no text holds a bare "<" or "&".
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    ASSERT_EQ(count(tag, "\"") % 2, 0u) << tag;
    if (tag.back() == '/') continue;
    if (tag[0] != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
      continue;
    }
    ASSERT_FALSE(open.empty());
    EXPECT_EQ("/" + open.back(), tag);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
  for (size_t at = svg.find('&'); at != std::string::npos; at = svg.find('&', at + 1))
    EXPECT_EQ(svg[at + 1], '#') << svg.substr(at, 12);
}

TEST(DrawSvg, HasABoxForEachInstructionAndAnArrowForEachChunk) {
  const std::string svg = draw_svg(ring_of_three()).take();
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, "<title>rank "), 15u);  // boxes name their instruction
  EXPECT_EQ(count(svg, " step 0 to rank "), 3u);
  EXPECT_EQ(count(svg, "<g stroke="), 12u);
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(count(svg, fmt::format(">rank {}</text>", rank)), 1u);
  EXPECT_EQ(count(svg, "&#10003;</text></g>"), 3u) << "three instructions finish";
  EXPECT_EQ(count(svg, "each rank sends 1.33 times the data"), 1u);
}

std::string shown_on(const Axis& axis) {
  std::string text;
  for (const Axis::Entry& entry : axis.entries())
    text += entry.is_gap
                ? fmt::format("({}-{}{}) ", entry.first, entry.last, entry.is_alike ? " alike" : "")
                : fmt::format("{} ", entry.first);
  return text;
}

TEST(Axis, ShowsTheEndsOfRunsThatAreAlike) {
  constexpr bool o = false, x = true;  // x: as the one before
  const struct {
    std::vector<bool> alike;
    int head, most;
    const char* shown;
  } cases[] = {
      {{}, 2, 9, ""},
      {{o}, 2, 9, "0 "},
      {{o, x, x, x}, 2, 9, "0 1 2 3 "},  // a gap of one saves nothing
      {{o, x, x, x, x}, 2, 9, "0 1 (2-3 alike) 4 "},
      {{o, o, x, x, x, o, o}, 1, 9, "0 1 (2-3 alike) 4 5 6 "},
      {{o, x, x, x, o, x, x, x}, 1, 9, "0 (1-2 alike) 3 4 (5-6 alike) 7 "},
      {{o, o, o, o, o, o}, 2, 3, "0 1 (2-4) 5 "},
      {{o, x, x, x, x, o, o, o}, 1, 3, "0 (1-3 alike) 4 (5-6) 7 "},
      {{o, x, x, x, x, o, o, o}, 1, 2, "0 (1-6) 7 "},
  };
  for (const auto& c : cases) EXPECT_EQ(shown_on(Axis::of(c.alike, c.head, c.most)), c.shown);
  EXPECT_EQ(shown_on(Axis::whole(3)), "0 1 2 ");
  EXPECT_EQ(Axis::of(cases[3].alike, 2, 9).shown(), 3);
}

TEST(DrawSvg, DrawsEachChannelAndNamesTheRoot) {
  Builder builder({.collective = Collective::Broadcast,
                   .algorithm = "sketch",
                   .nranks = 2,
                   .nblocks = 1,
                   .root = 1});
  for (int channel = 0; channel < 2; ++channel) {
    WorkerBuilder root = builder.add_worker(1, channel), other = builder.add_worker(0, channel);
    root.add({.source = input(0), .target = output(0), .send_to = root.to(0)});
    other.add({.receive_from = other.from(1), .target = output(0)});
  }
  const std::string svg = draw_svg(std::move(builder).take()).take();
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, ">root</text>"), 2u);
  EXPECT_EQ(count(svg, ">channel 1</text>"), 1u);
  EXPECT_EQ(count(svg, "ranks send 0 to 1 times the data"), 1u);
}

TEST(DrawSvg, SameDataHaveTheSameColourAndOthersAnother) {
  const std::string svg = draw_svg(ring_of_three()).take();
  std::map<std::string, std::set<std::string>> colors;  // by label of the arrows' data
  const std::string start = "<g stroke=\"";
  for (size_t at = svg.find(start); at != std::string::npos; at = svg.find(start, at + 1)) {
    const size_t color = at + start.size(), title = svg.find("<title>", at) + 7;
    colors[svg.substr(title, svg.find(':', title) - title)].insert(
        svg.substr(color, svg.find('"', color) - color));
  }
  ASSERT_EQ(colors.size(), 3u);
  std::set<std::string> distinct;
  for (const auto& [label, used] : colors) {
    EXPECT_EQ(used.size(), 1u) << label;
    distinct.insert(used.begin(), used.end());
  }
  EXPECT_EQ(distinct.size(), 3u);
}

TEST(DrawSvg, RefusesWhatHasNoTimeline) {
  Schedule schedule = ring_of_three();
  schedule.ranks[1][0].workers[0].instructions.pop_back();
  EXPECT_FALSE(draw_svg(schedule).is_ok());
}

}  // namespace
}  // namespace niccolite::schedule
