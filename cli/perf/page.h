// The results of a run as a page for browsers, and as lines for spreadsheets.
#pragma once

#include <string>
#include <vector>

#include "cli/perf/document.h"

namespace niccolite::perf {

/// Returns a self-contained HTML page that loads nothing: plots, tables, machine and command.
std::string to_html(const Document& document);

/// Returns a line of names, and a line for each row and place (out_of_place, in_place).
std::string to_csv(const std::vector<Row>& rows);

}  // namespace niccolite::perf
