#include "planner/variables.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "base/parameters.h"

namespace niccolite::planner {
namespace {

constexpr const char* kNames[] = {"NCCL_ALGO",
                                  "NICCOLITE_INVARIANT",
                                  "NCCL_PROTO",
                                  "NCCL_MIN_CTAS",
                                  "NCCL_MAX_CTAS",
                                  "NCCL_MIN_NCHANNELS",
                                  "NCCL_MAX_NCHANNELS",
                                  "NCCL_CTA_POLICY",
                                  "NCCL_NTHREADS",
                                  "NCCL_BUFFSIZE",
                                  "NICCOLITE_CHUNK_PARTS",
                                  "NICCOLITE_PULL_BLOCK",
                                  "NCCL_MULTI_RANK_GPU_ENABLE"};

/// "rank 2", "ranks 1, 3 and 7", "ranks 1, 2, 3, 4 and 1019 more".
std::string ranks_text(const std::vector<int>& ranks) {
  constexpr size_t kMostNamed = 4;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t named = std::min(ranks.size(), kMostNamed);
  for (size_t i = 0; i < named; ++i) {
    const bool is_last = i + 1 == ranks.size();
    text += fmt::format("{}{}", i == 0 ? "" : is_last ? " and " : ", ", ranks[i]);
  }
  if (ranks.size() > named) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
}

const std::string* value_of(const std::vector<Variable>& variables, const std::string& name) {
  for (const Variable& variable : variables)
    if (variable.name == name) return &variable.value;
  return nullptr;
}

}  // namespace

std::vector<Variable> variables_of_choices(const Limits& limits) {
  std::vector<Variable> variables;
  for (const char* name : kNames)
    if (const auto text = parameters::read_now(name))
      variables.push_back({name, text->substr(0, kMostVariableValue)});
  if (limits.min_ctas > 0) variables.push_back({"config.minCTAs", std::to_string(limits.min_ctas)});
  if (limits.max_ctas > 0) variables.push_back({"config.maxCTAs", std::to_string(limits.max_ctas)});
  if (limits.policy != CtaPolicy::Default)
    variables.push_back(
        {"config.CTAPolicy", limits.policy == CtaPolicy::Zero ? "ZERO" : "EFFICIENCY"});
  return variables;
}

std::vector<std::string> describe_differences(
    const std::vector<const std::vector<Variable>*>& of_ranks) {
  std::vector<std::string> names;  // in the order in which they are met
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (rank > 0 && *of_ranks[rank] == *of_ranks[0]) continue;
    for (const Variable& variable : *of_ranks[rank])
      if (std::find(names.begin(), names.end(), variable.name) == names.end())
        names.push_back(variable.name);
  }
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    std::vector<std::pair<const std::string*, std::vector<int>>> values;  // rank 0's first
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      const std::string* const value = value_of(*of_ranks[rank], name);
      const auto known = std::find_if(values.begin(), values.end(), [&](const auto& other) {
        return value == nullptr || other.first == nullptr ? value == other.first
                                                          : *value == *other.first;
      });
      if (known == values.end()) {
        values.push_back({value, {static_cast<int>(rank)}});
      } else {
        known->second.push_back(static_cast<int>(rank));
      }
    }
    if (values.size() < 2) continue;
    constexpr size_t kMostValues = 4;
    std::string line = name + " is ";
    for (size_t i = 0; i < std::min(values.size(), kMostValues); ++i) {
      const auto& [value, ranks] = values[i];
      const std::string what = value == nullptr ? "not set" : fmt::format("\"{}\"", *value);
      line += fmt::format("{}{} on {}", i == 0 ? "" : ", ", what, ranks_text(ranks));
    }
    if (values.size() > kMostValues) line += ", and something else on others";
    lines.push_back(line + ": rank 0's holds for all");
  }
  return lines;
}

}  // namespace niccolite::planner
