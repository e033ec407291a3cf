// A machine that has no part in a job scans the ports of those that have, while their ranks meet.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/multi_process/ranks.h"
#include "tests/namespaces/job.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

constexpr int kFirst = 40'000, kLast = 40'999;  // all that the machines of the job have

// Of the ports that listen some get garbage, some silence, some the end of the connection at once.
void scan(const std::string& host, std::vector<int>& kept, int& found) {
  constexpr int kAtOnce = 250;
  constexpr size_t kMostKept = 300;
  for (int base = kFirst; base <= kLast; base += kAtOnce) {
    std::vector<pollfd> dialed;
    for (int port = base; port < base + kAtOnce && port <= kLast; ++port) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(static_cast<uint16_t>(port));
      inet_pton(AF_INET, host.c_str(), &to.sin_addr);
      connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to);
      dialed.push_back({fd, POLLOUT, 0});
    }
    poll(dialed.data(), dialed.size(), 20);
    for (const pollfd& one : dialed) {
      int error = 0;
      socklen_t length = sizeof error;
      getsockopt(one.fd, SOL_SOCKET, SO_ERROR, &error, &length);
      if ((one.revents & POLLOUT) == 0 || error != 0) {
        close(one.fd);
        continue;
      }
      ++found;
      const std::string garbage(found % 3 == 0 ? 5 : 500, static_cast<char>(found));
      if (found % 3 != 1) send(one.fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
      if (found % 4 == 0)
        close(one.fd);
      else
        kept.push_back(one.fd);
    }
    while (kept.size() > kMostKept) {
      close(kept.front());
      kept.erase(kept.begin());
    }
  }
}

// host ...: until it is killed; says once that it has found somebody.
ROLE(scanner) {
  std::vector<int> kept;
  int found = 0;
  bool has_said = false;
  std::printf("SCANNING\n");
  std::fflush(stdout);
  while (true) {
    for (const std::string& host : arguments) scan(host, kept, found);
    if (found > 0 && !has_said) {
      std::printf("FOUND\n");
      std::fflush(stdout);
      has_said = true;
    }
  }
}

// ... times: communicators, one after the other, each of which computes.
ROLE(begin_often) {
  const LocalIds ids(arguments);
  const int nranks = std::stoi(arguments[2]), first = std::stoi(arguments[3]);
  LocalRanks whole(ids.one, nranks, first, std::stoi(arguments[4]));
  bool is_right = whole.all_reduce(1000);
  for (int i = 0; i < std::stoi(arguments[5]); ++i) {
    ncclComm_t half = nullptr;
    REQUIRE_NCCL(ncclCommSplit(whole.comms[0], 0, first, &half, nullptr));
    REQUIRE_NCCL(ncclCommDestroy(half));
    is_right &= whole.all_reduce(100'000);
  }
  whole.destroy();
  return is_right ? 0 : 1;
}

TEST(PortScanner, CostsAJobNothing) {
  NETWORK_OR_SKIP(network, .machines = 3);
  for (const int machine : {0, 1})
    if (!network->limit_ports(machine, kFirst, kLast))
      GTEST_SKIP() << "ip_local_port_range of a namespace cannot be written";
  Process scanner("scanner", {"10.77.1.1", "10.77.1.2"}, {}, network->machine(2));
  ASSERT_TRUE(scanner.wait_for_line("SCANNING")) << scanner.output();
  for (int round = 0; round < 3; ++round) {
    std::vector<Process> running =
        start(*network, {.role = "begin_often", .machines = 2, .rest = {"20"}});
    for (Process& process : running) {
      EXPECT_EQ(process.wait(seconds(120)), 0) << process.output();
      EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
    }
  }
  EXPECT_TRUE(scanner.wait_for_line("FOUND")) << scanner.output();
}

}  // namespace
}  // namespace niccolite::test
