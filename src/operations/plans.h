// Plans: what one planner has planned for an operation queue and the queue has connected, to be
// launched again and again.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "calls/task.h"
#include "operations/launcher.h"
#include "planner/plan.h"

namespace niccolite::operations {

/// One launch of a group.
struct KnownLaunch {
  std::shared_ptr<Launcher> launcher;
  std::vector<uint32_t> tasks;     // by work
  std::vector<uint32_t> outputs;   // the same
  std::vector<calls::Call> calls;  // the same
  bool is_beside = false;          // Batch::is_beside
  bool was_logged = false;         // CallLog::add() has had these calls
};
struct KnownGroup {
  std::vector<calls::Call> calls;
  std::vector<KnownLaunch> launches;
};

struct HashOfRequest {
  size_t operator()(const planner::Request& request) const;
};

/// Of all groups that are remembered.
inline constexpr size_t kMostRememberedCalls = 1 << 14;

/// Each map has so many entries at most, of which one makes room for another.
struct Plans {
  planner::Planner planner;
  bool is_captured = false;  // of what is, alone
  std::unordered_map<planner::Request, std::shared_ptr<Launcher>, HashOfRequest> collectives{};
  std::unordered_map<std::string, std::shared_ptr<Launcher>> batches{};  // by what is in them
  std::unordered_multimap<uint64_t, KnownGroup> groups{};                // by hash_of(calls)
  std::optional<size_t> most_message_by_lines{};  // of the planner; none: it has not been asked yet
  size_t group_calls = 0;                         // of all of them

  KnownGroup* find(std::span<const calls::Task> tasks);
};

}  // namespace niccolite::operations
