// The choice of the variant for one operation: the fastest by the cost model, or nearly so with
// fewer CTAs. Pure functions: every rank chooses alike.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "executor/list_access.h"
#include "planner/model.h"
#include "planner/request.h"

namespace niccolite::planner {

struct Choice : Variant {
  double microseconds = 0;  // predicted
};

/// What there is of one algorithm and protocol: its forms by channels and chunks, or why there are
/// none.
struct Option {
  const Algorithm* algorithm = nullptr;
  executor::Protocol protocol = executor::Protocol::Simple;
  std::string obstacle;         // a phrase; empty: it may be chosen
  bool competes = false;        // with those that were measured (Price); without obstacle
  std::vector<Choice> choices;  // without obstacle: not empty in a survey of all
};

/// Of every algorithm that `collective` has, by every protocol. `of`: what does not decide anything
/// has no choices, which saves their times.
enum class Surveyed : uint8_t { All, WhatDecides };
std::vector<Option> survey(const Settings& settings, Collective collective, size_t bytes,
                           Surveyed of = Surveyed::All);

/// All variants that the settings allow for `bytes`, with their predicted times. Variants that
/// do not compete (Price) are among them only when there are no others.
std::vector<Choice> candidates(const Settings& settings, Collective collective, size_t bytes);

/// Of `options`: the same.
std::vector<Choice> candidates(std::span<const Option> options);

/// What choices among `nranks` ranks are compared by, microseconds: the time of one of at most
/// kUsualCtas. Others have to be faster, those of twice as many by 5 %; between two ranks short
/// ones by less.
double length_of(const Choice& choice, int nranks);
/// The length within which fewer CTAs decide; `choices` is not empty.
double longest_acceptable(std::span<const Choice> choices, CtaPolicy policy, int nranks);
/// The one to take, by what the policy makes of time and CTAs; `choices` is not empty.
const Choice& pick(std::span<const Choice> choices, CtaPolicy policy, int nranks);

/// pick() of the candidates, those of at most `most_channels` channels (0: of all), unless there
/// are none. For a PointToPoint, `bytes` is one message's, and both ends choose alike. Errors:
/// InvalidUsage when NCCL_ALGO and NCCL_PROTO leave none.
Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes,
                      int most_channels = 0);
/// The same of the survey of such an operation.
Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes,
                      std::span<const Option> options, int most_channels = 0);

/// `choice`, which was made for the length of `request` alone, with the channels that its
/// arithmetic wants: a CTA takes longer to divide bytes than links do to carry them, so that
/// averages of bytes have all channels that there are.
Choice widened(const Settings& settings, const Request& request, Choice choice);

/// For an operation of a list (executor::Launch::is_list()), on one channel: those are small, and
/// end in one step. None: it is for none.
std::optional<Choice> choose_for_list(const Settings& settings, Collective collective,
                                      size_t bytes);

/// What the ranks do in an operation of a list over buffers that all ranks reach; none where they
/// do not reach them, or by other settings.
std::optional<executor::ListAccess> find_list_access(const Settings& settings,
                                                     Collective collective, int root);
/// Is such a list of so many operations, of so many bytes together, faster than what else they
/// would be? `is_captured`: in a graph, whose buffers are looked up once.
bool pays_direct_list(const Settings& settings, Collective collective, size_t operations,
                      size_t bytes, bool is_captured);
/// Microseconds that such a list takes whatever is in it, and that an operation adds.
double predict_direct_list(const Settings& settings);
double predict_in_direct_list(const Settings& settings, const Request& request);

/// For a message whose protocol is settled.
Choice choose_for_message(const Settings& settings, executor::Protocol protocol, size_t bytes);
/// The same to the own rank. No link bounds that, but what a CTA copies: it has as many channels as
/// its length pays for, of those that connections have, unless CTAs are to be saved.
Choice choose_for_copy(const Settings& settings, executor::Protocol protocol, size_t bytes);
/// Microseconds that such a copy takes beyond the shortest.
double predict_copy(const Settings& settings, executor::Protocol protocol, size_t bytes);
/// The protocol that suits it: Simple, whose bulk copies are faster than threads, or what messages
/// of its length have.
executor::Protocol protocol_of_copy(const Settings& settings, executor::Protocol of_messages,
                                    size_t bytes);

/// The channel counts that are worth a comparison, from the settings' fewest to their most for
/// `protocol`, ascending; none where the machine has no such protocol.
std::vector<int> channel_counts(const Settings& settings, executor::Protocol protocol);

}  // namespace niccolite::planner
