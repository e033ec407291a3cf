#include "cli/explain/command.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/parameters.h"
#include "cli/grammar/collective.h"
#include "cli/grammar/exit_code.h"
#include "cli/grammar/machines.h"
#include "cli/grammar/names.h"
#include "cli/grammar/numbers.h"
#include "cli/grammar/options.h"
#include "cli/perf/element.h"
#include "gpu/machine.h"
#include "planner/explain.h"
#include "planner/prices/price.h"
#include "planner/variables.h"
#include "topology/rings.h"
#include "topology/xml.h"

namespace niccolite::explain_command {
namespace {

using grammar::kExitFine;
using grammar::kExitUsage;
using planner::Alternative;
using planner::Explanation;
using planner::Settings;
using schedule::Collective;

constexpr const char* kFooter =
    R"(Prints each algorithm by each protocol, with the channels (CTAs) and the chunk that suit it best: what the cost model
predicts, and why it is not taken. NCCL_ALGO, NCCL_PROTO, NCCL_MIN_CTAS, NCCL_NVLS_ENABLE and the others that choices depend on
count as they do for programs. The operation is one by itself, not one of a group. Sizes are those of the larger buffer, as in
niccolite perf.
NCCL_COLLNET_ENABLE=1: the network reduces all types, as fast as it carries bytes.

Machines: cuda (ranks reach each other's buffers), cuda-slots (they do not, as those of several processes whose buffers are
not mapped), cuda-host-memory (host memory connects them), cuda-sockets (they are on several machines), virtual and
virtual-sockets. Nothing is run, so that no GPU is needed. With a topology file the rings are those that its machines get
(niccolite topology draws them); else there is one, in the order of ranks.

Examples:
  niccolite explain all_reduce -b 8M -g 4
  niccolite explain all_gather -b 64K -g 2 -m cuda
  niccolite explain all_reduce -b 64M --machines 2x4
  niccolite explain all_reduce -b 64M --topology job.xml     as NCCL_TOPO_DUMP_FILE has described a job
  NCCL_NVLS_ENABLE=1 niccolite explain all_reduce -b 512M -g 8 -m cuda     with the switch's help
  NCCL_COLLNET_ENABLE=1 niccolite explain all_reduce -b 64M --machines 4x8
  NCCL_ALGO=ring niccolite explain broadcast -b 1G -g 8 -m cuda-slots --json

Exit status: 0 fine; 2 wrong usage, or the variables leave nothing to choose.)";

struct NamedMachine {
  const char* name;
  gpu::Kind kind;
  bool reaches_users = false;
  bool shares_host = false;
  bool spans_machines = false;
};
constexpr NamedMachine kKinds[] = {
    {.name = "cuda", .kind = gpu::Kind::Cuda, .reaches_users = true},
    {.name = "cuda-slots", .kind = gpu::Kind::Cuda},
    {.name = "cuda-host-memory", .kind = gpu::Kind::Cuda, .shares_host = true},
    {.name = "cuda-sockets", .kind = gpu::Kind::Cuda, .spans_machines = true},
    {.name = "virtual", .kind = gpu::Kind::Virtual, .reaches_users = true},
    {.name = "virtual-sockets", .kind = gpu::Kind::Virtual, .spans_machines = true}};

/// The question of a command line, in the planner's terms.
struct Question {
  const NamedMachine* machine = nullptr;
  Settings settings;
  Collective collective = Collective::AllReduce;
  size_t buffer_bytes = 0;  // of the larger buffer, whole elements
  size_t bytes = 0;         // planner::Workload::bytes
  std::string type;
};

int fail(const Status& status) {
  fmt::print(stderr, "niccolite explain: {}\n", status.message());
  return kExitUsage;
}

Result<const NamedMachine*> find_machine(const std::string& name) {
  for (const NamedMachine& machine : kKinds)
    if (grammar::letters_of(name) == grammar::letters_of(machine.name)) return &machine;
  return grammar::unknown_name("--machine", name, names_of_machines());
}

/// The ranks of a job in a topology file.
struct Placement {
  std::vector<int> machines;
  std::vector<std::vector<int>> rings;
};

Result<Placement> read_placement(const std::string& file) {
  topology::Description description = TRY(topology::load_xml(file));
  const topology::Graph graph = TRY(topology::Graph::make(std::move(description)));
  Placement placement{.machines = {}, .rings = topology::rings(graph)};
  for (const int gpu : graph.gpus()) {
    const topology::Node& node = graph.nodes()[static_cast<size_t>(gpu)];
    if (node.gpu->rank < 0) continue;
    if (node.gpu->rank != static_cast<int>(placement.machines.size()))
      return Status::invalid_argument(
          "--topology: {} has no GPU of rank {}, though one of rank {}: NCCL_TOPO_DUMP_FILE writes "
          "those of all ranks",
          file, placement.machines.size(), node.gpu->rank);
    placement.machines.push_back(node.host);
  }
  return placement;
}

/// This machine, whose GPUs are looked for only where the flags leave something open.
Result<Question> question_of(const Options& options) {
  Question question;
  question.collective = TRY(grammar::parse_collective("", options.collective));
  std::string machine = options.machine;
  std::string gpu = options.gpu;
  int ranks = options.ranks;
  std::vector<int> machines;
  if (!options.machines.empty()) {
    machines = TRY(grammar::parse_machines(options.machines));
    ranks = static_cast<int>(machines.size());
  }
  Placement placement;
  if (!options.topology.empty()) {
    placement = TRY(read_placement(options.topology));
    machines = placement.machines;
    ranks = static_cast<int>(machines.size());
  }
  if (machine.empty() || ranks == 0) {
    Result<gpu::Machine*> found = gpu::machine();
    if (!found.is_ok()) return std::move(found).status().with_context("give --machine and --ranks");
    gpu::Machine* const here = *found;
    if (machine.empty()) machine = here->kind() == gpu::Kind::Cuda ? "cuda" : "virtual";
    if (ranks == 0) ranks = here->device_count();
    if (gpu.empty() && here->device_count() > 0) gpu = TRY(here->device_info(0)).name;
  }
  const bool are_several = std::ranges::any_of(machines, [](int number) { return number > 0; });
  if (are_several && !machine.ends_with("-sockets"))
    machine = machine.starts_with("virtual") ? "virtual-sockets" : "cuda-sockets";
  question.machine = TRY(find_machine(machine));
  if (!are_several && !machines.empty() && question.machine->spans_machines)
    return Status::invalid_argument(
        "{} is one machine, and --machine {} is several",
        options.topology.empty() ? "--machines " + options.machines : options.topology, machine);
  if (ranks < 2)
    return Status::invalid_argument("--ranks: of {} rank{} there is nothing to choose", ranks,
                                    ranks == 1 ? "" : "s");

  const perf::ElementType* const type = perf::find_type(options.type);
  if (type == nullptr) {
    std::vector<std::string> known;
    for (const perf::ElementType& each : perf::element_types()) known.emplace_back(each.name);
    return grammar::unknown_name("--datatype", options.type, known);
  }
  question.type = type->name;
  const size_t bytes = TRY(grammar::parse_size("--bytes", options.bytes));
  const size_t blocks =
      schedule::has_blocks_of_ranks(question.collective) ? static_cast<size_t>(ranks) : 1;
  question.bytes = bytes / blocks / type->bytes * type->bytes;
  question.buffer_bytes = question.bytes * blocks;
  if (question.bytes == 0)
    return Status::invalid_argument("--bytes: {} are less than an element for each rank", bytes);

  question.settings = TRY(planner::make_settings(question.machine->kind, ranks, {}));
  question.settings.gpu = gpu;
  question.settings.type = static_cast<executor::DataType>(type->id);
  planner::set_reach(question.settings, question.machine->reaches_users);
  planner::set_shares_host(question.settings, question.machine->shares_host);
  if (question.machine->shares_host) TRY(planner::forbid_ll128(question.settings));
  if (question.machine->spans_machines) planner::span_machines(question.settings, machines);
  if (planner::wants_team(question.settings)) {
    if (machines.empty()) machines.resize(static_cast<size_t>(ranks));
    planner::set_team(question.settings, planner::largest_team(machines));
  }
  if (parameters::collnet_enable() == 1 &&
      planner::machines_in(question.settings) >=
          std::max<int64_t>(2, parameters::collnet_node_threshold()))
    question.settings.reducible = planner::Reductions::all();
  planner::set_rings(question.settings, std::move(placement.rings));
  return question;
}

size_t chunk_of(const Question& question, const planner::Variant& variant) {
  return planner::chunk_bytes(question.settings, question.collective, variant);
}

/// Returns the description of a measurement up to its details, which --json prints whole.
std::string first_part(const std::string& about) {
  const size_t end = std::min({about.find(" ("), about.find(". "), about.find("; ")});
  return end == std::string::npos ? about : about.substr(0, end) + " ...";
}

void print_text(const Question& question, const Explanation& explanation) {
  fmt::print("{} of {} bytes over {} ranks, {}: {}, predicted {:.1f} us\n",
             planner::function_name(question.collective), question.buffer_bytes,
             question.settings.nranks, question.machine->name, describe(explanation.chosen),
             explanation.chosen.microseconds);
  for (const planner::Variable& variable : planner::variables_of_choices({}))
    fmt::print("with {}={}\n", variable.name, variable.value);
  const planner::Tuning& tuning = planner::tuning_of(question.settings);
  fmt::print("constants of {}, {}: {}\n", name_of(tuning.machine), tuning.origin,
             first_part(tuning.about));
  if (question.settings.reducible.bits != 0)
    fmt::print(
        "with a network that reduces (NCCL_COLLNET_ENABLE): all types and operations, as fast as "
        "it carries bytes, which is not measured\n");
  for (const std::vector<int>& ring : question.settings.rings)
    fmt::print("ring {}\n", fmt::join(ring, " "));
  fmt::print("\n{:<22}{:<10}{:>8}{:>10}{:>12}\n", "algorithm", "protocol", "channels", "chunk",
             "us");
  for (const Alternative& each : explanation.alternatives) {
    const bool has_time = each.verdict != planner::Verdict::Ineligible;
    const std::string columns =
        has_time ? fmt::format("{:>8}{:>10}{:>12.1f}", each.best.channels,
                               chunk_of(question, each.best), each.best.microseconds)
                 : fmt::format("{:>8}{:>10}{:>12}", "-", "-", "-");
    fmt::print("{:<22}{:<10}{}  {}\n",
               fmt::format("{}{}", each.form->name, each.by_team ? " NVLS" : ""),
               executor::name_of(each.protocol), columns,
               each.reason.empty() ? name_of(each.verdict) : each.reason);
  }
}

nlohmann::json to_json(const Question& question, const Alternative& each) {
  nlohmann::json result{{"algorithm", each.form->name},
                        {"protocol", executor::name_of(each.protocol)},
                        {"verdict", name_of(each.verdict)}};
  if (each.by_team) result["nvls"] = true;
  if (!each.reason.empty()) result["reason"] = each.reason;
  if (each.verdict == planner::Verdict::Ineligible) return result;
  result["channels"] = each.best.channels;
  result["chunk_bytes"] = chunk_of(question, each.best);
  result["microseconds"] = each.best.microseconds;
  return result;
}

nlohmann::json to_json(const Question& question, const Explanation& explanation) {
  nlohmann::json variables = nlohmann::json::object();
  for (const planner::Variable& variable : planner::variables_of_choices({}))
    variables[variable.name] = variable.value;
  nlohmann::json alternatives = nlohmann::json::array();
  for (const Alternative& each : explanation.alternatives)
    alternatives.push_back(to_json(question, each));
  const planner::Tuning& tuning = planner::tuning_of(question.settings);
  return {
      {"format", "niccolite-explain-1"},
      {"collective", name_of(question.collective)},
      {"bytes", question.buffer_bytes},
      {"datatype", question.type},
      {"ranks", question.settings.nranks},
      {"machine", question.machine->name},
      {"tuning",
       {{"class", name_of(tuning.machine)}, {"origin", tuning.origin}, {"about", tuning.about}}},
      {"network_reduces", question.settings.reducible.bits != 0},
      {"rings", question.settings.rings},
      {"variables", variables},
      {"alternatives", alternatives}};
}

}  // namespace

std::vector<std::string> names_of_machines() {
  std::vector<std::string> names;
  for (const NamedMachine& machine : kKinds) names.emplace_back(machine.name);
  return names;
}

void add_options(CLI::App& app, Options& options) {
  using namespace grammar;
  app.footer(kFooter);
  app.add_option("collective", options.collective, "all_reduce, broadcast, ..., sendrecv")
      ->type_name(kCollective);
  app.add_option("-b,--bytes,--size", options.bytes, "Size of the larger buffer")
      ->type_name(kBytes)
      ->capture_default_str();
  add(app, kRanks, options.ranks, "-g", " (default: the GPUs of this machine)");
  add(app, kDatatype, options.type, "-d")->capture_default_str();
  app.add_option("-m,--machine", options.machine, "Kind of machine (default: this one)")
      ->type_name("KIND");
  add(app, kMachines, options.machines, "-M", " (default: -sockets have one rank each)");
  add(app, kTopologyFile, options.topology, "", ": ranks, machines, rings")
      ->excludes("--machines")
      ->excludes("--ranks");
  app.add_option("--gpu", options.gpu,
                 "Name of the GPUs, where a tuning is for some alone (default: this machine's, "
                 "unless --machine and --ranks say which)")
      ->type_name("NAME");
  add_flag(app, kJsonFlag, options.wants_json, " instead of text");
}

int run(const Options& options) {
  if (options.collective.empty())
    return fail(Status::invalid_argument("which collective? See niccolite explain --help"));
  const Result<Question> asked = question_of(options);
  if (!asked.is_ok()) return fail(asked.status());
  const Question& question = asked.value();
  const Result<Explanation> explanation =
      planner::explain(question.settings, question.collective, question.bytes);
  if (!explanation.is_ok()) return fail(explanation.status());
  if (options.wants_json)
    fmt::print("{}\n", to_json(question, explanation.value()).dump(2));
  else
    print_text(question, explanation.value());
  return kExitFine;
}

}  // namespace niccolite::explain_command
