#include "lowering/execution.h"

#include <algorithm>

#include "schedule/index.h"

namespace niccolite::lowering {

using schedule::at;
using schedule::BlockReference;
using schedule::Buffer;
using schedule::Connection;
using schedule::Instruction;
using schedule::length;
using schedule::Operand;
using schedule::Position;
using schedule::SharedValue;
using schedule::Value;

namespace {

std::string describe(const BlockReference& reference) {
  return fmt::format("{} block {}", schedule::name_of(reference.buffer), reference.block);
}

/// The entry of `connection`, made when it is first asked for. Few connections have one.
template <typename T>
T& entry_of(std::vector<std::pair<int, T>>& entries, int connection) {
  for (auto& [number, entry] : entries)
    if (number == connection) return entry;
  return entries.emplace_back(connection, T{}).second;
}

}  // namespace

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
      for (int lane = 0; lane < length(of_rank); ++lane) {
        instances_.push_back(
            {.worker = &at(of_rank, lane),
             .lane = &at(at(at(schedule_.ranks, rank), scenario.channel).lanes, lane),
             .flat = at(first_of_rank, rank) + lane,
             .rank = rank,
             .lane_number = lane,
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
    for (int channel = 0; channel < scenario.channels; ++channel) {
      Link& link = at(links_, i).emplace_back();
      link.sender = channel * workers + at(first_of_rank, c.sender) + at(ends, i).sending_lane;
      link.receiver =
          channel * workers + at(first_of_rank, c.receiver) + at(ends, i).receiving_lane;
    }
  }
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
  if (scenario_.place == schedule::Place::InPlace)
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
  return {instance.rank, scenario_.channel, instance.lane_number, instance.instruction};
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
          scenario_.place == schedule::Place::InPlace ? " (in place)" : "");
    }
    ++instance.next;
    if (!instance.is_aborted) ++at(steps_of_, instance.rank);
    if (step.event == Event::Move)
      instance.instruction =
          std::min(step.instruction + 1, length(instance.lane->instructions) - 1);
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

/// The rank's workers stop where they are, and do what is owed to the users of buffers.
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
    // Whoever waits for the aborted rank is aborted later.
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
      if (step.way == Way::DirectPut) return link.put != nullptr;
      if (step.way == Way::Slot) return !link.slots.empty();
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
      if (step.memory) link.memory = Place{instance.rank, *step.memory};
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
      if (step.way == Way::DirectPut) {
        merge(instance, link.put);
        link.is_awaited = true;
      } else if (step.way == Way::Slot) {
        merge(instance, link.slots.front().clock);
        entry_of(instance.received, step.connection).push_back(std::move(link.slots.front()));
        link.slots.pop_front();
      } else {
        for (const Chunk& chunk : link.delivered) merge(instance, chunk.clock);
        entry_of(instance.received, step.connection) = std::exchange(link.delivered, {});
      }
      break;
    case Event::AwaitCredit:
      ++link.used;
      break;
    case Event::Announce:
      if (step.way == Way::DirectPut) {
        link.put = share(instance);
      } else {
        Chunk chunk = std::exchange(entry_of(instance.staged, step.connection), {});
        if (chunk.value == nullptr)
          return Status::invalid_usage("announces a slot that it has stored nothing to");
        chunk.clock = share(instance);
        link.slots.push_back(std::move(chunk));
      }
      break;
    case Event::GiveCredit:
      --link.used;
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

/// Stores the tiles that are asked for to slots. Stays at this step until there is a release.
Status Execution::serve_pulls(Instance& instance, int number, int connection) {
  Link& link = this->link(instance, connection);
  if (link.requests.empty()) {
    merge(instance, link.released);
    link.is_awaited = true;
    return {};
  }
  merge(instance, link.requested);
  instance.clock[static_cast<size_t>(number)] = ++instance.moves;
  if (!link.memory)
    return Status::invalid_usage("is asked for tiles of what it has not advertised");
  const BlockReference& from = link.memory->block;
  for (const int tile : std::exchange(link.requests, {})) {
    TRY(access(instance, number, instance.rank, from, tile, /*is_write=*/false));
    link.delivered.push_back({location(instance.rank, from, tile).value, tile, nullptr});
  }
  for (Chunk& chunk : link.delivered) chunk.clock = share(instance);
  --instance.next;  // the same step again
  return {};
}

Status Execution::move(Instance& instance, int number, const Step& step) {
  instance.instruction = step.instruction;
  const Instruction& instruction = at(instance.lane->instructions, step.instruction);
  const Accesses& accesses = at(instance.worker->accesses, step.instruction);
  instance.clock[static_cast<size_t>(number)] = ++instance.moves;
  for (const int tile : tiles_of(instance, step.tiles))
    TRY(move_tile(instance, number, instruction, accesses, tile));
  for (int i = 0; i < length(instruction.receive_from); ++i)
    if (at(accesses.receives, i) == Way::Slot || at(accesses.receives, i) == Way::Pull)
      entry_of(instance.received, at(instruction.receive_from, i)).clear();
  return {};
}

Result<Operand> Execution::operand_of(Instance& instance, int number,
                                      const Instruction& instruction, const Accesses& accesses,
                                      size_t receive, int tile) {
  const int connection = instruction.receive_from[receive];
  const int sender = at(schedule_.connections, connection).sender;
  const Way way = accesses.receives[receive];
  if (way == Way::Slot || way == Way::Pull) {
    for (const Chunk& chunk : entry_of(instance.received, connection))
      if (chunk.tile == tile)
        return Operand{chunk.value, fmt::format("the chunk from rank {}", sender)};
    return Status::invalid_usage("takes tile {} from rank {}, which has sent another", tile,
                                 sender);
  }
  Place from{instance.rank, {}};
  std::string name;
  if (way == Way::DirectPut) {
    if (!instruction.target) return Status::invalid_usage("has no memory for what is put");
    from.block = *instruction.target;
    name = fmt::format("{}, which rank {} stores to", describe(from.block), sender);
  } else {
    const std::optional<Place>& taken = entry_of(instance.taken, connection);
    if (!taken)
      return Status::invalid_usage("reads a buffer of rank {} that it has not been told of",
                                   sender);
    TRY(check_not_told(link(instance, connection), "reads", *taken));
    from = *taken;
    name = fmt::format("{} of rank {}", describe(from.block), sender);
  }
  TRY(access(instance, number, from.rank, from.block, tile, /*is_write=*/false));
  const Location& location = this->location(from.rank, from.block, tile);
  if (location.value == nullptr)
    return Status::invalid_usage("reads {}, which nothing was written to", name);
  if (way == Way::DirectGet && location.writer)
    return Status::invalid_usage("reads {} after {} wrote over it", name,
                                 schedule::describe(*location.writer));
  return Operand{location.value, std::move(name)};
}

/// Whoever has told the owner of a buffer that it is done there does nothing there any more.
Status Execution::check_not_told(const Link& link, const char* verb, const Place& place) {
  if (link.put == nullptr && link.released == nullptr && link.left == nullptr) return {};
  return Status::invalid_usage("{} {} of rank {}, whose kernel may have ended", verb,
                               describe(place.block), place.rank);
}

Status Execution::move_tile(Instance& instance, int number, const Instruction& instruction,
                            const Accesses& accesses, int tile) {
  std::vector<Operand> operands;
  const bool is_put_here =
      std::ranges::find(accesses.receives, Way::DirectPut) != accesses.receives.end();
  // The sender has stored it, or another channel's worker of the sender will: nobody looks.
  if (is_put_here && instruction.send_to.empty()) return {};
  for (size_t i = 0; i < instruction.receive_from.size(); ++i) {
    operands.push_back(TRY(operand_of(instance, number, instruction, accesses, i, tile)));
  }
  if (instruction.source) {
    const BlockReference& source = *instruction.source;
    const bool is_kept = !schedule::reduces(schedule_.collective) && instruction.target &&
                         instruction.send_to.empty() &&
                         is_one_memory(instance.rank, source, *instruction.target);
    // A copy onto itself is no access; nor does anybody read what others get.
    const bool is_read = !is_kept && (instruction.target || instruction.reduce ||
                                      std::ranges::any_of(accesses.sends, [](Way way) {
                                        return way == Way::Slot || way == Way::DirectPut;
                                      }));
    if (is_read) TRY(access(instance, number, instance.rank, source, tile, /*is_write=*/false));
    const Location& from = location(instance.rank, source, tile);
    if (from.value == nullptr)
      return Status::invalid_usage("reads {}, which nothing was written to", describe(source));
    if (is_read && source.buffer == Buffer::Input && from.writer)
      return Status::invalid_usage("reads {} after {} wrote over it", describe(source),
                                   schedule::describe(*from.writer));
    operands.insert(operands.begin() + instruction.source_position,
                    Operand{from.value, describe(source)});
  }
  const std::optional<int> block = schedule::cuts_one_buffer(schedule_.collective)
                                       ? std::optional(schedule::chunk_block(instruction))
                                       : std::nullopt;
  const SharedValue value =
      TRY(schedule::combine(operands, block, instruction.finish, position(instance),
                            {schedule_.nranks, schedule_.partial_sums}));

  const auto store = [&](int rank, const BlockReference& to) -> Status {
    TRY(access(instance, number, rank, to, tile, /*is_write=*/true));
    Location& location = this->location(rank, to, tile);
    location.value = value;
    location.writer = position(instance);
    return {};
  };
  if (instruction.target && !is_put_here) {
    if (!schedule::reduces(schedule_.collective) && instruction.source &&
        is_one_memory(instance.rank, *instruction.source, *instruction.target)) {
      location(instance.rank, *instruction.target, tile).is_kept = true;
    } else {
      TRY(store(instance.rank, *instruction.target));
    }
  }
  for (size_t i = 0; i < instruction.send_to.size(); ++i) {
    const int connection = instruction.send_to[i];
    if (accesses.sends[i] == Way::Slot) {
      entry_of(instance.staged, connection) = {value, tile, nullptr};
    } else if (accesses.sends[i] == Way::DirectPut) {
      const std::optional<Place>& taken = entry_of(instance.taken, connection);
      if (!taken) {
        return Status::invalid_usage("stores to a buffer of rank {} that it has not been told of",
                                     at(schedule_.connections, connection).receiver);
      }
      TRY(check_not_told(link(instance, connection), "writes", *taken));
      TRY(store(taken->rank, taken->block));
    }
  }
  return {};
}

/// Records one access, after proving that it comes after the start of the kernel of the rank whose
/// buffer it is, and after each earlier access that it conflicts with.
Status Execution::access(Instance& instance, int number, int rank, const BlockReference& block,
                         int tile, bool is_write) {
  const char* const verb = is_write ? "writes" : "reads";
  if (instance.clock[instances_.size() + static_cast<size_t>(rank)] == 0)
    return Status::invalid_usage("{} {} of rank {}, whose kernel may not run yet", verb,
                                 describe(block), rank);
  Location& place = location(rank, block, tile);
  for (const Access& other : place.accesses) {
    if (!is_write && !other.is_write) continue;
    if (other.instance == number ||
        instance.clock[static_cast<size_t>(other.instance)] >= other.moves) {
      continue;
    }
    const Instance& who = at(instances_, other.instance);
    return Status::invalid_usage(
        "{} {}{}, which {} {} with no order between them", verb, describe(block),
        rank == instance.rank ? "" : fmt::format(" of rank {}", rank),
        schedule::describe({who.rank, scenario_.channel, who.lane_number, other.instruction}),
        other.is_write ? "writes" : "reads");
  }
  for (Access& mine : place.accesses) {
    if (mine.instance != number || mine.is_write != is_write) continue;
    mine.moves = instance.moves;
    mine.instruction = instance.instruction;
    return {};
  }
  place.accesses.push_back({number, instance.moves, instance.instruction, is_write});
  return {};
}

// ---- the end

/// The kernel of each rank ends with its last worker, and its user has the buffers again.
Status Execution::check_ends() const {
  for (int rank = 0; rank < schedule_.nranks; ++rank) TRY(check_end(rank));
  return check_awaited();
}

/// An announcement, or a release, says nothing of what its worker does over other connections: each
/// buffer that a peer has taken is awaited by itself.
Status Execution::check_awaited() const {
  for (int i = 0; i < length(links_); ++i) {
    for (const Link& link : at(links_, i)) {
      if (!link.memory || !link.is_taken || link.is_awaited) continue;
      const Connection& c = at(schedule_.connections, i);
      const bool is_put = link.memory->rank == c.receiver;
      return Status::invalid_usage(
          "{} has taken {} of rank {}, whose kernel may have ended",
          schedule::describe(position(at(instances_, is_put ? link.sender : link.receiver))),
          describe(link.memory->block), link.memory->rank);
    }
  }
  return {};
}

Status Execution::check_end(int rank) const {
  Clock end(instances_.size() + static_cast<size_t>(schedule_.nranks));
  for (const Instance& instance : instances_) {
    if (instance.rank != rank) continue;
    for (size_t i = 0; i < end.size(); ++i) end[i] = std::max(end[i], instance.clock[i]);
  }
  const Memory& memory = at(memory_, rank);
  const std::pair<const std::vector<std::vector<Location>>*, Buffer> buffers[] = {
      {&memory.input, Buffer::Input},
      {&memory.output, Buffer::Output},
      {&memory.scratch, Buffer::Scratch}};
  for (const auto& [blocks, buffer] : buffers) {
    for (int block = 0; block < length(*blocks); ++block) {
      for (const Location& place : at(*blocks, block)) {
        for (const Access& access : place.accesses) {
          if (end[static_cast<size_t>(access.instance)] >= access.moves) continue;
          const Instance& who = at(instances_, access.instance);
          return Status::invalid_usage("{} {} {} of rank {}, whose kernel may have ended",
                                       schedule::describe({who.rank, scenario_.channel,
                                                           who.lane_number, access.instruction}),
                                       access.is_write ? "writes" : "reads",
                                       describe({buffer, block}), rank);
        }
      }
    }
  }
  return {};
}

Status Execution::report_hang() const {
  constexpr int kNamed = 4;
  std::string waits;
  int count = 0;
  for (const Instance& instance : instances_) {
    if (instance.is_done() || ++count > kNamed) continue;
    const Step& step = instance.steps()[instance.next];
    const Connection& c = at(schedule_.connections, step.connection);
    waits += fmt::format("{}{} waits to {} (rank {})", waits.empty() ? "" : "; ",
                         schedule::describe(position(instance)), name_of(step.event),
                         c.sender == instance.rank ? c.receiver : c.sender);
  }
  return Status::invalid_usage("{}: {}{}", scenario_.abort ? "an abort hangs" : "deadlock", waits,
                               count > kNamed ? fmt::format("; {} more", count - kNamed) : "");
}

Status Execution::check_result() const {
  auto& self = const_cast<Execution&>(*this);  // location() finds, and changes nothing
  for (int rank = 0; rank < schedule_.nranks; ++rank) {
    for (int block = 0; block < length(at(memory_, rank).output); ++block) {
      for (int tile = 0; tile < scenario_.channels; ++tile) {
        const Location& place = self.location(rank, {Buffer::Output, block}, tile);
        if (!place.writer && !place.is_kept) {
          // A message moves in one channel.
          if (schedule_.collective == schedule::Collective::PointToPoint) continue;
          return Status::invalid_usage(
              "rank {} channel {}: no instruction writes tile {} of output block {}", rank,
              scenario_.channel, tile, block);
        }
        const Value& value = *place.value;
        const schedule::Wanted wanted = schedule::wanted_result(schedule_, rank, block);
        const bool is_sum = wanted.from < 0;
        const bool is_right =
            value.block == wanted.block &&
            (is_sum ? value.finished && schedule::missing_ranks(value, schedule_.nranks).empty()
                    : value.ranks[0] == wanted.from);
        if (!is_right) {
          return Status::invalid_usage(
              "rank {} channel {}: tile {} of output block {} is wrong{}", rank, scenario_.channel,
              tile, block, place.writer ? ", by " + schedule::describe(*place.writer) : "");
        }
      }
    }
  }
  return {};
}

}  // namespace niccolite::lowering
