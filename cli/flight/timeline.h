// The last seconds of a flight, as pictures and as a trace for other programs.
#pragma once

#include <string>

#include "cli/flight/dump.h"
#include "cli/flight/inspect.h"

namespace niccolite::flight {

/// One operation of one rank, or a wait.
struct Span {
  uint64_t begin = 0, end = 0;  // ns since 1970
  std::string name;
  bool is_open = false;  // had not ended when the dump was made
};

/// Returns the operations on the stream of a rank (virtual GPUs), oldest first.
std::vector<Span> operations_of(const RankDump& rank);
/// Returns the waits of a rank that were reported.
std::vector<Span> waits_of(const RankDump& rank);

/// Returns an SVG of one communicator from its first event, but at most the last `seconds`: a row
/// for each rank, the culprit marked.
std::string draw(const CommunicatorDump& communicator, const Finding& finding, double seconds);

/// Returns JSON of the Trace Event Format, which Perfetto and chrome://tracing open: a process for
/// each rank of each communicator, with its calls, its stream's operations and its waits.
std::string to_trace(const Flight& flight);

}  // namespace niccolite::flight
