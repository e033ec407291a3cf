#include "vverbs/options.h"

#include <gtest/gtest.h>

namespace vverbs {
namespace {

TEST(Options, AreRead) {
  Options options;
  ASSERT_EQ(parse_options(
                "virtual:3,ports=2,speed=200,rate=0.5,latency=7.5,fault=flap@2/2:40,fault=mr@0:0,"
                "fault=gone@1:7,fault=corrupt@0/1:3,fault=gpu@1:0",
                options),
            "");
  EXPECT_EQ(options.devices, 3);
  EXPECT_EQ(options.ports, 2);
  EXPECT_EQ(options.speed_gbit, 200);
  EXPECT_EQ(options.rate_gbit, 0.5);
  EXPECT_EQ(options.latency_us, 7.5);
  ASSERT_EQ(options.faults.size(), 5u);
  EXPECT_EQ(options.faults[0].kind, FaultKind::Flap);
  EXPECT_EQ(options.faults[0].device, 2);
  EXPECT_EQ(options.faults[0].port, 2);
  EXPECT_EQ(options.faults[0].after, 40u);
  EXPECT_EQ(options.faults[1].kind, FaultKind::MemoryRefused);
  EXPECT_EQ(options.faults[2].kind, FaultKind::Gone);
  EXPECT_EQ(options.faults[3].kind, FaultKind::Corrupt);
  EXPECT_EQ(options.faults[4].kind, FaultKind::CorruptGpu);
}

TEST(Options, ThatAreWrongAreNamed) {
  for (const char* text :
       {"virtual", "virtual:", "virtual:65", "virtual:-1", "real:2", "virtual:2,ports=0",
        "virtual:2,ports", "virtual:2,rate=0", "virtual:2,rate=fast", "virtual:2,latency=-1",
        "virtual:2,fault=down", "virtual:2,fault=down@2:0", "virtual:2,fault=down@0/2:0",
        "virtual:2,fault=melt@0:0", "virtual:2,fault=down@0:", "virtual:2,fault=down@0:-1",
        "virtual:2,color=red"}) {
    Options options;
    const std::string wrong = parse_options(text, options);
    EXPECT_NE(wrong, "") << text;
    const std::string word = std::string(text).substr(std::string(text).find(',') + 1);
    EXPECT_NE(wrong.find("'" + word + "'"), std::string::npos) << text << ": " << wrong;
  }
}

}  // namespace
}  // namespace vverbs
