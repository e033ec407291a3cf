#include "base/json.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <utility>

namespace niccolite::json {
namespace {

constexpr int kDeepest = 32;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(uint32_t point, std::string& text) {
  const auto byte = [&](uint32_t bits) { text += static_cast<char>(bits); };
  if (point < 0x80) return byte(point);
  if (point < 0x800) {
    byte(0xc0 | point >> 6);
  } else {
    if (point < 0x10000) {
      byte(0xe0 | point >> 12);
    } else {
      byte(0xf0 | point >> 18);
      byte(0x80 | (point >> 12 & 0x3f));
    }
    byte(0x80 | (point >> 6 & 0x3f));
  }
  byte(0x80 | (point & 0x3f));
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Value> document() {
    Value value;
    TRY(read(value, 0));
    skip_space();
    if (at_ < text_.size()) return refuse("something stands behind the value");
    return value;
  }

 private:
  Status refuse(const std::string& what) const {
    return Status::invalid_argument("line {}: {}", line_, what);
  }

  void skip_space() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n')
        ++line_;
      else if (c != ' ' && c != '\t' && c != '\r')
        return;
    }
  }

  /// Takes `c` if it is next, behind white space.
  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Status read(Value& value, int depth) {
    skip_space();
    value.line = line_;
    if (depth == kDeepest) return refuse("nested too deep");
    if (at_ == text_.size()) return refuse("the text ends where a value is missing");
    const char c = text_[at_];
    if (c == '{') return read_object(value, depth);
    if (c == '[') return read_array(value, depth);
    if (c == '"') {
      value.kind = Kind::Text;
      return read_text(value.text);
    }
    if (c == '-' || is_digit(c)) return read_number(value);
    value.kind = Kind::Bool;
    if ((value.is_true = take_word("true")) || take_word("false")) return {};
    value.kind = Kind::Null;
    if (take_word("null")) return {};
    return refuse("no value begins like this");
  }

  Status read_object(Value& value, int depth) {
    value.kind = Kind::Object;
    ++at_;
    if (take('}')) return {};
    do {
      skip_space();
      if (at_ == text_.size() || text_[at_] != '"') return refuse("a name in quotes is missing");
      Member member;
      TRY(read_text(member.name));
      if (value.find(member.name) != nullptr)
        return refuse(fmt::format("\"{}\" is there twice", member.name));
      if (!take(':')) return refuse(fmt::format("no colon behind \"{}\"", member.name));
      TRY(read(member.value, depth + 1));
      value.members.push_back(std::move(member));
    } while (take(','));
    if (!take('}')) return refuse("neither a comma nor the end of an object");
    return {};
  }

  Status read_array(Value& value, int depth) {
    value.kind = Kind::Array;
    ++at_;
    if (take(']')) return {};
    do {
      TRY(read(value.items.emplace_back(), depth + 1));
    } while (take(','));
    if (!take(']')) return refuse("neither a comma nor the end of an array");
    return {};
  }

  /// from_chars() alone takes less and more than JSON has: "01", "1.", "inf".
  Status read_number(Value& value) {
    const size_t start = at_;
    const auto digits = [&] {
      const size_t first = at_;
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
      return at_ - first;
    };
    const auto one_of = [&](std::string_view signs) {
      const bool is_there = at_ < text_.size() && signs.find(text_[at_]) != std::string_view::npos;
      at_ += is_there ? 1 : 0;
      return is_there;
    };
    one_of("-");
    const size_t whole = at_;
    bool is_fine = digits() > 0;
    if (at_ - whole > 1 && text_[whole] == '0') is_fine = false;
    if (one_of(".")) is_fine = digits() > 0 && is_fine;
    if (one_of("eE")) {
      one_of("+-");
      is_fine = digits() > 0 && is_fine;
    }
    const std::string_view digits_of = text_.substr(start, at_ - start);
    value.kind = Kind::Number;
    const auto [end, error] =
        std::from_chars(digits_of.data(), digits_of.data() + digits_of.size(), value.number);
    if (!is_fine || error != std::errc() || end != digits_of.data() + digits_of.size() ||
        !std::isfinite(value.number))
      return refuse(fmt::format("{} is no number", digits_of.substr(0, 40)));
    return {};
  }

  Status read_text(std::string& text) {
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return {};
      }
      if (static_cast<unsigned char>(c) < 0x20) break;
      if (c != '\\') {
        text += c;
        continue;
      }
      ++at_;
      TRY(read_escape(text));
    }
    return refuse("a text without an end");
  }

  /// Stands behind the backslash, and ends on the last character of the escape.
  Status read_escape(std::string& text) {
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char letter = at_ < text_.size() ? text_[at_] : '\0';
    if (const size_t known = kLetters.find(letter); known != std::string_view::npos) {
      text += kMeanings[known];
      return {};
    }
    uint32_t point = 0;
    if (letter != 'u' || !read_hex(point)) return refuse("an unknown escape in a text");
    if (point >= 0xd800 && point < 0xdc00) {
      uint32_t second = 0;
      if (text_.substr(at_ + 1, 2) != "\\u") return refuse("half a surrogate pair in a text");
      at_ += 2;
      if (!read_hex(second) || second < 0xdc00 || second >= 0xe000)
        return refuse("half a surrogate pair in a text");
      point = 0x10000 + ((point - 0xd800) << 10) + (second - 0xdc00);
    } else if (point >= 0xdc00 && point < 0xe000) {
      return refuse("half a surrogate pair in a text");
    }
    append_utf8(point, text);
    return {};
  }

  /// Reads the four digits behind the `u` at the current position.
  bool read_hex(uint32_t& point) {
    const std::string_view four = text_.substr(at_ + 1, 4);
    const auto [end, error] = std::from_chars(four.data(), four.data() + four.size(), point, 16);
    at_ += four.size();
    return error == std::errc() && four.size() == 4 && end == four.data() + 4;
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

const char* describe(Kind kind) {
  constexpr const char* kNames[] = {"null",   "true or false", "a number",
                                    "a text", "an array",      "an object"};
  return kNames[static_cast<size_t>(kind)];
}

const Value* Value::find(std::string_view name) const {
  for (const Member& member : members)
    if (member.name == name) return &member.value;
  return nullptr;
}

Result<Value> parse(std::string_view text) { return Parser(text).document(); }

Status refuse(const Value& value, std::string_view why) {
  return Status::invalid_argument("line {}: {}", value.line, why);
}

}  // namespace niccolite::json
