#include "schedule/reducers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "schedule/index.h"

namespace niccolite::schedule {

std::vector<ReducerGroup> reducer_groups(const Schedule& schedule) {
  std::map<std::pair<int, int>, ReducerGroup> groups;
  const auto member_of = [](ReducerGroup& group, int rank) -> ReducerGroup::Member& {
    const auto place =
        std::ranges::lower_bound(group.members, rank, {}, &ReducerGroup::Member::rank);
    if (place != group.members.end() && place->rank == rank) return *place;
    return *group.members.insert(place, {.rank = rank});
  };
  for (int i = 0; i < length(schedule.connections); ++i) {
    const Connection& c = at(schedule.connections, i);
    if (through_of(c.tag) == Through::Nothing) continue;
    ReducerGroup& group =
        groups.try_emplace({c.channel, c.tag}, ReducerGroup{c.channel, c.tag}).first->second;
    member_of(group, c.sender).sends = i;
    member_of(group, c.receiver).receives = i;
  }
  std::vector<ReducerGroup> result;
  for (auto& [key, group] : groups) result.push_back(std::move(group));
  return result;
}

std::vector<int> groups_by_connection(std::span<const ReducerGroup> groups, size_t connections) {
  std::vector<int> result(connections, -1);
  for (int g = 0; g < length(groups); ++g)
    for (const ReducerGroup::Member& member : groups[static_cast<size_t>(g)].members)
      if (member.sends >= 0) at(result, member.sends) = g;
  return result;
}

Status check_reducers(const Schedule& schedule) {
  for (const ReducerGroup& group : reducer_groups(schedule)) {
    const auto name = [&] {
      return fmt::format("the reducer's group of channel {} and tag {}", group.channel, group.tag);
    };
    const Through through = group.through();
    if (through != Through::Gathering && !reduces(schedule.collective))
      return Status::invalid_usage("{} reduces, but {} only moves data", name(),
                                   name_of(schedule.collective));
    // The chunks that its members hand in together have one length.
    if (through != Through::Reduction && !has_blocks_of_ranks(schedule.collective))
      return Status::invalid_usage("{} {}, but the blocks of {} differ in size", name(),
                                   through == Through::Gathering ? "gathers" : "scatters",
                                   name_of(schedule.collective));
    size_t connections = 0;
    for (const Connection& c : schedule.connections)
      connections += c.tag == group.tag && c.channel == group.channel ? 1 : 0;
    for (int i = 0; i < group.count(); ++i) {
      const ReducerGroup::Member& member = at(group.members, i);
      const int next = at(group.members, (i + 1) % group.count()).rank;
      if (member.sends < 0 || member.receives < 0 ||
          at(schedule.connections, member.sends).receiver != next)
        return Status::invalid_usage(
            "{} does not go round its members: rank {} has no connection to rank {}", name(),
            member.rank, next);
    }
    if (connections != group.members.size())
      return Status::invalid_usage("{} has {} connections for {} members", name(), connections,
                                   group.members.size());
  }
  return {};
}

}  // namespace niccolite::schedule
