#include "planner/selection.h"

#include <gmock/gmock.h>

namespace niccolite::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::string_view kNames[] = {"ring", "one_shot", "two_shot"};
constexpr std::string_view kForeign[] = {"tree", "nvls"};

Result<std::vector<bool>> parse(std::string_view text) {
  return parse_selection("NCCL_ALGO", text, "allreduce", kNames, kForeign);
}

TEST(Selection, FollowsTheSyntaxOfNcclAlgo) {
  const struct {
    const char* text;
    std::vector<bool> want;
  } cases[] = {
      {"", {true, true, true}},
      {"ring", {true, false, false}},
      {"Ring,TWO_SHOT", {true, false, true}},
      {"^ring", {false, true, true}},
      {"tree", {false, false, false}},
      {"^tree", {true, true, true}},
      {"allreduce:one_shot", {false, true, false}},
      {"broadcast:ring", {true, true, true}},
      {"tree;allreduce:ring", {true, false, false}},
      {"ring;broadcast:^tree", {true, false, false}},
      {"ring;AllReduce:^ring,one_shot", {false, false, true}},
  };
  for (const auto& c : cases) {
    const auto got = parse(c.text);
    ASSERT_TRUE(got.is_ok()) << c.text << ": " << got.status().message();
    EXPECT_EQ(got.value(), c.want) << c.text;
  }
}

TEST(Selection, NamesWhatItDoesNotKnow) {
  const struct {
    const char* text;
    const char* culprit;
  } cases[] = {{"rong", "'rong'"},           {"ring,", "''"},
               {"CollNet", "'collnet'"},     {"collect:ring", "'collect'"},
               {"ring;tree", "first group"}, {"^", "''"}};
  for (const auto& c : cases) {
    const auto got = parse(c.text);
    ASSERT_FALSE(got.is_ok()) << c.text;
    EXPECT_EQ(got.status().code(), Code::InvalidUsage);
    EXPECT_THAT(got.status().message(), HasSubstr(c.culprit));
    EXPECT_THAT(got.status().message(), HasSubstr("NCCL_ALGO"));
  }
}

}  // namespace
}  // namespace niccolite::planner
