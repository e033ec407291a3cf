#include "bootstrap/gathers.h"

#include <algorithm>

#include "base/log.h"
#include "base/process.h"

namespace niccolite::bootstrap {
namespace {

constexpr size_t kMostLooks = 64;            // in each kLongWait; each look reads a file of /proc
constexpr size_t kGatherHeader = 1 + 8 + 4;  // of messages::Gather: where its content begins

}  // namespace

void Gathers::gather_table(const messages::ProcessEntry& mine, TableComplete complete) {
  table_complete_ = std::move(complete);
  const std::shared_ptr<State> state = state_of(0);
  const Bytes entry = mine.encode();
  const messages::Gather message{.sequence = 0, .process = roster_.self(), .content = entry};
  add(0, *state, roster_.self(),
      {.frame = std::make_shared<const Bytes>(message.encode()), .content_at = kGatherHeader});
}

void Gathers::say_over(std::function<void()> everywhere) {
  over_everywhere_ = std::move(everywhere);
  const std::shared_ptr<State> state = state_of(kOver);
  const messages::Gather message{.sequence = kOver, .process = roster_.self(), .content = {}};
  add(kOver, *state, roster_.self(),
      {.frame = std::make_shared<const Bytes>(message.encode()), .content_at = kGatherHeader});
}

Result<Gathered> Gathers::all_gather(Roster::Lock& lock, Local& local,
                                     std::span<const std::byte> mine, Deadline deadline) {
  if (!local.gather_failure.is_ok()) return local.gather_failure.copy();
  if (!failure_.is_ok()) return failure_.copy();
  const auto start = Deadline::Clock::now();
  const uint64_t sequence = ++local.gathers;
  const std::shared_ptr<State> state = state_of(sequence);
  state->contributions[local.rank] = Bytes(mine.begin(), mine.end());
  contribute_if_complete(sequence, *state);
  const auto outcome = wait(lock, local, *state, deadline);
  Status failure;
  if (outcome == Roster::Outcome::Aborted) failure = Roster::why_aborted(local);
  if (outcome == Roster::Outcome::TimedOut) failure = describe_missing(local, *state, start);
  if (outcome == Roster::Outcome::Happened) failure = state->failure.copy();
  if (failure.is_ok()) return state->result;
  local.gather_failure = failure.copy();
  return failure;
}

Roster::Outcome Gathers::wait(Roster::Lock& lock, Local& local, State& state, Deadline deadline) {
  const auto done = [&] { return state.done; };
  while (!local.gathers_for.empty()) {
    const Deadline look = Deadline::after(messages::kLongWait);
    if (deadline.at() <= look.at()) break;
    const Roster::Outcome outcome = roster_.wait(lock, local, look, done);
    if (outcome != Roster::Outcome::TimedOut) return outcome;
    tell_stopped(lock, local, state);
  }
  return roster_.wait(lock, local, deadline, done);
}

// A waiting process announces itself to the others before it waits, but may be stopped before the
// message is on its way.
void Gathers::tell_stopped(Roster::Lock& lock, const Local& local, State& state) {
  std::vector<uint32_t> missing = state.gathering.missing();
  const ProcessId& self = roster_.process(roster_.self()).origin.process;
  std::erase_if(missing, [&](uint32_t process) {
    return process == roster_.self() || state.told_stopped.contains(process) ||
           !is_visible(roster_.process(process).origin.process, self);
  });
  if (missing.empty()) return;
  // All processes of the machine may be looking: some at a time.
  std::rotate(missing.begin(),
              missing.begin() + static_cast<ptrdiff_t>(state.looks % missing.size()),
              missing.end());
  if (missing.size() > kMostLooks) missing.resize(kMostLooks);
  state.looks += missing.size();
  std::vector<messages::ProcessEntry> looked_at;
  for (const uint32_t process : missing) looked_at.push_back(roster_.process(process));
  lock.unlock();
  std::erase_if(looked_at, [](const messages::ProcessEntry& entry) {
    return run_state(entry.origin.process) != RunState::Stopped;
  });
  lock.lock();
  std::vector<std::string> lines;
  for (const messages::ProcessEntry& stopped : looked_at) {
    const uint32_t process = roster_.process_of(stopped.ranks.front());
    if (!state.told_stopped.insert(process).second) continue;  // by another rank of this process
    const messages::Awaited awaited{
        .why = messages::Awaited::Why::Stopped, .ranks = stopped.ranks, .origin = stopped.origin};
    lines.push_back(fmt::format("{} stands still: {}", local.gathers_for, awaited.text()));
  }
  if (lines.empty()) return;
  lock.unlock();  // the reader of the log may stand still, too
  for (const std::string& line : lines) LOG(Warn, Init, "{}", line);
  lock.lock();
}

std::shared_ptr<Gathers::State> Gathers::state_of(uint64_t sequence) {
  std::shared_ptr<State>& state = states_[sequence];
  if (state == nullptr) {
    state = std::make_shared<State>(roster_);
    std::shared_ptr<State> kept = state;  // completing it may erase it from the map
    if (sequence != 0) mark_what_departed_owe(sequence, *kept);
    return kept;
  }
  return state;
}

// Ranks that left before this all-gather began are known; nobody will report them again.
void Gathers::mark_what_departed_owe(uint64_t sequence, State& state) {
  for (uint32_t process = 0; process < roster_.nprocesses(); ++process)
    if (roster_.is_gone(process)) mark_owed(sequence, state, process);
  contribute_if_complete(sequence, state);
}

void Gathers::mark_owed(uint64_t sequence, State& state, uint32_t neighbor) {
  const int32_t rank = roster_.process(neighbor).ranks.front();
  const std::string why = roster_.why_gone(rank).message();
  for (uint32_t owed : state.gathering.missing_through(neighbor))
    add_absent(sequence, state, owed, rank, why);
}

void Gathers::contribute_if_complete(uint64_t sequence, State& state) {
  const uint32_t self = roster_.self();
  if (sequence == 0 || sequence == kOver || state.gathering.has(self)) return;
  std::vector<messages::Contribution> contributions;
  for (int32_t rank : roster_.process(self).ranks) {
    const auto contribution = state.contributions.find(rank);
    if (contribution != state.contributions.end()) {
      contributions.push_back({.rank = rank, .bytes = contribution->second});
    } else if (roster_.find(rank) == nullptr) {
      const Status why = roster_.why_gone(rank);
      return add_absent(
          sequence, state, self, rank,
          why.is_ok() ? fmt::format("rank {} has left the communicator", rank) : why.message());
    } else {
      return;  // it will
    }
  }
  const Bytes content = messages::encode_contributions(contributions);
  const messages::Gather message{.sequence = sequence, .process = self, .content = content};
  add(sequence, state, self,
      {.frame = std::make_shared<const Bytes>(message.encode()), .content_at = kGatherHeader});
}

void Gathers::add_absent(uint64_t sequence, State& state, uint32_t process, int32_t rank,
                         const std::string& why) {
  const messages::GatherAbsent message{
      .sequence = sequence, .process = process, .rank = rank, .why = why};
  add(sequence, state, process,
      {.frame = std::make_shared<const Bytes>(message.encode()), .absent_rank = rank, .why = why});
}

void Gathers::add(uint64_t sequence, State& state, uint32_t process, Gathering::Part part) {
  const std::shared_ptr<const Bytes> frame = part.frame;
  for (uint32_t next : state.gathering.add(process, std::move(part))) transmit_(next, frame);
  if (state.gathering.complete() && !state.done) complete(sequence, state);
}

Status Gathers::take(Reader& reader, MessageType type, std::span<const std::byte> frame) {
  uint64_t sequence = 0;
  Gathering::Part part{.frame = std::make_shared<const Bytes>(frame.begin(), frame.end())};
  uint32_t process = 0;
  if (type == MessageType::Gather) {
    const messages::Gather message = TRY(messages::Gather::decode(reader));
    sequence = message.sequence;
    process = message.process;
    part.content_at = kGatherHeader;
  } else {
    messages::GatherAbsent message = TRY(messages::GatherAbsent::decode(reader));
    sequence = message.sequence;
    process = message.process;
    part.absent_rank = message.rank;
    part.why = std::move(message.why);
  }
  if (process >= roster_.nprocesses() || (sequence > next_ + 1 && sequence != kOver))
    return Status::remote_error(
        "part {} of all-gather {} cannot be: there are {} processes, {} is under way", process,
        sequence, roster_.nprocesses(), next_);
  // While this process still waits for the table, others may have it and go on.
  if (sequence < next_ || ended_) return {};
  if (sequence > 0 && !roster_.has_table()) {
    early_.push_back({sequence, process, std::move(part)});
    return {};
  }
  const std::shared_ptr<State> state = state_of(sequence);
  if (!state->done) add(sequence, *state, process, std::move(part));
  return {};
}

void Gathers::complete(uint64_t sequence, State& state) {
  const std::shared_ptr<State> kept = states_.contains(sequence) ? states_[sequence] : nullptr;
  state.done = true;
  states_.erase(sequence);
  if (sequence == kOver) return over_everywhere_();
  next_ = std::max(next_, sequence + 1);
  if (sequence == 0) return complete_table(state);
  state.failure = collect(state);
  if (!state.failure.is_ok() && failure_.is_ok()) failure_ = state.failure.copy();
  roster_.wake_all();
}

void Gathers::complete_table(State& state) {
  std::vector<messages::ProcessEntry> table;
  Status failure;
  for (const Gathering::Part& part : state.gathering.parts()) {
    Reader reader(part.content(), "a process of the rendezvous");
    Result<messages::ProcessEntry> entry = messages::ProcessEntry::decode(reader);
    if (part.absent_rank >= 0 || !entry.is_ok()) {
      failure = part.absent_rank >= 0
                    ? Status::remote_error("{}", part.why).with_peer(part.absent_rank)
                    : std::move(entry).status();
      break;
    }
    table.push_back(std::move(entry.value()));
  }
  if (failure.is_ok()) {
    table_complete_(std::move(table));
  } else {
    table_complete_(std::move(failure));
  }
  // Parts of the first all-gather that came before the table.
  std::vector<Early> early;
  early.swap(early_);
  if (!roster_.has_table()) return;
  for (Early& waiting : early) {
    const std::shared_ptr<State> next = state_of(waiting.sequence);
    if (!next->done) add(waiting.sequence, *next, waiting.process, std::move(waiting.part));
  }
}

// Turns the parts into one list by rank; fails when a part is absent or does not hold the ranks of
// its process.
Status Gathers::collect(State& state) {
  std::vector<std::shared_ptr<const Bytes>> frames;
  std::vector<std::span<const std::byte>> by_rank(static_cast<size_t>(roster_.nranks()));
  for (uint32_t process = 0; process < roster_.nprocesses(); ++process) {
    const Gathering::Part& part = state.gathering.parts()[process];
    if (part.absent_rank >= 0)
      return Status::remote_error("all-gather: {}", part.why).with_peer(part.absent_rank);
    const messages::ProcessEntry& entry = roster_.process(process);
    const std::string origin = entry.origin.text();
    Reader reader(part.content(), origin);
    const std::vector<messages::Contribution> contributions =
        TRY(messages::decode_contributions(reader));
    const bool right = std::equal(
        contributions.begin(), contributions.end(), entry.ranks.begin(), entry.ranks.end(),
        [](const auto& contribution, int32_t rank) { return contribution.rank == rank; });
    if (!right)
      return Status::remote_error("{} contributes to an all-gather for other ranks than its own",
                                  origin)
          .with_peer(entry.ranks.front());
    for (const messages::Contribution& contribution : contributions)
      by_rank[static_cast<size_t>(contribution.rank)] = contribution.bytes;
    frames.push_back(part.frame);
  }
  state.result = Gathered(std::move(frames), std::move(by_rank));
  return {};
}

void Gathers::local_left() {
  const auto states = states_;
  for (const auto& [sequence, state] : states) contribute_if_complete(sequence, *state);
}

void Gathers::process_departed(uint32_t neighbor) {
  const auto states = states_;
  for (const auto& [sequence, state] : states)
    if (sequence != 0 && !state->done) mark_owed(sequence, *state, neighbor);
}

void Gathers::fail_all(const Status& why) {
  ended_ = true;
  if (failure_.is_ok()) failure_ = why.copy();
  const auto states = states_;
  for (const auto& [sequence, state] : states) {
    if (sequence == 0 || state->done) continue;
    state->done = true;
    state->failure = why.copy();
    states_.erase(sequence);
  }
  roster_.wake_all();
}

Status Gathers::describe_missing(const Local& local, const State& state,
                                 Deadline::Clock::time_point start) const {
  std::vector<int32_t> missing;
  for (uint32_t process : state.gathering.missing())
    for (int32_t rank : roster_.process(process).ranks)
      if (process != roster_.self() || !state.contributions.contains(rank)) missing.push_back(rank);
  std::sort(missing.begin(), missing.end());
  const double waited = std::chrono::duration<double>(Deadline::Clock::now() - start).count();
  Status status =
      Status::remote_error("all-gather: rank {} of {} heard nothing from {} for {:.1f} s",
                           local.rank, local.nranks, describe_ranks(missing), waited);
  return missing.empty() ? std::move(status) : std::move(status).with_peer(missing.front());
}

}  // namespace niccolite::bootstrap
