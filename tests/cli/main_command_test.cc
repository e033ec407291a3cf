// The command `niccolite` itself, run as users run it.
#include <gmock/gmock.h>

#include <filesystem>

#include "cli/nearest.h"
#include "tests/cli/command.h"

namespace niccolite {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using ::testing::StartsWith;

TEST(Command, FindsItsVirtualDriverWhenItIsFoundOverPath) {
  // A bare argv[0] is no path to look beside.
  const std::filesystem::path command = NICCOLITE_COMMAND;
  const Outcome outcome =
      testing::run_command({command.filename(), "tune", "--ranks", "1"},
                           {{"PATH", command.parent_path()}, {"NICCOLITE_DEVICES", "virtual:2"}});
  EXPECT_THAT(outcome.errors, HasSubstr("1 rank has no choice of variants"));
}

TEST(Command, NamesTheSubcommandThatWasMeant) {
  const Outcome swapped = testing::run_command({NICCOLITE_COMMAND, "pref", "all_reduce"}, {});
  EXPECT_EQ(swapped.status, 2);
  EXPECT_THAT(swapped.errors,
              AllOf(HasSubstr("\"pref\" is no subcommand, did you mean perf?"),
                    HasSubstr("perf, schedule, explain, tune, inspect, trace, ras")));
  const Outcome strange = testing::run_command({NICCOLITE_COMMAND, "xyzzy"}, {});
  EXPECT_EQ(strange.status, 2);
  EXPECT_THAT(strange.errors,
              AllOf(HasSubstr("\"xyzzy\" is no subcommand; there are perf,"), Not(HasSubstr("?"))));
}

TEST(Command, HasAVersion) {
  const Outcome outcome = testing::run_command({NICCOLITE_COMMAND, "--version"}, {});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, StartsWith("niccolite 2."));
}

TEST(Nearest, TakesTheFewestChanges) {
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

}  // namespace
}  // namespace niccolite
