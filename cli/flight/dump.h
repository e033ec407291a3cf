// The content of the flight recorder's files (src/observe/dumps.h): read, checked, and put together
// by communicator. Pure data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace niccolite::flight {

/// One launch or moment. Times are nanoseconds since 1970 by the clock of that host.
struct Event {
  uint64_t time = 0;
  std::string kind;  // "called", "begun", "ended", "waiting", "stalled", "failed", "ready", "left"
  uint64_t launch = 0;
  std::string call;      // called: as a user would write it
  std::string function;  // called: "ncclAllReduce"
  uint64_t number = 0;   // called: of the collective, or of the message; 0: captured in a graph
  std::string stream;    // called
  uint64_t milliseconds = 0;  // waiting
  int peer = -1;              // waiting, stalled
};

/// One rank of one communicator, as its process described it.
struct RankDump {
  int rank = 0;
  int device = 0;
  std::string process;  // "process 4711 on host a12"
  uint64_t time = 0;    // of the dump
  std::string state, failure;
  int failure_rank = -1;  // the rank at fault; -1: none, or not known
  uint64_t collectives = 0;
  uint64_t begun = 0;       // the last launch that its stream came to; 0: not known
  bool is_running = false;  // which has not ended
  std::string verdict;      // empty: none
  int verdict_rank = -1;
  std::string waits_in;  // the call; empty: it does not wait, or its call is not known
  int waits_for = -1;
  uint64_t waited = 0;        // milliseconds
  std::string blocked;        // the call that waits for another thread's; empty: none
  std::vector<Event> events;  // oldest first
};

struct CommunicatorDump {
  std::string id;
  int nranks = 0;
  std::vector<std::string> processes;  // by rank
  std::map<int, RankDump> ranks;       // ranks that left a dump
};

struct Flight {
  std::map<std::string, CommunicatorDump> communicators;  // by id
  std::vector<std::string> problems;                      // a line for each file that is not used
  size_t files = 0;                                       // that are
};

/// All files of `path`, a folder or one file. InvalidArgument when none can be read.
Result<Flight> read_flight(const std::filesystem::path& path);

/// Returns the newest call among the events of a rank. Null if it has none.
const Event* last_call(const RankDump& rank);

}  // namespace niccolite::flight
