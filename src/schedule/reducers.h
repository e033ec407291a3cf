// ReducerGroup: the connections of a schedule through the network's reducer that belong together
// (schedule.h, Through), and the order in which the reducer carries chunks. Pure: any thread.
#pragma once

#include <span>
#include <vector>

#include "schedule/schedule.h"

namespace niccolite::schedule {

struct ReducerGroup {
  struct Member {
    int rank;
    int sends = -1;     // connection that it hands chunks in by; -1: it has none
    int receives = -1;  // connection that results come by; the same
  };
  int channel;
  int tag;
  std::vector<Member> members{};  // in ascending order of ranks

  Through through() const { return through_of(tag); }
  /// Carry `number` (0, 1, ...) of the group needs a chunk of every member. Who gets a result?
  bool receives(int carry, int member) const {
    return through() != Through::Scattering || carry % count() == member;
  }
  /// Is the chunk of a member used up with this carry? Else the next one takes it, too.
  bool uses_up(int carry) const {
    return through() != Through::Gathering || carry % count() == count() - 1;
  }
  /// The member whose chunk a carry of a gathering brings.
  int source(int carry) const { return carry % count(); }
  int count() const { return static_cast<int>(members.size()); }
};

std::vector<ReducerGroup> reducer_groups(const Schedule& schedule);
/// By connection: its place among `groups`; -1: it is none of the reducer's.
std::vector<int> groups_by_connection(std::span<const ReducerGroup> groups, size_t connections);

/// The form of the groups: their connections go round all members once, and do what the collective
/// does. InvalidUsage, naming group and rank.
Status check_reducers(const Schedule& schedule);

/// Takes a chunk of each member, hands results out: one carry after the other, as long as all
/// members have a chunk, and the receivers of the result have room.
///   has(member), has_room(member)     may it go on?
///   carry(number)                     moves the chunks of carry `number`
template <typename Has, typename HasRoom, typename Carry>
Status carry_all(const ReducerGroup& group, int& number, Has&& has, HasRoom&& has_room,
                 Carry&& carry) {
  for (;; ++number) {
    for (int member = 0; member < group.count(); ++member) {
      if (!has(group.members[static_cast<size_t>(member)])) return {};
      if (group.receives(number, member) && !has_room(group.members[static_cast<size_t>(member)]))
        return {};
    }
    TRY(carry(number));
  }
}

}  // namespace niccolite::schedule
