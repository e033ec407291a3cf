// Networks that cannot work, or stop working: every rank ends with an error that names machine,
// interface and remedy, in bounded time.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "tests/multi_process/ranks.h"
#include "tests/namespaces/job.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

// Bounds the wait for ranks that cannot say why they do not come.
const Process::Environment kSoon{{"NICCOLITE_INIT_TIMEOUT", "8"}};

class BadNetwork : public testing::Test {
 protected:
  void ip(int machine, const std::string& line) const {
    std::string said;
    ASSERT_TRUE(network->configure(machine, line + "\n", said)) << said;
  }
  /// What the ranks of two machines say of an init.
  std::vector<std::string> begin(const std::vector<Process::Environment>& of_machine,
                                 const Process::Environment& environment = {}) const {
    std::vector<Process> running =
        start(*network, {.role = "begin", .environment = environment, .of_machine = of_machine});
    std::vector<std::string> said;
    for (Process& process : running) {
      EXPECT_EQ(process.wait(), 0) << process.output();
      said.push_back(process.output());
    }
    said.resize(2);
    return said;
  }

  std::string reason;
  std::unique_ptr<Network> network;
};
#define MACHINES_OR_SKIP(...)                       \
  network = Network::create({__VA_ARGS__}, reason); \
  if (network == nullptr) GTEST_SKIP() << reason

TEST_F(BadNetwork, NoInterfaceMatches) {
  MACHINES_OR_SKIP(.machines = 2);
  for (const std::string& said : begin({{}, {{"NCCL_SOCKET_IFNAME", "ib"}}}))
    EXPECT_THAT(said, AllOf(HasSubstr("ENDED 5"), HasSubstr("rank 1"),
                            HasSubstr("NCCL_SOCKET_IFNAME 'ib'"), HasSubstr("eth0 (10.77.1.2)")));
}

TEST_F(BadNetwork, NoAddressOfTheFamily) {
  MACHINES_OR_SKIP(.machines = 2);
  Process process("begin", {"-", "-", "2", "0"},
                  {{"NCCL_SOCKET_FAMILY", "AF_INET6"}, {"NCCL_SOCKET_IFNAME", "=lo"}},
                  network->machine(0));
  EXPECT_NE(process.wait(), 0);
  EXPECT_THAT(process.output(),
              AllOf(HasSubstr("NCCL_SOCKET_FAMILY 'AF_INET6'"), HasSubstr("eth0 (10.77.1.1)")));
}

TEST_F(BadNetwork, InterfacesDoNotReachEachOther) {
  MACHINES_OR_SKIP(.machines = 2, .rails = 2);
  ip(0, "link set eth1 down");
  for (const std::string& said :
       begin({{{"NCCL_SOCKET_IFNAME", "eth0"}}, {{"NCCL_SOCKET_IFNAME", "eth1"}}}))
    EXPECT_THAT(said, AllOf(HasSubstr("ENDED 6"), HasSubstr("from 10.77.1.1 to 10.77.2.2 port"),
                            HasSubstr("unreachable"), HasSubstr("NCCL_SOCKET_IFNAME")));
}

TEST_F(BadNetwork, PacketsToAPortVanish) {
  MACHINES_OR_SKIP(.machines = 2, .rails = 2);
  ip(1, "route add blackhole 10.77.2.1/32");  // the answers
  for (const std::string& said :
       begin({{{"NCCL_SOCKET_IFNAME", "eth0"}}, {{"NCCL_SOCKET_IFNAME", "eth1"}}}))
    EXPECT_THAT(said, AllOf(HasSubstr("ENDED 6"), HasSubstr("from 10.77.1.1 to 10.77.2.2 port"),
                            HasSubstr("no connection within 5 s"), HasSubstr("firewall")));
}

class BadRoot : public BadNetwork, public testing::WithParamInterface<std::string> {};

// The root's machine has no means to hear why rank 1 does not come.
TEST_P(BadRoot, IsNamedWithItsAddress) {
  MACHINES_OR_SKIP(.machines = 2);
  if (GetParam() == "drop")
    ip(0, "route add blackhole 10.77.1.2/32");  // the answers
  else
    ip(1, "route add " + GetParam() + " 10.77.1.1/32");
  const std::vector<std::string> said = begin({}, kSoon);
  EXPECT_THAT(said[0], AllOf(HasSubstr("ENDED 6"), HasSubstr("heard nothing from rank 1"),
                             HasSubstr("can they reach 10.77.1.1 port")));
  EXPECT_THAT(said[1], AllOf(HasSubstr("ENDED 6"), HasSubstr("could not reach the root"),
                             HasSubstr("10.77.1.1 port"), HasSubstr("NCCL_SOCKET_IFNAME"),
                             HasSubstr(GetParam() == "drop"          ? "no connection within 5 s"
                                       : GetParam() == "unreachable" ? "No route to host"
                                                                     : "Permission denied")));
}

INSTANTIATE_TEST_SUITE_P(, BadRoot, testing::Values("drop", "unreachable", "prohibit"),
                         [](const auto& how) { return how.param; });

TEST_F(BadNetwork, TheNameOfTheRootDoesNotResolve) {
  MACHINES_OR_SKIP(.machines = 2);
  Process process("begin", {"-", "-", "2", "0"}, {{"NCCL_COMM_ID", "no-such-host.invalid:4000"}},
                  network->machine(0));
  EXPECT_NE(process.wait(), 0);
  EXPECT_THAT(process.output(), AllOf(HasSubstr("NCCL_COMM_ID"),
                                      HasSubstr("the name no-such-host.invalid does not "
                                                "resolve on this host"),
                                      HasSubstr("/etc/hosts")));
}

TEST_F(BadNetwork, AnIdThatIsMadeWithoutACarrierSaysSo) {
  MACHINES_OR_SKIP(.machines = 2);
  ip(-1, "link set m0r0 down");
  for (int left = 500; left > 0 && network->is_running(0); --left) usleep(10'000);
  const std::vector<std::string> said = begin({}, kSoon);
  EXPECT_THAT(said[0], AllOf(HasSubstr("NCCL WARN the unique id holds 127.0.0.1"),
                             HasSubstr("eth0 (10.77.1.1, down) has no carrier"),
                             HasSubstr("heard nothing from rank 1")));
  EXPECT_THAT(said[1], AllOf(HasSubstr("ENDED 6"), HasSubstr("nobody listens at 127.0.0.1 port"),
                             HasSubstr("make the id once its network is up")));
}

// In a time namespace whose clocks are a day ahead, where `ahead` is 1: ... count times ahead
ROLE(reduce_at_another_time) {
  if (arguments[7] == "0") return roles().at("reduce_often")(arguments);
  constexpr char kOffsets[] = "monotonic 86400 0\nboottime 86400 0\n";
  const int file =
      unshare(CLONE_NEWTIME) == 0 ? open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC) : -1;
  if (file < 0 || write(file, kOffsets, sizeof kOffsets - 1) < 0) std::printf("NO TIME\n");
  close(file);
  const pid_t child = fork();  // which is in it
  if (child == 0) std::exit(roles().at("reduce_often")(arguments));
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

TEST_F(BadNetwork, ClocksThatDifferDoNoHarm) {
  MACHINES_OR_SKIP(.machines = 2);
  std::string one = "-";
  std::vector<Process> running;
  for (const int machine : {0, 1}) {
    running.emplace_back("reduce_at_another_time",
                         Arguments{one, one, "2", std::to_string(machine), "1", "1000", "3",
                                   std::to_string(machine)},
                         Process::Environment{{"NICCOLITE_DEVICES", "virtual:2"},
                                              {"NCCL_HOSTID", "machine" + std::to_string(machine)}},
                         network->machine(machine));
    if (machine > 0) break;
    ASSERT_TRUE(running[0].wait_for_line("IDS")) << running[0].output();
    const size_t at = running[0].output().find("ONE ") + 4;
    one = running[0].output().substr(at, running[0].output().find('\n', at) - at);
  }
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    if (process.output().find("NO TIME") != std::string::npos)
      GTEST_SKIP() << "this kernel, or this user, has no time namespaces";
  }
}

// ---- in the middle

class LostNetwork : public BadNetwork {
 protected:
  /// Ranks that compute until something happens, which `harm` does.
  std::vector<std::string> reduce_until(const std::function<void()>& harm) {
    std::vector<Process> running =
        start(*network, {.role = "reduce_and_tell",
                         .rest = {"100000", "1000000"},
                         .environment = {{"NICCOLITE_NET_TIMEOUT", "3"}, {"NCCL_DEBUG", "WARN"}}});
    EXPECT_TRUE(running[0].wait_for_line("ROUND 5")) << running[0].output();
    harm();
    std::vector<std::string> said;
    for (Process& process : running) {
      EXPECT_EQ(process.wait(seconds(30)), 16) << process.output();  // 10 + ncclRemoteError
      said.push_back(process.output().substr(process.output().rfind("ROUND")));
    }
    said.resize(2);
    return said;
  }
};

TEST_F(LostNetwork, AnInterfaceThatGoesDownIsNamed) {
  MACHINES_OR_SKIP(.machines = 2);
  const std::vector<std::string> said = reduce_until([&] { ip(1, "link set eth0 down"); });
  EXPECT_THAT(said[0], AllOf(HasSubstr("rank 1"), HasSubstr("10.77.1.2")));
  EXPECT_THAT(said[1],
              AllOf(HasSubstr("rank 0"), HasSubstr("10.77.1.1"), HasSubstr("eth0 is down")));
}

TEST_F(LostNetwork, APeerThatGoesSilentIsNamed) {
  MACHINES_OR_SKIP(.machines = 2);
  const std::vector<std::string> said = reduce_until([&] { ip(-1, "link set m1r0 nomaster"); });
  for (const int machine : {0, 1})
    EXPECT_THAT(said[static_cast<size_t>(machine)],
                AllOf(HasSubstr("rank " + std::to_string(1 - machine)),
                      HasSubstr("cannot be reached any more: nothing has come from it for 3 s"),
                      HasSubstr("10.77.1." + std::to_string(2 - machine))));
}

}  // namespace
}  // namespace niccolite::test
