// `niccolite perf --hosts` over several machines. The remote shell is a script that enters the
// network of its host, "m0", "m1", ..., which also has devices and an identity of its own.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/command.h"
#include "tests/namespaces/network.h"

namespace niccolite::test {
namespace {

using niccolite::testing::Outcome;
using niccolite::testing::run_command;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// The remote shell, while it exists.
class Shell {
 public:
  /// `devices`: of each machine.
  Shell(const Network& network, int devices)
      : path_(::testing::TempDir() + "/remote_shell_" + std::to_string(getpid())) {
    std::ofstream file(path_);
    file << "#!/bin/sh\nhost=$1\nshift\ncase $host in\n";
    for (int machine = 0; machine < network.options().machines; ++machine)
      file << "m" << machine << ") inside=/proc/" << getpid() << "/fd/" << network.machine(machine)
           << ";;\n";
    file << "*) echo \"no such host: $host\" >&2; exit 255;;\nesac\n"
         << "export NCCL_HOSTID=$host NICCOLITE_DEVICES=virtual:" << devices
         << "\n"
         // A process of its own, as sshd's is: it does not end because this script does.
         << "sh -c 'echo $$ >" << path_
         << ".'$host'; exec nsenter --net='$inside' \"$@\"' - \"$@\"\n"
         << "exit $?\n";
    file.close();
    chmod(path_.c_str(), 0700);
  }
  ~Shell() {
    for (const char* end : {"", ".m0", ".m1", ".m2"}) std::remove((path_ + end).c_str());
  }
  const std::string& path() const { return path_; }
  /// Of the process on a host that has been started.
  pid_t process_on(const std::string& host) const {
    std::ifstream file(path_ + "." + host);
    pid_t pid = 0;
    file >> pid;
    return pid;
  }

 private:
  const std::string path_;
};

Outcome perf(const Shell& shell, const std::string& hosts, const std::vector<std::string>& flags,
             const std::map<std::string, std::string>& environment = {}) {
  std::vector<std::string> words = {NICCOLITE_COMMAND, "perf",      "all_reduce", "--hosts", hosts,
                                    "--remote-shell",  shell.path()};
  words.insert(words.end(), flags.begin(), flags.end());
  return run_command(words, environment);
}

TEST(PerfOverHosts, MeasuresAndVerifiesOnAllOfThem) {
  NETWORK_OR_SKIP(network, .machines = 3);
  const Shell shell(*network, 2);
  const Outcome outcome = perf(shell, "m0,m1:1,m2", {"--sizes", "8,100000", "-n", "3"});
  EXPECT_EQ(outcome.status, 0) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("# nProcesses 3"), HasSubstr("#  Rank   4"),
                                    Not(HasSubstr("#  Rank   5")), HasSubstr("100000")));
  EXPECT_EQ(outcome.errors, "");
}

TEST(PerfOverHosts, NamesAHostThatCannotBeReached) {
  NETWORK_OR_SKIP(network, .machines = 2);
  const Shell shell(*network, 1);
  const Outcome outcome = perf(shell, "m0,nowhere", {"--sizes", "8"});
  EXPECT_EQ(outcome.status, 3) << outcome.output;
  EXPECT_THAT(outcome.errors,
              HasSubstr("host nowhere left with status 255: no such host: nowhere"));
}

TEST(PerfOverHosts, SaysThatAnInterfaceIsNotThere) {
  NETWORK_OR_SKIP(network, .machines = 2);
  const Shell shell(*network, 1);
  const Outcome outcome = perf(shell, "m0,m1", {"--sizes", "8"}, {{"NCCL_SOCKET_IFNAME", "=eth7"}});
  EXPECT_EQ(outcome.status, 3) << outcome.output;
  EXPECT_THAT(outcome.errors, AllOf(HasSubstr("host m0: "), HasSubstr("eth7")));
}

TEST(PerfOverHosts, NamesAHostWhoseProcessCannotGoOn) {
  NETWORK_OR_SKIP(network, .machines = 2);
  const Shell shell(*network, 2);
  const Outcome outcome = perf(shell, "m0,m1:4", {"--sizes", "8"});
  EXPECT_EQ(outcome.status, 3) << outcome.output;
  EXPECT_THAT(outcome.errors, HasSubstr("host m1: 4 ranks need 4 GPUs, and this machine has 2"));
}

void await_processes(const Shell& shell) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  while ((shell.process_on("m0") == 0 || shell.process_on("m1") == 0) &&
         std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

/// Runs a long measurement, calls `harm` when all are at work, and waits for its end.
template <typename Harm>
Outcome perf_with_harm(const Shell& shell, Harm harm) {
  Outcome outcome;
  std::thread runner([&] {
    outcome = perf(shell, "m0,m1", {"--sizes", "1000", "-n", "100000000", "-c", "0"});
  });
  await_processes(shell);
  harm();
  runner.join();
  return outcome;
}

bool is_gone(pid_t pid) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (kill(pid, 0) == 0) {
    // One that nobody waits for has ended, too.
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    if (file >> number >> name >> state && state == "Z") return true;
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

TEST(PerfOverHosts, NamesAHostWhoseProcessIsKilled) {
  NETWORK_OR_SKIP(network, .machines = 2);
  const Shell shell(*network, 1);
  const Outcome outcome = perf_with_harm(shell, [&] { kill(shell.process_on("m1"), SIGKILL); });
  EXPECT_EQ(outcome.status, 3) << outcome.output;
  EXPECT_THAT(outcome.errors, HasSubstr("host m1 left with status 137"));
  EXPECT_TRUE(is_gone(shell.process_on("m0")));
}

TEST(PerfOverHosts, LeavesNothingBehindWhereItIsKilledItself) {
  NETWORK_OR_SKIP(network, .machines = 2);
  const Shell shell(*network, 1);
  const pid_t supervisor = fork();
  ASSERT_GE(supervisor, 0);
  if (supervisor == 0) {
    freopen("/dev/null", "w", stdout);
    execl(NICCOLITE_COMMAND, "niccolite", "perf", "all_reduce", "--hosts", "m0,m1",
          "--remote-shell", shell.path().c_str(), "--sizes", "1000", "-n", "100000000", nullptr);
    _exit(127);
  }
  await_processes(shell);
  kill(supervisor, SIGKILL);
  waitpid(supervisor, nullptr, 0);
  for (const char* host : {"m0", "m1"}) EXPECT_TRUE(is_gone(shell.process_on(host))) << host;
}

}  // namespace
}  // namespace niccolite::test
