// JSON as the library reads it (observe/json.h writes it). A user may have written the file by
// hand, so each value knows its line. The reader is strict. It refuses everything that RFC 8259
// does not have (comments, trailing commas, two values), names that an object has twice, nesting
// deeper than 32, and numbers that are not finite doubles. Thread safety: as for any value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace niccolite::json {

enum class Kind : unsigned char { Null, Bool, Number, Text, Array, Object };
/// "a number", "an object".
const char* describe(Kind kind);

struct Member;

struct Value {
  Kind kind = Kind::Null;
  int line = 0;  // where it begins; the first is 1
  bool is_true = false;
  double number = 0;
  std::string text;
  std::vector<Value> items;
  std::vector<Member> members;  // in the order of the text

  /// Null: an object without it, or no object.
  const Value* find(std::string_view name) const;
};

struct Member {
  std::string name;
  Value value;
};

/// Errors: InvalidArgument with the line.
Result<Value> parse(std::string_view text);

/// InvalidArgument with the value's line: the reader of a format has no use for it.
Status refuse(const Value& value, std::string_view why);

}  // namespace niccolite::json
