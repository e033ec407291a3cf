// JSON files that programs may read while they are made anew.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"

namespace niccolite::perf {

/// Replaces the file at `path`, or to which it leads, by `document`, at once: there is always the
/// old or the new one. To a device or a pipe the document is written.
Status write_json(const std::string& path, const nlohmann::json& document);

/// Can a file be written at `path`? Leaves what is there as it is. For those who measure for
/// minutes before they write.
Status check_writable(const std::string& path);

}  // namespace niccolite::perf
