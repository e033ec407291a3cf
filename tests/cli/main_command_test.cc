// The command `niccolite` itself, run as users run it.
#include <gmock/gmock.h>

#include <poll.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <thread>

#include "base/address.h"
#include "base/socket.h"
#include "tests/cli/command.h"

namespace niccolite {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;

TEST(Command, FindsItsVirtualDriverWhenItIsFoundOverPath) {
  // A bare argv[0] is no path to look beside.
  const std::filesystem::path command = NICCOLITE_COMMAND;
  const Outcome outcome =
      testing::run_command({command.filename(), "tune", "--ranks", "1"},
                           {{"PATH", command.parent_path()}, {"NICCOLITE_DEVICES", "virtual:2"}});
  EXPECT_THAT(outcome.errors, HasSubstr("1 rank has no choice of variants"));
}

TEST(Command, TakesTheLastOfAnOptionGivenTwice) {
  const auto perf = [](std::vector<std::string> more) {
    std::vector<std::string> words = {NICCOLITE_COMMAND, "perf", "-b", "8", "-e", "1G", "-n", "9"};
    words.insert(words.end(), more.begin(), more.end());
    return testing::run_command(words, {{"NICCOLITE_DEVICES", "virtual:2"}});
  };
  const Outcome outcome = perf({"-e", "16", "-n", "1"});
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, AllOf(ContainsRegex("\n +16 "), Not(ContainsRegex("\n +32 "))));
  EXPECT_NE(perf({"-e", "16", "all_reduce", "all_gather"}).status, 0);
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
  EXPECT_THAT(
      outcome.output,
      ContainsRegex("^niccolite [0-9]+\\.[0-9]+\\.[0-9]+ \\(NCCL 2\\.[0-9]+\\.[0-9]+\\)\n$"));
}

// Of a service that says one word, at the address that the environment tells.
TEST(Command, RasAsksWhereTheEnvironmentSays) {
  Socket listener = Socket::listen(Address::parse("127.0.0.1:1").value().with_port(0)).take();
  std::thread service([&] {
    pollfd ready{listener.fd(), POLLIN, 0};
    if (poll(&ready, 1, 30'000) <= 0) return;
    int error = 0;
    Result<std::optional<Socket>> waiting = listener.accept(&error);
    ASSERT_TRUE(waiting.is_ok() && waiting.value().has_value());
    const Socket client = std::move(*waiting.value());
    const std::string_view words = "SERVER PROTOCOL 2\nOK\nmine\n";
    EXPECT_TRUE(client.send(std::as_bytes(std::span(words))).is_ok());
    client.end_sending();
    // Until the command has gone: what it said must not be unread when the connection ends.
    pollfd said{client.fd(), POLLIN, 0};
    std::array<std::byte, 256> bytes;
    while (poll(&said, 1, 30'000) > 0) {
      const Result<Transfer> got = client.receive(bytes);
      if (!got.is_ok() || !got.value().open) break;
    }
  });
  const std::string address =
      "127.0.0.1:" + std::to_string(listener.local_address().value().port());
  const Outcome outcome =
      testing::run_command({NICCOLITE_COMMAND, "ras", "--json"}, {{"NCCL_RAS_ADDR", address}});
  service.join();
  EXPECT_EQ(outcome.status, 0) << outcome.errors;
  EXPECT_EQ(outcome.output, "mine\n");
}

TEST(Command, NamesTheOptionThatWasMeant) {
  struct Case {
    std::vector<std::string> words;
    const char* message;
  };
  for (const Case& c :
       {Case{{"perf", "--itres", "5"},
             "niccolite perf: there is no option --itres; did you mean --iters?"},
        Case{{"topology", "--form", "x"}, "there is no option --form; did you mean --from?"},
        Case{{"perf", "-n", "x"}, "niccolite perf: --iters takes N, not x; see"},
        Case{{"perf", "-n"}, "niccolite perf: --iters needs a value: N; see"},
        Case{{"perf", "a", "b"}, "\"b\" is one word too many"},
        Case{{"schedule", "all_reduce", "-a", "rnig"}, "did you mean ring?"},
        Case{{"which", "--wiat", "3", "--", "ls"},
             "there is no option --wiat; did you mean --wait?"},
        Case{{"--josn"}, "niccolite: there is no option --josn"}}) {
    std::vector<std::string> words = {NICCOLITE_COMMAND};
    words.insert(words.end(), c.words.begin(), c.words.end());
    const Outcome outcome = testing::run_command(words, {{"NICCOLITE_DEVICES", "virtual:2"}});
    EXPECT_EQ(outcome.status, 2) << c.message;
    EXPECT_THAT(outcome.errors, HasSubstr(c.message));
  }
}

TEST(Command, HelpsAndPrintsJsonEverywhere) {
  for (const char* subcommand : {"perf", "schedule", "explain", "tune", "inspect", "trace", "ras",
                                 "topology", "which", "doctor", "version"}) {
    const Outcome outcome = testing::run_command({NICCOLITE_COMMAND, subcommand, "-h"}, {});
    EXPECT_EQ(outcome.status, 0) << subcommand;
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("-h,--help"), HasSubstr("--json"))) << subcommand;
  }
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"schedule", "ncclAllReduce", "--json"},
        {"schedule", "--list", "--json"},
        {"explain", "All-Reduce", "--json"},
        {"topology", "--json"},
        {"version", "--json"},
        {"doctor", "--json"},
        {"which", "--json", "--", "ls", "/"}}) {
    std::vector<std::string> command = {NICCOLITE_COMMAND};
    command.insert(command.end(), words.begin(), words.end());
    const Outcome outcome = testing::run_command(command, {{"NICCOLITE_DEVICES", "virtual:4"}});
    EXPECT_TRUE(nlohmann::json::accept(outcome.output)) << words[0] << ": " << outcome.output;
  }
}

TEST(Command, WithoutWordsHelps) {
  const Outcome outcome = testing::run_command({NICCOLITE_COMMAND}, {});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.errors, AllOf(HasSubstr("Subcommands:"), HasSubstr("Exit status:")));
}

// A line and its completion. `offer`: all words that fit the last one, as bash and fish print them.
// `line`: the line that zsh makes of it, which types the part that all of them have.
struct Completion {
  const char* words;
  const char* offer;
  const char* line;
};
constexpr Completion kCompletions[] = {
    {"niccolite sche", "schedule", "niccolite schedule "},
    {"niccolite perf all_g", "all_gather", "niccolite perf all_gather "},
    {"niccolite perf --datatype bf", "bfloat16", "niccolite perf --datatype bfloat16 "},
    {"niccolite explain all_reduce --mach", "--machine --machines",
     "niccolite explain all_reduce --machine"},
    {"niccolite tune --protocols LL1", "LL128", "niccolite tune --protocols LL128 "},
};

Outcome completion_for(const std::string& shell) {
  return testing::run_command({NICCOLITE_COMMAND, "--completion", shell}, {});
}

bool has_shell(const std::string& shell) {
  return testing::run_command({shell, "-c", "exit 0"}, {}).status == 0;
}

TEST(Command, CompletesInBash) {
  for (const Completion& c : kCompletions) {
    const std::string script = std::string("source <(") + NICCOLITE_COMMAND +
                               " --completion bash); COMP_WORDS=(" + c.words +
                               "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _niccolite; echo "
                               "\"${COMPREPLY[@]}\"";
    const Outcome outcome = testing::run_command({"bash", "-c", script}, {});
    EXPECT_EQ(outcome.output, std::string(c.offer) + "\n") << c.words << outcome.errors;
  }
  EXPECT_EQ(completion_for("sh").status, 2);
}

TEST(Command, CompletesInFish) {
  EXPECT_THAT(completion_for("fish").output, HasSubstr("warmup_iters"));
  if (!has_shell("fish")) GTEST_SKIP() << "there is no fish here";
  std::string script = std::string(NICCOLITE_COMMAND) + " --completion fish | source\n";
  std::string expected;
  for (const Completion& c : kCompletions) {
    // A line for each offer: the word, a tab, its description.
    script += std::string("echo (complete -C '") + c.words + "' | string replace -r '\\t.*' '')\n";
    expected += std::string(c.offer) + "\n";
  }
  const Outcome outcome = testing::run_command({"fish", "--no-config", "-c", script}, {});
  EXPECT_EQ(outcome.output, expected) << outcome.errors;
}

TEST(Command, CompletesInZshFromTheFirstTabOn) {
  const std::string text = completion_for("zsh").output;
  EXPECT_THAT(text, HasSubstr("warmup_iters"));
  if (!has_shell("zsh")) GTEST_SKIP() << "there is no zsh here";
  const std::string folder = ::testing::TempDir() + "niccolite_zsh_" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/_niccolite") << text;
  std::vector<std::string> arguments = {NICCOLITE_COMPLETED_BY_ZSH, folder};
  std::string expected;
  for (const Completion& c : kCompletions) {
    arguments.emplace_back(c.words);
    expected += std::string(c.line) + "\n";
  }
  const Outcome outcome = testing::run_command(arguments, {}, 300);
  EXPECT_EQ(outcome.output, expected) << outcome.errors;
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace niccolite
