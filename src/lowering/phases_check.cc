// The proof of check_phases():
//  - progress over rounds: credit and chunks are counted, step by step, each rank at its own pace.
//    A step that can be done stays so, whatever others do, so that one order stands for all;
//  - result and races: the checker of lowered plans executes one round, with one worker for each
//    rank that has phases. Rounds touch different elements, and credit orders no accesses.
#include <algorithm>
#include <iterator>

#include "lowering/check.h"
#include "lowering/phases.h"
#include "schedule/check_form.h"
#include "schedule/index.h"

namespace niccolite::lowering {
namespace {

using schedule::at;
using schedule::Buffer;
using schedule::Instruction;
using schedule::length;
using schedule::Schedule;

constexpr int kPhases = 3;
constexpr const char* kNames[kPhases] = {"send", "reduce", "store"};

/// The instructions of a phase.
using Instructions = std::vector<Instruction>;

std::array<Instructions, kPhases> instructions_of(const Phases& phases) {
  std::array<Instructions, kPhases> of;
  auto& [sends, reduces, stores] = of;
  for (const auto& [connection, block] : phases.sends)
    sends.push_back(
        {.source = schedule::BlockReference{Buffer::Input, block}, .send_to = {connection}});
  if (phases.copy)
    sends.push_back({.source = schedule::BlockReference{Buffer::Input, phases.copy->from},
                     .target = schedule::BlockReference{Buffer::Output, phases.copy->to}});
  if (const std::optional<Phases::Reduce>& reduce = phases.reduce) {
    Instruction& instruction = reduces.emplace_back();
    instruction.receive_from = reduce->receives;
    instruction.source = schedule::BlockReference{Buffer::Input, reduce->source};
    instruction.source_position = reduce->source_position;
    instruction.reduce = true;
    if (reduce->target)
      instruction.target = schedule::BlockReference{Buffer::Output, *reduce->target};
    instruction.send_to = reduce->sends;
    instruction.finish = reduce->finishes;
  }
  for (const auto& [connection, block] : phases.stores)
    stores.push_back(
        {.receive_from = {connection}, .target = schedule::BlockReference{Buffer::Output, block}});
  return of;
}

/// The schedule in which each rank with phases has one worker, which does them in order.
Schedule sequence(const Schedule& schedule, const std::vector<std::optional<Phases>>& by_rank) {
  Schedule result = schedule;
  for (int rank = 0; rank < schedule.nranks; ++rank) {
    if (!at(by_rank, rank)) continue;
    schedule::Channel& channel = at(result.ranks, rank).front();
    channel.workers.clear();
    schedule::Worker worker;
    for (Instructions& phase : instructions_of(*at(by_rank, rank)))
      std::ranges::move(phase, std::back_inserter(worker.instructions));
    if (!worker.instructions.empty()) channel.workers.push_back(std::move(worker));
  }
  return result;
}

/// Returns the steps as the kernel does them: each phase for all peers together.
std::vector<Step> steps_of(const Phases& phases) {
  std::vector<Step> steps, last;
  int first = 0;
  for (const Instructions& phase : instructions_of(phases)) {
    std::vector<Step> arrivals, moves, announcements;
    for (const Instruction& instruction : phase) {
      for (const int connection : instruction.send_to) {
        steps.push_back({.event = Event::AwaitCredit, .connection = connection});
        announcements.push_back({.event = Event::Announce, .connection = connection});
      }
      for (const int connection : instruction.receive_from) {
        arrivals.push_back({.event = Event::AwaitArrival, .connection = connection});
        last.push_back({.event = Event::GiveCredit, .connection = connection});
      }
      moves.push_back({.event = Event::Move, .instruction = first++});
    }
    for (const auto& part : {arrivals, moves, announcements})
      steps.insert(steps.end(), part.begin(), part.end());
  }
  steps.insert(steps.end(), last.begin(), last.end());
  return steps;
}

Status check_round(const Schedule& sequence, const std::vector<std::optional<Phases>>& by_rank,
                   int depth) {
  Capabilities slots;
  slots.facilities.publishes_chunks = false;
  AccessPlan plan = TRY(lower(sequence, slots));
  for (int rank = 0; rank < sequence.nranks; ++rank) {
    std::vector<LoweredWorker>& workers = at(plan.workers, rank).front();
    if (at(by_rank, rank) && !workers.empty()) workers.front().steps = steps_of(*at(by_rank, rank));
  }
  return check(plan, {.depth = depth, .with_aborts = false});
}

/// Counts the chunks that go over the connections in several rounds.
class Rounds {
 public:
  Rounds(const Schedule& schedule, const std::vector<std::optional<Phases>>& by_rank,
         const PhasesCheck& options)
      : schedule_(schedule), options_(options), counts_(schedule.connections.size()) {
    for (int rank = 0; rank < schedule.nranks; ++rank) {
      if (at(by_rank, rank)) {
        add_phases(rank, *at(by_rank, rank));
      } else {
        for (const schedule::Worker& worker : at(schedule.ranks, rank).front().workers)
          add_worker(rank, worker);
      }
    }
  }

  Status run() {
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (Actor& actor : actors_)
        for (; actor.next < actor.steps.size() && can_do(actor.steps[actor.next]); ++actor.next) {
          count(actor.steps[actor.next]);
          has_moved = true;
        }
    }
    for (const Actor& actor : actors_) {
      if (actor.next == actor.steps.size()) continue;
      const Counted& step = actor.steps[actor.next];
      const schedule::Connection& connection = at(schedule_.connections, step.connection);
      const bool is_credit = step.event == Event::AwaitCredit;
      return Status::invalid_usage(
          "deadlock: rank {} waits for {} rank {} in the {} phase of round {}, with {} slots",
          actor.rank, is_credit ? "credit of" : "a chunk of",
          is_credit ? connection.receiver : connection.sender, step.phase, step.round,
          options_.depth);
    }
    return {};
  }

 private:
  struct Counted {
    Event event;
    int connection;
    const char* phase;
    int round;
  };
  struct Actor {
    int rank;
    std::vector<Counted> steps{};
    size_t next = 0;
  };
  struct Counts {
    int sent = 0, taken = 0, credited = 0;
  };

  /// Adds all waits of `instructions`, and then their announcements.
  static void add(Actor& actor, const Instructions& instructions, const char* phase, int round) {
    for (const Event event : {Event::AwaitCredit, Event::AwaitArrival, Event::Announce}) {
      for (const Instruction& instruction : instructions) {
        const bool sends = event != Event::AwaitArrival;
        for (const int connection : sends ? instruction.send_to : instruction.receive_from)
          actor.steps.push_back({event, connection, phase, round});
      }
    }
  }
  static void add_credit(Actor& actor, const Instructions& instructions, int round) {
    for (const Instruction& instruction : instructions)
      for (const int connection : instruction.receive_from)
        actor.steps.push_back({Event::GiveCredit, connection, "", round});
  }

  void add_phases(int rank, const Phases& phases) {
    const std::array<Instructions, kPhases> instructions = instructions_of(phases);
    const std::array<int, kPhases> lags{0, options_.pace.reduce_lag, options_.pace.store_lag};
    Actor& actor = actors_.emplace_back(Actor{rank});
    for (int stage = 0; stage < options_.rounds + std::ranges::max(lags); ++stage) {
      const auto each = [&](auto&& function) {
        for (int phase = 0; phase < kPhases; ++phase)
          if (const int round = stage - at(lags, phase); round >= 0 && round < options_.rounds)
            function(phase, round);
      };
      each(
          [&](int phase, int round) { add(actor, at(instructions, phase), kNames[phase], round); });
      each([&](int phase, int round) { add_credit(actor, at(instructions, phase), round); });
    }
  }

  void add_worker(int rank, const schedule::Worker& worker) {
    Actor& actor = actors_.emplace_back(Actor{rank});
    for (int round = 0; round < options_.rounds; ++round)
      for (const Instruction& instruction : worker.instructions) {
        add(actor, {instruction}, "one", round);
        add_credit(actor, {instruction}, round);
      }
  }

  bool can_do(const Counted& step) const {
    const Counts& counts = at(counts_, step.connection);
    if (step.event == Event::AwaitCredit) return counts.sent - counts.credited < options_.depth;
    return step.event != Event::AwaitArrival || counts.taken < counts.sent;
  }
  void count(const Counted& step) {
    Counts& counts = at(counts_, step.connection);
    counts.taken += step.event == Event::AwaitArrival;
    counts.sent += step.event == Event::Announce;
    counts.credited += step.event == Event::GiveCredit;
  }

  const Schedule& schedule_;
  const PhasesCheck& options_;
  std::vector<Counts> counts_;
  std::vector<Actor> actors_;
};

}  // namespace

Status check_phases(const Schedule& schedule, const std::vector<std::optional<Phases>>& by_rank,
                    const PhasesCheck& options) {
  if (length(by_rank) != schedule.nranks)
    return Status::invalid_argument("phases of {} ranks for a schedule of {}", by_rank.size(),
                                    schedule.nranks);
  for (int rank = 0; rank < schedule.nranks; ++rank) {
    if (at(schedule.ranks, rank).size() != 1)
      return Status::invalid_argument("phases are of schedules of one channel, this has {}",
                                      at(schedule.ranks, rank).size());
  }
  const Schedule in_order = sequence(schedule, by_rank);
  TRY(schedule::check_form(in_order));
  TRY(Rounds(schedule, by_rank, options).run());
  return check_round(in_order, by_rank, options.depth);
}

}  // namespace niccolite::lowering
