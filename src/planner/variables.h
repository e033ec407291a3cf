// Variables: this rank's environment variables and configuration on which choices depend. Rank 0's
// values hold for all ranks; a line of the log names differences.
// Thread safety: any thread.
#pragma once

#include <string>
#include <vector>

#include "planner/settings.h"

namespace niccolite::planner {

struct Variable {
  std::string name;   // as the user knows it: "NCCL_ALGO", "config.maxCTAs"
  std::string value;  // its text as the user has set it
  friend bool operator==(const Variable&, const Variable&) = default;
};

inline constexpr size_t kMostVariables = 32;
inline constexpr size_t kMostVariableName = 64;
inline constexpr size_t kMostVariableValue = 128;  // longer values are cut

/// Returns the variables that are set, in a fixed order.
std::vector<Variable> variables_of_choices(const Limits& limits);

/// Returns one line for each variable that differs between ranks: 'NCCL_ALGO is "ring" on rank 0,
/// "pat" on rank 2, and not set on ranks 1 and 3: rank 0's holds for all'.
std::vector<std::string> describe_differences(
    const std::vector<const std::vector<Variable>*>& of_ranks);

}  // namespace niccolite::planner
