// Reads algorithms in MSCCL's XML, as MSCCLang, TACCL and RCCL's collections have them.
// Thread safety: functions of values.
#pragma once

#include <string_view>

#include "importers/program.h"

namespace niccolite::importers {

/// Does `text` look like such a file?
bool is_msccl_xml(std::string_view text);

/// InvalidArgument with the line: no XML, an element, attribute or type of step that is not known,
/// a missing or malformed number, a rank, thread block, step or chunk that there is not.
Result<Program> read_msccl_xml(std::string_view text);

}  // namespace niccolite::importers
