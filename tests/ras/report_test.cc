// Reports of made-up jobs, in the words and columns of NCCL's.
#include "ras/report.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace niccolite::ras {
namespace {

using diagnosis::Counted;
using diagnosis::ProcessStatus;
using diagnosis::StatusBoard;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kId = 0xcf264af53edbe986;

/// A job of one rank a process, `per_node` of them a node, in one communicator.
struct World {
  World(int nranks, int per_node) {
    for (int rank = 0; rank < nranks; ++rank) {
      ProcessStatus process;
      process.name = {.host = "10.0.0." + std::to_string(1 + rank / per_node),
                      .pid = 1000 + static_cast<uint64_t>(rank)};
      RankStatus status{.communicator = kId,
                        .nranks = nranks,
                        .rank = rank,
                        .device = rank % per_node,
                        .verdict = {},
                        .stragglers = {}};
      status.counts[static_cast<size_t>(Counted::AllReduce)] = 14;
      process.ranks.push_back(status);
      processes.push_back(process);
    }
  }
  RankStatus& of(int rank) { return processes[static_cast<size_t>(rank)].ranks[0]; }

  /// As rank 0's process sees it.
  Job job() const {
    std::vector<StatusBoard::Peer> peers;
    std::map<diagnosis::ProcessName, StatusBoard::Known> known;
    for (size_t rank = 0; rank < processes.size(); ++rank) {
      const ProcessStatus& process = processes[rank];
      known[process.name] = {.devices = {process.ranks[0].device},
                             .is_lost = dead.contains(static_cast<int>(rank))};
      if (rank == 0) continue;
      StatusBoard::Peer peer{
          .name = process.name, .ranks = {{kId, static_cast<int>(rank)}}, .status = std::nullopt};
      if (!silent.contains(static_cast<int>(rank)))
        peer.status = ProcessStatus::decode(process.encode()).take();
      peers.push_back(std::move(peer));
    }
    Job job = put_together(processes[0], peers, known);
    job.elapsed = std::chrono::milliseconds(12);
    return job;
  }
  std::string text(bool is_verbose = false) const {
    const Versions versions{
        .library = "2.30.7", .cuda = 13'000, .runtime = 13'000, .driver = 12'080};
    return text_head(versions, job()) + text_rest(job(), is_verbose);
  }

  std::vector<ProcessStatus> processes;
  std::set<int> silent, dead;
};

TEST(RasReport, OfAHealthyJobIsNcclsToTheLetter) {
  EXPECT_EQ(World(32, 8).text(),
            "NCCL version 2.30.7 compiled with CUDA 13.0\n"
            "CUDA runtime version 13000, driver version 12080\n"
            "\n"
            "Job summary\n"
            "===========\n"
            "\n"
            "  Nodes  Processes         GPUs  Processes     GPUs\n"
            "(total)   per node  per process    (total)  (total)\n"
            "      4          8            1         32       32\n"
            "\n"
            "Communicators... (0.012s)\n"
            "=============\n"
            "\n"
            "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
            "    #  in group  per comm  per node  per comm  in group\n"
            "    0         1         4         8        32        32   RUNNING      OK\n"
            "\n"
            "Errors\n"
            "======\n"
            "\n"
            "Warnings\n"
            "========\n"
            "\n");
}

TEST(RasReport, NamesWhoIsBehind) {
  World world(8, 8);
  world.of(5).counts[static_cast<size_t>(Counted::AllReduce)] = 13;
  EXPECT_THAT(
      world.text(),
      AllOf(HasSubstr("RUNNING  MISMATCH\n"),
            HasSubstr("#0-0 (cf264af53edbe986) MISMATCH\n"
                      "  Communicator ranks have different AllReduce operation counts\n"
                      "  7 ranks have launched up to operation 14\n"
                      "  Rank 5 has launched up to operation 13 -- GPU 5 managed by process "
                      "1005 on node 10.0.0.1\n")));
}

TEST(RasReport, ListsMembersOfSmallGroupsAndOfLargerOnesWhenAsked) {
  World world(16, 8);
  for (int rank = 0; rank < 6; ++rank)
    world.of(rank).counts[static_cast<size_t>(Counted::Broadcast)] = 1;
  const std::string member = "  Rank 3 -- GPU 3 managed by process 1003 on node 10.0.0.1\n";
  EXPECT_THAT(world.text(), AllOf(HasSubstr("  6 ranks have launched up to operation 1\n"),
                                  HasSubstr("  10 ranks have not launched any operations\n"),
                                  Not(HasSubstr(member))));
  EXPECT_THAT(world.text(/*is_verbose=*/true), HasSubstr(member));
}

TEST(RasReport, NamesErrorsAndWhoHasThem) {
  World world(8, 8);
  world.of(2).async_error = 6;
  EXPECT_THAT(world.text(),
              AllOf(HasSubstr("RUNNING   ERROR\n"),
                    HasSubstr("#0-0 (cf264af53edbe986) ERROR\n  Asynchronous error on 1 rank\n"
                              "  Rank 2 reported Remote process error -- GPU 2 managed by process "
                              "1002 on node 10.0.0.1\n")));
}

TEST(RasReport, NamesDifferentStates) {
  World world(8, 8);
  world.of(1).aborted = true;
  world.of(2).finalized = true;
  EXPECT_THAT(world.text(), AllOf(HasSubstr("  ABORT  MISMATCH\n"),
                                  HasSubstr("  Communicator ranks have different status\n"
                                            "  6 ranks have status RUNNING\n"),
                                  HasSubstr("  Rank 1 has status ABORT -- "),
                                  HasSubstr("  Rank 2 has status FINALIZE -- ")));
}

TEST(RasReport, NamesWhoIsMissingAndWhoIsDead) {
  World world(8, 8);
  world.silent = {3, 4};
  world.dead = {4};
  EXPECT_THAT(world.text(),
              AllOf(HasSubstr("INCOMPLETE\n  Missing communicator data from 2 job processes\n"
                              "  Process 1003 on node 10.0.0.1 managing GPU 3\n"),
                    HasSubstr("DEAD\n  1 job process is considered dead (unreachable via the RAS "
                              "network)\n  Process 1004 on node 10.0.0.1 managing GPU 4\n"),
                    HasSubstr("#0-0 (cf264af53edbe986) INCOMPLETE\n"
                              "  Missing communicator data from 2 ranks\n"),
                    HasSubstr("  Rank 3 -- managed by process 1003 on node 10.0.0.1\n"),
                    HasSubstr("INCOMPLETE\n\n")));
}

TEST(RasReport, OfUnevenNodesHasTheirNumbers) {
  World world(9, 4);  // 4, 4 and 1
  EXPECT_THAT(world.text(),
              AllOf(HasSubstr("  Nodes  Processes         GPUs\n          per node  per process\n"
                              "      2          4            1\n      1          1            1\n"),
                    HasSubstr("\n  Nodes  Processes         GPUs\n(total)    (total)      (total)\n"
                              "      3          9            9\n"),
                    HasSubstr("The outlier node:\n  Node 10.0.0.3 running process 1008\n"),
                    HasSubstr("       1-4")));
}

TEST(RasReport, OfNothingSaysSo) {
  EXPECT_THAT(text_rest(Job{}, false), HasSubstr("No communicator data collected!\n"));
}

TEST(RasReport, GroupsCommunicatorsThatAreAlike) {
  World world(4, 4);
  for (ProcessStatus& process : world.processes) {
    RankStatus second = process.ranks[0];
    second.communicator = 1;
    process.ranks.push_back(second);
  }
  EXPECT_THAT(world.text(), HasSubstr("    0         2         1         4         4         4   "
                                      "RUNNING      OK\n"));
}

TEST(RasReport, AsJsonHasAllRanks) {
  World world(4, 2);
  world.silent = {3};
  world.of(1).async_error = 6;
  const auto json = nlohmann::json::parse(
      to_json({.library = "2.30.7", .cuda = 13'000}, world.job(), "2026-01-02 03:04:05"));
  EXPECT_EQ(json.at("nccl_version"), "2.30.7");
  EXPECT_EQ(json.at("communicators_count"), 1);
  const auto& communicator = json.at("communicators").at(0);
  EXPECT_EQ(communicator.at("hash"), "0xcf264af53edbe986");
  EXPECT_EQ(communicator.at("size"), 4);
  EXPECT_EQ(communicator.at("ranks_count"), 3);
  EXPECT_EQ(communicator.at("ranks").size(), 3u);
  EXPECT_EQ(communicator.at("ranks").at(1).at("status").at("async_error"), 6);
  EXPECT_EQ(communicator.at("ranks").at(2).at("collective_counts").at("AllReduce"), 14);
  const auto& missing = communicator.at("missing_ranks").at(0);
  EXPECT_EQ(missing.at("rank"), 3);
  EXPECT_EQ(missing.at("pid"), 1003);
  EXPECT_EQ(missing.at("status").at("unresponsive"), true);
}

TEST(RasReport, AsJsonOfNothingIsWhole) {
  const auto json = nlohmann::json::parse(to_json({}, Job{}, ""));
  EXPECT_EQ(json.at("communicators").size(), 0u);
}

TEST(RasReport, SaysVerdictsOnce) {
  World world(4, 4);
  for (const int rank : {0, 1, 2}) world.of(rank).verdict = "rank 3 is late";
  EXPECT_EQ(verdicts_of(world.job()), "rank 3 is late\n");
  EXPECT_EQ(verdicts_of(World(4, 4).job()), "");
}

TEST(RasReport, SaysStragglersAsRankZeroTellsThem) {
  World world(4, 4);
  world.of(0).stragglers = "rank 3 came last\n";
  EXPECT_EQ(stragglers_of(world.job()), "rank 3 came last\n");
  EXPECT_EQ(stragglers_of(World(4, 4).job()), "");
}

TEST(ProcessStatus, RefusesWhatNoProcessSends) {
  const Bytes good = World(2, 2).processes[1].encode();
  EXPECT_TRUE(ProcessStatus::decode(good).is_ok());
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(ProcessStatus::decode(std::span(good).first(size)).is_ok()) << size;
}

}  // namespace
}  // namespace niccolite::ras
