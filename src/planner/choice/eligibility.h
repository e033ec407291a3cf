// Which variants an operation may have, by the machine, the number of ranks and the user's
// variables; and why not the others.
#pragma once

#include <string>

#include "planner/settings.h"

namespace niccolite::planner {

/// Why `variant` is not eligible, a phrase: by NCCL_ALGO and NCCL_PROTO, among so many ranks of
/// such a machine. Empty: it is.
std::string obstacle_to(const Settings& settings, const Variant& variant);
/// obstacle_to(), for operations of so many bytes, and of Settings::type.
std::string obstacle_to(const Settings& settings, const Variant& variant, size_t bytes);
/// Is some algorithm of a file for operations of some data types alone (Settings::type)?
bool has_algorithms_of_types(const Settings& settings, Collective collective);
inline bool is_allowed(const Settings& settings, const Variant& variant) {
  return obstacle_to(settings, variant).empty();
}

/// Does NCCL_ALGO leave `collective` all that it has?
bool allows_all(const Settings& settings, Collective collective);

/// Returns the error for an operation of that many bytes without an eligible variant: it names the
/// variables that exclude all variants, if there are any, and the existing variants.
Status why_none(const Settings& settings, Collective collective, size_t bytes);

}  // namespace niccolite::planner
