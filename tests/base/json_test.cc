#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace niccolite::json {
namespace {

using testing::HasSubstr;

TEST(Json, ReadsEveryKindOfValueWithItsLine) {
  const Value document = parse(
                             "{\"a\": [1, -2.5e3, 0],\n \"b\": {\"c\": true, \"d\": null},\r\n"
                             "\t\"e\": \"x\\n\\\"\\u00e9\\ud83d\\ude00/\", \"f\": []}\n")
                             .value();
  ASSERT_EQ(document.kind, Kind::Object);
  const Value& a = *document.find("a");
  ASSERT_EQ(a.items.size(), 3u);
  EXPECT_EQ(a.items[1].number, -2500);
  EXPECT_EQ(a.line, 1);
  const Value& b = *document.find("b");
  EXPECT_EQ(b.line, 2);
  EXPECT_TRUE(b.find("c")->is_true);
  EXPECT_EQ(b.find("d")->kind, Kind::Null);
  EXPECT_EQ(document.find("e")->text, "x\n\"\xc3\xa9\xf0\x9f\x98\x80/");
  EXPECT_EQ(document.find("e")->line, 3);
  EXPECT_EQ(document.find("f")->kind, Kind::Array);
  EXPECT_EQ(document.find("g"), nullptr);
}

TEST(Json, ReadsNumbersAsTheyWereWritten) {
  for (const double number : {0.1, 1e-05, 144.7, 1.1e-05, 0.000552, 7336.0})
    EXPECT_EQ(parse(fmt::format("{}", number)).value().number, number);
}

TEST(Json, RefusesWithTheLine) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"", "line 1: the text ends where a value is missing"},
      {"{\n\"a\": 1,\n}", "line 3: a name in quotes is missing"},
      {"{\"a\": 1, \"a\": 2}", "\"a\" is there twice"},
      {"{\"a\" 1}", "no colon behind \"a\""},
      {"[1,\n2", "line 2: neither a comma nor the end of an array"},
      {"[1,]", "no value begins like this"},
      {"{\"a\": 1", "neither a comma nor the end of an object"},
      {"1 2", "something stands behind the value"},
      {"01", "01 is no number"},
      {"1.", "1. is no number"},
      {"1e999", "1e999 is no number"},
      {"-", "- is no number"},
      {"nan", "no value begins like this"},
      {"truth", "no value begins like this"},
      {"// x\n1", "no value begins like this"},
      {"\"a\nb\"", "a text without an end"},
      {"\"\\x\"", "an unknown escape"},
      {"\"\\u12\"", "an unknown escape"},
      {"\"\\ud800\"", "half a surrogate pair"},
      {"\"\\udc00\"", "half a surrogate pair"},
  };
  for (const auto& c : cases) {
    const auto parsed = parse(c.text);
    ASSERT_FALSE(parsed.is_ok()) << c.text;
    EXPECT_EQ(parsed.status().code(), Code::InvalidArgument);
    EXPECT_THAT(parsed.status().message(), HasSubstr(c.message)) << c.text;
  }
}

TEST(Json, RefusesWhatIsNestedTooDeep) {
  EXPECT_TRUE(parse(std::string(32, '[') + std::string(32, ']')).is_ok());
  EXPECT_FALSE(parse(std::string(33, '[') + std::string(33, ']')).is_ok());
  EXPECT_FALSE(parse(std::string(1 << 20, '[')).is_ok());
}

}  // namespace
}  // namespace niccolite::json
