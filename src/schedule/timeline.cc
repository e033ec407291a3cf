#include "schedule/timeline.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "schedule/check_form.h"
#include "schedule/index.h"
#include "schedule/reducers.h"

namespace niccolite::schedule {
namespace {

class Run {
 public:
  explicit Run(const Schedule& schedule)
      : schedule_(schedule),
        in_flight_(schedule.connections.size()),
        groups_(reducer_groups(schedule)),
        carried_(groups_.size()),
        group_of_(groups_by_connection(groups_, schedule.connections.size())),
        handed_in_(schedule.connections.size()) {
    for (int rank = 0; rank < schedule.nranks; ++rank) {
      const std::vector<Channel>& channels = at(schedule.ranks, rank);
      for (int channel = 0; channel < length(channels); ++channel)
        for (int worker = 0; worker < length(at(channels, channel).workers); ++worker)
          workers_.push_back({.next = {rank, channel, worker, 0}});
    }
  }

  /// Goes over the workers until none gets any further.
  Result<Timeline> finish() && {
    for (bool is_stuck = false; !is_stuck;) {
      is_stuck = true;
      for (WorkerState& worker : workers_) {
        while (can_run(worker)) {
          run(worker);
          is_stuck = false;
        }
      }
    }
    for (const WorkerState& worker : workers_)
      if (worker.next.instruction < length(list_of(worker)))
        return Status::invalid_usage("{} never has all the chunks that it waits for",
                                     describe(worker.next));
    return std::move(timeline_);
  }

 private:
  struct WorkerState {
    Position next;
    int step = 0;     // at which the next instruction can run as far as its worker goes
    int latency = 0;  // of the instruction before
  };

  const std::vector<Instruction>& list_of(const WorkerState& worker) const {
    const Channel& channel = at(at(schedule_.ranks, worker.next.rank), worker.next.channel);
    return at(channel.workers, worker.next.worker).instructions;
  }

  bool can_run(const WorkerState& worker) const {
    const std::vector<Instruction>& list = list_of(worker);
    if (worker.next.instruction == length(list)) return false;
    const std::vector<int>& from = at(list, worker.next.instruction).receive_from;
    return std::all_of(from.begin(), from.end(),
                       [&](int connection) { return !at(in_flight_, connection).empty(); });
  }

  void run(WorkerState& worker) {
    const Instruction& instruction = at(list_of(worker), worker.next.instruction);
    Event event{.position = worker.next, .step = worker.step, .latency = worker.latency};
    for (const int connection : instruction.receive_from) {
      const int cause = at(in_flight_, connection).front();
      at(in_flight_, connection).pop_front();
      const Event& sent = at(timeline_.events, cause);
      event.step = std::max(event.step, sent.step + 1);
      event.latency = std::max(event.latency, sent.latency + 1);
      event.data = sent.data;
      event.causes.push_back(cause);
    }
    if (instruction.source) event.data = data_in(worker.next, *instruction.source);
    if (instruction.target) memory_[key(worker.next, *instruction.target)] = event.data;
    for (const int connection : instruction.send_to)
      (at(group_of_, connection) < 0 ? at(in_flight_, connection) : at(handed_in_, connection))
          .push_back(length(timeline_.events));

    timeline_.steps = std::max(timeline_.steps, event.step + 1);
    timeline_.latencies = std::max(timeline_.latencies, event.latency);
    worker.step = event.step + 1;
    worker.latency = event.latency;
    ++worker.next.instruction;
    timeline_.events.push_back(std::move(event));
    for (const int connection : instruction.send_to)
      if (const int group = at(group_of_, connection); group >= 0)
        carry(at(groups_, group), at(carried_, group));
  }

  /// The cause of a reducer's result is the last of the other members' chunks.
  void carry(const ReducerGroup& group, int& carried) {
    const auto step_of = [&](int connection) {
      return at(timeline_.events, at(handed_in_, connection).front()).step;
    };
    const auto has_chunk = [&](const ReducerGroup::Member& member) {
      return !at(handed_in_, member.sends).empty();
    };
    for (; std::ranges::all_of(group.members, has_chunk); ++carried) {
      for (int member = 0; member < group.count(); ++member) {
        if (!group.receives(carried, member)) continue;
        int last = group.through() == Through::Gathering
                       ? at(group.members, group.source(carried)).sends
                       : -1;
        for (int other = 0; other < group.count(); ++other) {
          const int sends = at(group.members, other).sends;
          if (group.through() != Through::Gathering && other != member &&
              (last < 0 || step_of(sends) > step_of(last)))
            last = sends;
        }
        at(in_flight_, at(group.members, member).receives).push_back(at(handed_in_, last).front());
      }
      if (!group.uses_up(carried)) continue;
      for (const ReducerGroup::Member& member : group.members)
        at(handed_in_, member.sends).pop_front();
    }
  }

  using Key = std::tuple<int, int, Buffer, int>;  // rank, channel, buffer, block
  static Key key(const Position& position, const BlockReference& reference) {
    return {position.rank, position.channel, reference.buffer, reference.block};
  }

  /// Returns the content of a block: the data last written to it, or the user's input.
  Data data_in(const Position& position, const BlockReference& source) const {
    if (const auto found = memory_.find(key(position, source)); found != memory_.end())
      return found->second;
    return {reduces(schedule_.collective) ? Data::kSum : position.rank, source.block};
  }

  const Schedule& schedule_;
  std::vector<std::deque<int>> in_flight_;  // by connection: the events that sent
  const std::vector<ReducerGroup> groups_;
  std::vector<int> carried_;                // by group
  const std::vector<int> group_of_;         // by connection; -1: none
  std::vector<std::deque<int>> handed_in_;  // as in_flight_, to the network's reducer
  std::vector<WorkerState> workers_;
  std::map<Key, Data> memory_;
  Timeline timeline_;
};

}  // namespace

Result<Timeline> timeline(const Schedule& schedule) {
  TRY(check_form(schedule));
  return Run(schedule).finish();
}

int blocks_sent(const Schedule& schedule, int rank) {
  int sent = 0;
  for (const Channel& channel : at(schedule.ranks, rank))
    for (const Worker& worker : channel.workers)
      for (const Instruction& instruction : worker.instructions)
        sent += length(instruction.send_to);
  return sent;
}

}  // namespace niccolite::schedule
