// The command `niccolite which`, run as users run it.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/cli/command.h"

namespace niccolite {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;

Outcome which(const std::vector<std::string>& arguments,
              std::map<std::string, std::string> environment = {}) {
  std::vector<std::string> command = {NICCOLITE_COMMAND, "which"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return testing::run_command(command, environment);
}

std::string folder_of(const std::string& file) {
  return std::filesystem::path(file).parent_path().string();
}

TEST(WhichCommand, TellsTheLibraryOfAnRpath) {
  const Outcome outcome = which({"--", LINKED_PROGRAM});
  EXPECT_EQ(outcome.status, 0) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr(std::string(FOREIGN_LIBRARY) + "\n"), HasSubstr("NVIDIA's NCCL")));
}

TEST(WhichCommand, EndsTheProgramBeforeTheLibraryRuns) {
  const Outcome outcome = which({"--", OPENER_PROGRAM, FOREIGN_LIBRARY, "wait"});
  EXPECT_EQ(outcome.status, 0) << outcome.output << outcome.errors;
  // What the program does until then, it does.
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("started"), HasSubstr(FOREIGN_LIBRARY), Not(HasSubstr("opened"))));
}

TEST(WhichCommand, LooksIntoChildrenAndLeavesArgumentsAlone) {
  const std::string script = std::string(OPENER_PROGRAM) + " " + FOREIGN_LIBRARY + " wait; true";
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--", "sh", "-c", script}, {"sh", "-c", script}}) {
    const Outcome outcome = which(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.output << outcome.errors;
    EXPECT_THAT(outcome.output, HasSubstr(FOREIGN_LIBRARY));
  }
}

#ifdef NICCOLITE_LIBRARY
TEST(WhichCommand, KnowsNiccoliteAndHowToTakeIt) {
  const std::string ours = folder_of(NICCOLITE_LIBRARY) + "/libnccl.so.2";
  const Outcome foreign = which({"--", LINKED_PROGRAM, "--lr", "1 2"});
  EXPECT_THAT(foreign.output,
              HasSubstr("LD_PRELOAD=" + ours + " " + LINKED_PROGRAM + " --lr '1 2'\n"));
  // On virtual GPUs the program needs their CUDA runtime, too.
  EXPECT_THAT(foreign.output,
              HasSubstr("NICCOLITE_DEVICES=virtual LD_LIBRARY_PATH=" +
                        std::filesystem::path(ours).parent_path().string() +
                        "/vcuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} LD_PRELOAD=" + ours));
  const Outcome preloaded = which({"--", LINKED_PROGRAM}, {{"LD_PRELOAD", ours}});
  EXPECT_EQ(preloaded.status, 0) << preloaded.output << preloaded.errors;
  EXPECT_THAT(preloaded.output, AllOf(HasSubstr(ours), HasSubstr("Niccolite, version 2."),
                                      Not(HasSubstr("in its place"))));
  // By name: LD_LIBRARY_PATH decides.
  const Outcome named = which({"--", OPENER_PROGRAM, "libnccl.so.2"},
                              {{"LD_LIBRARY_PATH", folder_of(NICCOLITE_LIBRARY)}});
  EXPECT_THAT(named.output, AllOf(HasSubstr(ours), HasSubstr("Niccolite, version 2.")));
}
#endif

TEST(WhichCommand, SaysWhenNoneIsLoaded) {
  const Outcome ended = which({"--", OPENER_PROGRAM, "libc.so.6"});
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("opened"),
                                  HasSubstr("loaded no libnccl.so: it ended with status 7")));
  const Outcome waits = which({"--wait", "0.3", "--", OPENER_PROGRAM, "wait"});
  EXPECT_EQ(waits.status, 1);
  EXPECT_THAT(waits.output, HasSubstr("it did not in 0.3 s (--wait)"));
  const Outcome killed = which({"--", "sh", "-c", "kill -9 $$"});
  EXPECT_EQ(killed.status, 1);
  EXPECT_THAT(killed.output, HasSubstr("it was killed by signal 9"));
}

TEST(WhichCommand, SaysWhatIsWrong) {
  const Outcome none = which({});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.errors, HasSubstr("which program?"));
  EXPECT_EQ(which({"--"}).status, 2);
  EXPECT_EQ(which({"--wait", "0", "--", "true"}).status, 2);
  const Outcome missing = which({"--", "/nonexistent/program"});
  EXPECT_EQ(missing.status, 3);
  EXPECT_THAT(missing.errors, HasSubstr("cannot run /nonexistent/program"));
}

TEST(WhichCommand, HelpHasExamples) {
  const Outcome outcome = which({"--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("--wait"), HasSubstr("python train.py")));
}

}  // namespace
}  // namespace niccolite
