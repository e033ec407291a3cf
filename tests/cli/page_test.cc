#include "cli/perf/page.h"

#include <gmock/gmock.h>

#include "cli/perf/plot.h"

namespace niccolite::perf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Row row_of(size_t bytes, double microseconds, std::optional<double> other) {
  Row row{.collective = "all_reduce",
          .bytes = bytes,
          .count = bytes / 4,
          .type = "float",
          .operation = "sum",
          .nranks = 2,
          .out_of_place = PlaceResult{.ours = {.microseconds = microseconds,
                                               .samples = {microseconds},
                                               .wrong = 0,
                                               .differing_ranks = std::nullopt,
                                               .alone = std::nullopt},
                                      .other = std::nullopt},
          .in_place = std::nullopt};
  if (other)
    row.out_of_place->other = Measurement{.microseconds = *other,
                                          .samples = {*other},
                                          .wrong = std::nullopt,
                                          .differing_ranks = std::nullopt,
                                          .alone = std::nullopt};
  return row;
}

Start start_of(bool has_other) {
  Start start{.is_virtual = true,
              .library = {"/lib/libnccl.so.2", "2.30.7"},
              .other = std::nullopt,
              .participants = {},
              .skipped = {}};
  if (has_other) start.other = LibraryName{"/nvidia/libnccl.so.2", "2.28.9"};
  for (const int rank : {0, 1})
    start.participants.push_back({.rank = rank,
                                  .process_id = 7,
                                  .device = rank,
                                  .host = "a<12>",
                                  .bus_id = "0",
                                  .device_name = "GPU & Co"});
  return start;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Plots, HaveAPanelForEachKindOfDataThatThereIs) {
  Options options;
  const std::vector<Row> small = {row_of(8, 5, {}), row_of(64, 6, {})};
  EXPECT_THAT(draw_all(options, start_of(false), small),
              AllOf(HasSubstr("Latency"), Not(HasSubstr("Bus bandwidth")), Not(HasSubstr("Ratio")),
                    HasSubstr("2 x GPU &amp; Co")));
  const std::vector<Row> large = {row_of(1 << 20, 50, {}), row_of(64 << 20, 600, {})};
  EXPECT_THAT(draw_all(options, start_of(false), large),
              AllOf(Not(HasSubstr("Latency")), HasSubstr("Bus bandwidth"),
                    HasSubstr("highest 111.8 GB/s")));
  const std::vector<Row> both = {row_of(8, 5, 10), row_of(64 << 10, 9, 8), row_of(1 << 20, 50, 60)};
  const std::string svg = draw_all(options, start_of(true), both);
  EXPECT_THAT(svg, AllOf(HasSubstr("Latency"), HasSubstr("Bus bandwidth"), HasSubstr("Ratio"),
                         HasSubstr("the other: libnccl.so.2 2.28.9")));
  EXPECT_THAT(svg, Not(HasSubstr(">-0<")));
  EXPECT_EQ(count(svg, "<polyline"), 5u) << "two curves twice, and the ratio";
}

TEST(Plots, LabelTheLimit) {
  Options options;
  options.limit_name = "peer copy";
  options.limit_gbs = 392;
  const std::vector<Row> rows = {row_of(1 << 20, 50, {}), row_of(2 << 20, 90, {})};
  EXPECT_THAT(draw_all(options, start_of(false), rows), HasSubstr(">peer copy 392 GB/s</text>"));
}

TEST(Plots, AreApartWhereMoreThanTheSizeDiffers) {
  Options options;
  std::vector<Row> rows = {row_of(8, 5, {}), row_of(64, 6, {}), row_of(8, 5, {})};
  rows[2].type = "half";
  EXPECT_EQ(plots_of(options, start_of(false), rows).size(), 2u);
}

TEST(Pages, LoadNothingAndHaveTheMachine) {
  Options options;
  const std::vector<Row> rows = {row_of(8, 5, 10), row_of(1 << 20, 50, 40)};
  const Start start = start_of(true);
  const std::vector<std::string> command = {"niccolite", "perf", "<b>"};
  const std::string html = to_html({.options = options,
                                    .command = command,
                                    .start = start,
                                    .rows = rows,
                                    .memory = {},
                                    .failure = {}});
  EXPECT_THAT(html, AllOf(HasSubstr("<svg "), HasSubstr("<td>1 MiB</td>"), HasSubstr("&lt;b&gt;"),
                          HasSubstr("a&lt;12&gt;"), HasSubstr("<td class=\"bad\">0.80</td>"),
                          HasSubstr("All results are right.")));
  for (const char* loads : {"src=", "href=", "<link", "<script", "url(", "@import"})
    EXPECT_THAT(html, Not(HasSubstr(loads)));
}

TEST(Lines, HaveAFieldForEachName) {
  const std::string csv = to_csv({row_of(8, 5, 10), row_of(1 << 20, 50, {})});
  EXPECT_THAT(csv, HasSubstr("\nall_reduce,float,sum,-1,0,2,8,2,out_of_place,5.000,0.002,0.002,0,"
                             "10.000,2.000\n"));
  EXPECT_EQ(count(csv, "\n"), 3u);
  EXPECT_EQ(count(csv, ","), 3u * 14);
}

}  // namespace
}  // namespace niccolite::perf
