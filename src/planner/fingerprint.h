// Fingerprint: all inputs of the planner's choices besides the settings: the compiled sources and
// the user's tunings. The choices decide which data ranks send each other. Ranks whose fingerprints
// differ would choose differently and wait for each other for ever; they are refused when they
// meet. Thread safety: any thread.
#pragma once

#include <cstdint>

namespace niccolite::planner {

struct Fingerprint {
  uint64_t build = 0;       // the sources, and the tunings that are built in
  uint64_t arithmetic = 0;  // the cost model's results in this build's arithmetic
  uint64_t limits = 0;      // of programs and algorithms, and the registry
  uint64_t tuning = 0;      // the files of NICCOLITE_TUNING
  uint64_t algorithms = 0;  // the algorithms of files (algorithms/loaded.h)
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

/// The fingerprint of this build.
const Fingerprint& fingerprint();

/// A hash of the files under src/ and tuning/ (cmake/source_id.cmake).
uint64_t source_id();

}  // namespace niccolite::planner
