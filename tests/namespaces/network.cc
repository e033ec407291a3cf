#include "tests/namespaces/network.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

namespace niccolite::test {
namespace {

// A new network namespace; this thread's stays.
Fd make_namespace(std::string& reason) {
  Fd made;
  std::thread([&] {
    if (unshare(CLONE_NEWNET) != 0) {
      reason = std::string("this kernel, or this user, has no network namespaces (unshare: ") +
               std::strerror(errno) + ")";
      return;
    }
    made = Fd(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  }).join();
  return made;
}

void write_file(const char* path, const std::string& text) {
  const Fd file(open(path, O_WRONLY | O_CLOEXEC));
  // Without it the next step fails, and says why.
  if (write(file.get(), text.data(), text.size()) < 0) return;
}

}  // namespace

void prepare_for_namespaces() {
  if (geteuid() == 0) return;
  const std::string user = std::to_string(geteuid()), group = std::to_string(getegid());
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return;
  write_file("/proc/self/setgroups", "deny");
  write_file("/proc/self/uid_map", "0 " + user + " 1");
  write_file("/proc/self/gid_map", "0 " + group + " 1");
}

std::unique_ptr<Network> Network::create(const Options& options, std::string& reason) {
  std::unique_ptr<Network> network(new Network(options));
  if (!network->build(reason)) return nullptr;
  return network;
}

std::string Network::address(int machine, int rail) const {
  const std::string host = std::to_string(machine + 1), net = std::to_string(rail + 1);
  return options_.is_ipv6 ? "fd00:" + net + "::" + host : "10.77." + net + "." + host;
}

bool Network::build(std::string& reason) {
  between_ = make_namespace(reason);
  if (!between_.valid()) return false;
  std::string lines = "link set lo up\n";
  for (int rail = 0; rail < options_.rails; ++rail) {
    const std::string bridge = "br" + std::to_string(rail);
    lines += "link add " + bridge + " type bridge\nlink set " + bridge + " up\n";
  }
  for (int number = 0; number < options_.machines; ++number) {
    machines_.push_back(make_namespace(reason));
    if (!machines_.back().valid()) return false;
    const std::string inside =
        "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(machines_.back().get());
    for (int rail = 0; rail < options_.rails; ++rail) {
      const std::string wire = "m" + std::to_string(number) + "r" + std::to_string(rail);
      lines += "link add " + wire + " type veth peer name eth" + std::to_string(rail) + " netns " +
               inside + "\nlink set " + wire + " master br" + std::to_string(rail) + "\nlink set " +
               wire + " up\n";
    }
  }
  if (!configure(-1, lines, reason)) return false;
  for (int number = 0; number < options_.machines; ++number) {
    lines = "link set lo up\n";
    for (int rail = 0; rail < options_.rails; ++rail) {
      const std::string name = "eth" + std::to_string(rail);
      lines += "addr add " + address(number, rail) + (options_.is_ipv6 ? "/64" : "/24") + " dev " +
               name + (options_.is_ipv6 ? " nodad" : "") + "\nlink set " + name + " up\n";
    }
    if (!configure(number, lines, reason)) return false;
  }
  for (int number = 0; number < options_.machines; ++number) await_carrier(number);
  return true;
}

bool Network::limit_ports(int machine, int first, int last) const {
  bool is_done = false;
  std::thread([&] {
    if (setns(this->machine(machine), CLONE_NEWNET) != 0) return;
    std::ofstream file("/proc/sys/net/ipv4/ip_local_port_range");
    file << first << " " << last << std::endl;
    is_done = file.good();
  }).join();
  return is_done;
}

bool Network::is_running(int machine) const {
  bool is_running = false;
  std::thread([&] {
    ifaddrs* list = nullptr;
    if (setns(this->machine(machine), CLONE_NEWNET) != 0 || getifaddrs(&list) != 0) return;
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next)
      is_running |= (entry->ifa_flags & (IFF_RUNNING | IFF_LOOPBACK)) == IFF_RUNNING;
    freeifaddrs(list);
  }).join();
  return is_running;
}

void Network::await_carrier(int machine) const {
  std::thread([&] {
    if (setns(this->machine(machine), CLONE_NEWNET) != 0) return;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < limit) {
      ifaddrs* list = nullptr;
      if (getifaddrs(&list) != 0) return;
      int running = 0;
      const int family = options_.is_ipv6 ? AF_INET6 : AF_INET;
      for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
        const bool has_address =
            entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == family &&
            (family == AF_INET ||
             !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr));
        if (has_address && (entry->ifa_flags & IFF_RUNNING) != 0 &&
            std::strncmp(entry->ifa_name, "eth", 3) == 0)
          ++running;
      }
      freeifaddrs(list);
      if (running >= options_.rails) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }).join();
}

namespace {

/// Runs the lines as commands of ip(8) or tc(8) in a namespace. False and what it said in `reason`
/// when one fails.
bool run_lines(int inside, const char* program, const std::string& lines, std::string& reason) {
  const std::string path = std::string("/usr/sbin/") + program;
  int input[2], output[2];
  if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0) std::abort();
  const pid_t child = fork();
  if (child < 0) std::abort();
  if (child == 0) {
    // Only calls that are safe after fork in a program with threads.
    dup2(input[0], STDIN_FILENO);
    dup2(output[1], STDOUT_FILENO);
    dup2(output[1], STDERR_FILENO);
    if (setns(inside, CLONE_NEWNET) != 0) _exit(126);
    execlp(program, program, "-batch", "-", static_cast<char*>(nullptr));
    execl(path.c_str(), program, "-batch", "-", static_cast<char*>(nullptr));
    _exit(127);
  }
  close(input[0]);
  close(output[1]);
  const ssize_t written = write(input[1], lines.data(), lines.size());
  close(input[1]);
  std::string said;
  char bytes[512];
  for (ssize_t got = 0; (got = read(output[0], bytes, sizeof bytes)) > 0;)
    said.append(bytes, static_cast<size_t>(got));
  close(output[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (status == 0 && written == static_cast<ssize_t>(lines.size())) return true;
  const bool is_missing = WIFEXITED(status) && WEXITSTATUS(status) == 127;
  reason = program + (is_missing ? "(8) is not installed (iproute2)" : "(8) cannot do it: " + said);
  return false;
}

}  // namespace

bool Network::configure(int machine, const std::string& lines, std::string& reason) const {
  return run_lines(machine < 0 ? between_.get() : this->machine(machine), "ip", lines, reason);
}

bool Network::shape(int machine, int rail, const std::string& discipline,
                    std::string& reason) const {
  return run_lines(this->machine(machine), "tc",
                   "qdisc add dev eth" + std::to_string(rail) + " root " + discipline + "\n",
                   reason);
}

Network::Traffic Network::traffic(int machine, int rail) const {
  const std::string wire = "m" + std::to_string(machine) + "r" + std::to_string(rail) + ":";
  Traffic traffic;
  std::thread([&] {
    if (setns(between_.get(), CLONE_NEWNET) != 0) return;
    std::ifstream file("/proc/thread-self/net/dev");
    for (std::string line; std::getline(file, line);) {
      std::istringstream fields(line);
      std::string name;
      uint64_t ignored = 0;
      if (!(fields >> name) || name != wire) continue;
      // What comes out of the wire here is what the machine has sent.
      fields >> traffic.sent;
      for (int i = 0; i < 7; ++i) fields >> ignored;
      fields >> traffic.received;
    }
  }).join();
  return traffic;
}

}  // namespace niccolite::test
