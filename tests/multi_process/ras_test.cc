// The RAS port of a running job: the whole job is told of, whichever process has the client, and
// strangers harm nobody.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/fd.h"
#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

/// A port that nobody listened at a moment ago.
int free_port() {
  const Fd listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  return ntohs(address.sin_port);
}

// id nranks rank: all-reduces twice, rank 1 once; then waits for ever.
ROLE(watched) {
  const int rank = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), rank, 1);
  if (!ranks.all_reduce(3000)) return 1;
  if (rank != 1) REQUIRE_NCCL(ranks.start(2000));
  std::printf("STARTED\n");
  std::this_thread::sleep_for(std::chrono::hours(1));
  return 0;
}

// id nranks rank: all-reduces for ever, rank 2 always some milliseconds late.
ROLE(straggling) {
  const int rank = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), rank, 1);
  std::printf("STARTED\n");
  std::fflush(stdout);
  for (int round = 0; round < 4000; ++round) {
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(15));
    if (!ranks.all_reduce(300)) return 1;
  }
  return 0;
}

// id nranks rank: all-reduces once; at SIGUSR1 returns with a communicator that nobody destroyed.
ROLE(never_destroys) {
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &end, nullptr);
  static auto* const ranks =
      new LocalRanks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  if (!ranks->all_reduce(3000)) return 1;
  std::printf("STARTED\n");
  int signal = 0;
  return sigwait(&end, &signal);
}

class Ras : public testing::Test {
 protected:
  explicit Ras(const char* role = "watched", int nranks = 3, int answering = 3,
               Process::Environment environment = {}) {
    ncclUniqueId id;
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    environment["NCCL_RAS_ADDR"] = "localhost:" + std::to_string(port_);
    for (int rank = 0; rank < nranks; ++rank) {
      environment["NCCL_RAS_ENABLE"] = rank < answering ? "1" : "0";
      processes_.emplace_back(
          role, Arguments{to_text(id), std::to_string(nranks), std::to_string(rank)}, environment);
    }
    for (Process& process : processes_)
      EXPECT_TRUE(process.wait_for_line("STARTED")) << process.output();
  }

  Fd connect_to() const {
    Fd connection(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port_));
    EXPECT_EQ(::connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof address),
              0);
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return connection;
  }
  static void say(const Fd& connection, const std::string& text) {
    // Who is refused may have been hung up on already.
    (void)!send(connection.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  /// Until `words` have come, or the end.
  static std::string hear(const Fd& connection, const std::string& words = "") {
    std::string text;
    char bytes[4096];
    while (words.empty() || text.find(words) == std::string::npos) {
      const ssize_t count = recv(connection.get(), bytes, sizeof bytes, 0);
      if (count <= 0) break;
      text.append(bytes, static_cast<size_t>(count));
    }
    return text;
  }
  std::string ask(const std::string& commands) const {
    const Fd connection = connect_to();
    say(connection, commands);
    return hear(connection);
  }

  const int port_ = free_port();
  std::vector<Process> processes_;
};

TEST_F(Ras, OfTheSecondJobAtAnAddressSaysOnceThatItIsTheSecond) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> second;
  for (const char* rank : {"0", "1"})
    second.emplace_back(
        "watched", Arguments{to_text(id), "2", rank},
        Process::Environment{{"NCCL_RAS_ADDR", "localhost:" + std::to_string(port_)},
                             {"NCCL_DEBUG", "WARN"}});
  ASSERT_TRUE(second[0].wait_for_line("NCCL WARN RAS: ")) << second[0].output();
  const std::string told = second[0].output();
  EXPECT_THAT(told,
              testing::ContainsRegex("RAS: process [0-9]+ \\(.*\\) listens at 127.0.0.1 port " +
                                     std::to_string(port_) + ", too"));
  EXPECT_THAT(told, HasSubstr("NCCL_RAS_ADDR=localhost:PORT"));
  const auto is_of_the_first = [&](const Process& process) {
    return told.find("process " + std::to_string(process.id()) + " ") != std::string::npos;
  };
  EXPECT_TRUE(std::ranges::any_of(processes_, is_of_the_first)) << told;
  ASSERT_TRUE(second[1].wait_for_line("STARTED")) << second[1].output();
  for (const Process* process : {&second[1], &processes_[0]})
    EXPECT_THAT(process->output(), testing::Not(HasSubstr("RAS: ")));
}

// The kernel gives each client to one of the processes: several clients meet several of them.
TEST_F(Ras, TellsOfAllRanksWhoeverIsAsked) {
  for (int client = 0; client < 8; ++client) {
    EXPECT_THAT(ask("STATUS\n"),
                AllOf(HasSubstr("      1          3            1          3        3\n"),
                      HasSubstr("RUNNING  MISMATCH"),
                      HasSubstr("  2 ranks have launched up to operation 2\n"),
                      HasSubstr("  Rank 1 has launched up to operation 1 -- GPU 1 managed by")));
    const json report = json::parse(ask("SET FORMAT json\nSTATUS\n").substr(3));  // behind "OK\n"
    EXPECT_EQ(report.at("communicators").at(0).at("ranks_count"), 3);
  }
}

class RasOfStragglers : public Ras {
 protected:
  RasOfStragglers() : Ras("straggling") {}
};

TEST_F(RasOfStragglers, SaysWhoIsLateHowOftenAndHowMuch) {
  std::string told;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (told.find("rank 2 came last to ") == std::string::npos &&
         std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    told = ask("STRAGGLERS\n");
  }
  // The worst is told first.
  EXPECT_THAT(told, testing::ContainsRegex(
                        "^communicator 0x[0-9a-f]+: rank 2 came last to [0-9]+ of [0-9]+ "
                        "collectives, [0-9.]+ m?s after the first rank on average, [0-9.]+ m?s at "
                        "most .collective #[0-9]+.\n"));
}

TEST_F(Ras, SaysForWhomAnOperationStandsStill) {
  std::string verdict;
  for (int tries = 0; tries < 1000 && verdict.empty(); ++tries) {
    verdict = ask("VERDICT\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_THAT(verdict, HasSubstr("stands still: rank 1 (process "));
}

// Their communicators have failed, and they live.
TEST_F(Ras, HasAnAnswerOfEachSurvivorOfADeath) {
  processes_[2].kill(SIGKILL);
  std::string told;
  for (int tries = 0; tries < 1000 && told.find("considered dead") == std::string::npos; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    told = ask("STATUS\n");
  }
  EXPECT_THAT(told, HasSubstr("1 job process is considered dead"));
  for (int client = 0; client < 4; ++client) {
    const json report = json::parse(ask("SET FORMAT json\nSTATUS\n").substr(3));
    const json& communicator = report.at("communicators").at(0);
    EXPECT_EQ(communicator.at("ranks_count"), 2) << report;
    EXPECT_EQ(communicator.at("missing_ranks_count"), 1) << report;
  }
}

TEST_F(Ras, NamesAStoppedProcessAsMissing) {
  processes_[2].kill(SIGSTOP);
  // The kernel may give the client to the stopped process, which says nothing.
  std::string text;
  for (int tries = 0; tries < 50 && text.find("Errors") == std::string::npos; ++tries) {
    const Fd connection = connect_to();
    const timeval patience{.tv_sec = 4, .tv_usec = 0};
    setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    say(connection, "TIMEOUT 1\nSTATUS\n");
    text = hear(connection);
  }
  EXPECT_THAT(text, AllOf(HasSubstr("RUNNING  INCOMPLETE"),
                          HasSubstr("Missing communicator data from 1 job process\n"),
                          HasSubstr("  Rank 2 -- managed by process "), HasSubstr("TIMEOUT\n")));
}

TEST_F(Ras, MonitorsHearOfADeath) {
  // Whoever dies must not be the one that has the client.
  std::vector<Fd> monitors;
  for (int i = 0; i < 12; ++i) {
    monitors.push_back(connect_to());
    say(monitors.back(), "MONITOR\n");
    EXPECT_EQ(hear(monitors.back(), "OK\n"), "OK\n");
  }
  processes_[2].kill(SIGKILL);
  int told = 0;
  for (const Fd& monitor : monitors)
    if (hear(monitor, "PEER_DEAD: Process ").find("PEER_DEAD") != std::string::npos) ++told;
  EXPECT_GT(told, 0);
}

// Those of the other processes, at least.
TEST_F(Ras, TracingMonitorsHearOfAProcessThatIsStoppedAndGoesOn) {
  std::vector<Fd> monitors;
  for (int i = 0; i < 12; ++i) {
    monitors.push_back(connect_to());
    say(monitors.back(), "MONITOR trace\n");
    EXPECT_EQ(hear(monitors.back(), "OK\n"), "OK\n");
    const timeval patience{.tv_sec = 4, .tv_usec = 0};
    setsockopt(monitors.back().get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  const auto hears = [&](const char* event) {
    return std::ranges::any_of(monitors, [&](const Fd& monitor) {
      return hear(monitor, event).find(event) != std::string::npos;
    });
  };
  processes_[2].kill(SIGSTOP);
  EXPECT_TRUE(hears("PEER_UNRESPONSIVE: Process "));
  processes_[2].kill(SIGCONT);
  EXPECT_TRUE(hears("PEER_RECOVERED: Process "));
}

TEST_F(Ras, StrangersCostOnlyThemselves) {
  std::vector<Fd> mute;
  for (int i = 0; i < 400; ++i) mute.push_back(connect_to());
  for (const Fd& connection : mute) say(connection, std::string(5000, '\xff'));
  mute.resize(200);
  for (int i = 0; i < 50; ++i) {
    const Fd hasty = connect_to();  // asks, and does not stay for the answer
    say(hasty, "STATUS\n");
  }
  mute.clear();
  EXPECT_THAT(ask("STATUS\n"), HasSubstr("      1          3            1          3        3\n"));
}

TEST_F(Ras, SilentConnectionsKeepNobodyOut) {
  std::vector<Fd> silent;  // more than all processes of the job serve at once
  for (int i = 0; i < 400; ++i) silent.push_back(connect_to());
  for (int i = 0; i < 8; ++i)
    EXPECT_THAT(ask("STATUS\n"),
                HasSubstr("      1          3            1          3        3\n"));
}

// Of two processes the first alone serves clients.
class RasOfOneOfTwo : public Ras {
 protected:
  RasOfOneOfTwo() : Ras("never_destroys", 2, 1, {{"NCCL_RAS_TIMEOUT_FACTOR", "10"}}) {
    processes_[1].kill(SIGSTOP);
  }
};

TEST_F(RasOfOneOfTwo, AClientWithoutTimeoutKeepsNobodyWaiting) {
  const Fd patient = connect_to();
  say(patient, "TIMEOUT 0\nSTATUS\n");
  EXPECT_THAT(hear(patient, "Communicators..."), HasSubstr("Communicators..."));
  const Fd other = connect_to();
  say(other, "CLIENT PROTOCOL 2\n");
  EXPECT_EQ(hear(other, "\n"), "SERVER PROTOCOL 2\n");
  say(other, "TIMEOUT 1\nSTATUS\n");
  EXPECT_THAT(hear(other), HasSubstr("RUNNING  INCOMPLETE"));
  processes_[0].kill(SIGUSR1);
  EXPECT_EQ(processes_[0].wait(), 0) << processes_[0].output();
}

TEST_F(RasOfOneOfTwo, TheTimeoutOfAClientIsNotMultiplied) {
  const json report = json::parse(ask("SET FORMAT json\nTIMEOUT 1\nSTATUS\n").substr(6));
  EXPECT_EQ(report.at("ras").at("timeouts_count"), 1);
  EXPECT_LT(report.at("ras").at("collection_time_sec"), 8.0);
}

}  // namespace
}  // namespace niccolite::test
