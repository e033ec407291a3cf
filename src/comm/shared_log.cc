#include "comm/shared_log.h"

namespace niccolite::comm {

void SharedLog::open(int nranks) {
  auto log = std::make_shared<calls::CallLog>(nranks);
  std::lock_guard lock(mutex_);
  log_ = std::move(log);
}

void SharedLog::close() {
  std::lock_guard lock(mutex_);
  log_.reset();
}

std::shared_ptr<calls::CallLog> SharedLog::share() const {
  std::lock_guard lock(mutex_);
  return log_;
}

void SharedLog::note(observe::EventKind kind) {
  const std::shared_ptr<calls::CallLog> log = share();
  if (log == nullptr) return;
  observe::Event event;
  event.time = observe::ticks();
  event.kind = kind;
  log->recorder()->add(event);
}

const char* SharedLog::last_function() const {
  const std::shared_ptr<calls::CallLog> log = share();
  const char* const last = log != nullptr ? log->last_function() : nullptr;
  return last != nullptr ? last : maker_;
}

}  // namespace niccolite::comm
