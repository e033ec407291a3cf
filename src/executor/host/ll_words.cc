#include "executor/host/ll_words.h"

#include <cstring>

namespace niccolite::executor::host {
namespace {

std::atomic_ref<uint64_t> word(const std::byte* slot, uint64_t index) {
  // atomic_ref needs a mutable object even to load; slots are never in read-only memory.
  auto* words = reinterpret_cast<uint64_t*>(const_cast<std::byte*>(slot));
  return std::atomic_ref<uint64_t>(words[index]);
}

// relaxed, here and below: see ll_words.h.
uint64_t load(const std::byte* slot, uint64_t index) {
  return word(slot, index).load(std::memory_order_relaxed);
}

void store(std::byte* slot, uint64_t index, uint32_t data, uint32_t flag) {
  word(slot, index).store(ll::pack(data, flag), std::memory_order_relaxed);
}

}  // namespace

uint32_t ll_flag(const std::byte* slot, uint64_t byte) {
  return ll::flag_in(load(slot, byte / ll::kDataBytes));
}

bool ll_unpack(const std::byte* slot, uint64_t offset, uint64_t bytes, uint32_t flag,
               std::byte* data) {
  const uint64_t first = offset / ll::kDataBytes;
  const uint64_t whole = bytes / ll::kDataBytes;
  uint32_t different = 0;  // collected, not branched on: nearly always everything is there
  for (uint64_t i = 0; i < whole; ++i) {
    const uint64_t value = load(slot, first + i);
    different |= ll::flag_in(value) ^ flag;
    const uint32_t part = ll::data_of(value);
    std::memcpy(data + i * ll::kDataBytes, &part, sizeof part);
  }
  if (const uint64_t rest = bytes % ll::kDataBytes; rest != 0) {
    const uint64_t value = load(slot, first + whole);
    different |= ll::flag_in(value) ^ flag;
    const uint32_t part = ll::data_of(value);
    std::memcpy(data + whole * ll::kDataBytes, &part, rest);
  }
  return different == 0;
}

uint64_t ll_take(const std::byte* slot, uint64_t first, uint64_t words, uint32_t flag,
                 std::byte* data) {
  uint64_t at = first;
  for (; at < words; ++at) {
    const uint64_t value = load(slot, at);
    if (ll::flag_in(value) != flag) break;
    const uint32_t part = ll::data_of(value);
    std::memcpy(data + at * ll::kDataBytes, &part, sizeof part);
  }
  return at - first;
}

void ll_pack(std::byte* slot, uint64_t offset, uint64_t bytes, uint32_t flag,
             const std::byte* data) {
  const uint64_t first = offset / ll::kDataBytes;
  const uint64_t whole = bytes / ll::kDataBytes;
  for (uint64_t i = 0; i < whole; ++i) {
    uint32_t part;
    std::memcpy(&part, data + i * ll::kDataBytes, sizeof part);
    store(slot, first + i, part, flag);
  }
  if (const uint64_t rest = bytes % ll::kDataBytes; rest != 0) {
    uint32_t part = 0;
    std::memcpy(&part, data + whole * ll::kDataBytes, rest);
    store(slot, first + whole, part, flag);
  }
}

void ll_clean(std::byte* slot, uint64_t bytes, uint32_t slot_bytes, uint32_t flag) {
  for (uint64_t i = ll::words_of(bytes); i < slot_bytes / ll::kWordBytes; ++i)
    store(slot, i, 0, flag);
}

}  // namespace niccolite::executor::host
