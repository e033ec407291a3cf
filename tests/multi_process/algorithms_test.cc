// Algorithms of files at run time: named, left out, registered by the program, and other ones on
// another rank. Each in a process of its own, which reads its files once.
#include <gmock/gmock.h>
#include <niccolite.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Rank 0 reduces what rank 1 sends, and sends it back.
constexpr const char* kStar = R"({
  "format": "niccolite schedule 1", "collective": "all_reduce", "algorithm": "star", "ranks": 2, "blocks": 1,
  "connections": [[1, 0, 0, 0], [0, 1, 0, 0]],
  "programs": [
    [[{"steps": [{"receive": [0], "source": ["input", 0], "reduce": true, "finish": true,
                  "target": ["output", 0], "send": [1]}]}]],
    [[{"steps": [{"source": ["input", 0], "send": [0]}, {"receive": [1], "target": ["output", 0]}]}]]
  ]
})";

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / "algorithms.XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// count [text of an algorithm]: one all-reduce over two ranks of this process.
ROLE(pair_with_algorithm) {
  if (arguments.size() > 1)
    REQUIRE_NCCL(niccolite_register_algorithm("registered", arguments[1].c_str()));
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  LocalRanks ranks(id, 2, 0, 2);
  const bool right = ranks.all_reduce(std::stoul(arguments[0]));
  ranks.destroy();
  const ncclResult_t late = niccolite_register_algorithm("late", kStar);
  std::printf("LATE %d %s\n", late, ncclGetLastError(nullptr));
  return right ? 0 : 1;
}

// Two ranks of this process add floats and halves of as many bytes.
ROLE(pair_adds_two_types) {
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  LocalRanks ranks(id, 2, 0, 2);
  REQUIRE_NCCL(ranks.start(1000));
  REQUIRE_NCCL(ranks.finish());
  void* buffers[2];
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE_CUDA(cudaSetDevice(rank));
    REQUIRE_CUDA(cudaMalloc(&buffers[rank], 4000));
    REQUIRE_CUDA(cudaMemset(buffers[rank], 0, 4000));
  }
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t rank = 0; rank < 2; ++rank)
    REQUIRE_NCCL(ncclAllReduce(buffers[rank], buffers[rank], 2000, ncclHalf, ncclSum,
                               ranks.comms[rank], ranks.streams[rank]));
  REQUIRE_NCCL(ncclGroupEnd());
  REQUIRE_NCCL(ranks.finish());
  for (void* const buffer : buffers) REQUIRE_CUDA(cudaFree(buffer));
  ranks.destroy();
  return 0;
}

// id rank: one of two ranks, tells how it ended.
ROLE(join_with_algorithms) {
  ncclComm_t comm = nullptr;
  const int rank = std::stoi(arguments[1]);
  REQUIRE_CUDA(cudaSetDevice(rank));
  const ncclResult_t result = ncclCommInitRank(&comm, 2, to_id(arguments[0]), rank);
  std::printf("RESULT %d %s\n", result, ncclGetLastError(nullptr));
  return 0;
}

TEST(AlgorithmsOfFiles, RunByName) {
  const Folder folder;
  folder.write("star.json", kStar);
  for (const char* protocol : {"LL", "LL128", "Simple"}) {
    Process process("pair_with_algorithm", {"100000"},
                    {{"NICCOLITE_ALGORITHMS", folder.path()},
                     {"NCCL_ALGO", "star"},
                     {"NCCL_PROTO", protocol},
                     {"NCCL_DEBUG", "INFO"},
                     {"NCCL_DEBUG_SUBSYS", "TUNING"}});
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(),
                AllOf(HasSubstr("Algorithm of a file: all_reduce star for 2 ranks"),
                      HasSubstr("Algo STAR")));
    EXPECT_THAT(process.output(), HasSubstr("LATE 5 late: algorithms are registered before"));
  }
}

// A plug-in knows patterns alone: between two ranks the star is a ring.
TEST(AlgorithmsOfFiles, AreWhatATunerPluginTakesByTheirPattern) {
  const Folder folder;
  std::string text = kStar;
  text.replace(text.find("\"blocks\": 1"), 11, "\"use\": {\"priority\": 1}, \"blocks\": 1");
  folder.write("star.json", text);
  folder.write("table", "allreduce,0,4000,ring,ll,1\nallreduce,4001,100000000,tree,simple,1\n");
  for (const auto& [count, what] :
       {std::pair("1000", "of 4000 bytes: tuner plug-in .* has star LL 1 where"),
        std::pair("1001", "tree with simple is not available")}) {
    Process process("pair_with_algorithm", {count},
                    {{"NICCOLITE_ALGORITHMS", folder.path()},
                     {"NCCL_TUNER_PLUGIN", std::string(PLUGINS) + "/libnccl-tuner-table.so"},
                     {"TUNER_FILE", folder.path() + "/table"},
                     {"NCCL_DEBUG", "INFO"},
                     {"NCCL_DEBUG_SUBSYS", "ALL"}});
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), AllOf(testing::ContainsRegex(what), HasSubstr("Algo STAR")));
  }
}

TEST(AlgorithmsOfFiles, RunWhenTheProgramRegistersThem) {
  Process process("pair_with_algorithm", {"1000", kStar}, {{"NCCL_ALGO", "star"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  Process wrong("pair_with_algorithm", {"1000", "{\n]"});
  EXPECT_EQ(wrong.wait(), 10 + ncclInvalidArgument) << wrong.output();
  EXPECT_THAT(wrong.output(), HasSubstr("registered: line 2"));
}

TEST(AlgorithmsOfFiles, ServeTheTypesOfTheirFiles) {
  const Folder folder;
  std::string text = kStar;
  text.replace(text.find("\"blocks\": 1"), 11,
               "\"use\": {\"types\": [\"half\"], \"priority\": 1}, \"blocks\": 1");
  folder.write("star.json", text);
  Process process("pair_adds_two_types", {},
                  {{"NICCOLITE_ALGORITHMS", folder.path()},
                   {"NCCL_DEBUG", "INFO"},
                   {"NCCL_DEBUG_SUBSYS", "TUNING"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  std::vector<std::string> chosen;
  std::istringstream lines(process.output());
  for (std::string line; std::getline(lines, line);)
    if (const size_t at = line.find("AllReduce: 4000 Bytes -> "); at != std::string::npos)
      chosen.push_back(line.substr(at));
  ASSERT_EQ(chosen.size(), 2u) << process.output();
  EXPECT_THAT(chosen[0], Not(HasSubstr("Algo STAR")));
  EXPECT_THAT(chosen[1], HasSubstr("Algo STAR"));
}

// The job runs without them, unless it is to run with this one.
TEST(AlgorithmsOfFiles, AreLeftOutWhenTheyAreWrong) {
  const Folder folder;
  const std::string star = kStar;
  folder.write("star.json", star.substr(0, star.size() / 2));
  Process without("pair_with_algorithm", {"1000"}, {{"NICCOLITE_ALGORITHMS", folder.path()}});
  EXPECT_EQ(without.wait(), 0) << without.output();
  EXPECT_THAT(without.output(), AllOf(HasSubstr("star.json: line "), HasSubstr("It is left out")));
  Process named("pair_with_algorithm", {"1000"},
                {{"NICCOLITE_ALGORITHMS", folder.path()}, {"NCCL_ALGO", "star"}});
  EXPECT_NE(named.wait(), 0) << named.output();
  EXPECT_THAT(named.output(), AllOf(HasSubstr("NCCL_ALGO names 'star'"), HasSubstr("is left out")));
}

TEST(AlgorithmsOfFiles, MustBeTheSameOnAllRanks) {
  const Folder folder, other;
  folder.write("star.json", kStar);
  std::string changed = kStar;
  changed.replace(changed.find("\"blocks\": 1"), 11, "\"use\": {\"priority\": 1}, \"blocks\": 1");
  other.write("star.json", changed);
  for (const std::string& second : {std::string(), other.path(), folder.path()}) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
    Process zero("join_with_algorithms", {to_text(id), "0"},
                 {{"NICCOLITE_ALGORITHMS", folder.path()}});
    Process one("join_with_algorithms", {to_text(id), "1"}, {{"NICCOLITE_ALGORITHMS", second}});
    for (Process* const process : {&zero, &one}) {
      EXPECT_EQ(process->wait(), 0) << process->output();
      const auto refused = AllOf(HasSubstr("RESULT 5"), HasSubstr("has other algorithms of files"),
                                 HasSubstr("NICCOLITE_ALGORITHMS"));
      if (second == folder.path()) {
        EXPECT_THAT(process->output(), AllOf(HasSubstr("RESULT 0"), Not(refused)));
      } else {
        EXPECT_THAT(process->output(), refused);
      }
    }
  }
}

}  // namespace
}  // namespace niccolite::test
