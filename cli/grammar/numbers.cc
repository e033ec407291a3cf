#include "cli/grammar/numbers.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace niccolite::grammar {

std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Result<size_t> parse_bytes(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string suffix = end;
  double unit = 1;
  if (!suffix.empty() && suffix != "B") {
    switch (suffix[0]) {
      case 'k':
      case 'K':
        unit = 1024.0;
        break;
      case 'm':
      case 'M':
        unit = 1024.0 * 1024;
        break;
      case 'g':
      case 'G':
        unit = 1024.0 * 1024 * 1024;
        break;
      default:
        unit = 0;
    }
    suffix.erase(0, 1);
  }
  const bool has_unit_alone = suffix.empty() || suffix == "B" || suffix == "iB";
  const double bytes = number * unit;
  if (text.empty() || end == text.c_str() || !has_unit_alone || unit == 0 || !(bytes >= 0) ||
      bytes > 0x1p60)
    return Status::invalid_argument("\"{}\" is no size; write for example 8, 4K, 1.5M or 1G", text);
  return static_cast<size_t>(bytes);
}

Result<size_t> parse_size(const char* flag, const std::string& text) {
  Result<size_t> bytes = parse_bytes(text);
  if (!bytes.is_ok()) return std::move(bytes).status().with_context("{}", flag);
  return bytes;
}

Result<std::vector<size_t>> parse_sizes(const char* flag, const std::string& list) {
  std::vector<size_t> sizes;
  for (const std::string& text : split_list(list)) sizes.push_back(TRY(parse_size(flag, text)));
  return sizes;
}

Result<std::vector<int>> parse_numbers(const char* flag, const std::string& list, int least,
                                       int most) {
  std::vector<int> numbers;
  for (const std::string& text : split_list(list)) {
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < least || number > most)
      return Status::invalid_argument("{}: \"{}\" is no number from {} to {}", flag, text, least,
                                      most);
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace niccolite::grammar
