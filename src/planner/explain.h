// Explains a choice: each algorithm by each protocol, at its best, beside the chosen one. It reads
// the same survey as choose(), so that the two always agree. Pure functions: any thread.
#pragma once

#include <string>
#include <vector>

#include "planner/choice/choice.h"

namespace niccolite::planner {

enum class Verdict : uint8_t {
  Chosen,
  Slower,      // than the chosen one
  Wider,       // as fast as the model can tell, but of more channels
  Unmeasured,  // on such a machine: taken only where nothing measured is allowed
  Ineligible   // has no predicted time
};
/// "chosen", "slower", ...
const char* name_of(Verdict verdict);

struct Alternative {
  const Form* form = nullptr;
  executor::Protocol protocol = executor::Protocol::Simple;
  bool by_team = false;  // Variant::by_team
  Verdict verdict = Verdict::Ineligible;
  Choice best;         // the chosen one, or the best of this alternative
  std::string reason;  // a phrase about `verdict`: "takes 12.5 % longer"; empty for the chosen one
};

struct Explanation {
  Choice chosen;
  // The chosen variant, then the others by their times, and variants without a time last.
  std::vector<Alternative> alternatives;
};

/// Explains an operation by itself, with choose()'s arguments. In a group, an operation may have
/// fewer channels, or become a part of a list (choose_for_list()). Errors: as choose().
Result<Explanation> explain(const Settings& settings, Collective collective, size_t bytes);

}  // namespace niccolite::planner
