#include "cli/doctor/command.h"

#include <fmt/core.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/doctor/checks.h"
#include "cli/grammar/exit_code.h"
#include "cli/grammar/options.h"

namespace niccolite::doctor {
namespace {

constexpr const char* kFooter =
    R"(Looks at GPUs and their peer access, driver, fabric manager, IOMMU and ACS, ports of InfiniBand and RoCE, interfaces, limits,
NUMA balancing, CPU governor, memory and clock, and prints a line for each, with a remedy. Runs no kernel, changes nothing, needs no
root (which sees more). Run it on each machine, and in the container of the job.

Examples:
  niccolite doctor
  niccolite doctor --json

Exit status: 0 no fault; 1 a fault; 2 wrong usage.)";

std::vector<Finding> examine(const Files& files) {
  std::vector<Finding> findings;
  const auto add = [&](std::vector<Finding> more) {
    std::ranges::move(more, std::back_inserter(findings));
  };
  if (files.are_of_this_machine()) add(check_gpus());
  add(check_nvidia(files));
  add(check_pci(files));
  add(check_rdma(files));
  if (files.are_of_this_machine()) add(check_interfaces());
  if (files.are_of_this_machine()) add(check_limits(files));
  add(check_host(files));
  if (files.are_of_this_machine()) add(check_clock());
  return findings;
}

}  // namespace

void add_options(CLI::App& app, Options& options) {
  app.footer(kFooter);
  app.add_option("--files", options.root,
                 "Look at a copy of a machine's /proc and /sys below this folder instead")
      ->type_name("FOLDER");
  grammar::add_flag(app, grammar::kJsonFlag, options.wants_json);
}

int run(const Options& options) {
  const Files files(options.root);
  if (!files.has("/")) {
    fmt::print(stderr, "niccolite doctor: --files: there is no folder {}\n", options.root);
    return grammar::kExitUsage;
  }
  const std::vector<Finding> findings = examine(files);
  const auto count = [&](State state) {
    return std::ranges::count(findings, state, &Finding::state);
  };
  if (options.wants_json) {
    nlohmann::json lines = nlohmann::json::array();
    for (const Finding& each : findings)
      lines.push_back({{"state", name_of(each.state)},
                       {"check", each.check},
                       {"text", each.text},
                       {"remedy", each.remedy}});
    const nlohmann::json document{{"format", "niccolite-doctor-1"}, {"findings", lines}};
    fmt::print("{}\n", document.dump(2));
  } else {
    for (const Finding& each : findings) {
      fmt::print("{:<8} {:<15} {}\n", name_of(each.state), each.check, each.text);
      if (!each.remedy.empty()) fmt::print("{:<24} -> {}\n", "", each.remedy);
    }
    const auto faults = count(State::Fault), warnings = count(State::Warning);
    fmt::print("{} fault{}, {} warning{}\n", faults, faults == 1 ? "" : "s", warnings,
               warnings == 1 ? "" : "s");
  }
  return count(State::Fault) > 0 ? grammar::kExitWrong : grammar::kExitFine;
}

}  // namespace niccolite::doctor
