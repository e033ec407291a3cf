#include "bootstrap/survivors.h"

#include <algorithm>

namespace niccolite::bootstrap {
namespace {

// For news that has reached one rank to reach the others.
constexpr auto kToResolve = std::chrono::seconds(1);

std::vector<int32_t> first_of(const std::vector<int32_t>& ranks) {
  constexpr size_t kMostNamed = 64;
  return {ranks.begin(),
          ranks.begin() + static_cast<std::ptrdiff_t>(std::min(ranks.size(), kMostNamed))};
}

uint32_t position(const std::vector<uint32_t>& processes, uint32_t process) {
  const auto found = std::lower_bound(processes.begin(), processes.end(), process);
  return static_cast<uint32_t>(found - processes.begin());
}

}  // namespace

Survivors::Attempt::Attempt(uint32_t number_, uint32_t epoch_, uint32_t self,
                            std::vector<uint32_t> processes_)
    : number(number_),
      epoch(epoch_),
      processes(std::move(processes_)),
      gathering(position(processes, self), static_cast<uint32_t>(processes.size())) {}

bool Survivors::Attempt::includes(uint32_t process) const {
  return std::binary_search(processes.begin(), processes.end(), process);
}

bool Survivors::stays(const Excluded& excluded, int32_t rank) const {
  return !std::binary_search(excluded.begin(), excluded.end(), rank);
}

void Survivors::start(const Excluded& excluded, uint32_t number, uint32_t epoch, bool tells) {
  std::vector<uint32_t> processes;
  for (uint32_t process = 0; process < roster_.nprocesses(); ++process) {
    const std::vector<int32_t>& ranks = roster_.process(process).ranks;
    if (std::any_of(ranks.begin(), ranks.end(),
                    [&](int32_t rank) { return stays(excluded, rank); }))
      processes.push_back(process);
  }
  auto attempt = std::make_shared<Attempt>(number, epoch, roster_.self(), std::move(processes));
  if (const auto previous = attempts_.find(excluded);
      previous != attempts_.end() && !previous->second->is_over())
    fail(*previous->second, Status::remote_error("another rank gave up and has begun anew"));
  attempts_[excluded] = attempt;
  for (const uint32_t process : attempt->processes) {
    const auto& ranks = roster_.process(process).ranks;
    for (const int32_t rank : ranks)
      if (const Status gone = roster_.why_gone(rank); stays(excluded, rank) && !gone.is_ok())
        return tells ? fail_and_tell(excluded, *attempt, gone) : fail(*attempt, gone);
  }
  // Checks the processes whose parts come straight to this process: nobody else notices if they are
  // gone.
  const auto count = static_cast<uint32_t>(attempt->processes.size());
  const uint32_t self = position(attempt->processes, roster_.self());
  for (uint32_t distance = 1; distance < count; distance *= 2)
    probe_(attempt->processes[(self + distance) % count]);
}

Result<uint32_t> Survivors::begin(int32_t rank, const Excluded& excluded) {
  const auto found = attempts_.find(excluded);
  std::shared_ptr<Attempt> last = found == attempts_.end() ? nullptr : found->second;
  uint32_t number = 0;
  if (last != nullptr) {
    number = last->number;
    if (last->called.contains(rank)) {
      ++number;
      last = nullptr;
    }
  }
  if (last == nullptr) start(excluded, number, epoch_, /*tells=*/true);
  const std::shared_ptr<Attempt> attempt = attempts_[excluded];
  attempt->called.insert(rank);
  if (attempt->failure.is_ok()) compare(excluded);
  TRY(attempt->failure.copy());
  return number;
}

Result<Gathered> Survivors::agree(Roster::Lock& lock, const std::shared_ptr<Local>& waiter,
                                  int32_t rank, const Excluded& excluded, uint32_t number,
                                  std::span<const std::byte> mine, Deadline deadline) {
  const auto start = Deadline::Clock::now();
  const std::shared_ptr<Attempt> attempt = attempts_[excluded];
  if (attempt == nullptr || attempt->number != number)
    return Status::remote_error("another rank gave up and has begun anew");
  attempt->contributions[rank] = Bytes(mine.begin(), mine.end());
  attempt->waiters.push_back(waiter);
  contribute_if_complete(excluded, *attempt);
  auto outcome = roster_.wait(lock, *waiter, deadline, [&] {
    return attempt->is_over() || !attempt->contradiction.is_ok();
  });
  if (outcome == Roster::Outcome::Happened && !attempt->is_over()) {
    outcome = roster_.wait(lock, *waiter, Deadline::after(kToResolve),
                           [&] { return attempt->is_over(); });
    if (outcome == Roster::Outcome::TimedOut) fail_contradictions();
  }
  if (!attempt->is_over())
    fail_and_tell(excluded, *attempt,
                  outcome == Roster::Outcome::TimedOut ? describe_missing(*attempt, excluded, start)
                                                       : Roster::why_aborted(*waiter));
  TRY(attempt->failure.copy());
  if (attempt->collected.size() == 0) attempt->collected = TRY(collect(excluded, *attempt));
  return attempt->collected;
}

void Survivors::contribute_if_complete(const Excluded& excluded, Attempt& attempt) {
  const uint32_t self = roster_.self();
  if (attempt.is_over() || attempt.gathering.has(position(attempt.processes, self))) return;
  std::vector<messages::Contribution> contributions;
  for (const int32_t rank : roster_.process(self).ranks) {
    if (!stays(excluded, rank)) continue;
    const auto contribution = attempt.contributions.find(rank);
    if (contribution == attempt.contributions.end()) return;  // it will, or leaves
    contributions.push_back({.rank = rank, .bytes = contribution->second});
  }
  const Bytes content = messages::encode_contributions(contributions);
  const messages::Survive message{.number = attempt.number,
                                  .process = self,
                                  .epoch = attempt.epoch,
                                  .excluded = excluded,
                                  .failure = {.code = Code::Ok, .peer = -1, .text = {}},
                                  .content = content};
  auto frame = std::make_shared<const Bytes>(message.encode());
  const size_t content_at = frame->size() - content.size();
  add(attempt, self, {.frame = std::move(frame), .content_at = content_at});
}

void Survivors::add(Attempt& attempt, uint32_t process, Gathering::Part part) {
  const std::shared_ptr<const Bytes> frame = part.frame;
  for (const uint32_t next :
       attempt.gathering.add(position(attempt.processes, process), std::move(part)))
    transmit_(attempt.processes[next], frame);
  if (!attempt.gathering.complete()) return;
  epoch_ = std::max(epoch_, attempt.epoch + 1);
  for (const auto& waiter : attempt.waiters) waiter->changed.notify_all();
}

Status Survivors::take(Reader& reader, std::span<const std::byte> bytes) {
  const messages::Survive message = TRY(messages::Survive::decode(reader));
  const Excluded& excluded = message.excluded;
  const bool is_sound = message.process < roster_.nprocesses() &&
                        std::is_sorted(excluded.begin(), excluded.end()) &&
                        (excluded.empty() || excluded.back() < roster_.nranks());
  if (!is_sound) return Status::remote_error("a part of an agreement that cannot be");
  const auto& own = roster_.process(roster_.self()).ranks;
  if (std::none_of(own.begin(), own.end(), [&](int32_t rank) { return stays(excluded, rank); }))
    return Status::remote_error("a part of an agreement that leaves this process out");
  const auto found = attempts_.find(excluded);
  const bool is_new = found == attempts_.end() || found->second->number < message.number;
  if (!is_new && found->second->number > message.number) return {};  // of the past
  const bool has_failed = message.failure.code != Code::Ok;          // which all have been told
  if (is_new) start(excluded, message.number, message.epoch, !has_failed);
  const std::shared_ptr<Attempt> attempt = attempts_[excluded];
  if (has_failed) {
    if (!attempt->is_over()) fail(*attempt, message.failure.status());
    return {};
  }
  if (!attempt->includes(message.process))
    return Status::remote_error("a part of an agreement of a process that is left out");
  if (is_new && attempt->failure.is_ok()) compare(excluded);
  if (attempt->failure.is_ok() && !attempt->gathering.complete())
    add(*attempt, message.process,
        {.frame = std::make_shared<const Bytes>(bytes.begin(), bytes.end()),
         .content_at = bytes.size() - message.content.size()});
  return {};
}

void Survivors::compare(const Excluded& excluded) {
  const std::shared_ptr<Attempt> mine = attempts_[excluded];
  if (mine->is_over()) return;
  for (const auto& [list, other] : attempts_) {
    if (list == excluded || other->is_over() || other->epoch != mine->epoch) continue;
    // If no rank of this process has called with either list, the ranks here still have to choose.
    if (other->called.empty() && mine->called.empty()) continue;
    for (const std::shared_ptr<Attempt>& attempt : {mine, other}) {
      attempt->contradiction = Status::invalid_argument(
          "ranks differ about whom to exclude: some say {}, others {}; pass the same list on all "
          "ranks that stay",
          describe_ranks(first_of(list)), describe_ranks(first_of(excluded)));
      for (const auto& waiter : attempt->waiters) waiter->changed.notify_all();
    }
  }
}

void Survivors::fail_contradictions() {
  for (const auto& [excluded, attempt] : std::map(attempts_))
    if (!attempt->is_over() && !attempt->contradiction.is_ok())
      fail_and_tell(excluded, *attempt, attempt->contradiction.copy());
}

void Survivors::fail(Attempt& attempt, const Status& why) {
  attempt.failure = why.copy();
  attempt.contributions.clear();
  // Lists that contradict each other fail together: a rank that has heard it of one is not to hear
  // it again of the other, when it calls with that.
  for (const auto& [list, other] : attempts_) {
    if (other.get() == &attempt || other->failure.message() != why.message()) continue;
    attempt.called.insert(other->called.begin(), other->called.end());
    other->called.insert(attempt.called.begin(), attempt.called.end());
  }
  for (const auto& waiter : attempt.waiters) waiter->changed.notify_all();
}

void Survivors::fail_and_tell(const Excluded& excluded, Attempt& attempt, const Status& why) {
  fail(attempt, why);
  const messages::Survive message{.number = attempt.number,
                                  .process = roster_.self(),
                                  .epoch = attempt.epoch,
                                  .excluded = excluded,
                                  .failure = messages::Failed::of(why),
                                  .content = {}};
  const auto frame = std::make_shared<const Bytes>(message.encode());
  for (const uint32_t process : attempt.processes)
    if (process != roster_.self() && !roster_.is_gone(process)) transmit_(process, frame);
}

void Survivors::process_gone(uint32_t process) {
  for (const auto& [excluded, attempt] : std::map(attempts_)) {
    if (attempt->is_over() || !attempt->includes(process)) continue;
    for (const int32_t rank : roster_.process(process).ranks)
      if (stays(excluded, rank)) {
        fail_and_tell(excluded, *attempt, roster_.why_gone(rank));
        break;
      }
  }
}

void Survivors::rank_left(int32_t rank) {
  for (const auto& [excluded, attempt] : std::map(attempts_))
    if (!attempt->is_over() && stays(excluded, rank))
      fail_and_tell(
          excluded, *attempt,
          Status::remote_error("rank {} has left the communicator", rank).with_peer(rank));
}

Result<Gathered> Survivors::collect(const Excluded& excluded, const Attempt& attempt) const {
  std::vector<std::shared_ptr<const Bytes>> frames;
  std::map<int32_t, std::span<const std::byte>> of_ranks;
  for (size_t i = 0; i < attempt.processes.size(); ++i) {
    const std::string origin = roster_.describe(attempt.processes[i]);
    const Gathering::Part& part = attempt.gathering.parts()[i];
    frames.push_back(part.frame);
    Reader reader(part.content(), origin);
    for (const messages::Contribution& contribution : TRY(messages::decode_contributions(reader))) {
      const bool is_its = contribution.rank < roster_.nranks() &&
                          roster_.process_of(contribution.rank) == attempt.processes[i];
      if (is_its) of_ranks[contribution.rank] = contribution.bytes;
    }
  }
  std::vector<std::span<const std::byte>> by_rank;
  for (int32_t rank = 0; rank < roster_.nranks(); ++rank) {
    if (!stays(excluded, rank)) continue;
    const auto found = of_ranks.find(rank);
    if (found == of_ranks.end())
      return Status::remote_error("nothing was contributed for rank {}", rank).with_peer(rank);
    by_rank.push_back(found->second);
  }
  return Gathered(std::move(frames), std::move(by_rank));
}

Status Survivors::describe_missing(const Attempt& attempt, const Excluded& excluded,
                                   Deadline::Clock::time_point start) const {
  std::vector<int32_t> missing;
  for (const uint32_t i : attempt.gathering.missing())
    for (const int32_t rank : roster_.process(attempt.processes[i]).ranks)
      if (stays(excluded, rank) && !attempt.contributions.contains(rank)) missing.push_back(rank);
  std::sort(missing.begin(), missing.end());
  const double waited = std::chrono::duration<double>(Deadline::Clock::now() - start).count();
  return Status::remote_error("heard nothing from {} for {:.1f} s: have they called, too?",
                              describe_ranks(first_of(missing)), waited)
      .with_peer(missing.empty() ? -1 : missing.front());
}

}  // namespace niccolite::bootstrap
