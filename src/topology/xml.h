// Reads and writes descriptions in the form of NCCL's topology files (NCCL_TOPO_FILE,
// NCCL_TOPO_DUMP_FILE). Unknown elements and attributes are passed over, as NCCL does.
#pragma once

#include <string>
#include <string_view>

#include "topology/description.h"

namespace niccolite::topology {

/// `origin` names the text in errors: a file. InvalidUsage: not XML (with line and column), another
/// version than 1, a malformed number, a device without a bus id, or a bus id that occurs twice.
Result<Description> read_xml(std::string_view text, const std::string& origin);
/// InvalidUsage as well when the file cannot be read.
Result<Description> load_xml(const std::string& path);

std::string write_xml(const Description& description);

}  // namespace niccolite::topology
