#include "gpu/choice.h"

#include <gtest/gtest.h>

namespace niccolite::gpu {
namespace {

TEST(Choice, ReadsWhatIsAllowed) {
  const struct {
    const char* text;
    Choice::Kind kind;
    int devices;
  } cases[] = {
      {"", Choice::Kind::Automatic, 8},
      {"cuda", Choice::Kind::Cuda, 8},
      {"virtual", Choice::Kind::Virtual, 8},
      {"virtual:1", Choice::Kind::Virtual, 1},
      {"virtual:1000", Choice::Kind::Virtual, 1000},
  };
  for (const auto& c : cases) {
    const Result<Choice> choice = parse_choice(c.text);
    ASSERT_TRUE(choice.is_ok()) << c.text;
    EXPECT_EQ(choice.value().kind, c.kind) << c.text;
    EXPECT_EQ(choice.value().virtual_devices, c.devices) << c.text;
  }
}

TEST(Choice, NamesWhatIsNot) {
  for (const char* text : {"gpu", "CUDA", "virtual:", "virtual:0", "virtual:-1", "virtual:8x",
                           "virtual:9999999999", "virtual 8", "virtual:+3"}) {
    const Result<Choice> choice = parse_choice(text);
    ASSERT_FALSE(choice.is_ok()) << text;
    EXPECT_EQ(choice.status().code(), Code::InvalidUsage);
    EXPECT_NE(choice.status().message().find(text), std::string::npos) << choice.status().message();
  }
}

}  // namespace
}  // namespace niccolite::gpu
