#include "tests/namespaces/job.h"

#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

std::string after(const std::string& output, const std::string& word) {
  const size_t at = output.find(word);
  if (at == std::string::npos) return "";
  const size_t begin = at + word.size();
  return output.substr(begin, output.find('\n', begin) - begin);
}

}  // namespace

LocalIds::LocalIds(const Arguments& arguments) {
  if (arguments[0] != "-") {
    one = to_id(arguments[0]);
    two = to_id(arguments[1]);
    return;
  }
  REQUIRE_NCCL(ncclGetUniqueId(&one));
  REQUIRE_NCCL(ncclGetUniqueId(&two));
  std::printf("ONE %s\nTWO %s\nIDS\n", to_text(one).c_str(), to_text(two).c_str());
}

#ifdef NICCOLITE_VVERBS
Process::Environment with_nics(const std::string& nics, Process::Environment others) {
  others.insert({{"LD_LIBRARY_PATH", NICCOLITE_VVERBS},
                 {"NICCOLITE_NICS", "virtual:" + nics},
                 {"NCCL_DEBUG", "INFO"},
                 {"NCCL_DEBUG_SUBSYS", "INIT,NET"}});
  return others;
}
#endif

std::vector<Process> start(const Network& network, const Job& job) {
  const int machines = job.machines > 0 ? job.machines : network.options().machines;
  const std::string nranks = std::to_string(machines * job.devices);
  std::string one = "-", two = "-";
  std::vector<Process> processes;
  for (int machine = 0; machine < machines; ++machine) {
    const int first = job.deals_ranks ? machine : machine * job.devices;
    Arguments arguments{one, two, nranks, std::to_string(first), std::to_string(job.devices)};
    arguments.insert(arguments.end(), job.rest.begin(), job.rest.end());
    Process::Environment environment = job.environment;
    environment.emplace("NICCOLITE_DEVICES", "virtual:" + nranks);
    environment.emplace("NCCL_HOSTID", "machine" + std::to_string(machine));
    if (!job.of_machine.empty())
      for (const auto& [name, value] : job.of_machine[static_cast<size_t>(machine)])
        environment[name] = value;
    processes.emplace_back(job.role, arguments, environment, network.machine(machine));
    if (machine > 0) continue;
    // Without ids, the first one says why, and the others would wait for nobody.
    if (!processes[0].wait_for_line("IDS")) break;
    one = after(processes[0].output(), "ONE ");
    two = after(processes[0].output(), "TWO ");
  }
  return processes;
}

}  // namespace niccolite::test
