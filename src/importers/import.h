// Reads algorithms in any of the formats of other projects. Thread safety: functions of values.
#pragma once

#include <string>
#include <string_view>

#include "schedule/file.h"

namespace niccolite::importers {

struct Foreign {
  schedule::File file;
  std::string about;  // one line on what was read
};

/// Is `text` in such a format, rather than a schedule file?
bool is_foreign(std::string_view text);

/// The schedule of a program in a format of another project. Errors as the readers' and
/// to_schedule()'s.
Result<Foreign> import(std::string_view text);

}  // namespace niccolite::importers
