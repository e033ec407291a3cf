#include "cli/perf/pattern_cache.h"

namespace niccolite::perf {

std::shared_ptr<const Pattern> PatternCache::known(const Collective& collective,
                                                   const ElementType& type,
                                                   const Operation& operation) {
  const Operation* wanted = collective.reduces ? &operation : nullptr;
  const std::lock_guard lock(mutex_);
  if (known_ == nullptr || &known_->type() != &type || operation_ != wanted) {
    // Moved data come from any rank; reduced data are known without the inputs of others.
    Pattern pattern = collective.reduces ? Pattern::exact(type, operation, nranks_, ranks_)
                                         : Pattern::moving(type, {0, nranks_});
    known_ = std::make_shared<Pattern>(std::move(pattern));
    operation_ = wanted;
  }
  return known_;
}

std::shared_ptr<const Pattern> PatternCache::rounding(const ElementType& type) {
  const std::lock_guard lock(mutex_);
  if (rounding_ == nullptr || &rounding_->type() != &type)
    rounding_ = std::make_shared<Pattern>(Pattern::rounding(type, ranks_));
  return rounding_;
}

}  // namespace niccolite::perf
