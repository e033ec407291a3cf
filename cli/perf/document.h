// What a run leaves: its totals, and the JSON document that holds all of it.
#pragma once

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

/// Writes options.json_path; a reader never sees half of it.
Status write_document(const Document& document);

}  // namespace niccolite::perf
