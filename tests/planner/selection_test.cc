#include "planner/choice/selection.h"

#include <gmock/gmock.h>

namespace niccolite::planner {
namespace {

using testing::HasSubstr;

constexpr uint32_t kRing = 1, kOneShot = 2, kPlain = 4, kWorkers = 8, kTwoShot = kPlain | kWorkers;
constexpr uint32_t kAll = kRing | kOneShot | kTwoShot;
const std::vector<Token> kTokens{{"ring", kRing},
                                 {"one_shot", kOneShot},
                                 {"two_shot", kTwoShot},
                                 {"two_shot_plain", kPlain},
                                 {"two_shot_workers", kWorkers}};
constexpr std::string_view kForeign[] = {"tree", "nvls"};

Result<uint32_t> parse(std::string_view text) {
  return parse_selection("NCCL_ALGO", text, "allreduce", kTokens, kForeign);
}

TEST(Selection, FollowsTheSyntaxOfNcclAlgo) {
  const struct {
    const char* text;
    uint32_t want;
  } cases[] = {
      {"", kAll},
      {"ring", kRing},
      {"Ring,TWO_SHOT", kRing | kTwoShot},
      {"two_shot_workers", kWorkers},
      {"two_shot_plain,ring", kPlain | kRing},
      {"^two_shot_workers", kAll & ~kWorkers},
      {"^two_shot", kRing | kOneShot},
      {"^ring", kOneShot | kTwoShot},
      {"tree", 0},
      {"^tree", kAll},
      {"allreduce:one_shot", kOneShot},
      {"broadcast:ring", kAll},
      {"tree;allreduce:ring", kRing},
      {"ring;broadcast:^tree", kRing},
      {"ring;AllReduce:^ring,one_shot", kTwoShot},
      {"ring,", kRing},
      {",ring,,one_shot", kRing | kOneShot},
      {"allreduce:ring;", kRing},
      {"ring;;broadcast:tree;", kRing},
      {";;", kAll},
      {"^", kAll},
      {"allreduce:", kAll},
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
  } cases[] = {{"rong", "'rong'"},
               {"rong", "ring, one_shot, two_shot, two_shot_plain, two_shot_workers"},
               {"CollNet", "'collnet'"},
               {"collect:ring", "'collect'"},
               {"ring;tree", "first group"}};
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
