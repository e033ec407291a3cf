// Job: a process on each machine of a network, that plays a role as some ranks of a communicator.
// The role's arguments: "id id nranks first count ..."; where an id is "-" (on the first machine)
// LocalIds makes it and says so.
#pragma once

#include <nccl.h>

#include <string>
#include <vector>

#include "tests/multi_process/process.h"
#include "tests/namespaces/network.h"

namespace niccolite::test {

/// In a role: the ids of its first two arguments.
struct LocalIds {
  explicit LocalIds(const Arguments& arguments);
  ncclUniqueId one;
  ncclUniqueId two;
};

struct Job {
  std::string role;
  int devices = 1;           // of each machine
  int machines = 0;          // the first of the network; 0: all
  bool deals_ranks = false;  // in turns, rank i to machine i mod machines; else a block to each
  Arguments rest{};          // behind the five
  Process::Environment environment{};
  std::vector<Process::Environment> of_machine{};  // of each, besides
};

#ifdef NICCOLITE_VVERBS
/// Returns the environment of a process with virtual NICs ("2": of so many ports), which logs its
/// networks. `others` come first.
Process::Environment with_nics(const std::string& nics, Process::Environment others = {});
#endif

/// Starts all processes, the first one first.
std::vector<Process> start(const Network& network, const Job& job);

}  // namespace niccolite::test
