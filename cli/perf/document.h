// The results of a run: totals, and the document with all of them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/perf/options.h"
#include "cli/perf/row.h"

namespace niccolite::perf {

struct Totals {
  uint64_t wrong = 0;
  uint64_t other_wrong = 0;
  double average_bus_bandwidth = 0;
};
Totals totals_of(const std::vector<Row>& rows);

struct Document {
  const Options& options;
  const std::vector<std::string>& command;
  const Start& start;
  const std::vector<Row>& rows;
  const std::vector<MemoryUse>& memory;  // empty: not measured
  const std::string& failure;            // empty: none
};

/// All of it, in the schema "niccolite-perf-2".
nlohmann::json to_json(const Document& document);

/// Writes the files that the options name. Readers find whole files.
Status write_files(const Document& document);

}  // namespace niccolite::perf
