// Reads solutions of TE-CCL, a solver that treats a collective as traffic: JSON that says, for each
// demand of a rank for a chunk, on which paths the chunk comes. Thread safety: functions of values.
#pragma once

#include <string>
#include <string_view>

#include "importers/flow.h"

namespace niccolite::importers {

struct TecclSolution {
  Flow flow;
  std::string about;  // the predicted time, and how chunks were split
};

/// Ranks are the nodes from which chunks come, in ascending order; other nodes are switches, which
/// paths leave out. All-gather: each chunk of a rank is demanded by all others; all-to-all: by one,
/// and the chunks for a rank are in ascending order. A chunk that comes on several paths is split
/// into equal parts: as many as the volumes need, at most 16. Each path has the nearest number of
/// them.
///
/// InvalidArgument with the line: no solution, a path that does not lead from the chunk's source to
/// the demand, volumes that do not add up to 1, demands of another collective.
Result<TecclSolution> read_teccl_json(std::string_view text);

/// Is the text a solution, rather than another format's?
bool is_teccl_json(std::string_view text);

}  // namespace niccolite::importers
