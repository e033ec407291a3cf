#include "tests/schedule/random_schedule.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <tuple>

#include "schedule/builder.h"
#include "schedule/check.h"
#include "schedule/index.h"

namespace niccolite::schedule {
namespace {

int below(int bound, std::mt19937& random) {
  return static_cast<int>(random() % static_cast<unsigned>(bound));
}
bool one_in(int n, std::mt19937& random) { return below(n, random) == 0; }

/// An instruction of a rank, which names others where they meet.
struct Event {
  int rank;
  std::vector<int> from{};  // events, in reduction order
  std::optional<BlockReference> source{};
  int source_position = 0;
  std::optional<BlockReference> target{};
  bool finish = false;
  std::vector<int> to{};  // events
  int block = 0;          // of the value
};

/// A value at a rank: in memory, or in the hands of the event that makes it, or both.
struct Holding {
  int event;  // -1: the input
  int rank;
  std::optional<BlockReference> place;
  bool has_own;  // the contribution of `rank`: its input may be overwritten
};

/// Draws the events that bring one value to all ranks that want it, in an order in which they can
/// happen one after the other.
class Task {
 public:
  Task(const Schedule& head, int block, std::mt19937& random, std::vector<int>& scratch_blocks)
      : head_(head),
        block_(block),
        random_(random),
        scratch_blocks_(scratch_blocks),
        free_scratch_(static_cast<size_t>(head.nranks)) {}

  /// The sum of block `block` of all ranks.
  std::vector<Event> reduce(const std::vector<std::pair<int, BlockReference>>& wanted) && {
    const bool at_once = !head_.partial_sums || one_in(4, random_);
    std::vector<Holding> sums = at_once ? sum_at_once(wanted) : std::vector{sum_by_tree(wanted)};
    distribute(std::move(sums), missing(wanted));
    return std::move(events_);
  }
  /// A block of `rank`'s input.
  std::vector<Event> move(int rank, const BlockReference& from,
                          std::vector<std::pair<int, BlockReference>> wanted) && {
    distribute({{.event = -1, .rank = rank, .place = from, .has_own = true}}, std::move(wanted));
    return std::move(events_);
  }

 private:
  using Wanted = std::vector<std::pair<int, BlockReference>>;

  int add(Event event) {
    event.block = block_;
    events_.push_back(std::move(event));
    return length(events_) - 1;
  }
  void connect(int sender, int receiver) { at(events_, sender).to.push_back(receiver); }

  /// The event that sends a holding: its maker, or one more that reads its place.
  int sender_of(const Holding& holding) {
    if (holding.event >= 0 && (!holding.place || one_in(2, random_))) return holding.event;
    return add({.rank = holding.rank, .source = holding.place});
  }
  BlockReference new_scratch(int rank) {
    std::vector<int>& free = at(free_scratch_, rank);
    if (free.empty()) return scratch(at(scratch_blocks_, rank)++);
    const int block = free.back();
    free.pop_back();
    return scratch(block);
  }
  void give_back(const Holding& holding) {
    if (holding.place && holding.place->buffer == Buffer::Scratch)
      at(free_scratch_, holding.rank).push_back(holding.place->block);
  }
  static std::optional<BlockReference> wanted_by(const Wanted& wanted, int rank) {
    for (const auto& [each, target] : wanted)
      if (each == rank) return target;
    return {};
  }
  Wanted missing(const Wanted& wanted) const {
    Wanted rest;
    for (const auto& each : wanted)
      if (std::ranges::none_of(events_, [&](const Event& event) {
            return event.finish && event.rank == each.first && event.target == each.second;
          }))
        rest.push_back(each);
    return rest;
  }

  /// Some ranks add all inputs, which every rank sends to them.
  std::vector<Holding> sum_at_once(const Wanted& wanted) {
    std::vector<int> adders(static_cast<size_t>(head_.nranks));
    std::iota(adders.begin(), adders.end(), 0);
    std::ranges::shuffle(adders, random_);
    adders.resize(static_cast<size_t>(1 + below(head_.nranks, random_)));
    // What a rank sends it reads before it writes a sum over it.
    std::vector<int> senders(static_cast<size_t>(head_.nranks), -1);
    for (int rank = 0; rank < head_.nranks; ++rank)
      if (adders.size() > 1 || adders.front() != rank)
        at(senders, rank) = add({.rank = rank, .source = input(block_)});
    std::vector<Holding> sums;
    for (const int adder : adders) {
      std::vector<int> order(static_cast<size_t>(head_.nranks));
      std::iota(order.begin(), order.end(), 0);
      if (head_.partial_sums) std::ranges::shuffle(order, random_);
      Event event{.rank = adder, .source = input(block_), .finish = true};
      for (const int rank : order) {
        if (rank == adder)
          event.source_position = length(event.from);
        else
          event.from.push_back(at(senders, rank));
      }
      sums.push_back(add_sum(std::move(event), wanted, true));
    }
    return sums;
  }

  /// Adds any holdings of some ranks, until there is one.
  Holding sum_by_tree(const Wanted& wanted) {
    std::vector<Holding> holdings;
    for (int rank = 0; rank < head_.nranks; ++rank)
      holdings.push_back({.event = -1, .rank = rank, .place = input(block_), .has_own = true});
    if (holdings.size() == 1)
      return add_sum({.rank = 0, .source = input(block_), .finish = true}, wanted, true);
    while (holdings.size() > 1) {
      std::ranges::shuffle(holdings, random_);
      const int count = std::min(length(holdings), 2 + below(3, random_));
      const int adder = one_in(4, random_) ? below(head_.nranks, random_) : holdings[0].rank;
      std::vector<Holding> taken, kept;
      std::optional<Holding> own;
      for (int i = 0; i < length(holdings); ++i) {
        const Holding& each = at(holdings, i);
        if (i < count && each.rank == adder && each.place && !own)
          own = each;
        else if (i < count && each.rank != adder)
          taken.push_back(each);
        else
          kept.push_back(each);
      }
      if (taken.size() + (own ? 1 : 0) < 2) continue;
      Event event{.rank = adder};
      bool has_own = own && own->has_own;
      for (const Holding& each : taken) event.from.push_back(sender_of(each));
      if (own) {
        event.source = own->place;
        event.source_position = below(length(taken) + 1, random_);
        give_back(*own);
      }
      for (const Holding& each : taken) give_back(each);
      event.finish = kept.empty();
      kept.push_back(add_sum(std::move(event), wanted, has_own));
      holdings = std::move(kept);
    }
    return holdings.front();
  }

  /// `has_own`: nobody reads the input of the event's rank any more.
  Holding add_sum(Event event, const Wanted& wanted, bool has_own) {
    const std::optional<BlockReference> result = wanted_by(wanted, event.rank);
    const bool can_use_output = result && has_own;
    if (event.finish && can_use_output)
      event.target = result;
    else if (can_use_output && one_in(3, random_))
      event.target = result;
    else if (!one_in(3, random_))
      event.target = new_scratch(event.rank);
    const std::vector<int> from = event.from;
    const Holding holding{
        .event = length(events_), .rank = event.rank, .place = event.target, .has_own = has_own};
    const int made = add(std::move(event));
    for (const int sender : from) connect(sender, made);
    return holding;
  }

  /// Brings the value from any of the ranks that have it to those that want it.
  void distribute(std::vector<Holding> holders, Wanted wanted) {
    std::ranges::shuffle(wanted, random_);
    while (!wanted.empty()) {
      const auto [rank, target] = wanted.back();
      const Holding& holder = at(holders, below(length(holders), random_));
      if (holder.rank == rank) {
        if (holder.place) {
          wanted.pop_back();
          const int copy = add({.rank = rank, .source = holder.place, .target = target});
          holders.push_back({.event = copy, .rank = rank, .place = target, .has_own = true});
        } else if (holders.size() == 1 || one_in(4, random_)) {
          holders.push_back(relay(holder, (rank + 1) % head_.nranks));
        }
        continue;
      }
      if (one_in(5, random_)) {
        const int by = below(head_.nranks, random_);
        if (by != holder.rank && by != rank) {
          const Holding through = relay(holder, by);
          receive(through, rank, target, holders);
          holders.push_back(through);
          wanted.pop_back();
          continue;
        }
      }
      receive(Holding(holder), rank, target, holders);
      wanted.pop_back();
    }
    // A relay of which nobody took anything keeps it.
    for (Event& event : events_)
      if (!event.target && event.to.empty()) event.target = new_scratch(event.rank);
  }
  Holding relay(const Holding& from, int rank) {
    const int sender = sender_of(from);
    const int made = add({.rank = rank, .from = {sender}});
    connect(sender, made);
    return {.event = made, .rank = rank, .place = {}, .has_own = false};
  }
  void receive(const Holding& from, int rank, const BlockReference& target,
               std::vector<Holding>& holders) {
    const int sender = sender_of(from);
    const bool by_scratch = one_in(4, random_);
    const BlockReference first = by_scratch ? new_scratch(rank) : target;
    const int made = add({.rank = rank, .from = {sender}, .target = first});
    connect(sender, made);
    holders.push_back({.event = made, .rank = rank, .place = first, .has_own = true});
    if (!by_scratch) return;
    const int copy = add({.rank = rank, .source = first, .target = target});
    holders.push_back({.event = copy, .rank = rank, .place = target, .has_own = true});
  }

  const Schedule& head_;
  const int block_;
  std::mt19937& random_;
  std::vector<int>& scratch_blocks_;            // by rank
  std::vector<std::vector<int>> free_scratch_;  // by rank
  std::vector<Event> events_;
};

/// The tasks of one round.
std::vector<std::vector<Event>> draw_tasks(const Schedule& head, std::mt19937& random,
                                           std::vector<int>& scratch_blocks) {
  std::vector<std::vector<Event>> tasks;
  const int n = head.nranks;
  const auto everybody = [&](int block) {
    std::vector<std::pair<int, BlockReference>> wanted;
    for (int rank = 0; rank < n; ++rank) wanted.emplace_back(rank, output(block));
    return wanted;
  };
  const auto task = [&](int block) { return Task(head, block, random, scratch_blocks); };
  for (int block = 0; block < head.nblocks; ++block) {
    switch (head.collective) {
      case Collective::AllReduce:
        tasks.push_back(task(block).reduce(everybody(block)));
        break;
      case Collective::Reduce:
        tasks.push_back(task(block).reduce({{head.root, output(block)}}));
        break;
      case Collective::ReduceScatter:
        tasks.push_back(task(block).reduce({{block, output(0)}}));
        break;
      case Collective::Broadcast:
        tasks.push_back(task(block).move(head.root, input(block), everybody(block)));
        break;
      case Collective::AllGather:
        tasks.push_back(task(block).move(block, input(0), everybody(block)));
        break;
      case Collective::Gather:
        tasks.push_back(task(block).move(block, input(0), {{head.root, output(block)}}));
        break;
      case Collective::Scatter:
        tasks.push_back(task(block).move(head.root, input(block), {{block, output(0)}}));
        break;
      case Collective::AllToAll:
        for (int to = 0; to < n; ++to)
          tasks.push_back(task(to).move(block, input(to), {{to, output(block)}}));
        break;
      case Collective::PointToPoint:
        break;
    }
  }
  return tasks;
}

/// Puts the events of one pattern channel into workers, in one order for all tasks.
class Arranger {
 public:
  Arranger(Schedule& schedule, int channel, std::mt19937& random)
      : schedule_(schedule), channel_(channel), random_(random) {}

  void arrange(std::vector<std::vector<Event>> tasks) {
    // Tasks may share a worker; some schedules tear tasks apart, which check() may refuse.
    const int workers = 1 + below(3, random_);
    const bool tears = one_in(3, random_);
    std::vector<std::pair<int, int>> order;  // task, event
    std::vector<int> next(tasks.size());
    std::vector<int> left;
    for (int task = 0; task < length(tasks); ++task)
      if (!at(tasks, task).empty()) left.push_back(task);
    while (!left.empty()) {
      const int i = below(length(left), random_);
      const int task = at(left, i);
      order.emplace_back(task, at(next, task)++);
      if (at(next, task) == length(at(tasks, task))) left.erase(left.begin() + i);
    }
    std::map<std::pair<int, int>, int> worker_of_task;  // rank, task
    std::map<std::pair<int, int>, Place> places;        // task, event
    std::map<std::pair<int, int>, int> numbers;         // rank, drawn worker
    for (const auto& [task, number] : order) {
      const Event& event = at(at(tasks, task), number);
      const int drawn = below(workers, random_);
      const int worker =
          tears ? drawn : worker_of_task.try_emplace({event.rank, task}, drawn).first->second;
      std::vector<Worker>& of = at(at(schedule_.ranks, event.rank), channel_).workers;
      const auto [known, is_new] = numbers.try_emplace({event.rank, worker}, length(of));
      if (is_new) of.push_back({.weight = 1 + below(3, random_)});
      std::vector<Instruction>& list = at(of, known->second).instructions;
      places[{task, number}] = {event.rank, known->second, length(list)};
      list.push_back(instruction_of(event));
    }
    // Connections, as their receivers come.
    for (const auto& [task, number] : order) {
      const Event& event = at(at(tasks, task), number);
      const Place& to = places.at({task, number});
      for (const int sender : event.from) {
        const Place& from = places.at({task, sender});
        const int connection = connection_of(from, to);
        instruction_at(from).send_to.push_back(connection);
        instruction_at(to).receive_from.push_back(connection);
      }
    }
  }

 private:
  struct Place {
    int rank, worker, instruction;
  };
  struct Used {
    int connection;
    int sent, taken;  // the last instructions
  };

  Instruction& instruction_at(const Place& place) {
    return at(at(at(at(schedule_.ranks, place.rank), channel_).workers, place.worker).instructions,
              place.instruction);
  }
  Instruction instruction_of(const Event& event) {
    Instruction instruction{.source = event.source,
                            .source_position = event.source_position,
                            .reduce = event.from.size() + (event.source ? 1 : 0) > 1,
                            .target = event.target,
                            .finish = event.finish};
    const bool is_cut = cuts_one_buffer(schedule_.collective);
    const auto says_it = [&](const std::optional<BlockReference>& reference) {
      return reference && reference->buffer != Buffer::Scratch;
    };
    const bool is_said = event.source ? says_it(event.source) : says_it(event.target);
    if ((is_cut && !is_said) || (!event.source && !event.target) ||
        schedule_.scratch_blocks > schedule_.nblocks || one_in(2, random_))
      instruction.chunk_of = event.block;
    return instruction;
  }
  /// A FIFO between two workers hands over in one order.
  int connection_of(const Place& from, const Place& to) {
    std::vector<Used>& known = used_[{from.rank, from.worker, to.rank, to.worker}];
    for (Used& each : known)
      if (each.sent < from.instruction && each.taken < to.instruction && !one_in(4, random_)) {
        each = {each.connection, from.instruction, to.instruction};
        return each.connection;
      }
    int& tag = tags_[{from.rank, to.rank}];
    const int connection = length(schedule_.connections);
    schedule_.connections.push_back({from.rank, to.rank, channel_, tag++});
    known.push_back({connection, from.instruction, to.instruction});
    return connection;
  }

  Schedule& schedule_;
  const int channel_;
  std::mt19937& random_;
  std::map<std::tuple<int, int, int, int>, std::vector<Used>> used_;
  std::map<std::pair<int, int>, int> tags_;
};

Schedule draw(std::mt19937& random) {
  const auto collective = static_cast<Collective>(below(kCollectives - 1, random));
  static_assert(static_cast<int>(Collective::PointToPoint) == kCollectives - 1);
  Schedule schedule{.collective = collective,
                    .algorithm = "random",
                    .nranks = one_in(16, random) ? 1 : 2 + below(5, random),
                    .partial_sums = reduces(collective) && !one_in(3, random),
                    .connections = {},
                    .ranks = {}};
  schedule.nblocks = cuts_one_buffer(collective) ? 1 + below(4, random) : schedule.nranks;
  if (has_root(collective)) schedule.root = below(schedule.nranks, random);
  const int channels = one_in(4, random) ? 2 : 1;
  schedule.ranks.assign(static_cast<size_t>(schedule.nranks),
                        std::vector<Channel>(static_cast<size_t>(channels)));
  std::vector<std::vector<std::vector<Event>>> tasks;
  for (int channel = 0; channel < channels; ++channel) {
    std::vector<int> scratch_blocks(static_cast<size_t>(schedule.nranks));
    tasks.push_back(draw_tasks(schedule, random, scratch_blocks));
    schedule.scratch_blocks = std::max(schedule.scratch_blocks, std::ranges::max(scratch_blocks));
  }
  for (int channel = 0; channel < channels; ++channel)
    Arranger(schedule, channel, random).arrange(std::move(at(tasks, channel)));
  return schedule;
}

}  // namespace

RandomSchedule random_schedule(std::mt19937& random) {
  while (true) {
    Schedule schedule = draw(random);
    const Result<int> depth = least_depth(schedule);
    if (depth.is_ok() && depth.value() <= kMostRandomDepth)
      return {std::move(schedule), depth.value()};
  }
}

uint32_t random_programs(uint32_t usual) {
  if (std::getenv("NICCOLITE_RANDOM_SEED") != nullptr) return 1;
  const char* const count = std::getenv("NICCOLITE_RANDOM_PROGRAMS");
  return count != nullptr ? static_cast<uint32_t>(std::strtoul(count, nullptr, 10)) : usual;
}

uint32_t first_random_seed() {
  const char* const seed = std::getenv("NICCOLITE_RANDOM_SEED");
  return seed != nullptr ? static_cast<uint32_t>(std::strtoul(seed, nullptr, 10)) : 1;
}

}  // namespace niccolite::schedule
