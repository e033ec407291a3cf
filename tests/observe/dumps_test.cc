// Dumps: whole files where the user wants them, and a line instead of an error where they cannot
// be.
#include "observe/dumps.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

#include <filesystem>
#include <fstream>
#include <latch>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/log.h"

namespace niccolite::observe {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DumpsTest : public testing::Test {
 protected:
  DumpsTest() {
    std::string name = testing::TempDir() + "/dumps.XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~DumpsTest() override { fs::remove_all(folder_); }

  static std::string read(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  size_t files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  static Dumps::Source source(const std::string& name, std::string* forwarded = nullptr) {
    return {.describe = [name](Json& json) { json.text("id", name); },
            .forward =
                [forwarded](std::string_view file, std::string_view text) {
                  if (forwarded != nullptr)
                    *forwarded = std::string(file) + " " + std::string(text);
                }};
  }

  fs::path folder_;
};

TEST_F(DumpsTest, WriteWhatIsAskedForAndNothingElse) {
  Dumps dumps((folder_ / "%p.json").string());
  dumps.add(source("one"));
  dumps.write_requested();
  EXPECT_EQ(files(), 0u);
  dumps.request("first cause");
  dumps.request("second cause");
  dumps.write_requested();
  ASSERT_EQ(files(), 1u) << "and no part of one";
  const std::string text = read(folder_ / (std::to_string(getpid()) + ".json"));
  EXPECT_THAT(text, HasSubstr("\"reason\":\"first cause\""));
  EXPECT_THAT(text, HasSubstr("{\"id\":\"one\"}"));
  fs::remove(folder_ / (std::to_string(getpid()) + ".json"));
  dumps.write_requested();
  EXPECT_EQ(files(), 0u) << "each request is one dump";
}

TEST_F(DumpsTest, OfASignalAreWrittenByWhoeverAsksNext) {
  Dumps dumps(folder_.string() + "/");
  dumps.add(source("one"));
  dumps.request_by_signal();
  dumps.write_requested();
  EXPECT_THAT(read(dumps.path()), HasSubstr("\"reason\":\"signal\""));
}

// No process can have a handler for 9 and 19, nor any with glibc for 32 and 33.
TEST_F(DumpsTest, SayWhichSignalTheyCannotHear) {
  Dumps dumps(folder_.string());
  for (const int number : {9, 19, 32, 33}) {
    dumps.listen_to(number);
    EXPECT_THAT(log::last_error(),
                HasSubstr("NICCOLITE_DUMP_SIGNAL=" + std::to_string(number) + ": "));
  }
  const auto before = std::signal(SIGUSR2, SIG_DFL);
  dumps.listen_to(SIGUSR2);
  EXPECT_NE(std::signal(SIGUSR2, before), SIG_DFL);
}

TEST_F(DumpsTest, MakeTheirFolderAndFillInHostAndProcess) {
  Dumps dumps((folder_ / "new" / "100%%-%h-%p-%x").string());
  dumps.add(source("one"));
  dumps.request("test");
  dumps.write_requested();
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string name =
      std::string("100%-") + host.data() + "-" + std::to_string(getpid()) + "-%x";
  EXPECT_TRUE(fs::exists(folder_ / "new" / name)) << dumps.path();
}

TEST_F(DumpsTest, TellNothingOfWhatWasRemoved) {
  Dumps dumps(folder_.string());
  const uint64_t first = dumps.add(source("one"));
  dumps.add(source("two"));
  dumps.remove(first);
  dumps.request("test");
  dumps.write_requested();
  EXPECT_THAT(read(dumps.path()), Not(HasSubstr("one")));
  EXPECT_THAT(read(dumps.path()), HasSubstr("two"));
}

TEST_F(DumpsTest, ThatCannotBeWrittenCostNothingButThemselves) {
  for (const char* path : {"/proc/nothing/here.json", "/dev/null/dump.json"}) {
    Dumps dumps(path);
    std::string forwarded;
    dumps.add(source("one", &forwarded));
    dumps.request("test");
    dumps.write_requested();
    EXPECT_THAT(forwarded, HasSubstr("\"id\":\"one\"")) << "others can still have it";
  }
}

// As where the disk is full.
TEST_F(DumpsTest, ThatDoNotFitLeaveTheOneBefore) {
  Dumps dumps((folder_ / "dump.json").string());
  dumps.add(source("one"));
  dumps.request("fits");
  dumps.write_requested();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{.rlim_cur = 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  dumps.request("does not fit");
  dumps.write_requested();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(read(folder_ / "dump.json"), HasSubstr("\"reason\":\"fits\""));
  EXPECT_EQ(files(), 1u);
}

TEST_F(DumpsTest, FollowNoLinkOfOthers) {
  Dumps dumps((folder_ / "dump.json").string());
  dumps.add(source("one"));
  std::ofstream(folder_ / "precious") << "text";
  const std::string part = folder_ / ("dump.json." + std::to_string(getpid()) + ".part");
  ASSERT_EQ(symlink((folder_ / "precious").c_str(), part.c_str()), 0);
  dumps.request("test");
  dumps.write_requested();
  EXPECT_EQ(read(folder_ / "precious"), "text");
  EXPECT_THAT(read(folder_ / "dump.json"), HasSubstr("\"reason\":\"test\""));
}

// As /dev/stderr, which a root's dump would have replaced by a file.
TEST_F(DumpsTest, AreWrittenToPipesAndDevices) {
  const std::string pipe = folder_ / "pipe", link = folder_ / "link";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink(pipe, link);
  const Fd reader(open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  Dumps dumps(link);
  dumps.add(source("one"));
  dumps.request("test");
  dumps.write_requested();
  std::string text(4096, '\0');
  const ssize_t got = ::read(reader.get(), text.data(), text.size());
  EXPECT_THAT(text.substr(0, static_cast<size_t>(std::max<ssize_t>(got, 0))),
              HasSubstr("\"reason\":\"test\""));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
}

TEST_F(DumpsTest, OfOtherMachinesLieBesideTheOwnAndNowhereElse) {
  Dumps dumps((folder_ / "own.json").string());
  dumps.keep("other-1.json", "text");
  EXPECT_EQ(read(folder_ / "other-1.json"), "text");
  for (const char* name :
       {"../escaped.json", "/tmp/escaped.json", "", ".hidden", "a b", "own.json"})
    dumps.keep(name, "text");
  EXPECT_EQ(files(), 1u);
  EXPECT_FALSE(fs::exists(folder_.parent_path() / "escaped.json"));
}

// A process of another machine sends its dump by each communicator that it shares with this one.
TEST_F(DumpsTest, OfAnotherMachineMayComeSeveralTimesAtOnce) {
  Dumps dumps((folder_ / "own.json").string());
  const std::string text(64 << 10, 'x');
  const std::string error_before = log::last_error();
  std::vector<std::thread> threads;
  for (int sender = 0; sender < 4; ++sender)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) dumps.keep("other-1.json", text);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(log::last_error(), error_before);
  EXPECT_EQ(read(folder_ / "other-1.json"), text);
  EXPECT_EQ(files(), 1u);
}

TEST_F(DumpsTest, AreOffWithoutAPath) {
  Dumps dumps("");
  EXPECT_FALSE(dumps.are_on());
  dumps.add(source("one"));
  dumps.request("test");
  dumps.keep("other.json", "text");
  dumps.write_requested();
  EXPECT_FALSE(fs::exists("other.json"));
}

// A file system may stand still for minutes, and the user's thread ends a communicator meanwhile.
TEST(DumpWriter, HoldsNobodyUpForLongAndWritesTheLastTextInTheEnd) {
  std::latch goes_on(1), is_done(2);
  std::vector<std::string> written;
  DumpWriter writer([&](const std::string& path, const std::string& text) {
    goes_on.wait();
    written.push_back(path + ": " + text);
    is_done.count_down();
  });
  writer.write("a", "one");
  for (const char* text : {"one", "two", "three"}) writer.write("b", text);
  EXPECT_TRUE(written.empty());
  goes_on.count_down();
  is_done.wait();
  EXPECT_EQ(written, (std::vector<std::string>{"a: one", "b: three"}));
}

TEST(JsonText, EscapesWhatJsonDoes) {
  Json json;
  json.begin_object().text("a\"b", "line\nend\\ \x01 \xc3");
  json.begin_list("list").number({}, 1).number({}, -2).end_list();
  json.hexadecimal("h", 255).begin_object("o").end_object().end_object();
  EXPECT_EQ(json.str(),
            R"({"a\"b":"line\u000aend\\ \u0001 \u00c3","list":[1,-2],"h":"0xff","o":{}})");
}

}  // namespace
}  // namespace niccolite::observe
