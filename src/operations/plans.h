// Plans: plans that one planner has made for an operation queue and the queue has connected, to be
// launched again and again. Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "calls/task.h"
#include "operations/launcher.h"
#include "operations/planned.h"
#include "planner/plan.h"

namespace niccolite::operations {

/// One launch of a group. The group's tasks come with each call.
struct GroupLaunch {
  std::shared_ptr<Launcher> launcher{};  // null until connect(); for ever of a launch that copies
                                         // each input to its output
  std::unique_ptr<Planned> planned{};    // until connect(), which makes the launcher of it
  std::vector<uint32_t> tasks{};         // by work: which of the group's tasks it carries out
  std::vector<uint32_t> outputs{};       // the same: whose output it has (Batch::outputs)
  std::vector<calls::Call> calls{};      // the same
  std::vector<gpu::StreamHandle> joined{};  // streams of the calls, but for the first task's
  bool is_beside = false;                   // Batch::is_beside
  bool was_logged = false;                  // CallLog::add() has had these calls
};
/// The launches of a group, in their order. A call by itself is a group of one.
struct GroupLaunches {
  std::vector<calls::Call> calls;
  std::vector<GroupLaunch> launches;
};

struct HashOfRequest {
  size_t operator()(const planner::Request& request) const;
};

/// The most calls that all remembered groups have together.
inline constexpr size_t kMostRememberedCalls = 1 << 14;

struct Plans {
  planner::Planner planner;
  bool is_captured = false;  // for captured operations only
  // Each of the next two has a limit of entries. One entry makes room for another:
  std::unordered_map<planner::Request, std::shared_ptr<GroupLaunches>, HashOfRequest> ones{};
  std::unordered_map<std::string, std::shared_ptr<Launcher>> batches{};  // by their content
  // By hash_of(calls): groups of several calls, or of messages.
  std::unordered_multimap<uint64_t, std::shared_ptr<GroupLaunches>> groups{};
  size_t group_calls = 0;                         // of all of them
  std::optional<size_t> most_message_by_lines{};  // of the planner; none: it has not been asked yet

  /// The launches of a group of these calls; null: they are not remembered.
  std::shared_ptr<GroupLaunches> find(std::span<const calls::Task> tasks) const;
  /// The launcher of a collective by itself, and of the batch with this name; null: none.
  std::shared_ptr<Launcher> find(const planner::Request& request) const;
  std::shared_ptr<Launcher> find(const std::string& name) const;

  /// Launchers that are remembered no more. They may have to outlive their launches.
  using Forgotten = std::vector<std::shared_ptr<Launcher>>;
  /// The launches of a group of these tasks, if later calls may find them.
  Forgotten remember(std::span<const calls::Task> tasks, std::shared_ptr<GroupLaunches> group);
  Forgotten remember(const calls::Call& collective, std::shared_ptr<Launcher> launcher);
  Forgotten remember(std::string name, std::shared_ptr<Launcher> launcher);
  Forgotten forget();

 private:
  void forget_groups(Forgotten& forgotten);
};

}  // namespace niccolite::operations
