#include "planner/explain.h"

#include <algorithm>
#include <cmath>

namespace niccolite::planner {
namespace {

/// The chosen variant and the measures by which the alternatives are judged.
struct Standard {
  Choice chosen;
  CtaPolicy policy;
  int nranks;
  double most;             // length_of(): within it, fewer channels decide
  bool is_among_measured;  // options that do not compete were not compared
};

std::string compare(const Choice& choice, const Choice& chosen) {
  const double part = choice.microseconds / chosen.microseconds - 1;
  return fmt::format("takes {:.1f} % {}", 100 * std::abs(part), part < 0 ? "less" : "longer");
}

Alternative judge(const Option& option, const Standard& standard) {
  Alternative result;
  result.form = option.form;
  result.protocol = option.protocol;
  result.by_team = option.by_team;
  result.reason = option.obstacle;
  if (!option.obstacle.empty()) return result;
  const Choice& chosen = standard.chosen;
  if (option.form == chosen.form && option.protocol == chosen.protocol &&
      option.by_team == chosen.by_team) {
    result.verdict = Verdict::Chosen;
    result.best = chosen;
    return result;
  }
  result.best = pick(option.choices, standard.policy, standard.nranks);
  if (standard.is_among_measured && !option.competes) {
    result.verdict = Verdict::Unmeasured;
    result.reason = "was not measured on such machines: the time is derived from its schedule";
    return result;
  }
  const bool is_wider = std::min(result.best.microseconds,
                                 length_of(result.best, standard.nranks)) <= standard.most &&
                        result.best.channels > chosen.channels;
  result.verdict = is_wider ? Verdict::Wider : Verdict::Slower;
  result.reason = compare(result.best, chosen);
  if (is_wider)
    result.reason += fmt::format(", on {} channels more", result.best.channels - chosen.channels);
  return result;
}

/// Orders the chosen variant first, then the others by their times, and ineligible ones last.
bool comes_first(const Alternative& a, const Alternative& b) {
  const auto rank = [](const Alternative& each) {
    return each.verdict == Verdict::Chosen ? 0 : each.verdict == Verdict::Ineligible ? 2 : 1;
  };
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  return a.best.microseconds < b.best.microseconds;
}

}  // namespace

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::Chosen:
      return "chosen";
    case Verdict::Slower:
      return "slower";
    case Verdict::Wider:
      return "wider";
    case Verdict::Unmeasured:
      return "unmeasured";
    case Verdict::Ineligible:
      return "ineligible";
  }
  return "?";
}

Result<Explanation> explain(const Settings& settings, Collective collective, size_t bytes) {
  const std::vector<Option> options = survey(settings, collective, bytes);
  Explanation result;
  result.chosen = TRY(choose(settings, collective, bytes, options));
  const auto competes = [](const Option& option) { return option.competes; };
  const Standard standard{
      .chosen = result.chosen,
      .policy = settings.policy,
      .nranks = settings.nranks,
      .most = longest_acceptable(candidates(options), settings.policy, settings.nranks),
      .is_among_measured = std::any_of(options.begin(), options.end(), competes)};
  for (const Option& option : options) result.alternatives.push_back(judge(option, standard));
  std::stable_sort(result.alternatives.begin(), result.alternatives.end(), comes_first);
  return result;
}

}  // namespace niccolite::planner
