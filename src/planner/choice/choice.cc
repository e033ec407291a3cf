#include "planner/choice/choice.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>

#include "algorithms/loaded.h"
#include "planner/choice/channel_counts.h"
#include "planner/choice/eligibility.h"
#include "planner/prices/price.h"

namespace niccolite::planner {
namespace {

using executor::Protocol;

// How much slower than the fastest variant a variant with fewer CTAs may be. By default it may
// hardly be slower; but a difference that the model cannot tell is no reason to take more of the
// user's CTAs. Plain buffers are never moved without CTAs (docs/design/kernels.md), so ZERO can
// only ask for few.
double tolerance_of(CtaPolicy policy) { return policy == CtaPolicy::Default ? 0.01 : 0.05; }

// How much CTAs count in an operation of this time, 0 to 1: a short operation keeps them from
// others for less long. (Where buffers begin anywhere, which is not known here, twice as many CTAs
// save up to 17 % of short operations. Between more than two ranks, where the model is less sure,
// they lost as often as they gained.)
double weight_of_ctas(double microseconds, int nranks) {
  constexpr double kLong = 20;
  return nranks == 2 ? std::min(1.0, microseconds / kLong) : 1;
}

/// The price of a variant whose buffers should be reached and are not, as at their first uses. None
/// if buffers are not expected to be reached, and for words and lines, which never go direct.
std::optional<Price> price_through_slots(Settings settings, const Variant& variant) {
  if (settings.machine != gpu::Kind::Cuda || !settings.reaches_users || variant.by_team ||
      !publishes_chunks(variant.protocol))
    return std::nullopt;
  settings.reaches_users = false;
  return Price::of(settings, variant);
}

/// Gives an obstacle to all options but the possible ones of the highest priority (schedule::Use).
void prefer_highest_priority(std::vector<Option>& options, int nranks) {
  const auto priority_of = [nranks](const Option& option) {
    const algorithms::Loaded* const loaded = option.form->loaded();
    return loaded == nullptr || !option.obstacle.empty() ? 0
                                                         : loaded->find(nranks)->file.use.priority;
  };
  int highest = 0;
  const Option* best = nullptr;
  for (const Option& option : options)
    if (priority_of(option) > highest) {
      highest = priority_of(option);
      best = &option;
    }
  if (best == nullptr) return;
  const std::string name = best->form->name;
  for (Option& option : options)
    if (option.obstacle.empty() && priority_of(option) < highest)
      option.obstacle =
          fmt::format("has a lower priority than {}, a file of NICCOLITE_ALGORITHMS", name);
}

// LL is priced as kernels for one operation run it. The interpreter carries out operations that
// share a launch, and its LL takes up to twice as long as its LL128 (two H200, 2 to 16 operations
// of 32 to 256 KiB).
void drop_words_of_shared_launches(const Settings& settings, std::vector<Choice>& choices) {
  const auto is_of = [](Protocol protocol) {
    return [protocol](const Choice& choice) { return choice.protocol == protocol; };
  };
  if (settings.machine == gpu::Kind::Cuda && std::ranges::any_of(choices, is_of(Protocol::LL128)))
    std::erase_if(choices, is_of(Protocol::LL));
}

}  // namespace

std::vector<Choice> choices_of(const Settings& settings, const Workload& work, Variant variant) {
  const Price price = Price::of(settings, variant);
  const std::optional<Price> through_slots = price_through_slots(settings, variant);
  const int possible = most_parts(variant.protocol);
  const int least = std::clamp(settings.chunk_parts, 1, possible);
  const bool publishes = publishes_chunks(variant.protocol);
  const bool is_cut = !publishes || (!is_long_way_through_host(settings, work) &&
                                     buffer_bytes(work) >= kLeastPublishedInParts);
  const int most = settings.chunk_parts == 0 && is_cut ? possible : least;
  std::vector<Choice> choices;
  const auto of_team = static_cast<int>(settings.team_slots.of(variant.protocol).channels);
  for (const int channels : channel_counts(settings, variant.protocol, work)) {
    if (variant.by_team && channels > of_team && !choices.empty()) break;
    variant.channels = variant.by_team ? std::min(channels, of_team) : channels;
    for (variant.parts = least; variant.parts <= most; variant.parts *= 2) {
      const size_t chunk = chunk_bytes(settings, work.collective, variant);
      // Data that fit a smaller chunk are not cut by it.
      if (variant.parts > least && work.bytes <= chunk) break;
      Choice& choice =
          choices.emplace_back(Choice{variant, price.time_of(settings, work, variant)});
      if (through_slots)
        choice.lost_in_slots =
            std::max(0.0, through_slots->time_of(settings, work, variant) - choice.microseconds);
    }
  }
  return choices;
}

std::vector<Option> survey(const Settings& settings, Collective collective, size_t bytes,
                           Surveyed of) {
  const Workload work{.collective = collective, .nranks = settings.nranks, .bytes = bytes};
  std::vector<Option> options;
  // Derived prices decide if no direct variant was measured. Measured chains, which pass data from
  // rank to rank, do not count: the longest measured chain says little about longer ones.
  bool has_direct = false;
  const auto add = [&](const Variant& variant) {
    Option& option = options.emplace_back();
    option.form = variant.form;
    option.protocol = variant.protocol;
    option.by_team = variant.by_team;
    option.obstacle = obstacle_to(settings, variant, bytes);
    if (!option.obstacle.empty()) return;
    const Form& form = *variant.form;
    option.competes = competes(settings, variant);
    has_direct |= option.competes && !variant.by_team &&
                  (form.traits().connects_all || form.is_of_messages());
  };
  for (const Form& form : forms_of(collective)) {
    for (int p = 0; p < executor::kProtocols; ++p)
      add({.form = &form, .protocol = static_cast<Protocol>(p)});
    // Teams have slots for chunks and for words. Lines would need stores of 128 bytes in one.
    if (settings.team_ranks > 0 && !form.is_of_messages()) {
      for (const Protocol protocol : {Protocol::LL, Protocol::Simple})
        add({.form = &form, .protocol = protocol, .by_team = true});
    }
  }
  // A team whose switch nobody has measured has no price to compare: it competes with no other way.
  const bool has_other = std::ranges::any_of(
      options, [](const Option& option) { return option.obstacle.empty() && !option.by_team; });
  for (Option& option : options) {
    // Nobody measures a user's algorithm for the tuning. It competes by its derived price.
    const bool is_of_file = option.form->loaded() != nullptr;
    option.competes |=
        option.obstacle.empty() && (option.by_team ? !has_other : !has_direct || is_of_file);
  }
  prefer_highest_priority(options, settings.nranks);
  for (Option& option : options) {
    if (!option.obstacle.empty()) continue;
    if (of == Surveyed::WhatDecides && !option.competes) continue;
    option.choices =
        choices_of(settings, work,
                   {.form = option.form, .protocol = option.protocol, .by_team = option.by_team});
  }
  return options;
}

std::vector<Choice> candidates(std::span<const Option> options) {
  std::vector<Choice> measured, others;
  for (const Option& option : options) {
    std::vector<Choice>& result = option.competes ? measured : others;
    result.insert(result.end(), option.choices.begin(), option.choices.end());
  }
  return measured.empty() ? others : measured;
}

std::vector<Choice> candidates(const Settings& settings, Collective collective, size_t bytes) {
  return candidates(survey(settings, collective, bytes, Surveyed::WhatDecides));
}

double length_of(const Choice& choice, int nranks) {
  constexpr double kOfTwiceAsMany = 0.05;
  // The part of launches that go through slots although their buffers should be reached: peers map
  // a buffer during its first uses. Among choices that are nearly as fast, it favours the choice
  // that loses least in slots.
  constexpr double kInSlots = 0.03;
  const int more = std::max(0, choice.channels - kUsualCtas);
  const double weight = weight_of_ctas(choice.microseconds, nranks);
  return choice.microseconds * (1 + kOfTwiceAsMany * weight * more / kUsualCtas) +
         kInSlots * choice.lost_in_slots;
}

double longest_acceptable(std::span<const Choice> choices, CtaPolicy policy, int nranks) {
  double least = length_of(choices.front(), nranks);
  for (const Choice& choice : choices) least = std::min(least, length_of(choice, nranks));
  const double weight = policy == CtaPolicy::Default ? weight_of_ctas(least, nranks) : 1;
  return least * (1 + tolerance_of(policy) * weight);
}

const Choice& pick(std::span<const Choice> choices, CtaPolicy policy, int nranks) {
  const double most = longest_acceptable(choices, policy, nranks);
  const Choice* best = nullptr;
  for (const Choice& choice : choices)
    if (length_of(choice, nranks) <= most &&
        (best == nullptr || choice.channels < best->channels ||
         (choice.channels == best->channels && choice.microseconds < best->microseconds)))
      best = &choice;
  return *best;
}

Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes,
                      std::span<const Option> options, int most_channels) {
  std::vector<Choice> choices = candidates(options);
  if (most_channels > 0) {
    const auto is_too_wide = [&](const Choice& choice) { return choice.channels > most_channels; };
    if (!std::ranges::all_of(choices, is_too_wide)) std::erase_if(choices, is_too_wide);
    drop_words_of_shared_launches(settings, choices);
  }
  if (!choices.empty()) return pick(choices, settings.policy, settings.nranks);
  return why_none(settings, collective, bytes);
}

Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes,
                      int most_channels) {
  return choose(settings, collective, bytes,
                survey(settings, collective, bytes, Surveyed::WhatDecides), most_channels);
}

}  // namespace niccolite::planner
