#include "planner/choice/eligibility.h"

#include <algorithm>
#include <string>
#include <vector>

#include "executor/program.h"
#include "planner/prices/price.h"

namespace niccolite::planner {
namespace {

using executor::Protocol;

/// Whatever NCCL_ALGO and NCCL_PROTO say.
std::string why_impossible(const Settings& settings, const Algorithm& algorithm,
                           Protocol protocol) {
  return planner::why_impossible(settings.machine, settings.nranks, algorithm, protocol,
                                 machines_in(settings),
                                 settings.is_invariant && schedule::reduces(algorithm.collective));
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

/// The algorithms of `collective` that may run among so many ranks: "direct, pat".
std::string possible_algorithms(const Settings& settings, Collective collective) {
  const ProtocolSet carried = protocols_between_ranks(settings);
  std::string names;
  for (const Algorithm& algorithm : algorithms::of(collective)) {
    bool is_any_possible = false;
    for (int p = 0; p < executor::kProtocols; ++p)
      is_any_possible |= carried[static_cast<size_t>(p)] &&
                         why_impossible(settings, algorithm, static_cast<Protocol>(p)).empty() &&
                         (!settings.is_invariant || reduces_in_one_order(settings, algorithm));
    if (is_any_possible) names += fmt::format("{}{}", names.empty() ? "" : ", ", algorithm.name);
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

}  // namespace

std::string obstacle_to(const Settings& settings, const Variant& variant) {
  const Algorithm& algorithm = *variant.algorithm;
  const auto kind = static_cast<size_t>(algorithm.collective);
  const auto protocol = static_cast<size_t>(variant.protocol);
  std::string impossible = why_impossible(settings, algorithm, variant.protocol);
  if (!impossible.empty()) return impossible;
  if (settings.is_invariant && !reduces_in_one_order(settings, algorithm))
    return "reduces in an order of its own, which NICCOLITE_INVARIANT forbids";
  if (!allows(settings, algorithm)) return "is left out by NCCL_ALGO";
  if (!settings.protocols[kind][protocol]) {
    if (protocols_between_ranks(settings)[protocol]) return "is left out by NCCL_PROTO";
    return settings.spans_machines
               ? "needs memory that all ranks share, and the network connects some"
               : "needs links that keep its lines whole, and one tears them";
  }
  if (most_channels(settings, variant.protocol) == 0) return "has no connections on this machine";
  return {};
}

bool allows_all(const Settings& settings, Collective collective) {
  return std::ranges::all_of(algorithms::of(collective), [&](const Algorithm& algorithm) {
    return allows(settings, algorithm);
  });
}

Status why_none(const Settings& settings, Collective collective, size_t bytes) {
  const std::string variables = restricting(settings, collective);
  const std::string names = possible_algorithms(settings, collective);
  if (variables.empty())
    return Status::invalid_usage("this version has no algorithm for {} over {} ranks",
                                 function_name(collective), settings.nranks);
  return Status::invalid_usage(
      "no algorithm/protocol available for {} of {} bytes over {} ranks: {} of rank 0 leave{} "
      "none. "
      "This version has {} for so many ranks, by {}",
      function_name(collective), bytes, settings.nranks, variables,
      variables.find(" and ") != std::string::npos ? "" : "s", names.empty() ? "nothing" : names,
      names_of(protocols_between_ranks(settings)));
}

}  // namespace niccolite::planner
