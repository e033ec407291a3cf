#include "schedule/value.h"

#include "schedule/index.h"

namespace niccolite::schedule {
namespace {

constexpr int kNamedRanks = 4;  // a message names this many ranks and counts the others

/// All inputs at once, in ascending order: what a schedule without partial sums promises. As each
/// reduction must be whole, no operand of one can be a sum itself.
Status check_single_reduction(const Value& reduced, const ReductionRules& rules) {
  for (int i = 1; i < length(reduced.ranks); ++i)
    if (at(reduced.ranks, i - 1) > at(reduced.ranks, i))
      return Status::invalid_usage(
          "reduces rank {} before rank {}, though the schedule claims ascending rank order",
          at(reduced.ranks, i - 1), at(reduced.ranks, i));
  if (length(reduced.ranks) < rules.nranks)
    return Status::invalid_usage(
        "reduces {} of {} contributions ({} missing), though the schedule claims that no partial "
        "sums exist",
        reduced.ranks.size(), rules.nranks, missing_ranks(reduced, rules.nranks));
  return Status::ok();
}

}  // namespace

Result<SharedValue> combine(const std::vector<Operand>& operands, std::optional<int> block,
                            bool finish, const Position& position, const ReductionRules& rules) {
  for (const Operand& operand : operands) {
    if (block && operand.value->block != *block)
      return Status::invalid_usage("handles block {}, but {} is of block {}", *block, operand.name,
                                   operand.value->block);
    if (operand.value->block != operands[0].value->block)
      return Status::invalid_usage("reduces {}, of block {}, with {}, of block {}",
                                   operands[0].name, operands[0].value->block, operand.name,
                                   operand.value->block);
  }
  if (operands.size() == 1 && !finish) return operands[0].value;

  Value result{.block = operands[0].value->block, .ranks = {}};
  std::vector<bool> seen(static_cast<size_t>(rules.nranks));
  for (const Operand& operand : operands) {
    const Value& value = *operand.value;
    if (value.finished && operands.size() > 1)
      return Status::invalid_usage("reduces {}, which is finished already", operand.name);
    for (const int rank : value.ranks) {
      if (seen[static_cast<size_t>(rank)])
        return Status::invalid_usage(
            "reduces the contribution of rank {} to block {} twice, again in {}", rank,
            result.block, operand.name);
      seen[static_cast<size_t>(rank)] = true;
      result.ranks.push_back(rank);
    }
    result.finished |= value.finished;
  }
  result.folder = position;
  if (operands.size() > 1 && !rules.partial_sums) TRY(check_single_reduction(result, rules));
  if (!finish) return std::make_shared<const Value>(std::move(result));
  if (result.finished)
    return Status::invalid_usage("finishes block {} a second time", result.block);
  if (length(result.ranks) < rules.nranks)
    return Status::invalid_usage("finishes block {} with {} of {} contributions ({} missing)",
                                 result.block, result.ranks.size(), rules.nranks,
                                 missing_ranks(result, rules.nranks));
  result.finished = true;
  return std::make_shared<const Value>(std::move(result));
}

std::string missing_ranks(const Value& value, int nranks) {
  std::vector<bool> seen(static_cast<size_t>(nranks));
  for (const int rank : value.ranks) seen[static_cast<size_t>(rank)] = true;
  std::string names;
  int missing = 0;
  for (int rank = 0; rank < nranks; ++rank) {
    if (seen[static_cast<size_t>(rank)]) continue;
    if (missing < kNamedRanks) names += fmt::format("{}{}", missing == 0 ? "" : ", ", rank);
    ++missing;
  }
  if (missing == 0) return "";
  if (missing > kNamedRanks) names += fmt::format(" and {} more", missing - kNamedRanks);
  return fmt::format("rank{} {}", missing == 1 ? "" : "s", names);
}

}  // namespace niccolite::schedule
