// Names of foreign programs. Thread safety: functions of values.
#pragma once

#include <string>
#include <string_view>

namespace niccolite::importers {

/// A name for NCCL_ALGO; `absent` if there is none.
inline std::string plain_name(std::string_view name, std::string_view absent) {
  std::string plain;
  for (const char c : name.substr(0, 48)) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    const bool is_capital = c >= 'A' && c <= 'Z';
    plain += is_letter ? c : is_capital ? static_cast<char>(c - 'A' + 'a') : '_';
  }
  return plain.empty() ? std::string(absent) : plain;
}

}  // namespace niccolite::importers
