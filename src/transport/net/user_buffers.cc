#include "transport/net/user_buffers.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/log.h"

namespace niccolite::transport::net {

bool UserBuffers::is_there(const Buffer& buffer) const {
  const Result<gpu::PointerInfo> info = options_.allocations.pointer_info(buffer.begin);
  return info.is_ok() && info.value().kind == gpu::PointerKind::Device &&
         info.value().id == buffer.memory;
}

void UserBuffers::add(void* memory, size_t bytes) {
  if (memory == nullptr || bytes == 0) return;
  const Result<gpu::PointerInfo> info = options_.allocations.pointer_info(memory);
  if (!info.is_ok() || info.value().kind != gpu::PointerKind::Device) return;
  auto* const begin = static_cast<std::byte*>(memory);
  std::lock_guard lock(mutex_);
  const Buffer buffer{.begin = begin, .bytes = bytes, .memory = info.value().id};
  const auto [first, last] = buffers_.equal_range(begin);
  const bool is_known =
      std::any_of(first, last, [&](const auto& entry) { return entry.second.is_same_as(buffer); });
  if (!is_known) buffers_.emplace(begin, buffer);
  count_.store(buffers_.size(), std::memory_order_relaxed);
}

void UserBuffers::remove_ended() {
  std::vector<Buffer> ended;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [begin, buffer] : buffers_) ended.push_back(buffer);
  }
  std::erase_if(ended, [&](const Buffer& buffer) {
    return is_there(buffer) && options_.is_registered(buffer.begin, buffer.bytes);
  });
  std::lock_guard lock(mutex_);
  std::erase_if(buffers_, [&](const auto& entry) {
    return std::ranges::any_of(
        ended, [&](const Buffer& buffer) { return buffer.is_same_as(entry.second); });
  });
  count_.store(buffers_.size(), std::memory_order_relaxed);
}

// Only buffers with the nearest beginning before the memory are looked at. What lies in one that
// begins further away goes through slots.
template <typename Visit>
bool UserBuffers::visit_around(const std::byte* memory, uint64_t bytes, Visit&& visit) {
  const auto after = buffers_.upper_bound(memory);
  if (after == buffers_.begin()) return false;
  const auto [first, last] = buffers_.equal_range(std::prev(after)->first);
  for (auto at = first; at != last; ++at)
    if (at->second.holds(memory, bytes) && visit(at->second)) return true;
  return false;
}

auto UserBuffers::buffer_of(const std::byte* memory, uint64_t bytes) -> Buffer* {
  Buffer* found = nullptr;
  visit_around(memory, bytes, [&](Buffer& buffer) {
    if (is_there(buffer)) found = &buffer;
    return found != nullptr;
  });
  return found;
}

bool UserBuffers::reaches(const std::byte* memory, uint64_t bytes, bool is_send) {
  if (!has_any()) return false;
  if (options_.registers_ahead) return register_ahead(memory, bytes, is_send);
  std::lock_guard lock(mutex_);
  Buffer* const buffer = buffer_of(memory, bytes);
  return buffer != nullptr && !buffer->use(is_send).is_refused;
}

std::shared_ptr<DirectMemory> UserBuffers::find(const std::byte* memory, uint64_t bytes,
                                                bool is_send) {
  std::lock_guard lock(mutex_);
  if (options_.registers_ahead) {
    std::shared_ptr<DirectMemory> known;
    visit_around(memory, bytes, [&](Buffer& buffer) {
      if (!buffer.is_gone) known = buffer.use(is_send).known;
      return known != nullptr;
    });
    return known;
  }
  Buffer* const buffer = buffer_of(memory, bytes);
  if (buffer == nullptr) return nullptr;
  Use& use = buffer->use(is_send);
  if (use.known == nullptr && !use.is_refused) use = register_with_network(*buffer, is_send);
  return use.known;
}

bool UserBuffers::register_ahead(const std::byte* memory, uint64_t bytes, bool is_send) {
  std::vector<Buffer> around;
  {
    std::lock_guard lock(mutex_);
    visit_around(memory, bytes, [&](Buffer& buffer) {
      around.push_back(buffer);
      return false;
    });
  }
  bool is_known = false;
  for (Buffer& buffer : around) {
    Use use = buffer.use(is_send);
    const bool is_gone = !is_there(buffer);
    if (!is_gone && use.known == nullptr && !use.is_refused)
      use = register_with_network(buffer, is_send);
    is_known |= !is_gone && use.known != nullptr;
    std::lock_guard lock(mutex_);
    visit_around(buffer.begin, buffer.bytes, [&](Buffer& same) {
      if (!same.is_same_as(buffer)) return false;
      same.is_gone = is_gone;
      if (same.use(is_send).known == nullptr) same.use(is_send) = use;
      return true;
    });
  }
  return is_known;
}

auto UserBuffers::register_with_network(const Buffer& buffer, bool is_send) const -> Use {
  Result<std::shared_ptr<DirectMemory>> known =
      options_.network->register_direct(buffer.begin, buffer.bytes, is_send);
  const std::string of = fmt::format("the buffer of {} bytes at {}", buffer.bytes,
                                     static_cast<const void*>(buffer.begin));
  if (!known.is_ok()) {
    LOG(Info, Reg, "NET/{} : {} goes through slots: {}", options_.network->name(), of,
        known.status().message());
    return {.is_refused = true};
  }
  LOG(Info, Reg, "NET/{} : {} {} {}", options_.network->name(),
      is_send ? "data go from" : "data come to", of, "without a copy");
  return {.known = std::move(known).take()};
}

}  // namespace niccolite::transport::net
