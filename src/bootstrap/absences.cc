#include "bootstrap/absences.h"

#include "base/log.h"

namespace niccolite::bootstrap {
namespace {

void print(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) LOG(Warn, Bootstrap, "{}", line);
}

}  // namespace

bool Absences::is_absent(uint32_t process) {
  std::unique_lock lock(mutex_);
  const Lines lines = look();
  const bool is_absent = absent_.contains(process);
  lock.unlock();
  print(lines);
  return is_absent;
}

void Absences::note_silent(uint32_t process) {
  std::unique_lock lock(mutex_);
  silent_.insert(process);
  const Lines lines = give_up(process, "does not answer");
  lock.unlock();
  print(lines);
}

bool Absences::are_there() const {
  std::lock_guard lock(mutex_);
  return !absent_.empty();
}

Absences::Lines Absences::look() {
  Lines lines;
  const Clock::time_point now = outside_.now();
  if (looked_ != Clock::time_point() && now - looked_ < kLookInterval) return lines;
  looked_ = now;
  const uint32_t nprocesses = outside_.nprocesses();
  for (uint32_t process = 0; process < nprocesses; ++process) {
    if (outside_.run_state(process) != RunState::Stopped) {
      stopped_since_.erase(process);
      if (!silent_.contains(process)) absent_.erase(process);  // it goes on
      continue;
    }
    const Clock::time_point since = stopped_since_.emplace(process, now).first->second;
    if (now - since < kLong) continue;
    for (std::string& line : give_up(process, "is stopped")) lines.push_back(std::move(line));
  }
  return lines;
}

Absences::Lines Absences::give_up(uint32_t process, const char* why) {
  absent_.insert(process);
  if (!told_.insert(process).second) return {};
  return {fmt::format(
      "the end of a communicator does not wait for {}, which {}: operations that it has not come "
      "to yet may fail there",
      outside_.describe(process), why)};
}

}  // namespace niccolite::bootstrap
