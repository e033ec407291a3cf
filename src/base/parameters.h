// Parameters: every environment variable the library reads, declared once in parameters.def with
// type, default, range and meaning. Sources in order of precedence: the process environment, the
// file NCCL_CONF_FILE (else ~/.nccl.conf), /etc/nccl.conf. Values are read once per process and
// reported at INFO, subsystem ENV, when first used.
//   if (parameters::buffsize() > 0) ...        generated: one function per entry, named like the
//   variable
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace niccolite::parameters {

// INTEGER(function, "NAME", default, minimum, maximum, "meaning"): parsed like strtoll with base 0;
// outside the range: the default, with an INFO line. TEXT(function, "NAME", "meaning"): empty when
// unset.
#define INTEGER(function, name, value, minimum, maximum, meaning) int64_t function();
#define TEXT(function, name, meaning) const std::string& function();
#include "base/parameters.def"
#undef INTEGER
#undef TEXT

/// True when the variable was set (by environment or file) to something that is not empty.
bool is_set(const char* name);
/// The text of any variable, read now: for the few that are read at each use (NCCL_ALGO,
/// NCCL_PROTO, NCCL_COMM_ID).
std::optional<std::string> read_now(const char* name);

/// Reads the configuration files into the environment; called by the first read of any parameter.
void load_files();

}  // namespace niccolite::parameters
