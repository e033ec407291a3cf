#include "transport/net/user_buffers.h"

#include <algorithm>
#include <iterator>
#include <utility>

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
  const auto [first, last] = buffers_.equal_range(begin);
  const bool is_known = std::any_of(first, last, [&](const auto& entry) {
    return entry.second.bytes == bytes && entry.second.memory == info.value().id;
  });
  if (!is_known)
    buffers_.emplace(begin, Buffer{.begin = begin, .bytes = bytes, .memory = info.value().id});
  count_.store(buffers_.size(), std::memory_order_relaxed);
}

void UserBuffers::remove_ended() {
  std::lock_guard lock(mutex_);
  std::erase_if(buffers_, [&](const auto& entry) {
    return !is_there(entry.second) || !options_.is_registered(entry.first, entry.second.bytes);
  });
  count_.store(buffers_.size(), std::memory_order_relaxed);
}

// Only buffers with the nearest beginning before the memory are looked at. What lies in one that
// begins further away goes through slots.
auto UserBuffers::buffer_of(const std::byte* memory, uint64_t bytes) const -> const Buffer* {
  const auto after = buffers_.upper_bound(memory);
  if (after == buffers_.begin()) return nullptr;
  const auto [first, last] = buffers_.equal_range(std::prev(after)->first);
  for (auto at = first; at != last; ++at) {
    const Buffer& buffer = at->second;
    const auto offset = static_cast<uint64_t>(memory - buffer.begin);
    if (offset <= buffer.bytes && bytes <= buffer.bytes - offset && is_there(buffer))
      return &buffer;
  }
  return nullptr;
}

bool UserBuffers::reaches(const std::byte* memory, uint64_t bytes, bool is_send) const {
  if (!has_any()) return false;
  std::lock_guard lock(mutex_);
  const Buffer* const buffer = buffer_of(memory, bytes);
  return buffer != nullptr && !(is_send ? buffer->send : buffer->receive).is_refused;
}

std::shared_ptr<DirectMemory> UserBuffers::find(const std::byte* memory, uint64_t bytes,
                                                bool is_send) {
  std::lock_guard lock(mutex_);
  auto* const buffer = const_cast<Buffer*>(buffer_of(memory, bytes));
  if (buffer == nullptr) return nullptr;
  Use& use = is_send ? buffer->send : buffer->receive;
  if (use.known != nullptr || use.is_refused) return use.known;
  Result<std::shared_ptr<DirectMemory>> known =
      options_.network->register_direct(buffer->begin, buffer->bytes, is_send);
  const std::string of = fmt::format("the buffer of {} bytes at {}", buffer->bytes,
                                     static_cast<const void*>(buffer->begin));
  if (!known.is_ok()) {
    use.is_refused = true;
    LOG(Info, Reg, "NET/{} : {} goes through slots: {}", options_.network->name(), of,
        known.status().message());
    return nullptr;
  }
  use.known = std::move(known).take();
  LOG(Info, Reg, "NET/{} : {} {} {}", options_.network->name(),
      is_send ? "data go from" : "data come to", of, "without a copy");
  return use.known;
}

}  // namespace niccolite::transport::net
