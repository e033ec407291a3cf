// The syntax of NCCL_ALGO and NCCL_PROTO:
//   value = group *( ";" group )      group = [ function ":" ] [ "^" ] token *( "," token )
// Names ignore case. A group without function (only the first may be one) sets the default for all
// functions. Empty tokens and groups are skipped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "schedule/schedule.h"

namespace niccolite::planner {

/// A name that a list may contain, in lower case, and the bits that it stands for.
struct Token {
  std::string name;
  uint32_t bits;
};

std::string lower(std::string_view text);
/// Returns the parts of the text between the separators; views into `text`.
std::vector<std::string_view> split(std::string_view text, char separator);

/// Returns the names that NCCL_ALGO may contain: every algorithm with all its forms, and
/// each form alone. Bits stand for the forms of `collective`, by index_of().
std::vector<Token> algorithm_tokens(schedule::Collective collective);
/// Returns the names that NCCL_PROTO may contain; bits by number.
std::vector<Token> protocol_tokens();

/// Returns the bits that `function` may use: of all tokens for an empty `text`. NCCL's names in
/// `foreign` are accepted, and select nothing here. Errors: InvalidUsage naming `variable`, the
/// unknown token or function, and the allowed names.
Result<uint32_t> parse_selection(std::string_view variable, std::string_view text,
                                 std::string_view function, std::span<const Token> tokens,
                                 std::span<const std::string_view> foreign);

/// Has `text` a group for `function` (in lower case)?
bool is_named(std::string_view text, std::string_view function);

}  // namespace niccolite::planner
