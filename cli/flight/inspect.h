// What the dumps of all ranks say together: who it is that a communicator stands still for.
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

/// One of each communicator: first those that stand still or have failed.
std::vector<Finding> inspect(const Flight& flight);
/// For people.
std::string to_text(const Finding& finding);

}  // namespace niccolite::flight
