// Json: text of objects and lists, written one value after the other. Only as much as the files of
// this library need: names and values in, commas and escapes by itself.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace niccolite::observe {

class Json {
 public:
  Json& begin_object(std::string_view name = {}) { return open(name, '{'); }
  Json& end_object() { return close('}'); }
  Json& begin_list(std::string_view name = {}) { return open(name, '['); }
  Json& end_list() { return close(']'); }

  /// Add a value: with a name in an object, without one in a list.
  Json& text(std::string_view name, std::string_view value);
  Json& number(std::string_view name, std::integral auto value) {
    begin_value(name);
    text_ += std::to_string(value);
    return *this;
  }
  /// Adds 64 bits that are no count: many readers know no integers of this size.
  Json& hexadecimal(std::string_view name, uint64_t value);
  /// An object or a list that is text already.
  Json& raw(std::string_view name, std::string_view json);

  const std::string& str() const { return text_; }

 private:
  Json& open(std::string_view name, char bracket);
  Json& close(char bracket);
  void begin_value(std::string_view name);
  void quote(std::string_view text);
  std::string text_;
  bool is_first_ = true;  // of the object or list that is open
};

}  // namespace niccolite::observe
