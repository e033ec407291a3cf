// The syntax of NCCL_ALGO and NCCL_PROTO:
//   value = group *( ";" group )      group = [ function ":" ] [ "^" ] token *( "," token )
// Names ignore case. A group without function (only the first may be one) sets the default for all
// functions.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace niccolite::planner {

/// For each of `names`: may `function` use it? All true for an empty `text`.
/// Names in `foreign` are NCCL's too: accepted, and select nothing here.
/// Errors: InvalidUsage naming `variable` and the unknown token or function.
Result<std::vector<bool>> parse_selection(std::string_view variable, std::string_view text,
                                          std::string_view function,
                                          std::span<const std::string_view> names,
                                          std::span<const std::string_view> foreign);

/// Has `text` a group for `function` (in lower case)?
bool is_named(std::string_view text, std::string_view function);

}  // namespace niccolite::planner
