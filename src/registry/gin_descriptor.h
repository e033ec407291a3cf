// GinDescriptor: one operation that a kernel asks the proxy for, as headers of 2.30 to 2.32 write
// it into a queue: 16 words, bit 0 of each says that the word is there. All bits that no field
// names are garbage. Pure. Source: device-api reference, section 9.1.
#pragma once

#include <cstddef>
#include <cstdint>

namespace niccolite::registry {

inline constexpr size_t kGinWords = 16;

struct GinDescriptor {
  enum Operation : uint32_t {
    kPut = 1,
    kInline = 2,
    kCounter = 4,
    kIncrement = 8,
    kAdd = 16,
    kInMemory = 32,  // the signal is a word of a window
    kGet = 64,
    kFlush = 128
  };
  uint32_t operation = 0;
  uint64_t bytes = 0;
  uint64_t source_offset = 0;  // or of the word of a signal in memory
  uint64_t source_window = 0;
  uint64_t target_offset = 0;
  uint64_t target_window = 0;
  uint64_t value = 0;  // to put, of `bytes` bytes
  uint32_t counter = 0;
  uint32_t signal = 0;
  uint64_t amount = 0;  // to add to the signal

  bool has(uint32_t bits) const { return (operation & bits) != 0; }
  /// For messages.
  const char* name() const {
    if (has(kGet)) return "get";
    if (has(kFlush)) return "flush";
    if (has(kInMemory)) return "signal in memory";
    return bytes > 0 ? "put" : "signal";
  }

  static GinDescriptor decode(const uint64_t (&words)[kGinWords]) {
    GinDescriptor read;
    read.operation = static_cast<uint32_t>(words[7] >> 8 & 0xffff);
    read.bytes = words[0] >> 7;
    read.source_offset = words[1] >> 1;
    read.source_window = words[2] >> 1;
    read.target_offset = words[3] >> 1;
    read.target_window = words[4] >> 1;
    read.value = (words[1] >> 8 & 0xffffffff) | (words[1] >> 40 & 0xffff) << 32 |
                 (words[2] >> 8 & 0xffff) << 48;
    read.counter = static_cast<uint32_t>(words[5] >> 1 & 0x7fffff);
    read.signal = static_cast<uint32_t>(words[5] >> 24 & 0xffffff);
    read.amount = read.has(kIncrement) ? 1
                                       : words[5] >> 48 | (words[6] >> 8 & 0xffff) << 16 |
                                             (words[6] >> 24 & 0xffffffff) << 32;
    return read;
  }
};

}  // namespace niccolite::registry
