#include "comm/live_communicators.h"

#include <mutex>

namespace niccolite::comm {

LiveCommunicators& LiveCommunicators::instance() {
  static LiveCommunicators* const table = new LiveCommunicators;
  return *table;
}

void LiveCommunicators::add(std::shared_ptr<Communicator> communicator) {
  std::unique_lock lock(mutex_);
  const void* handle = communicator.get();
  live_.emplace(handle, std::move(communicator));
}

std::shared_ptr<Communicator> LiveCommunicators::find(const void* handle) const {
  std::shared_lock lock(mutex_);
  const auto found = live_.find(handle);
  return found == live_.end() ? nullptr : found->second;
}

std::shared_ptr<Communicator> LiveCommunicators::remove(const void* handle) {
  std::unique_lock lock(mutex_);
  const auto found = live_.find(handle);
  if (found == live_.end()) return nullptr;
  std::shared_ptr<Communicator> communicator = std::move(found->second);
  live_.erase(found);
  return communicator;
}

}  // namespace niccolite::comm
