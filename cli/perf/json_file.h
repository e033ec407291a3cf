// JSON files that programs may read while they are made anew.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"

namespace niccolite::perf {

/// Replaces the file at `path` by `document`, at once: there is always the old or the new one.
Status write_json(const std::string& path, const nlohmann::json& document);

}  // namespace niccolite::perf
