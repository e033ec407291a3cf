#include <algorithm>

#include "schedule/index.h"
#include "schedule/order.h"
#include "tests/algorithms/find_instruction.h"
#include "tests/algorithms/mutations.h"

namespace niccolite::algorithms {
namespace {

using namespace schedule;

using Outcome = std::optional<Expected>;

bool is_through_network(const Schedule& s) {
  return std::ranges::any_of(
      s.connections, [](const Connection& c) { return through_of(c.tag) != Through::Nothing; });
}
bool combines(const Instruction& i) { return i.reduce; }
/// Where ranks reduce: what the network makes of their sums is finished somewhere else.
Found reduction_in(Schedule& schedule) {
  return is_through_network(schedule) ? find(schedule, Which::First, combines).value()
                                      : find(schedule, Which::First, finishes).value();
}
bool always_reduces(const Schedule& s) { return reduces(s.collective); }
bool ranks_reduce(const Schedule& s) {
  Schedule copy = s;
  return reduces(s.collective) &&
         (!is_through_network(s) || find(copy, Which::First, combines).has_value());
}
bool reduces_at_once(const Schedule& s) { return reduces(s.collective) && !s.partial_sums; }
bool never_reduces(const Schedule& s) { return !reduces(s.collective); }

Outcome operands_swapped(Schedule& schedule) {
  const Found found = find(schedule, Which::First, finishes).value();
  std::vector<int>& from = found.instruction->receive_from;
  if (from.size() > 1)
    std::swap(from[0], from[1]);
  else
    found.instruction->source_position ^= 1;
  return {{found.name(), "reduces rank ", "claims ascending rank order"}};
}

Outcome source_in_the_wrong_place(Schedule& schedule) {
  const Found found = find(schedule, Which::First, finishes).value();
  int& position = found.instruction->source_position;
  position = position == 0 ? 1 : 0;
  return {{found.name(),
           fmt::format("reduces rank {} before rank 0", position == 0 ? found.rank() : 1)}};
}

Outcome source_position_out_of_range(Schedule& schedule) {
  const Found found = reduction_in(schedule);
  const int count = length(found.instruction->receive_from);
  found.instruction->source_position = count + 1;
  return {
      {found.name(), fmt::format("has source position {}, with {} receives", count + 1, count)}};
}

/// Along a chain of two ranks to rank 1 the order happens to be ascending.
bool reduces_out_of_order(const Schedule& s) { return s.partial_sums && !reduces_in_one_order(s); }
Outcome order_claimed_but_rotated(Schedule& schedule) {
  schedule.partial_sums = false;
  if (schedule.nranks == 2 && !is_through_network(schedule))
    return {{"reduces rank 1 before rank 0"}};
  return {{"though the schedule claims"}};
}

Outcome finished_before_the_reduction(Schedule& schedule) {
  const Found found = find(schedule, Which::First, only_sends).value();
  found.instruction->finish = true;
  return {{found.name(), fmt::format("finishes block {} with 1 of {} contributions",
                                     found.instruction->source->block, schedule.nranks)}};
}

bool passes_results_on(const Schedule& s) {
  return s.collective == Collective::AllReduce && s.nblocks > 1;
}
Outcome finished_twice(Schedule& schedule) {
  const Found found = find(schedule, Which::Last, only_stores).value();
  if (found.instruction->finish) return std::nullopt;
  found.instruction->finish = true;
  return {{found.name(),
           fmt::format("finishes block {} a second time", found.instruction->target->block)}};
}

Outcome never_finished(Schedule& schedule) {
  const Found found = find(schedule, Which::First, finishes).value();
  found.instruction->finish = false;
  const auto& target = found.instruction->target;  // or somebody else's
  if (is_through_network(schedule))
    return {{fmt::format("leaves output block {} unfinished", target->block)}};
  return {{fmt::format("leaves output block {} unfinished",
                       target ? target->block : chunk_block(*found.instruction)),
           "(last reduced by " + found.name()}};
}

/// Another connection brings a contribution that the reduction already has.
Outcome contribution_counted_twice(Schedule& schedule) {
  const Found found = reduction_in(schedule);
  const int block = found.instruction->source->block;
  const int extra = length(schedule.connections);
  const int sender = is_through_network(schedule)
                         ? at(schedule.connections, found.instruction->receive_from.front()).sender
                     : found.rank() == 0 ? 1
                                         : 0;
  schedule.connections.push_back({sender, found.rank(), 0, /*tag=*/99});
  found.instruction->receive_from.push_back(extra);
  schedule.ranks[static_cast<size_t>(sender)][0].workers.push_back(
      {.weight = 1, .instructions = {{.source = {{Buffer::Input, block}}, .send_to = {extra}}}});
  return {{found.name(),
           fmt::format("reduces the contribution of rank {} to block {} twice", sender, block)}};
}

Outcome contribution_left_out(Schedule& schedule) {
  const Found found = reduction_in(schedule);
  const bool is_own = found.instruction->source->buffer == Buffer::Input;  // or a sum of several
  found.instruction->chunk_of = chunk_block(*found.instruction);  // the source may alone say it
  found.instruction->source.reset();
  found.instruction->source_position = 0;
  found.instruction->reduce = found.instruction->receive_from.size() > 1;
  if (is_through_network(schedule))
    return {{fmt::format("(rank {} missing)", found.rank())}};  // at the end
  if (!is_own) return {{found.name(), " contributions (ranks "}};
  return {{found.name(), fmt::format("{} of {} contributions (rank {} missing)",
                                     schedule.nranks - 1, schedule.nranks, found.rank())}};
}

Outcome two_operands_copied(Schedule& schedule) {
  const Found found = reduction_in(schedule);
  found.instruction->reduce = false;
  return {{found.name(),
           fmt::format("copies, but has {} operands", found.instruction->receive_from.size() + 1)}};
}

Outcome one_operand_reduced(Schedule& schedule) {
  const Found found = find(schedule, Which::First, only_sends).value();
  found.instruction->reduce = true;
  return {{found.name(), "reduces, but has only one operand"}};
}

Outcome reduced_where_data_only_moves(Schedule& schedule) {
  const Found found = find(schedule, Which::Last, receives).value();
  found.instruction->source = {Buffer::Output, found.instruction->target->block};
  found.instruction->reduce = true;
  return {
      {found.name(), fmt::format("reduces, but {} only moves data", name_of(schedule.collective))}};
}

Outcome finished_where_data_only_moves(Schedule& schedule) {
  const Found found = find(schedule, Which::First, only_sends).value();
  found.instruction->finish = true;
  return {{found.name(),
           fmt::format("finishes, but {} only moves data", name_of(schedule.collective))}};
}

}  // namespace

std::span<const Mutation> mutations_of_reductions() {
  static constexpr Mutation kMutations[] = {
      {"OperandsSwapped", reduces_at_once, operands_swapped},
      {"SourceInTheWrongPlace", reduces_at_once, source_in_the_wrong_place},
      {"SourcePositionOutOfRange", ranks_reduce, source_position_out_of_range},
      {"OrderClaimedButRotated", reduces_out_of_order, order_claimed_but_rotated},
      {"FinishedBeforeTheReduction", always_reduces, finished_before_the_reduction},
      {"FinishedTwice", passes_results_on, finished_twice},
      {"NeverFinished", always_reduces, never_finished},
      {"ContributionCountedTwice", ranks_reduce, contribution_counted_twice},
      {"ContributionLeftOut", ranks_reduce, contribution_left_out},
      {"TwoOperandsCopied", ranks_reduce, two_operands_copied},
      {"OneOperandReduced", [](const Schedule&) { return true; }, one_operand_reduced},
      {"ReducedWhereDataOnlyMoves", never_reduces, reduced_where_data_only_moves},
      {"FinishedWhereDataOnlyMoves", never_reduces, finished_where_data_only_moves},
  };
  return kMutations;
}

}  // namespace niccolite::algorithms
