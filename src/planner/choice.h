// The choice of the variant for one operation: the fastest by the cost model, or nearly so with
// fewer CTAs. Pure functions: every rank chooses alike.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "planner/model.h"

namespace niccolite::planner {

struct Choice : Variant {
  double microseconds = 0;  // predicted
};

/// All variants that the settings allow for `bytes`, with their predicted times. Variants that
/// nobody has measured are among them only when there are no others.
std::vector<Choice> candidates(const Settings& settings, Collective collective, size_t bytes);

/// The one to take, by what the policy makes of time and CTAs; `choices` is not empty.
const Choice& pick(std::span<const Choice> choices, CtaPolicy policy);

/// pick() of the candidates, those of at most `most_channels` channels (0: of all), unless there
/// are none. For a PointToPoint, `bytes` is one message's, and both ends choose alike. Errors:
/// InvalidUsage when NCCL_ALGO and NCCL_PROTO leave none.
Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes,
                      int most_channels = 0);

/// For an operation of a list (executor::Launch::is_list()), on one channel: those are small, and
/// end in one step. None: it is for none.
std::optional<Choice> choose_for_list(const Settings& settings, Collective collective,
                                      size_t bytes);

/// For a message whose protocol is settled.
Choice choose_for_message(const Settings& settings, executor::Protocol protocol, size_t bytes);

/// The channel counts that are worth a comparison, from the settings' fewest to their most for
/// `protocol`, ascending; none where the machine has no such protocol.
std::vector<int> channel_counts(const Settings& settings, executor::Protocol protocol);

}  // namespace niccolite::planner
