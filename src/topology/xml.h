// Descriptions as NCCL's topology files: what NCCL_TOPO_FILE names and NCCL_TOPO_DUMP_FILE is
// written as. Elements and attributes that are not known are passed over, as NCCL does.
#pragma once

#include <string>
#include <string_view>

#include "topology/description.h"

namespace niccolite::topology {

/// `origin` names the text in errors: a file. InvalidUsage: not XML (with line and column), another
/// version than 1, a number that is none, a device without a bus id, or twice the same.
Result<Description> read_xml(std::string_view text, const std::string& origin);
/// InvalidUsage as well when the file cannot be read.
Result<Description> load_xml(const std::string& path);

std::string write_xml(const Description& description);

}  // namespace niccolite::topology
