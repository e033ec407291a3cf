// Hash: FNV-1a over 64-bit words, for values that ranks compare when they meet.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace niccolite::planner {

class Hash {
 public:
  void add(uint64_t value) { value_ = (value_ ^ value) * 0x100000001b3u; }
  void add(int value) { add(static_cast<uint64_t>(value)); }
  void add(double value) { add(std::bit_cast<uint64_t>(value)); }
  void add(std::string_view text) {
    add(uint64_t{text.size()});
    for (const char c : text) add(uint64_t{static_cast<unsigned char>(c)});
  }
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void add(Enum value) { add(static_cast<uint64_t>(value)); }
  uint64_t value() const { return value_ ^ value_ >> 32; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace niccolite::planner
