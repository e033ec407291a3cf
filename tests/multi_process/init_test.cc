// Failures of init, each told to all ranks with the rank whose failure it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

// id nranks rank: joins, and tells how it ended.
ROLE(enter) {
  ncclComm_t comm = nullptr;
  const int rank = std::stoi(arguments[2]);
  REQUIRE_CUDA(cudaSetDevice(rank));
  const ncclResult_t result =
      ncclCommInitRank(&comm, std::stoi(arguments[1]), to_id(arguments[0]), rank);
  std::printf("RESULT %d %s\n", result, ncclGetLastError(nullptr));
  std::fflush(stdout);
  return 0;
}

// Makes an id, tells it, and joins as rank 0 of nranks, or ends when nranks is 0.
ROLE(make_id) {
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  std::printf("ID %s\n", to_text(id).c_str());
  std::fflush(stdout);
  if (arguments[0] == "0") return 0;
  ncclComm_t comm = nullptr;
  return static_cast<int>(ncclCommInitRank(&comm, std::stoi(arguments[0]), id, 0));
}

std::string id_of(Process& maker) {
  EXPECT_TRUE(maker.wait_for_line("ID ")) << maker.output();
  const std::string& output = maker.output();
  const size_t start = output.find("ID ") + 3;
  return output.substr(start, output.find('\n', start) - start);
}

std::string result_of(Process& process) {
  EXPECT_EQ(process.wait(), 0) << process.output();
  const size_t start = process.output().find("RESULT ");
  return start == std::string::npos ? process.output() : process.output().substr(start);
}

// Three ranks; what `environment` does to rank 1 is told to all as rank 1's.
void expect_blame_on_rank_1(const Process::Environment& environment, const std::string& cause) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<Process> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back("enter", Arguments{to_text(id), "3", std::to_string(rank)},
                       rank == 1 ? environment : Process::Environment{});
  for (size_t rank = 0; rank < 3; ++rank) {
    const std::string result = result_of(ranks[rank]);
    EXPECT_THAT(result, AllOf(Not(HasSubstr("RESULT 0")), HasSubstr(cause))) << rank;
    if (rank != 1) {
      EXPECT_THAT(result, HasSubstr("rank 1 (process")) << rank;
    }
  }
}

TEST(Init, TellsAllRanksOfABadInterfaceOfOne) {
  expect_blame_on_rank_1({{"NCCL_SOCKET_IFNAME", "nosuch0"}}, "nosuch0");
}

TEST(Init, TellsAllRanksOfAnUnknownAlgorithmOfOne) {
  expect_blame_on_rank_1({{"NCCL_ALGO", "astrology"}}, "astrology");
}

TEST(Init, BlamesTheRankThatEndedAndNotTheRoot) {
  Process maker("make_id", {"3"}, {{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "BOOTSTRAP"}});
  const std::string id = id_of(maker);
  Process waits("enter", {id, "3", "1"});
  ASSERT_TRUE(maker.wait_for_line("has come, 2 of 3")) << maker.output();
  maker.kill(SIGKILL);
  const std::string result = result_of(waits);
  EXPECT_THAT(result, HasSubstr("RESULT 6"));
  EXPECT_THAT(result, AllOf(HasSubstr("ended before all ranks had come"),
                            // Killed before its last words were sent, it could not be named.
                            AnyOf(HasSubstr("rank 0 (process"),
                                  HasSubstr("the process that made the unique id"))));
}

TEST(Init, DoesNotWaitForARootThatIsGone) {
  Process maker("make_id", {"0"});
  const std::string id = id_of(maker);
  EXPECT_EQ(maker.wait(), 0);
  Process late("enter", {id, "2", "1"});
  EXPECT_THAT(result_of(late),
              AllOf(HasSubstr("RESULT 6"), HasSubstr("nobody listens at"), HasSubstr("has ended")));
}

}  // namespace
}  // namespace niccolite::test
