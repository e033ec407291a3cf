// The results of a run as pictures. Self-contained SVG in the style of schedule/draw_svg.h.
#pragma once

#include <string>
#include <vector>

#include "cli/perf/options.h"
#include "cli/perf/row.h"

namespace niccolite::perf {

/// The rows that differ in their size alone: the curves of one plot.
struct Plot {
  std::string title;     // "all_reduce"
  std::string subtitle;  // "float sum, 4 x NVIDIA H200, graph replays"
  std::vector<const Row*> rows;
};
std::vector<Plot> plots_of(const Options& options, const Start& start,
                           const std::vector<Row>& rows);

/// Returns a picture with a panel each for the latency of small sizes, the bus bandwidth of large
/// ones (with the limit, if options have one) and the ratio to the other library. Panels without
/// data are left out.
std::string draw(const Plot& plot, const Options& options, const Start& start);

/// Returns one picture of all plots, one below the other.
std::string draw_all(const Options& options, const Start& start, const std::vector<Row>& rows);

/// `text` with the characters escaped that XML and HTML have for themselves.
std::string escape_markup(const std::string& text);

/// "8 B", "64 KiB", "1.5 MiB".
std::string size_text(size_t bytes);

}  // namespace niccolite::perf
