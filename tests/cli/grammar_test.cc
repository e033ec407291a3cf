#include <gmock/gmock.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "cli/grammar/collective.h"
#include "cli/grammar/machines.h"
#include "cli/grammar/names.h"
#include "cli/grammar/numbers.h"
#include "cli/grammar/options.h"
#include "cli/perf/collective.h"

namespace niccolite::grammar {
namespace {

using schedule::Collective;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Names, OfCollectivesHaveEverySpelling) {
  for (const char* name :
       {"all_reduce", "all-reduce", "allreduce", "AllReduce", "ncclAllReduce", "ALL_REDUCE"}) {
    EXPECT_EQ(parse_collective("", name).take(), Collective::AllReduce) << name;
    ASSERT_NE(perf::find_collective(name), nullptr) << name;
    EXPECT_STREQ(perf::find_collective(name)->name, "all_reduce");
  }
  for (const char* name : {"alltoall", "all_to_all", "all-to-all", "ncclAlltoAll"}) {
    EXPECT_EQ(parse_collective("", name).take(), Collective::AllToAll) << name;
    ASSERT_NE(perf::find_collective(name), nullptr) << name;
  }
  for (const char* name : {"sendrecv", "send_recv", "point_to_point"}) {
    EXPECT_EQ(parse_collective("", name).take(), Collective::PointToPoint) << name;
    ASSERT_NE(perf::find_collective(name), nullptr) << name;
  }
  const Result<Collective> wrong = parse_collective("--collective", "brodcast");
  ASSERT_FALSE(wrong.is_ok());
  EXPECT_THAT(wrong.status().message(),
              HasSubstr("--collective: \"brodcast\" is none of all_reduce"));
  EXPECT_THAT(wrong.status().message(), HasSubstr("did you mean broadcast?"));
}

TEST(Names, ThatAreNearestTakeTheFewestChanges) {
  const std::vector<std::string> names = {"perf", "schedule", "tune", "version", "which"};
  struct Case {
    const char* word;
    const char* meant;
  };
  for (const Case& c : {Case{"pref", "perf"}, Case{"shedule", "schedule"}, Case{"tuned", "tune"},
                        Case{"wich", "which"}, Case{"versoin", "version"}, Case{"perf", "perf"},
                        Case{"help", ""}, Case{"", ""}, Case{"x", ""}})
    EXPECT_EQ(nearest(c.word, names), c.meant) << c.word;
  EXPECT_EQ(nearest("perf", {}), "");
}

TEST(Bytes, AreReadWithPowersOf1024) {
  struct Case {
    const char* text;
    size_t bytes;
  };
  for (const Case& c : {Case{"8", 8}, Case{"0", 0}, Case{"4K", 4096}, Case{"4k", 4096},
                        Case{"1.5M", 3 << 19}, Case{"64MiB", 64 << 20}, Case{"1M", 1 << 20},
                        Case{"2G", size_t{2} << 30}, Case{"1GB", 1 << 30}, Case{"8B", 8}}) {
    SCOPED_TRACE(c.text);
    const Result<size_t> bytes = parse_bytes(c.text);
    ASSERT_TRUE(bytes.is_ok()) << bytes.status().message();
    EXPECT_EQ(bytes.value(), c.bytes);
  }
}

TEST(Bytes, ThatMakeNoSenseAreRefused) {
  for (const char* text :
       {"", "K", "8X", "-1", "4KK", "nan", "inf", "1e300", "12 K", "8iB", "8BB"}) {
    SCOPED_TRACE(text);
    EXPECT_FALSE(parse_bytes(text).is_ok());
  }
}

TEST(Machines, AreEvenOrListed) {
  EXPECT_THAT(parse_machines("2x2").take(), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(parse_machines("2,1").take(), ElementsAre(0, 0, 1));
  for (const char* text : {"", "2x", "x2", "2x2x2", "0", "2,,1", "40000"})
    EXPECT_FALSE(parse_machines(text).is_ok()) << text;
}

TEST(Options, HaveEverySpelling) {
  CLI::App app("", "niccolite");
  int number = 0;
  app.add_subcommand("perf")->add_option("-w,--warmup_iters", number);
  EXPECT_THAT(spell_options(app, {"perf", "--warmup-iters", "3", "--", "--warmup-iters"}),
              ElementsAre("perf", "--warmup_iters", "3", "--", "--warmup-iters"));
  EXPECT_THAT(spell_options(app, {"perf", "--WarmupIters=3", "--other-one"}),
              ElementsAre("perf", "--warmup_iters=3", "--other-one"));
}

}  // namespace
}  // namespace niccolite::grammar
