// Network: machines that are network namespaces of this one, joined by bridges: a bridge and an
// interface of each machine for each rail. Processes that run in them reach each other by these
// wires alone. All of it goes with the object and the processes. Needs root, or a kernel that lets
// users have namespaces, and ip(8).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"

namespace niccolite::test {

class Network {
 public:
  struct Options {
    int machines = 2;
    int rails = 1;
    bool is_ipv6 = false;
  };
  /// Null where this kernel, or this user, cannot have it: `reason` says why.
  static std::unique_ptr<Network> create(const Options& options, std::string& reason);

  /// For setns(2): of a machine.
  int machine(int number) const { return machines_[static_cast<size_t>(number)].get(); }
  const Options& options() const { return options_; }
  std::string address(int machine, int rail = 0) const;

  struct Traffic {
    uint64_t sent = 0;  // bytes by the machine, with all headers of Ethernet, IP and TCP
    uint64_t received = 0;
  };
  Traffic traffic(int machine, int rail = 0) const;

  /// Has some interface of the machine, beside lo, a carrier?
  bool is_running(int machine) const;

  /// The ports that its system gives out. False where it cannot be told so.
  bool limit_ports(int machine, int first, int last) const;

  /// Runs the lines as commands of ip(8) inside a machine, or between them (-1). False and what ip
  /// said in `reason` when one fails.
  bool configure(int machine, const std::string& lines, std::string& reason) const;

  /// Has what leaves the machine by the rail go through a discipline of tc(8), as "netem delay 2ms
  /// loss 1%". False and what tc said in `reason` where the kernel has none such: netem, many have
  /// not.
  bool shape(int machine, int rail, const std::string& discipline, std::string& reason) const;

 private:
  explicit Network(const Options& options) : options_(options) {}
  bool build(std::string& reason);
  /// The kernel says a moment later that a wire is plugged in.
  void await_carrier(int machine) const;

  const Options options_;
  Fd between_;  // the namespace of the bridges
  std::vector<Fd> machines_;
};

/// Called first in main(): gives the process the right to have namespaces, if it can.
void prepare_for_namespaces();

/// A network, or a skipped test.
#define NETWORK_OR_SKIP(name, ...)                                                     \
  std::string name##_reason;                                                           \
  const std::unique_ptr<Network> name = Network::create({__VA_ARGS__}, name##_reason); \
  if (name == nullptr) GTEST_SKIP() << name##_reason

}  // namespace niccolite::test
