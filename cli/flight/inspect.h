// The verdict of the dumps of all ranks together: the rank for which a communicator stands still.
#pragma once

#include <string>
#include <vector>

#include "cli/flight/dump.h"

namespace niccolite::flight {

struct RankLine {
  int rank = 0;
  std::string process;
  bool is_culprit = false;
  bool has_dump = false;
  uint64_t collectives = 0;
  std::string does;  // in words
};

struct Finding {
  std::string communicator;
  int nranks = 0;
  std::string verdict;  // one sentence
  int culprit = -1;     // -1: nobody
  std::vector<RankLine> lines;
};

/// Returns a finding for each communicator. Communicators that stand still or have failed come
/// first.
std::vector<Finding> inspect(const Flight& flight);
/// For people.
std::string to_text(const Finding& finding);

}  // namespace niccolite::flight
