// The inputs in use, made once per process for each collective's kind, type and operation by the
// thread that comes first. Thread safety: any thread.
#pragma once

#include <memory>
#include <mutex>

#include "cli/perf/collective.h"
#include "cli/perf/pattern.h"

namespace niccolite::perf {

class PatternCache {
 public:
  PatternCache(int nranks, Pattern::Ranks ranks) : nranks_(nranks), ranks_(ranks) {}

  /// Inputs whose result is known.
  std::shared_ptr<const Pattern> known(const Collective& collective, const ElementType& type,
                                       const Operation& operation);
  std::shared_ptr<const Pattern> rounding(const ElementType& type);

 private:
  const int nranks_;
  const Pattern::Ranks ranks_;  // of this process
  std::mutex mutex_;            // guards the rest
  const Operation* operation_ = nullptr;
  std::shared_ptr<const Pattern> known_, rounding_;
};

}  // namespace niccolite::perf
