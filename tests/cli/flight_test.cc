// What the dumps of several ranks say together.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/flight/dump.h"
#include "cli/flight/inspect.h"
#include "cli/flight/timeline.h"

namespace niccolite::flight {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kNow = 1'800'000'000'000'000'000;
constexpr uint64_t kSecond = 1'000'000'000;

json make_rank(int rank, int collectives, const std::vector<json>& events) {
  return {
      {"id", "0x77"},
      {"rank", rank},
      {"nranks", 3},
      {"device", rank},
      {"state", "ready"},
      {"collectives", collectives},
      {"begun", collectives},
      {"running", 0},
      {"processes", {"process 100 on host a", "process 101 on host a", "process 102 on host b"}},
      {"events", events}};
}

json called(uint64_t time, uint64_t launch, const char* call) {
  return {{"t", time},        {"kind", "called"}, {"launch", launch},           {"call", call},
          {"number", launch}, {"stream", "0x9"},  {"function", "ncclAllReduce"}};
}
json moment(uint64_t time, const char* kind, uint64_t launch) {
  return {{"t", time}, {"kind", kind}, {"launch", launch}};
}

/// A rank that has done one all-reduce and waits in the second one for `peer`.
json make_waiting(int rank, int peer) {
  json made = make_rank(
      rank, 2,
      {called(kNow - 3 * kSecond, 1, "ncclAllReduce(count 1, float, sum)"),
       moment(kNow - 3 * kSecond, "begun", 1),
       moment(kNow - 2 * kSecond, "ended", 1),
       called(kNow - 2 * kSecond, 2, "ncclAllReduce(count 2, float, sum)"),
       moment(kNow - 2 * kSecond, "begun", 2),
       {{"t", kNow - kSecond / 2}, {"kind", "waiting"}, {"peer", peer}, {"milliseconds", 1500}}});
  made["running"] = 1;
  made["waiting"] = {{"peer", peer},
                     {"milliseconds", 1500},
                     {"call", "ncclAllReduce(count 2, float, sum)"},
                     {"number", 2}};
  return made;
}

class FlightTest : public testing::Test {
 protected:
  FlightTest() {
    std::string name = testing::TempDir() + "/flight.XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~FlightTest() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::vector<json>& communicators,
             uint64_t time = kNow) const {
    std::ofstream(folder_ / name) << json{{"format", 1},  {"host", "a"},
                                          {"pid", 100},   {"reason", "test"},
                                          {"time", time}, {"communicators", communicators}};
  }
  Finding only_finding() const {
    const std::vector<Finding> findings = inspect(read_flight(folder_).take());
    EXPECT_EQ(findings.size(), 1u);
    return findings.front();
  }

  fs::path folder_;
};

TEST_F(FlightTest, NamesTheRankThatLeftNoDumpAndThatTheOthersWaitFor) {
  write("a-100.json", {make_waiting(0, 1)});
  write("b-102.json", {make_waiting(2, 1)});
  const Finding finding = only_finding();
  EXPECT_EQ(finding.culprit, 1);
  EXPECT_THAT(finding.verdict, HasSubstr("rank 1 (process 101 on host a), which left no dump"));
  EXPECT_THAT(
      to_text(finding),
      AllOf(HasSubstr("*    1  process 101 on host a"), HasSubstr("left no dump"),
            HasSubstr("has waited 1.5 s for rank 1 in ncclAllReduce(count 2, float, sum)")));
}

TEST_F(FlightTest, FollowsAWaitToTheOneWhoWaitsForNobody) {
  write("0.json", {make_waiting(0, 2)});
  write("1.json", {make_rank(1, 1, {called(kNow, 1, "ncclAllReduce(count 1, float, sum)")})});
  write("2.json", {make_waiting(2, 1)});
  EXPECT_EQ(only_finding().culprit, 1);
  EXPECT_THAT(only_finding().lines[1].does,
              HasSubstr("last call ncclAllReduce(count 1, float, sum), done"));
}

TEST_F(FlightTest, TellsACallThatWaitsForThatOfAnotherThread) {
  json blocked = make_rank(1, 0, {});
  blocked["blocked"] = "ncclAllReduce, which waits for another thread's ncclCommSplit";
  write("0.json", {make_waiting(0, 1)});
  write("1.json", {blocked});
  EXPECT_THAT(only_finding().lines[1].does,
              HasSubstr("is in ncclAllReduce, which waits for another thread's ncclCommSplit"));
}

TEST_F(FlightTest, BelievesTheNewestVerdict) {
  json old = make_waiting(0, 1), fresh = make_waiting(2, 1);
  old["verdict"] = {{"rank", 2}, {"text", "old"}};
  fresh["verdict"] = {{"rank", 1}, {"text", "fresh"}};
  write("0.json", {old}, kNow - kSecond);
  write("2.json", {fresh}, kNow);
  EXPECT_EQ(only_finding().verdict, "fresh");
  EXPECT_EQ(only_finding().culprit, 1);
}

TEST_F(FlightTest, TakesTheFirstFailureForTheCause) {
  json first = make_waiting(0, 1), second = make_waiting(2, 1);
  first["failure"] = "rank 1 (process 101 on host a) ended unexpectedly";
  first["failure_rank"] = 1;
  first["events"].push_back(moment(kNow - 2, "failed", 0));
  second["failure"] = "rank 0 aborted the communicator";
  second["events"].push_back(moment(kNow - 1, "failed", 0));
  write("0.json", {first});
  write("2.json", {second});
  EXPECT_THAT(only_finding().verdict, HasSubstr("rank 1 (process 101"));
  EXPECT_EQ(only_finding().culprit, 1);
}

// Up to three ranks left dumps. Each accuses one rank; the first in the list spoke first.
struct Accusations {
  const char* name;
  std::vector<std::pair<int, int>> of;  // who accuses, and whom
  int culprit;
  std::string verdict;
};
class FlightOfAccusations : public FlightTest, public testing::WithParamInterface<Accusations> {};

TEST_P(FlightOfAccusations, AsFailures) {
  uint64_t time = kNow - kSecond;
  for (const auto& [by, of] : GetParam().of) {
    json rank = make_rank(by, 1, {moment(++time, "failed", 0)});
    rank["failure"] = fmt::format("{} loses {}", by, of);
    rank["failure_rank"] = of;
    write(std::to_string(by) + ".json", {rank});
  }
  EXPECT_EQ(only_finding().culprit, GetParam().culprit);
  EXPECT_THAT(only_finding().verdict, HasSubstr(GetParam().verdict));
}

TEST_P(FlightOfAccusations, AsVerdicts) {
  uint64_t time = kNow;  // the newest counts
  for (const auto& [by, of] : GetParam().of) {
    json rank = make_waiting(by, of);
    rank["verdict"] = {{"rank", of}, {"text", fmt::format("{} loses {}", by, of)}};
    write(std::to_string(by) + ".json", {rank}, --time);
  }
  EXPECT_EQ(only_finding().culprit, GetParam().culprit);
  EXPECT_THAT(only_finding().verdict, HasSubstr(GetParam().verdict));
}

INSTANTIATE_TEST_SUITE_P(
    Flight, FlightOfAccusations,
    testing::Values(
        Accusations{"TheCutRankSpeaksFirst", {{2, 0}, {0, 2}, {1, 2}}, 2, "0 loses 2"},
        Accusations{"TheCutRankSpeaksLast", {{0, 2}, {1, 2}, {2, 0}}, 2, "0 loses 2"},
        Accusations{"TheCutRankHasNoDump", {{1, 2}, {0, 2}}, 2, "1 loses 2"},
        Accusations{"TheCutRankKnows", {{2, 2}, {0, 2}, {1, 2}}, 2, "2 loses 2"},
        Accusations{"OneEach", {{2, 0}, {0, 2}}, -1, "ranks 0 and 2 do not reach each other"},
        Accusations{"OneAfterTheOther", {{2, 0}, {0, 1}}, 1, "0 loses 1"},
        Accusations{"AllInACircle", {{0, 1}, {1, 2}, {2, 0}}, -1, "do not reach each other"}),
    [](const auto& instance) { return instance.param.name; });

TEST_F(FlightTest, FindsNothingWhereAllGoesOn) {
  for (int rank = 0; rank < 3; ++rank)
    write(std::to_string(rank) + ".json", {make_rank(rank, 1, {})});
  EXPECT_EQ(only_finding().verdict, "");
  EXPECT_EQ(only_finding().culprit, -1);
}

TEST_F(FlightTest, TheLaterDumpOfARankCounts) {
  write("a.json", {make_rank(0, 5, {})}, kNow);
  write("b.json", {make_rank(0, 4, {})}, kNow - kSecond);
  EXPECT_EQ(only_finding().lines[0].collectives, 5u);
}

TEST_F(FlightTest, SaysWhichFilesAreNotUsed) {
  write("good.json", {make_waiting(0, 1)});
  std::ofstream(folder_ / "cut.json") << json{{"format", 1}}.dump().substr(0, 5);
  std::ofstream(folder_ / "newer.json") << R"({"format": 2})";
  json lies = make_waiting(2, 1);
  lies["rank"] = 17;
  write("lies.json", {make_rank(1, 1, {}), lies});
  std::ofstream(folder_ / "not_a_dump.txt") << "text";
  const Flight flight = read_flight(folder_).take();
  EXPECT_EQ(flight.files, 1u);
  EXPECT_THAT(flight.problems,
              testing::ElementsAre(AllOf(HasSubstr("cut.json"), HasSubstr("no whole dump")),
                                   AllOf(HasSubstr("lies.json"), HasSubstr("ranks that cannot be")),
                                   AllOf(HasSubstr("newer.json"), HasSubstr("format 2"))));
  EXPECT_EQ(flight.communicators.at("0x77").ranks.size(), 1u) << "nothing of a bad file";
}

TEST_F(FlightTest, EveryTruncationIsRefusedWithoutHarm) {
  write("whole.json", {make_waiting(0, 1)});
  std::string text;
  std::getline(std::ifstream(folder_ / "whole.json"), text);
  for (size_t size = 0; size < text.size(); size += 7) {
    std::ofstream(folder_ / "whole.json") << text.substr(0, size);
    EXPECT_FALSE(read_flight(folder_).is_ok()) << size;
  }
}

TEST_F(FlightTest, AnEmptyFolderIsAnError) {
  EXPECT_THAT(read_flight(folder_).status().message(), HasSubstr("no file *.json"));
  EXPECT_FALSE(read_flight(folder_ / "nothing").is_ok());
}

TEST_F(FlightTest, PairsBeginsWithEnds) {
  write("0.json", {make_waiting(0, 1)});
  const Flight flight = read_flight(folder_).take();
  const std::vector<Span> spans = operations_of(flight.communicators.at("0x77").ranks.at(0));
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].end - spans[0].begin, kSecond);
  EXPECT_EQ(spans[0].name, "ncclAllReduce(count 1, float, sum)");
  EXPECT_FALSE(spans[0].is_open);
  EXPECT_TRUE(spans[1].is_open);
  EXPECT_EQ(spans[1].end, kNow);
}

TEST_F(FlightTest, TracesAreOneEventForWhateverHappened) {
  write("0.json", {make_waiting(0, 1)});
  const json trace = json::parse(to_trace(read_flight(folder_).take()));
  std::map<std::string, int> kinds;
  for (const json& event : trace.at("traceEvents")) ++kinds[event.at("ph").get<std::string>()];
  EXPECT_EQ(kinds["X"], 3) << "two operations, one wait";
  EXPECT_EQ(kinds["i"], 2) << "two calls";
  for (const json& event : trace.at("traceEvents")) {
    if (event.contains("ts")) {
      EXPECT_LE(event.at("ts").get<double>(), 3e6);
    }
  }
}

TEST_F(FlightTest, PicturesMarkTheCulpritAndWhoLeftNoDump) {
  write("0.json", {make_waiting(0, 1)});
  const Flight flight = read_flight(folder_).take();
  const std::string svg = draw(flight.communicators.at("0x77"), inspect(flight).front(), 10);
  EXPECT_THAT(svg,
              AllOf(HasSubstr(">rank 1 &#9733; culprit<"), HasSubstr(">process 101 on host a<"),
                    HasSubstr("left no dump"), HasSubstr(">waits for another rank<"),
                    HasSubstr("ncclAllReduce(count 2, float, sum), 2000.000 ms, not ended")));
}

// Two operations within 3 s: a picture of at most 100 s shows these, not 97 s of nothing.
TEST_F(FlightTest, PicturesFitTheirEvents) {
  write("0.json", {make_waiting(0, 1)});
  const Flight flight = read_flight(folder_).take();
  const CommunicatorDump& communicator = flight.communicators.at("0x77");
  const Finding finding = inspect(flight).front();
  EXPECT_EQ(draw(communicator, finding, 100), draw(communicator, finding, 1000));
  EXPECT_NE(draw(communicator, finding, 100), draw(communicator, finding, 1));
  EXPECT_THAT(draw(communicator, finding, 1), HasSubstr(">-200 ms<"));
}

TEST_F(FlightTest, PicturesOfManyRanksFitAPage) {
  CommunicatorDump communicator{.id = "0x77", .nranks = 1000, .processes = {}, .ranks = {}};
  for (int rank = 0; rank < communicator.nranks; ++rank)
    communicator.processes.push_back("process " + std::to_string(rank));
  const Finding finding{
      .communicator = "0x77", .nranks = 1000, .verdict = "it stands", .culprit = 900, .lines = {}};
  const std::string svg = draw(communicator, finding, 10);
  EXPECT_THAT(svg, AllOf(HasSubstr(">rank 900 &#9733; culprit<"), HasSubstr(">936 more ranks<"),
                         Not(HasSubstr(">rank 500<"))));
}

}  // namespace
}  // namespace niccolite::flight
