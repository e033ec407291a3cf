#include "operations/plans.h"

#include <algorithm>

#include "operations/call_key.h"

namespace niccolite::operations {
namespace {

// A program that uses more shapes than this in turn plans some of them anew; planning costs
// microseconds.
constexpr size_t kMostPrepared = 1024;

/// Do launches of these calls depend on nothing but the calls, the buffers and the stream?
bool may_be_remembered(std::span<const calls::Task> tasks) {
  return tasks.size() <= kMostRememberedCalls &&
         std::ranges::all_of(tasks, [&](const calls::Task& task) {
           return task.stream == tasks[0].stream && task.launched == nullptr;
         });
}

// A collective that records its user's event counts, too: it is launched as others are.
bool is_one_collective(std::span<const calls::Task> tasks) {
  return tasks.size() == 1 && !tasks[0].call.is_message();
}

void take_launchers(GroupLaunches& group, Plans::Forgotten& forgotten) {
  for (const GroupLaunch& launch : group.launches) forgotten.push_back(launch.launcher);
}

}  // namespace

size_t HashOfRequest::operator()(const planner::Request& request) const { return hash_of(request); }

std::shared_ptr<GroupLaunches> Plans::find(std::span<const calls::Task> tasks) const {
  if (is_one_collective(tasks)) {
    const auto found = ones.find(tasks[0].call.request);
    return found == ones.end() ? nullptr : found->second;
  }
  if (groups.empty() || !may_be_remembered(tasks)) return nullptr;
  const auto [first, last] = groups.equal_range(hash_of(tasks));
  const auto found = std::find_if(first, last, [&](const auto& known) {
    const std::vector<calls::Call>& calls = known.second->calls;
    return std::equal(
        tasks.begin(), tasks.end(), calls.begin(), calls.end(),
        [](const calls::Task& task, const calls::Call& call) { return task.call == call; });
  });
  return found == last ? nullptr : found->second;
}

std::shared_ptr<Launcher> Plans::find(const planner::Request& request) const {
  const auto found = ones.find(request);
  return found == ones.end() ? nullptr : found->second->launches[0].launcher;
}

std::shared_ptr<Launcher> Plans::find(const std::string& name) const {
  const auto found = batches.find(name);
  return found == batches.end() ? nullptr : found->second;
}

Plans::Forgotten Plans::remember(std::span<const calls::Task> tasks,
                                 std::shared_ptr<GroupLaunches> group) {
  Forgotten forgotten;
  if (is_one_collective(tasks)) {
    if (ones.size() >= kMostPrepared) {
      take_launchers(*ones.begin()->second, forgotten);
      ones.erase(ones.begin());
    }
    ones.emplace(tasks[0].call.request, std::move(group));
    return forgotten;
  }
  if (group->launches.empty() || !may_be_remembered(tasks)) return forgotten;
  if (group_calls + group->calls.size() > kMostRememberedCalls) forget_groups(forgotten);
  group_calls += group->calls.size();
  const uint64_t hash = hash_of(std::span<const calls::Call>(group->calls));
  groups.emplace(hash, std::move(group));
  return forgotten;
}

Plans::Forgotten Plans::remember(const calls::Call& collective,
                                 std::shared_ptr<Launcher> launcher) {
  calls::Task task;
  task.call = collective;
  auto group = std::make_shared<GroupLaunches>();
  group->calls = {collective};
  GroupLaunch& launch = group->launches.emplace_back();
  launch.launcher = std::move(launcher);
  launch.tasks = launch.outputs = {0};
  launch.calls = {collective};
  return remember({&task, 1}, std::move(group));
}

Plans::Forgotten Plans::remember(std::string name, std::shared_ptr<Launcher> launcher) {
  Forgotten forgotten;
  if (batches.size() >= kMostPrepared) {
    forgotten.push_back(std::move(batches.begin()->second));
    batches.erase(batches.begin());
  }
  batches.emplace(std::move(name), std::move(launcher));
  return forgotten;
}

Plans::Forgotten Plans::forget() {
  Forgotten forgotten;
  forget_groups(forgotten);
  for (const auto& [request, one] : ones) take_launchers(*one, forgotten);
  for (const auto& [name, launcher] : batches) forgotten.push_back(launcher);
  ones.clear();
  batches.clear();
  return forgotten;
}

void Plans::forget_groups(Forgotten& forgotten) {
  for (const auto& [hash, group] : groups) take_launchers(*group, forgotten);
  groups.clear();
  group_calls = 0;
}

}  // namespace niccolite::operations
