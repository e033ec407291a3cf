#include "planner/choice/eligibility.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "algorithms/loaded.h"
#include "executor/program.h"
#include "planner/prices/price.h"
#include "planner/routes.h"

namespace niccolite::planner {
namespace {

using executor::Protocol;

static_assert([] {
  for (size_t type = 0; type < schedule::kTypeNames.size(); ++type)
    if (schedule::kTypeNames[type] != executor::name_of(static_cast<executor::DataType>(type)))
      return false;
  return schedule::kTypeNames.size() == executor::kDataTypes;
}());

/// Whatever NCCL_ALGO and NCCL_PROTO say.
std::string why_impossible(const Settings& settings, const Form& form, Protocol protocol,
                           bool by_team = false) {
  if (form.traits().through_network) {
    if (settings.reducible.bits == 0)
      return "needs a network that reduces: a plug-in with NCCL's CollNet interface and "
             "NCCL_COLLNET_ENABLE=1";
    if (!settings.not_of_reducer.empty())
      return fmt::format("needs a network that reduces {}, and its plug-in does not",
                         settings.not_of_reducer);
    if (form.collective != Collective::AllReduce && !settings.reducible.gathers)
      return "needs a CollNet plug-in of version 8 or later";
    if (protocol != Protocol::Simple) return "goes by Simple alone";
  }
  if (!form.is_for(settings.nranks, settings.machines, by_team && publishes_chunks(protocol)))
    return fmt::format("is for {} to {} ranks{}", form.min_ranks, form.max_ranks,
                       form.counts_ranks_of_machine ? " of a machine" : "");
  return planner::why_impossible(settings.machine, settings.nranks, form, protocol,
                                 machines_in(settings),
                                 settings.is_invariant && schedule::reduces(form.collective));
}

/// Why the executors' compact form does not hold the schedule of a file. Remembered.
std::string why_not_compiled(const algorithms::LoadedFile& of_file) {
  static auto& mutex = *new std::mutex;  // never destroyed: communicators may outlive main()
  static auto& known = *new std::map<const algorithms::LoadedFile*, std::string>;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace(&of_file);
  if (!is_new) return found->second;
  const schedule::Schedule& schedule = of_file.file.schedule;
  const lowering::Routes routes = lowering::routes_of(schedule, {});
  for (int rank = 0; rank < schedule.nranks; ++rank) {
    Result<executor::Program> program = executor::compile(schedule, rank, routes);
    std::string obstacle;
    if (!program.is_ok())
      obstacle = program.status().message();
    else if (program->workers.size() > executor::kMaxWorkers)
      obstacle = fmt::format("it has {} workers; a program has room for {}",
                             program->workers.size(), executor::kMaxWorkers);
    if (obstacle.empty()) continue;
    found->second = fmt::format("does not fit into a program: on rank {} {}", rank, obstacle);
    break;
  }
  return found->second;
}

/// Names the variables of rank 0 that exclude some variants of `collective`: "NCCL_ALGO and
/// NCCL_PROTO".
std::string restricting(const Settings& settings, Collective collective) {
  const ProtocolSet& allowed = settings.protocols[static_cast<size_t>(collective)];
  const ProtocolSet carried = protocols_between_ranks(settings);
  bool is_protocol_left_out = false;
  for (size_t p = 0; p < allowed.size(); ++p) is_protocol_left_out |= carried[p] && !allowed[p];
  std::string names;
  if (settings.is_invariant && schedule::reduces(collective)) names = "NICCOLITE_INVARIANT";
  if (!allows_all(settings, collective)) names += names.empty() ? "NCCL_ALGO" : " and NCCL_ALGO";
  if (is_protocol_left_out) names += names.empty() ? "NCCL_PROTO" : " and NCCL_PROTO";
  return names;
}

/// Why connections and programs do not carry the schedule of a file.
std::string obstacle_to_file(const Settings& settings, const algorithms::LoadedFile& of_file,
                             Protocol protocol) {
  const schedule::Use& use = of_file.file.use;
  if (const int machines = machines_in(settings); use.machines != 0 && use.machines != machines)
    return fmt::format("is for ranks on {} machines, as its file says, not on {}", use.machines,
                       machines);
  const uint32_t depth = settings.shapes[static_cast<size_t>(protocol)].depth;
  if (static_cast<uint32_t>(of_file.least_depth) > depth)
    return fmt::format("needs FIFOs of {} slots, and those of {} have {}", of_file.least_depth,
                       executor::name_of(protocol), depth);
  return why_not_compiled(of_file);
}

/// The algorithms of `collective` that may run among so many ranks: "direct, pat".
std::string possible_algorithms(const Settings& settings, Collective collective) {
  const ProtocolSet carried = protocols_between_ranks(settings);
  std::string names;
  for (const Form& form : forms_of(collective)) {
    bool is_any_possible = false;
    for (int p = 0; p < executor::kProtocols; ++p)
      is_any_possible |= carried[static_cast<size_t>(p)] &&
                         why_impossible(settings, form, static_cast<Protocol>(p)).empty() &&
                         (!settings.is_invariant || reduces_in_one_order(settings, form));
    if (is_any_possible) names += fmt::format("{}{}", names.empty() ? "" : ", ", form.name);
  }
  return names;
}

/// "LL, LL128 and Simple".
std::string names_of(const ProtocolSet& protocols) {
  std::vector<std::string> names;
  for (size_t p = 0; p < protocols.size(); ++p)
    if (protocols[p]) names.emplace_back(executor::name_of(static_cast<Protocol>(p)));
  std::string text = names.back();
  for (size_t i = names.size() - 1; i-- > 0;)
    text = fmt::format("{}{}{}", names[i], i + 2 == names.size() ? " and " : ", ", text);
  return text;
}

std::string obstacle_to_team(const Settings& settings, const Variant& variant) {
  const Form& form = *variant.form;
  if (!settings.not_of_teams.empty())
    return fmt::format("needs a switch that reduces {}, and none does", settings.not_of_teams);
  if (settings.team_ranks == 0) return "needs a switch that multicasts, which the ranks have not";
  if (settings.is_invariant && schedule::reduces(form.collective))
    return "reduces in the switch's order, which NICCOLITE_INVARIANT forbids";
  const bool is_of_words = variant.protocol == Protocol::LL;
  if (is_of_words && settings.spans_machines)
    return "has words, which a team carries where all ranks are on one machine";
  if (!goes_by_team(settings, form, variant.protocol))
    return is_of_words ? "has nothing that one rank sends to all, as words by a team go"
                       : "has nothing that one rank sends to all of its machine, or reduces of all";
  if (!allows_team(settings, form)) return "is left out by NCCL_ALGO";
  const auto kind = static_cast<size_t>(form.collective);
  if (!settings.protocols[kind][static_cast<size_t>(variant.protocol)])
    return "is left out by NCCL_PROTO";
  return {};
}

/// Why teams and the network's reducer, where NCCL_ALGO names them, do not carry out `collective`;
/// sentences, each behind ". ".
std::string why_not_helped(const Settings& settings, Collective collective) {
  constexpr const char* kRemedy = "name an algorithm beside it that does, as in NCCL_ALGO={},ring";
  const FormSet& allowed = settings.forms[static_cast<size_t>(collective)];
  const char* const team = allowed.test(kNvlsBit)       ? "NVLS"
                           : allowed.test(kNvlsTreeBit) ? "NVLSTree"
                                                        : nullptr;
  std::string text;
  if (team != nullptr && !settings.not_of_teams.empty())
    text += fmt::format(". {} does not reduce {}, as switches do not: {}", team,
                        settings.not_of_teams, fmt::format(kRemedy, team));
  else if (team != nullptr && settings.is_invariant && schedule::reduces(collective))
    text +=
        fmt::format(". {} reduces in the switch's order, which NICCOLITE_INVARIANT forbids", team);
  else if (team != nullptr)
    text += fmt::format(
        ". {} has nothing for it: the ranks have no multicast team (NCCL_DEBUG=INFO says why at "
        "initialization), or the operation is not one of teams, or not by the protocols of "
        "NCCL_PROTO (teams store words by LL, and reduce by Simple alone)",
        team);
  const bool names_reducer = std::ranges::any_of(forms_of(collective), [&](const Form& form) {
    return form.traits().through_network && allowed.test(index_of(form));
  });
  if (names_reducer && !settings.not_of_reducer.empty())
    text += fmt::format(". CollNet does not reduce {}, as its plug-in says: {}",
                        settings.not_of_reducer, fmt::format(kRemedy, "CollnetDirect"));
  else if (names_reducer)
    text +=
        ". CollNet has nothing for it: it needs several machines, NCCL_COLLNET_ENABLE=1 and a "
        "network plug-in that reduces (docs/plugins.md)";
  return text;
}

}  // namespace

std::string obstacle_to(const Settings& settings, const Variant& variant) {
  const Form& form = *variant.form;
  const auto kind = static_cast<size_t>(form.collective);
  const auto protocol = static_cast<size_t>(variant.protocol);
  std::string impossible = why_impossible(settings, form, variant.protocol, variant.by_team);
  if (!impossible.empty()) return impossible;
  if (variant.by_team) return obstacle_to_team(settings, variant);
  if (settings.is_invariant && !reduces_in_one_order(settings, form))
    return "reduces in an order of its own, which NICCOLITE_INVARIANT forbids";
  if (!allows(settings, form)) return "is left out by NCCL_ALGO";
  if (!settings.protocols[kind][protocol]) {
    if (protocols_between_ranks(settings)[protocol]) return "is left out by NCCL_PROTO";
    return settings.spans_machines
               ? "needs memory that all ranks share, and the network connects some"
               : "needs links that keep its lines whole, and one tears them";
  }
  if (most_channels(settings, variant.protocol) == 0) return "has no connections on this machine";
  if (const algorithms::Loaded* const loaded = form.loaded())
    return obstacle_to_file(settings, *loaded->find(settings.nranks), variant.protocol);
  return {};
}

bool has_algorithms_of_types(const Settings& settings, Collective collective) {
  return std::ranges::any_of(forms_of(collective), [&](const Form& form) {
    const algorithms::Loaded* const loaded = form.loaded();
    const algorithms::LoadedFile* const file =
        loaded != nullptr ? loaded->find(settings.nranks) : nullptr;
    return file != nullptr && file->file.use.types != 0;
  });
}

std::string obstacle_to(const Settings& settings, const Variant& variant, size_t bytes) {
  std::string obstacle = obstacle_to(settings, variant);
  const algorithms::Loaded* const loaded = variant.form->loaded();
  if (loaded == nullptr || !obstacle.empty()) return obstacle;
  const schedule::Use& use = loaded->find(settings.nranks)->file.use;
  if (bytes < use.min_bytes)
    return fmt::format("is for {} bytes or more, as its file says", use.min_bytes);
  if (bytes > use.max_bytes)
    return fmt::format("is for at most {} bytes, as its file says", use.max_bytes);
  if (settings.type && !use.is_for_type(static_cast<int>(*settings.type)))
    return fmt::format("is for {}, as its file says, not for {}", names_of_types(use),
                       executor::name_of(*settings.type));
  return {};
}

bool allows_all(const Settings& settings, Collective collective) {
  return std::ranges::all_of(forms_of(collective),
                             [&](const Form& form) { return allows(settings, form); });
}

Status why_none(const Settings& settings, Collective collective, size_t bytes) {
  const std::string variables = restricting(settings, collective);
  const std::string names = possible_algorithms(settings, collective);
  std::string of_files;  // the obstacles to algorithms of files that NCCL_ALGO names
  for (const Form& form : forms_of(collective)) {
    if (form.loaded() == nullptr || !allows(settings, form)) continue;
    const Variant variant{.form = &form, .protocol = Protocol::Simple};
    of_files += fmt::format(". {} {}", form.name, obstacle_to(settings, variant, bytes));
  }
  if (variables.empty())
    return Status::invalid_usage("this version has no algorithm for {} over {} ranks",
                                 function_name(collective), settings.nranks);
  return Status::invalid_usage(
      "no algorithm/protocol available for {} of {} bytes over {} ranks: {} of rank 0 leave{} "
      "none. "
      "This version has {} for so many ranks, by {}{}{}",
      function_name(collective), bytes, settings.nranks, variables,
      variables.find(" and ") != std::string::npos ? "" : "s", names.empty() ? "nothing" : names,
      names_of(protocols_between_ranks(settings)), of_files, why_not_helped(settings, collective));
}

}  // namespace niccolite::planner
