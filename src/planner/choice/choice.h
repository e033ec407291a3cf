// The choice of the variant for one operation: the fastest by the cost model, or nearly so with
// fewer CTAs. Pure functions: every rank chooses alike.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "planner/prices/model.h"

namespace niccolite::planner {

struct Choice : Variant {
  double microseconds = 0;   // predicted
  double lost_in_slots = 0;  // microseconds more where buffers are not reached that should be
};

/// One form and protocol: its choices by channels and chunks, or the obstacle to its choice.
struct Option {
  const Form* form = nullptr;
  executor::Protocol protocol = executor::Protocol::Simple;
  bool by_team = false;
  std::string obstacle;   // a phrase; empty: it may be chosen
  bool competes = false;  // competes with the measured variants (Price); false with an obstacle
  std::vector<Choice> choices;  // without obstacle: not empty in a survey of all
};

/// All choices of `variant`, by channel counts and chunk sizes, with their predicted times.
std::vector<Choice> choices_of(const Settings& settings, const Workload& work, Variant variant);

/// Surveys every form of `collective` by every protocol. With WhatDecides, options that cannot
/// decide have no choices, which saves the prediction of their times.
enum class Surveyed : uint8_t { All, WhatDecides };
std::vector<Option> survey(const Settings& settings, Collective collective, size_t bytes,
                           Surveyed of = Surveyed::All);

/// All variants that the settings allow for `bytes`, with their predicted times. Variants that
/// do not compete (Price) are among them only when there are no others.
std::vector<Choice> candidates(const Settings& settings, Collective collective, size_t bytes);

/// Returns the candidates of an existing survey.
std::vector<Choice> candidates(std::span<const Option> options);

/// Returns the cost by which choices among `nranks` ranks are compared, in microseconds. A choice
/// of at most kUsualCtas CTAs has its time. A choice with more CTAs is charged 5 % for twice as
/// many, and less for short operations of two ranks.
double length_of(const Choice& choice, int nranks);
/// The length within which fewer CTAs decide: 1 % more than the least by default, and less of short
/// operations of two ranks. `choices` is not empty.
double longest_acceptable(std::span<const Choice> choices, CtaPolicy policy, int nranks);
/// Returns the choice to take, by the policy's weights of time and CTAs; `choices` is not empty.
const Choice& pick(std::span<const Choice> choices, CtaPolicy policy, int nranks);

/// Returns pick() of the candidates with at most `most_channels` channels, unless there are none
/// (0: of all; otherwise the operation shares its launch with others). For a PointToPoint, `bytes`
/// is one message's, and both ends choose alike. Errors: InvalidUsage when NCCL_ALGO and NCCL_PROTO
/// leave none.
Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes,
                      int most_channels = 0);
/// Chooses from an existing survey of the operation.
Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes,
                      std::span<const Option> options, int most_channels = 0);

}  // namespace niccolite::planner
