// Reads algorithms in any of the formats of other projects. Thread safety: functions of values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "schedule/file.h"

namespace niccolite::importers {

struct Foreign {
  schedule::File file;
  std::string about;  // one line on the text that was read
};

/// Is `text` in such a format, rather than a schedule file?
bool is_foreign(std::string_view text);

/// Is the format for several collectives, and does not say for which one a file is?
bool says_no_collective(std::string_view text);

/// The schedule of a program in a format of another project. `collective`: for files that say none
/// (default: all-gather). Errors as the readers' and to_schedule()'s.
Result<Foreign> import(std::string_view text, std::optional<schedule::Collective> collective = {});

}  // namespace niccolite::importers
