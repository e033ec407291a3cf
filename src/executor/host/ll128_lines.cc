#include "executor/host/ll128_lines.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace niccolite::executor::host {
namespace {

using ll128::kDataBytes;
using ll128::kFlagOffset;
using ll128::kLineBytes;

static_assert(std::atomic_ref<uint64_t>::is_always_lock_free,
              "lines are shared with other processes");

std::atomic_ref<uint64_t> flag_at(const std::byte* line) {
  // atomic_ref needs a mutable object even to load; slots are never in read-only memory.
  auto* flag = reinterpret_cast<uint64_t*>(const_cast<std::byte*>(line) + kFlagOffset);
  return std::atomic_ref<uint64_t>(*flag);
}

}  // namespace

uint64_t ll128_flag(const std::byte* slot, uint64_t byte) {
  // acquire: see [line].
  return flag_at(slot + byte / kDataBytes * kLineBytes).load(std::memory_order_acquire);
}

bool ll128_unpack(const std::byte* slot, uint64_t offset, uint64_t bytes, uint64_t flag,
                  std::byte* data) {
  const std::byte* line = slot + offset / kDataBytes * kLineBytes;
  for (uint64_t done = 0; done < bytes; done += kDataBytes, line += kLineBytes) {
    // acquire: see [line].
    if (flag_at(line).load(std::memory_order_acquire) != flag) return false;
    std::memcpy(data + done, line, std::min<uint64_t>(kDataBytes, bytes - done));
  }
  return true;
}

void ll128_pack(std::byte* slot, uint64_t offset, uint64_t bytes, uint64_t flag,
                const std::byte* data) {
  std::byte* line = slot + offset / kDataBytes * kLineBytes;
  for (uint64_t done = 0; done < bytes; done += kDataBytes, line += kLineBytes) {
    std::memcpy(line, data + done, std::min<uint64_t>(kDataBytes, bytes - done));
    // release: see [line].
    flag_at(line).store(flag, std::memory_order_release);
  }
}

}  // namespace niccolite::executor::host
