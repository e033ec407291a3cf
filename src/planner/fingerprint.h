// Fingerprint: all that the planner's choices, and with them what ranks send each other, depend on
// beside the settings: what was compiled. Ranks whose fingerprints differ would choose differently
// and wait for each other for ever; they are refused when they meet.
// Thread safety: any thread.
#pragma once

#include <cstdint>

namespace niccolite::planner {

struct Fingerprint {
  uint64_t build = 0;      // the sources
  uint64_t constants = 0;  // of the cost model, and what this build's arithmetic makes of them
  uint64_t limits = 0;     // of programs and algorithms, the registry, the shapes of connections
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

/// Of this build.
const Fingerprint& fingerprint();

/// Of the sources under src/ (cmake/source_id.cmake).
uint64_t source_id();

}  // namespace niccolite::planner
