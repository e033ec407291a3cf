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

std::shared_ptr<Communicator> LiveCommunicators::find_in(const Table& table, const void* handle) {
  const auto found = table.find(handle);
  return found == table.end() ? nullptr : found->second;
}

std::shared_ptr<Communicator> LiveCommunicators::find(const void* handle) const {
  std::shared_lock lock(mutex_);
  return find_in(live_, handle);
}

std::shared_ptr<Communicator> LiveCommunicators::find_ending(const void* handle) const {
  std::shared_lock lock(mutex_);
  return find_in(ending_, handle);
}

std::shared_ptr<Communicator> LiveCommunicators::begin_end(const void* handle) {
  std::unique_lock lock(mutex_);
  std::shared_ptr<Communicator> communicator = find_in(live_, handle);
  if (communicator == nullptr) return nullptr;
  live_.erase(handle);
  ending_.emplace(handle, communicator);
  // [release] to ends(): whoever saw the call that ends it return finds it ended.
  ends_.fetch_add(1, std::memory_order_release);
  return communicator;
}

void LiveCommunicators::forget(const void* handle) {
  std::shared_ptr<Communicator> communicator;  // its end comes after the lock's
  std::unique_lock lock(mutex_);
  communicator = find_in(ending_, handle);
  ending_.erase(handle);
  lock.unlock();
}

}  // namespace niccolite::comm
