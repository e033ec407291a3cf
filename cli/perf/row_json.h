// The JSON form of rows; used by row_json's includers only because the JSON header is slow to
// compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/perf/row.h"

namespace niccolite::perf {

nlohmann::json to_json(const Start& start);
nlohmann::json to_json(const Row& row);
nlohmann::json to_json(const MemoryUse& use);
/// Reads only the output of to_json; throws nlohmann's exceptions on anything else.
Start start_from_json(const nlohmann::json& json);
Row row_from_json(const nlohmann::json& json);
MemoryUse memory_use_from_json(const nlohmann::json& json);

}  // namespace niccolite::perf
