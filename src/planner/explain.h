// Why an operation is carried out as it is: each algorithm by each protocol, at its best, beside
// the one that is chosen. Read from what choose() chooses from, so that it cannot say anything
// else. Pure functions: any thread.
#pragma once

#include <string>
#include <vector>

#include "planner/choice/choice.h"

namespace niccolite::planner {

enum class Verdict : uint8_t {
  Chosen,
  Slower,      // than what is chosen
  Wider,       // as fast as the model can tell, but of more channels
  Unmeasured,  // on such a machine: taken only where nothing measured is allowed
  Ineligible   // has no predicted time
};
/// "chosen", "slower", ...
const char* name_of(Verdict verdict);

struct Alternative {
  const Algorithm* algorithm = nullptr;
  executor::Protocol protocol = executor::Protocol::Simple;
  Verdict verdict = Verdict::Ineligible;
  Choice best;         // the chosen one, or what would be taken if there were nothing else
  std::string reason;  // a phrase about `verdict`: "takes 12.5 % longer"; empty of what is chosen
};

struct Explanation {
  Choice chosen;
  // What is chosen, then the others by their times, those without any at the end.
  std::vector<Alternative> alternatives;
};

/// Of an operation by itself: choose()'s arguments. In a group, operations may have fewer channels,
/// or become one list (choose_for_list()). Errors: those of choose().
Result<Explanation> explain(const Settings& settings, Collective collective, size_t bytes);

}  // namespace niccolite::planner
