#include "observe/json.h"

#include <fmt/core.h>

namespace niccolite::observe {

void Json::quote(std::string_view text) {
  text_ += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (byte < 0x20 || byte > 0x7e) {
      text_ += fmt::format("\\u{:04x}", byte);  // whatever it was, the file is valid
    } else {
      text_ += c;
    }
  }
  text_ += '"';
}

void Json::begin_value(std::string_view name) {
  if (!is_first_) text_ += ',';
  is_first_ = false;
  if (name.empty()) return;
  quote(name);
  text_ += ':';
}

Json& Json::open(std::string_view name, char bracket) {
  begin_value(name);
  text_ += bracket;
  is_first_ = true;
  return *this;
}

Json& Json::close(char bracket) {
  text_ += bracket;
  is_first_ = false;
  return *this;
}

Json& Json::text(std::string_view name, std::string_view value) {
  begin_value(name);
  quote(value);
  return *this;
}

Json& Json::hexadecimal(std::string_view name, uint64_t value) {
  return text(name, fmt::format("0x{:x}", value));
}

Json& Json::raw(std::string_view name, std::string_view json) {
  begin_value(name);
  text_ += json;
  return *this;
}

}  // namespace niccolite::observe
