#include "cli/perf/launch.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace niccolite::perf {
namespace {

using Variable = std::function<const char*(const char*)>;

constexpr int kPort = 29519;  // where nothing says another one

struct Names {
  const char* launcher;
  const char* process;
  const char* processes;
  const char* local;
};
constexpr Names kLaunchers[] = {
    {"mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
    {"mpirun of MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
};

std::optional<int> parse(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Result<int> number(const Variable& variable, const char* name, int otherwise) {
  const char* const text = variable(name);
  if (text == nullptr) return otherwise;
  const std::optional<int> value = parse(text);
  if (value.has_value()) return *value;
  return Status::invalid_usage("{}={} is no number", name, text);
}

// The script of a batch job has the variables of a step, but is none.
bool is_batch_script(const Names& names, const Variable& variable) {
  return std::strcmp(names.launcher, "srun") == 0 && variable("SLURM_JOB_ID") != nullptr &&
         variable("SLURM_STEP_ID") == nullptr;
}

// Where process 0 is, if something says it.
std::string host_of_process_0(const Names& names, const Variable& variable) {
  if (const char* const address = variable("MASTER_ADDR")) return address;
  if (std::strcmp(names.launcher, "srun") == 0)
    for (const char* const list : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
      if (const char* const hosts = variable(list)) return first_host(hosts);
  const char* const all = variable(names.processes);
  const char* const here = variable("OMPI_COMM_WORLD_LOCAL_SIZE");
  const bool is_one_machine = all != nullptr && here != nullptr && std::strcmp(all, here) == 0;
  return is_one_machine ? "127.0.0.1" : "";
}

// torchrun itself listens at MASTER_PORT; jobs of Slurm on one machine get ports of their own.
Result<int> port(const Variable& variable) {
  if (variable("MASTER_PORT") != nullptr) {
    const int given = TRY(number(variable, "MASTER_PORT", kPort));
    return variable("TORCHELASTIC_RUN_ID") != nullptr ? given + 1 : given;
  }
  const int job = TRY(number(variable, "SLURM_JOB_ID", 0));
  return job == 0 ? kPort : 20000 + job % 10000;
}

}  // namespace

std::vector<std::string> launcher_variables() {
  std::vector<std::string> variables;
  for (const Names& names : kLaunchers)
    for (const char* const name : {names.process, names.processes, names.local})
      if (std::ranges::find(variables, name) == variables.end()) variables.emplace_back(name);
  return variables;
}

std::string first_host(const std::string& list) {
  std::string first = list.substr(0, list.find_first_of(",["));
  if (first.size() == list.size() || list[first.size()] == ',') return first;
  const size_t begin = first.size() + 1;
  return first + list.substr(begin, list.find_first_of(",-]", begin) - begin);
}

Result<std::optional<Launch>> find_launch(const Variable& variable) {
  for (const Names& names : kLaunchers) {
    if (variable(names.process) == nullptr || variable(names.processes) == nullptr) continue;
    if (is_batch_script(names, variable)) continue;
    Launch launch{.process = TRY(number(variable, names.process, 0)),
                  .processes = TRY(number(variable, names.processes, 1)),
                  .local_process = TRY(number(variable, names.local, 0)),
                  .meeting = {},
                  .launcher = names.launcher};
    if (launch.processes == 1) return std::optional<Launch>();
    if (launch.process < 0 || launch.process >= launch.processes || launch.local_process < 0)
      return Status::invalid_usage("{}={} and {}={} contradict each other", names.process,
                                   launch.process, names.processes, launch.processes);
    const std::string host = host_of_process_0(names, variable);
    if (host.empty())
      return Status::invalid_usage(
          "{} has started {} processes, and nothing says where the first one is: set MASTER_ADDR "
          "to its host on all of them (mpirun -x MASTER_ADDR=a12), and MASTER_PORT if {} is taken "
          "there",
          launch.launcher, launch.processes, kPort);
    const bool is_ipv6 = std::ranges::count(host, ':') > 1 && host.front() != '[';
    launch.meeting =
        fmt::format(fmt::runtime(is_ipv6 ? "[{}]:{}" : "{}:{}"), host, TRY(port(variable)));
    return std::optional(std::move(launch));
  }
  return std::optional<Launch>();
}

}  // namespace niccolite::perf
