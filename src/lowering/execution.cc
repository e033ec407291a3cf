#include "lowering/execution.h"

#include <algorithm>

#include "schedule/index.h"

namespace niccolite::lowering {

using schedule::at;
using schedule::BlockReference;
using schedule::Buffer;
using schedule::Connection;
using schedule::length;
using schedule::Position;
using schedule::Value;

std::string describe(const BlockReference& reference) {
  return fmt::format("{} block {}", schedule::name_of(reference.buffer), reference.block);
}

Execution::Execution(const AccessPlan& plan, const std::vector<schedule::Ends>& ends,
                     const Scenario& scenario)
    : plan_(plan), schedule_(plan.schedule), scenario_(scenario) {
  std::vector<int> first_of_rank;
  int workers = 0;
  for (int rank = 0; rank < schedule_.nranks; ++rank) {
    first_of_rank.push_back(workers);
    workers += length(at(at(plan.workers, rank), scenario.channel));
  }
  for (int channel = 0; channel < scenario.channels; ++channel) {
    for (int rank = 0; rank < schedule_.nranks; ++rank) {
      const auto& of_rank = at(at(plan.workers, rank), scenario.channel);
      for (int worker = 0; worker < length(of_rank); ++worker) {
        instances_.push_back(
            {.lowered = &at(of_rank, worker),
             .worker = &at(at(at(schedule_.ranks, rank), scenario.channel).workers, worker),
             .flat = at(first_of_rank, rank) + worker,
             .rank = rank,
             .worker_number = worker,
             .tile = channel});
      }
    }
  }
  for (Instance& instance : instances_) {
    instance.clock.resize(instances_.size() + static_cast<size_t>(schedule_.nranks));
    // The user's work before the kernel of the worker's own rank.
    instance.clock[instances_.size() + static_cast<size_t>(instance.rank)] = 1;
  }
  links_.resize(schedule_.connections.size());
  for (int i = 0; i < length(links_); ++i) {
    const Connection& c = at(schedule_.connections, i);
    if (c.channel != scenario.channel) continue;
    at(links_, i).resize(static_cast<size_t>(scenario.channels));
    for (int channel = 0; channel < scenario.channels; ++channel) {
      Link& link = this->link(i, channel);
      link.sender = channel * workers + at(first_of_rank, c.sender) + at(ends, i).sending_worker;
      link.receiver =
          channel * workers + at(first_of_rank, c.receiver) + at(ends, i).receiving_worker;
    }
  }
  groups_ = schedule::reducer_groups(schedule_);
  group_of_ = schedule::groups_by_connection(groups_, schedule_.connections.size());
  carried_.assign(groups_.size(), std::vector<int>(static_cast<size_t>(scenario.channels)));
  const auto tiles = static_cast<size_t>(scenario.channels);
  const auto blocks = [&](int count) {
    return std::vector<std::vector<Location>>(static_cast<size_t>(count),
                                              std::vector<Location>(tiles));
  };
  for (int rank = 0; rank < schedule_.nranks; ++rank) {
    Memory& memory = memory_.emplace_back();
    memory.input = blocks(schedule::input_blocks(schedule_, rank));
    memory.output = blocks(schedule::output_blocks(schedule_, rank));
    memory.scratch = blocks(schedule_.scratch_blocks);
    for (int block = 0; block < length(memory.input); ++block) {
      const auto value = std::make_shared<Value>(Value{.block = block, .ranks = {rank}});
      for (Location& location : at(memory.input, block)) location.value = value;
    }
  }
  steps_of_.resize(static_cast<size_t>(schedule_.nranks));
  is_aborted_.resize(static_cast<size_t>(schedule_.nranks));
}

Execution::Link& Execution::link(int connection, int channel) {
  return at(at(links_, connection), channel);
}

Execution::Location& Execution::location(int rank, const BlockReference& reference, int tile) {
  Memory& memory = at(memory_, rank);
  if (reference.buffer == Buffer::Input) return at(at(memory.input, reference.block), tile);
  if (reference.buffer == Buffer::Scratch) return at(at(memory.scratch, reference.block), tile);
  if (scenario_.place == schedule::Placement::InPlace)
    if (const auto input = schedule::input_in_place(schedule_, rank, reference.block))
      return at(at(memory.input, *input), tile);
  return at(at(memory.output, reference.block), tile);
}

bool Execution::is_one_memory(int rank, const BlockReference& a, const BlockReference& b) {
  return &location(rank, a, 0) == &location(rank, b, 0);
}

std::vector<int> Execution::tiles_of(const Instance& instance, Tiles tiles) const {
  if (tiles == Tiles::Fixed) return {instance.tile};
  std::vector<int> result;
  for (int tile = 0; tile < scenario_.channels; ++tile) {
    const int taker = scenario_.taker ? scenario_.taker(instance.flat, tile) : tile;
    if (taker == instance.tile) result.push_back(tile);
  }
  return result;
}

Position Execution::position(const Instance& instance) const {
  return {instance.rank, scenario_.channel, instance.worker_number, instance.instruction};
}

Execution::SharedClock Execution::share(const Instance& instance) const {
  return std::make_shared<const Clock>(instance.clock);
}

void Execution::merge(Instance& instance, const SharedClock& clock) const {
  for (size_t i = 0; i < clock->size(); ++i)
    instance.clock[i] = std::max(instance.clock[i], (*clock)[i]);
}

// ---- the order in which workers run

void Execution::wake(int instance) {
  Instance& woken = at(instances_, instance);
  if (woken.is_queued || woken.is_done()) return;
  woken.is_queued = true;
  const bool is_first =
      !scenario_.abort || (woken.rank == scenario_.abort->rank) == scenario_.abort->rank_goes_first;
  (is_first ? runnable_ : later_).push_back(instance);
}

void Execution::wake_ends(const Link& link) {
  wake(link.sender);
  wake(link.receiver);
}

Status Execution::run_instance(int number) {
  Instance& instance = at(instances_, number);
  while (!instance.is_done()) {
    if (scenario_.abort && instance.rank == scenario_.abort->rank &&
        !at(is_aborted_, instance.rank) && at(steps_of_, instance.rank) >= scenario_.abort->after) {
      abort_rank(instance.rank);
      continue;
    }
    const Step& step = instance.steps()[instance.next];
    if (!can_do(instance, step)) return {};
    const Status status = do_step(instance, number, step);
    if (!status.is_ok()) {
      return Status::invalid_usage(
          "{} {}{}", schedule::describe(position(instance)), status.message(),
          scenario_.place == schedule::Placement::InPlace ? " (in place)" : "");
    }
    ++instance.next;
    if (!instance.is_aborted) ++at(steps_of_, instance.rank);
    if (step.event == Event::Move)
      instance.instruction =
          std::min(step.instruction + 1, length(instance.worker->instructions) - 1);
    // Others go on as far as they get before a worker that is to run behind them does.
    if (step.connection >= 0) wake_ends(link(instance, step.connection));
    if (scenario_.abort && (!runnable_.empty() || !later_.empty())) {
      wake(number);
      return {};
    }
  }
  return {};
}

Status Execution::run_all() {
  while (!runnable_.empty() || !later_.empty()) {
    std::deque<int>& queue = runnable_.empty() ? later_ : runnable_;
    const int number = queue.front();
    queue.pop_front();
    at(instances_, number).is_queued = false;
    TRY(run_instance(number));
  }
  return {};
}

/// Stops the rank's workers where they are, and does their duties to the users of buffers.
void Execution::abort_rank(int rank) {
  at(is_aborted_, rank) = true;
  for (int i = 0; i < length(instances_); ++i) {
    Instance& instance = at(instances_, i);
    if (instance.rank != rank || instance.is_done()) continue;
    instance.is_aborted = true;
    instance.next = 0;
    wake(i);
  }
}

Status Execution::run() {
  for (int i = 0; i < length(instances_); ++i) wake(i);
  TRY(run_all());
  if (scenario_.abort) {
    // Ranks that wait for the aborted rank are aborted later.
    if (!at(is_aborted_, scenario_.abort->rank)) abort_rank(scenario_.abort->rank);
    TRY(run_all());
    for (int rank = 0; rank < schedule_.nranks; ++rank)
      if (!at(is_aborted_, rank)) abort_rank(rank);
    TRY(run_all());
  }
  const bool are_done =
      std::ranges::all_of(instances_, [](const Instance& instance) { return instance.is_done(); });
  return are_done ? check_ends() : report_hang();
}

// ---- the network's reducer

/// Does all that it can. An aborted rank hands nothing in any more, and the others' wait ends with
/// their own aborts, as for any connection.
Status Execution::carry(int number, int channel) {
  const schedule::ReducerGroup& group = at(groups_, number);
  using Member = schedule::ReducerGroup::Member;
  if (group.channel != scenario_.channel) return {};
  const auto carry_one = [&](int carried) -> Status {
    std::vector<schedule::Operand> operands;
    Clock clock(instances_.front().clock.size());
    for (const Member& member : group.members) {
      const Chunk& chunk = link(member.sends, channel).handed_in.front();
      if (chunk.tile != link(group.members.front().sends, channel).handed_in.front().tile)
        return Status::invalid_usage("has the network reduce different tiles");
      operands.push_back({chunk.value, fmt::format("the chunk of rank {}", member.rank)});
      for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], (*chunk.clock)[i]);
    }
    if (group.through() == schedule::Through::Gathering)
      operands = {at(operands, group.source(carried))};
    const int tile = link(group.members.front().sends, channel).handed_in.front().tile;
    const schedule::SharedValue value = TRY(schedule::combine(
        operands, std::nullopt, /*finish=*/false,
        position(at(instances_, link(group.members.front().sends, channel).sender)),
        {schedule_.nranks, schedule_.partial_sums}));
    const auto shared = std::make_shared<const Clock>(std::move(clock));
    for (int member = 0; member < group.count(); ++member) {
      if (group.receives(carried, member)) {
        Link& to = link(at(group.members, member).receives, channel);
        to.slots.push_back({value, tile, shared});
        ++to.held;
      }
      if (!group.uses_up(carried)) continue;
      Link& from = link(at(group.members, member).sends, channel);
      from.handed_in.erase(from.handed_in.begin());
      --from.used;
    }
    for (const Member& member : group.members) wake_ends(link(member.sends, channel));
    return {};
  };
  return schedule::carry_all(
      group, at(at(carried_, number), channel),
      [&](const Member& member) { return !link(member.sends, channel).handed_in.empty(); },
      [&](const Member& member) { return link(member.receives, channel).held < scenario_.depth; },
      carry_one);
}

// ---- steps

bool Execution::can_do(Instance& instance, const Step& step) {
  if (step.event == Event::Move) return true;
  Link& link = this->link(instance, step.connection);
  switch (step.event) {
    case Event::TakeAdvertisement:
      return link.is_advertised && !link.is_withdrawn;
    case Event::AwaitCredit:
      return link.used < scenario_.depth;
    case Event::AwaitArrival:
      if (is_put(step.way)) return link.put != nullptr;
      if (uses_slots(step.way)) return !link.slots.empty();
      return link.delivered.size() == tiles_of(instance, step.tiles).size();
    case Event::ServePulls:
      return !link.requests.empty() || link.released != nullptr;
    case Event::AwaitRelease:
      return link.released != nullptr;
    case Event::AwaitLeave:
      return !link.is_advertised || link.is_withdrawn || link.left != nullptr ||
             (link.memory && (link.put != nullptr || link.released != nullptr));
    default:
      return true;
  }
}

Status Execution::do_step(Instance& instance, int number, const Step& step) {
  if (step.event == Event::Move) return move(instance, number, step);
  Link& link = this->link(instance, step.connection);
  switch (step.event) {
    case Event::Advertise:
      link.is_advertised = true;
      if (step.memory) link.memory = Block{instance.rank, *step.memory};
      link.advertised = share(instance);
      break;
    case Event::TakeAdvertisement:
      link.is_taken = true;
      entry_of(instance.taken, step.connection) = link.memory;
      merge(instance, link.advertised);
      break;
    case Event::Request:
      if (!link.is_taken)
        return Status::invalid_usage("asks for tiles of a buffer that it has not been told of");
      for (const int tile : tiles_of(instance, step.tiles)) link.requests.push_back(tile);
      link.requested = share(instance);
      break;
    case Event::ServePulls:
      return serve_pulls(instance, number, step.connection);
    case Event::Release:
      link.released = share(instance);
      break;
    case Event::AwaitRelease:
      merge(instance, link.released);
      link.is_awaited = true;
      break;
    case Event::AwaitArrival:
      if (is_put(step.way)) {
        merge(instance, link.put);
        link.is_awaited = true;
      } else if (uses_slots(step.way)) {
        merge(instance, link.slots.front().clock);
        entry_of(instance.received, step.connection).push_back(std::move(link.slots.front()));
        link.slots.erase(link.slots.begin());
      } else {
        for (const Chunk& chunk : link.delivered) merge(instance, chunk.clock);
        entry_of(instance.received, step.connection) = std::exchange(link.delivered, {});
      }
      break;
    case Event::AwaitCredit:
      ++link.used;
      ++link.unused;
      break;
    case Event::Stage:
      return stage(instance, number, step);
    case Event::Announce:
      if (is_put(step.way)) {
        link.put = share(instance);
      } else {
        Chunk chunk = std::exchange(entry_of(instance.staged, step.connection), {});
        if (chunk.value == nullptr)
          return Status::invalid_usage("announces a slot that it has stored nothing to");
        if (--link.unused < 0)
          return Status::invalid_usage("stores to a slot whose credit it has not awaited");
        chunk.clock = share(instance);
        const int group = at(group_of_, step.connection);
        (group < 0 ? link.slots : link.handed_in).push_back(std::move(chunk));
        if (group >= 0) TRY(carry(group, instance.tile));
      }
      break;
    case Event::GiveCredit:
      // The sender may then store there, to this rank alone or to all of a team.
      if (--link.read < 0)
        return Status::invalid_usage("gives credit for a slot that it has not read");
      if (const int group = at(group_of_, step.connection); group >= 0) {
        --link.held;
        TRY(carry(group, instance.tile));
      } else {
        --link.used;
      }
      break;
    case Event::Withdraw:
      link.is_withdrawn = !link.is_taken;
      break;
    case Event::Leave:
      if (link.is_taken) link.left = share(instance);
      break;
    case Event::AwaitLeave:
      for (const SharedClock& clock : {link.put, link.released, link.left})
        if (link.is_advertised && !link.is_withdrawn && clock != nullptr) merge(instance, clock);
      link.is_awaited = true;
      break;
    case Event::Move:
      break;
  }
  return {};
}

}  // namespace niccolite::lowering
