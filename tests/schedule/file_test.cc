// Schedules written by hand: one is read, and mistakes are refused with their line.
#include "schedule/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/builder.h"
#include "schedule/check.h"

namespace niccolite::schedule {
namespace {

using testing::HasSubstr;

// Two ranks; each sends its input to the other and adds.
constexpr std::string_view kExchange = R"({
  "format": "niccolite schedule 1",
  "collective": "all_reduce",
  "algorithm": "exchange",
  "ranks": 2,
  "blocks": 1,
  "connections": [
    [0, 1, 0, 0],
    [1, 0, 0, 0]
  ],
  "programs": [
    [[
      {"weight": 3, "steps": [
        {"source": ["input", 0], "send": [0]},
        {"receive": [1], "source": ["input", 0], "reduce": true, "finish": true, "target": ["output", 0]}
      ]}
    ]],
    [[
      {"weight": 3, "steps": [
        {"source": ["input", 0], "send": [1]},
        {"receive": [0], "source": ["input", 0], "source_position": 1, "reduce": true, "finish": true,
         "target": ["output", 0]}
      ]}
    ]]
  ]
}
)";

std::string with(std::string_view old, std::string_view replacement) {
  std::string text(kExchange);
  const size_t at = text.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  return text.replace(at, old.size(), replacement);
}

TEST(ScheduleFile, IsReadAsItSays) {
  const Result<Schedule> read = from_file(kExchange);
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  const Schedule& schedule = read.value();
  EXPECT_EQ(schedule.algorithm, "exchange");
  EXPECT_EQ(schedule.nranks, 2);
  ASSERT_EQ(schedule.connections.size(), 2u);
  EXPECT_EQ(schedule.connections[1], (Connection{1, 0, 0, 0}));
  ASSERT_EQ(schedule.ranks.size(), 2u);
  const Worker& adds = schedule.ranks[1].front().workers.front();
  EXPECT_EQ(adds.weight, 3);
  EXPECT_EQ(adds.instructions.back(), (Instruction{.receive_from = {0},
                                                   .source = input(0),
                                                   .source_position = 1,
                                                   .reduce = true,
                                                   .target = output(0),
                                                   .finish = true}));
  const Status proved = check(schedule);
  EXPECT_TRUE(proved.is_ok()) << proved.message();
  EXPECT_EQ(from_file(to_file(schedule)).value(), schedule);
}

TEST(ScheduleFile, SaysForWhichOperationsItIs) {
  const std::string text = with(
      "\"ranks\": 2,",
      R"("ranks": 2, "use": {"min_bytes": 4096, "max_bytes": 1048576, "types": ["half", "bfloat16"], "machines": 2, "priority": 3},)");
  Result<File> read = read_file(text);
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  EXPECT_EQ(read->use, (Use{.min_bytes = 4096,
                            .max_bytes = 1048576,
                            .types = 1 << 6 | 1 << 9,
                            .machines = 2,
                            .priority = 3}));
  EXPECT_EQ(names_of_types(read->use), "half, bfloat16");
  EXPECT_EQ(read_file(to_file(read->schedule, read->use)).value(), read.value());
  EXPECT_EQ(read_file(kExchange).value().use, Use{});
}

// Bytes that are only moved are of no type that ranks agree on.
TEST(ScheduleFile, OfDataThatOnlyMoveIsForAllTypes) {
  const Result<File> read = read_file(R"({"format": "niccolite schedule 1",
    "collective": "all_gather", "algorithm": "x", "ranks": 2, "blocks": 2,
    "use": {"types": ["half"]}, "connections": [], "programs": [[], []]})");
  ASSERT_FALSE(read.is_ok());
  EXPECT_THAT(read.status().message(), HasSubstr("line 3: \"types\" of all_gather, which moves"));
}

// The reader leaves the proof to the checker.
TEST(ScheduleFile, NeedNotBeRight) {
  const Result<Schedule> read = from_file(with("\"source_position\": 1, ", ""));
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  EXPECT_FALSE(check(read.value()).is_ok()) << "rank 1 adds its own contribution first";
}

struct BadFile {
  const char* name;
  const char* old;
  const char* replacement;
  const char* error;
};
void PrintTo(const BadFile& bad, std::ostream* out) { *out << bad.name; }

class BadScheduleFile : public testing::TestWithParam<BadFile> {};

TEST_P(BadScheduleFile, IsRefusedWithItsLine) {
  const BadFile& bad = GetParam();
  const Result<Schedule> read = from_file(with(bad.old, bad.replacement));
  ASSERT_FALSE(read.is_ok());
  EXPECT_THAT(read.status().message(), HasSubstr(bad.error));
}

INSTANTIATE_TEST_SUITE_P(
    , BadScheduleFile,
    testing::Values(
        BadFile{"json", "\"blocks\": 1,", "\"blocks\": 1", "line 7: "},
        BadFile{"format", "schedule 1", "schedule 2",
                "line 2: \"format\" is \"niccolite schedule 2\"; this version reads"},
        BadFile{"no_format", "\"format\": \"niccolite schedule 1\",", "", "\"format\" is missing"},
        BadFile{"collective", "\"all_reduce\"", "\"all_reduct\"",
                "line 3: \"collective\" is \"all_reduct\", which is none of all_reduce, "},
        BadFile{"name", "\"exchange\"", "\"\"", "line 4: \"algorithm\" is an empty name"},
        BadFile{"type", "\"ranks\": 2,", R"("ranks": 2, "use": {"types": ["half", "single"]},)",
                "line 5: \"single\" is no data type; known are int8, uint8, "},
        BadFile{"no_types", "\"ranks\": 2,", R"("ranks": 2, "use": {"types": []},)",
                "line 5: \"types\" names no data type"},
        BadFile{"ranks", "\"ranks\": 2", "\"ranks\": 0",
                "line 5: \"ranks\" is 0, and must be a whole number from 1 to "},
        BadFile{"half_a_rank", "\"ranks\": 2", "\"ranks\": 2.5", "line 5: \"ranks\" is 2.5"},
        BadFile{"text_for_number", "\"ranks\": 2", "\"ranks\": \"2\"",
                "line 5: \"ranks\" is a text, not a number"},
        BadFile{"third_rank", "\"ranks\": 2", "\"ranks\": 3", "\"programs\" are of 2 ranks, not 3"},
        BadFile{"unknown_field", "\"blocks\": 1", "\"bloks\": 1",
                "line 6: \"bloks\" is no field of a schedule; known are format, "},
        BadFile{"sender", "[1, 0, 0, 0]", "[2, 0, 0, 0]", "line 9: \"connections\" is 2"},
        BadFile{"three_numbers", "[1, 0, 0, 0]", "[1, 0, 0]", "has 3 numbers, not 4"},
        BadFile{"no_connection", "\"receive\": [0]", "\"receive\": [2]",
                "line 21: \"receive\" is 2, and must be a whole number from 0 to 1"},
        BadFile{"buffer", "[\"output\", 0]", "[\"outptu\", 0]",
                "line 15: \"target\" is of \"outptu\", which is none of input, output, scratch"},
        BadFile{"no_block", "[\"output\", 0]", "[\"output\"]", "is not a buffer and a number"},
        BadFile{"unknown_step_field", "\"finish\": true", "\"finished\": true",
                "line 15: \"finished\" is no field of a step"},
        BadFile{"weight", "\"weight\": 3", "\"weight\": 0", "line 13: \"weight\" is 0"},
        BadFile{"no_steps", "\"steps\": [", "\"weights\": [",
                "line 13: \"weights\" is no field of a worker"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace niccolite::schedule
