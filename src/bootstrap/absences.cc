#include "bootstrap/absences.h"

#include "base/log.h"

namespace niccolite::bootstrap {

bool Absences::is_absent(uint32_t process) {
  const bool is_visible = outside_.is_visible(process);
  const Clock::time_point now = outside_.now();
  {
    std::lock_guard lock(mutex_);
    if (!is_visible || !is_turn_of(process, now)) return absent_.contains(process);
  }
  const RunState state = outside_.run_state(process);
  bool is_absent = false, is_news = false;
  {
    std::lock_guard lock(mutex_);
    is_news = note(process, state, now);
    is_absent = absent_.contains(process);
  }
  if (is_news) tell(process, "is stopped");
  return is_absent;
}

void Absences::note_silent(uint32_t process) {
  bool is_news = false;
  {
    std::lock_guard lock(mutex_);
    silent_.insert(process);
    is_news = give_up(process);
  }
  if (is_news) tell(process, "does not answer");
}

bool Absences::are_there() const {
  std::lock_guard lock(mutex_);
  return !absent_.empty();
}

// All have a turn before one has its next.
bool Absences::is_turn_of(uint32_t process, Clock::time_point now) {
  if (silent_.contains(process)) return false;
  Awaited& awaited = awaited_[process];
  awaited.asked = now;  // before the others' end: the caller may get a core each second or two
  if (now - interval_began_ >= kLookInterval) {
    interval_began_ = now;
    looks_ = 0;
    std::erase_if(awaited_, [&](const auto& entry) { return now - entry.second.asked > kLong; });
  }
  const size_t intervals = (awaited_.size() + kMostLooks - 1) / kMostLooks;
  if (looks_ == kMostLooks || now - awaited.looked < intervals * kLookInterval) return false;
  ++looks_;
  awaited.looked = now;
  return true;
}

bool Absences::note(uint32_t process, RunState state, Clock::time_point now) {
  std::optional<Clock::time_point>& since = awaited_[process].stopped_since;
  if (state != RunState::Stopped) {
    since.reset();
    if (!silent_.contains(process)) absent_.erase(process);  // it goes on
    return false;
  }
  if (!since) since = now;
  return now - *since >= kLong && give_up(process);
}

bool Absences::give_up(uint32_t process) {
  absent_.insert(process);
  return told_.insert(process).second;
}

void Absences::tell(uint32_t process, const char* why) {
  LOG(Warn, Bootstrap,
      "the end of a communicator does not wait for {}, which {}: operations that it has not come "
      "to yet may fail there",
      outside_.describe(process), why);
}

}  // namespace niccolite::bootstrap
