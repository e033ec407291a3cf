// Snapshot: the part of a flight recorder's dump that describes one communicator (observe/dumps.h).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "diagnosis/watch.h"
#include "observe/clock.h"
#include "observe/json.h"

namespace niccolite::diagnosis {

struct SnapshotOf {
  uint64_t communicator = 0;  // its id, as log lines have it
  int rank = 0;
  int nranks = 0;
  int device = 0;
  const char* state = "";
  std::string failure;                            // the asynchronous error; empty: none
  int failure_rank = -1;                          // the rank at fault; -1: none, or not known
  std::function<std::string(int rank)> describe;  // "process 4711 on host a12"
};

/// Adds fields to an open object. Any thread.
void describe_snapshot(observe::Json& json, const SnapshotOf& of, const calls::CallLog& log,
                       const Watch& watch);

}  // namespace niccolite::diagnosis
