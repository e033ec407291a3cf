// How a watch finds out why its rank waits: it asks the rank for which its rank waits, then the
// rank for which that rank waits, and so on.
#include <algorithm>
#include <atomic>
#include <utility>

#include "base/log.h"
#include "diagnosis/watch.h"

namespace niccolite::diagnosis {
namespace {

using executor::Report;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kPatience{30};         // a wait that is worth a warning
constexpr seconds kLongestInterval{30};  // between inquiries into one wait
constexpr milliseconds kLate{300};       // of an answer's time-out: this rank had no core itself
constexpr seconds kPatientAsk{2};        // for an answer that is worth a wait
constexpr seconds kFollowTime{4};        // for asking one rank after the other
// A busy machine takes seconds for an answer, and is no fault.
constexpr seconds kSilent{5};
constexpr seconds kFreshSilence{1};  // found by another rank of this process: not asked again
constexpr seconds kLeaverTime{5};    // of a circle of waits: all that a leaver has sent is there
constexpr size_t kMostFollowed = 64;
constexpr int kFew = 16;  // ranks
constexpr seconds kKnotTime{
    8};  // for ranks to learn of a chain of communicators, one after another
// A call is logged right after its launch. If a rank has left, or does not answer, another rank may
// have learned the rank's call, and may be about to tell all.
constexpr seconds kUntilNamed{2};

bool needs_all_ranks(const calls::Call& call) {
  switch (call.request.collective) {
    case calls::Collective::AllReduce:
    case calls::Collective::AllGather:
    case calls::Collective::ReduceScatter:
    case calls::Collective::AllToAll:
      return true;
    default:
      return false;
  }
}

std::string last_call_of(const Account& account) {
  if (account.blocked) return "which is in " + account.blocked->describe();
  if (account.log.calls.empty()) return "which has called nothing yet";
  const calls::LoggedCall& last = account.log.calls.back();
  std::string text = "whose last call was " + describe(last.call);
  if (last.is_captured()) return text + " in a graph";
  return last.call.is_message() ? text : text + fmt::format(" as its collective #{}", last.number);
}

std::string holder_of(const Account& account) {
  if (!account.hold) return "";
  const Stuck& holder = account.hold->chain.front();
  return fmt::format(", and whose stream waits in {} of communicator 0x{:x} for its rank {}",
                     describe(holder.call), holder.communicator, holder.peer);
}

}  // namespace

// Finds the cause of a long call of the host. A rank in a call that all ranks make waits for the
// ranks that have not made it; a rank that connects waits for processes that do not answer.
void Watch::examine_host_call() {
  if (looked_ < next_host_look_) return;
  const std::optional<calls::CallLog::HostCall> call = log_.host_call();
  if (!call || judged_host_call_ == std::pair(call->connects, call->number)) return;
  // It takes time to find that a rank does not answer: where they are few they are asked before.
  const bool asks_early = call->connects || nranks_ <= kFew;
  if (looked_ - call->since < (asks_early ? kLongWait - kAsk : kLongWait)) return;
  next_host_look_ = looked_ + kLongWait;
  if (looked_ - call->since < kLongWait) next_host_look_ = call->since + kLongWait;
  Verdict verdict{.cause = Cause::NotCalled,
                  .rank = -1,
                  .waiting = rank_,
                  .operation = {.call = {}, .number = call->number},
                  .last = std::nullopt,
                  .host_call = call->function,
                  .holder = std::nullopt};
  const Time deadline = hooks_.now() + kFollowTime;
  const int most = std::min(nranks_, static_cast<int>(kMostFollowed));
  std::vector<int> peers;
  for (int step = 1; step < most; ++step) peers.push_back((rank_ + step) % nranks_);
  // Asks silent ranks first, so that the answers of others do not take the time.
  std::stable_partition(peers.begin(), peers.end(), [&](int peer) {
    return hooks_.silences->find(hooks_.communicator, peer) != nullptr;
  });
  for (const int peer : peers) {
    if (verdict.rank >= 0 || hooks_.now() >= deadline) break;
    const bool is_excluded = std::ranges::find(call->excluded, peer) != call->excluded.end();
    if (is_excluded || hooks_.has_left(peer)) continue;
    if (hooks_.run_state(peer) == RunState::Stopped) {
      verdict.cause = Cause::Stopped;
      verdict.rank = peer;
      break;
    }
    Result<Account> theirs = ask(peer);
    if (!theirs.is_ok()) {
      const Reach reach = reach_beside(peer);
      if (!is_silent(peer) || reach == Reach::NotKnown) continue;
      verdict.cause = reach == Reach::Nobody ? Cause::CutOff : Cause::DoesNotAnswer;
      verdict.rank = reach == Reach::Nobody ? rank_ : peer;
    } else if (!call->connects && theirs.value().host_calls < call->number) {
      verdict.rank = peer;
      const std::vector<calls::LoggedCall>& calls = theirs.value().log.calls;
      if (!calls.empty()) verdict.last = calls.back();
      verdict.say_blocked(theirs.value());
    }
  }
  const std::optional<calls::CallLog::HostCall> now = log_.host_call();
  if (verdict.rank < 0 || !now || now->connects != call->connects || now->number != call->number)
    return;
  if (hooks_.now() - call->since < kLongWait) {
    next_host_look_ = call->since + kLongWait;
    return;
  }
  judged_host_call_ = {call->connects, call->number};
  announce(verdict);
}

void Watch::examine_mismatch() {
  const int peer = static_cast<int>(mismatch_->peer);
  const Account mine = own_account(peer);
  Result<Account> answer = hooks_.ask(peer, kPatientAsk);
  if (!answer.is_ok())
    LOG(Info, Coll, "rank {} cannot ask rank {} for its calls: {}", rank_, peer,
        answer.status().message());
  Account theirs{.rank = peer, .log = {}, .wait = std::nullopt, .hold = std::nullopt};
  if (answer.is_ok()) theirs = std::move(answer).take();
  const bool is_complete =
      mine.find(mismatch_->own_tag) != nullptr && theirs.find(mismatch_->peer_tag) != nullptr;
  const bool was_asked_before = std::exchange(has_asked_, true);
  if (!is_complete && (!was_asked_before || hooks_.now() - noticed_ < kUntilNamed)) return;
  accuse(describe_difference(mine, mismatch_->own_tag, theirs, mismatch_->peer_tag));
}

void Watch::examine_wait(const Wait& wait) {
  if (is_doomed(wait)) return;
  if (wait.repeats == 0) {
    next_look_ = executor::kReportInterval;
    has_told_ = has_warned_ = false;
  }
  if (wait.lasted() < next_look_) return;
  next_look_ = wait.lasted() + std::min<milliseconds>(wait.lasted(), kLongestInterval);
  follow(wait);
}

// A connection that breaks fails at both ends, and the rank that hears of it first may have left by
// the time that the other one would tell why.
std::string Watch::cause_of_leaving(int peer) const {
  const auto state = hooks_.network != nullptr ? hooks_.network() : std::nullopt;
  const transport::Traffic* const traffic = state ? state->find(peer) : nullptr;
  return traffic == nullptr || traffic->broken.empty() ? "" : "; " + traffic->broken;
}

// True if the peer has left. A rank that has left cannot be asked. It leaves when its work is done,
// so all its data are there. A wait for it that was seen after it had left will never end.
bool Watch::is_doomed(const Wait& wait) {
  if (!hooks_.has_left(wait.peer)) return false;
  // The proxy gives up data that a rank that has left will not acknowledge.
  if (wait.kind == executor::ReportKind::WaitingForAcknowledgement) return true;
  if (left_peer_ != wait.peer) {
    left_peer_ = wait.peer;
    left_since_ = hooks_.now();
  } else if (wait.earliest >= left_since_) {
    const Account mine = own_account(wait.peer);
    const calls::LoggedCall* const call = mine.find(wait.tag, wait.peer);
    fail_all(Status::remote_error(
        "rank {} waits in {} for rank {}, which has left the communicator (ncclCommDestroy or "
        "ncclCommAbort) without taking part{}",
        rank_, call != nullptr ? describe(call->call) : "a call", wait.peer,
        cause_of_leaving(wait.peer)));
  }
  return true;
}

// Fails at the second look: data that a rank has sent before it left have come by then.
void Watch::examine_one_sided() {
  if (hooks_.awaited_leaver == nullptr || looked_ < next_look_at_leavers_) return;
  next_look_at_leavers_ = looked_ + kLongWait;
  const auto before = std::exchange(awaited_leaver_, hooks_.awaited_leaver());
  if (!awaited_leaver_ || awaited_leaver_ != before) return;
  fail_all(Status::remote_error(
      "rank {} waits in {} for rank {}, which has left the communicator (ncclCommDestroy or "
      "ncclCommAbort) without taking part{}",
      rank_, awaited_leaver_->second, awaited_leaver_->first,
      cause_of_leaving(awaited_leaver_->first)));
}

// Goes from this rank to the rank for which it waits, from there to the next, and so on, until it
// finds a late rank, a difference, or a rank that it has met before.
void Watch::follow(const Wait& wait) {
  const Account mine = own_account(wait.peer);
  std::vector<Waiter> path{{.account = mine,
                            .earliest_look = wait.earliest,
                            .under_way = wait.latest - wait.lasted(),
                            .told = hooks_.now()}};
  const Time deadline = hooks_.now() + kFollowTime;
  while (path.size() < kMostFollowed && hooks_.now() < deadline) {
    const Account& last = path.back().account;
    if (!last.wait) return;  // it has ended since it was reported
    const int next = last.wait->peer;
    // Acknowledgements wait for no call and for no operation of the rank that owes them: behind
    // that rank, its process and the network between the two, there is nothing to be found.
    const bool is_last = last.wait->kind == executor::ReportKind::WaitingForAcknowledgement;
    if (!is_other_rank(next, last.rank)) return;
    const auto met = std::find_if(path.begin(), path.end(), [&](const Waiter& waiter) {
      return waiter.account.rank == next;
    });
    if (met != path.end()) {
      if (examine_network(wait, last, met->account) || is_last) return;
      if (accuse(judge_cycle({met, path.end()})) || name_stopped(wait, last) ||
          name_leaver(wait, mine))
        return;
      say_who_is_late(wait, mine);
      return;
    }
    if (hooks_.run_state(next) == RunState::Stopped) {
      judge(wait, judge_silent(last, next, Cause::Stopped));
      return;
    }
    const Time asked = hooks_.now();
    Result<Account> answer = ask(next);
    const Time answered = hooks_.now();
    if (!answer.is_ok()) {
      judge_silence(wait, last, next);
      say(wait, mine,
          fmt::format("rank {}, which does not answer ({})", next, answer.status().message()));
      return;
    }
    Account theirs = std::move(answer).take();
    if (accuse(compare_collectives(last, theirs)) || accuse(compare_collectives(mine, theirs)) ||
        (next == wait.peer && accuse(compare_messages(mine, theirs))))
      return;
    if (examine_network(wait, last, theirs) || is_last) return;
    if (theirs.hold) {
      const WaitReport& holding = theirs.hold->wait;
      const Waiter held{.account = theirs,
                        .earliest_look = asked - holding.most_age,
                        .under_way = answered - holding.least_age - holding.lasted,
                        .told = answered};
      if (accuse(judge_hold(wait, path, held))) return;
    }
    if (!theirs.wait) {
      judge(wait, judge_late(last, theirs));
      const std::string late =
          fmt::format("rank {}, {}{}", theirs.rank, last_call_of(theirs), holder_of(theirs));
      say(wait, mine,
          next == wait.peer ? late : fmt::format("rank {}, and that for {}", wait.peer, late));
      return;
    }
    const WaitReport report = *theirs.wait;
    path.push_back({.account = std::move(theirs),
                    .earliest_look = asked - report.most_age,
                    .under_way = answered - report.least_age - report.lasted,
                    .told = answered});
  }
}

// Names a stopped rank as the cause of a circle of waits. Each rank of the circle waits for several
// ranks and reports only one of them; another one may be stopped.
bool Watch::name_stopped(const Wait& wait, const Account& last) {
  if (lasted_by_now(wait) < kLongWait) return false;
  const int most = std::min(nranks_, static_cast<int>(kMostFollowed));
  for (int step = 1; step < most; ++step) {
    const int other = (rank_ + step) % nranks_;
    if (hooks_.run_state(other) != RunState::Stopped) continue;
    judge(wait, judge_silent(last, other, Cause::Stopped));
    return true;
  }
  return false;
}

// Names a rank that has left as the cause of a circle of waits, in which each rank reports only one
// of the ranks that it waits for. That rank has not left in order: an operation in which every rank
// needs all others ends nowhere before all ranks are in it.
bool Watch::name_leaver(const Wait& wait, const Account& mine) {
  if (lasted_by_now(wait) < kLeaverTime) return false;
  const calls::LoggedCall* const call = mine.find(wait.tag, wait.peer);
  if (call == nullptr || !needs_all_ranks(call->call)) return false;
  const int most = std::min(nranks_, static_cast<int>(kMostFollowed));
  for (int step = 1; step < most; ++step) {
    const int other = (rank_ + step) % nranks_;
    if (!hooks_.has_left(other)) continue;
    fail_all(Status::remote_error(
        "rank {} has waited for {} s in {}, from which rank {} is missing: it has left the "
        "communicator (ncclCommDestroy or ncclCommAbort){}",
        rank_, wait.seconds(), describe(call->call), other, cause_of_leaving(other)));
    return true;
  }
  return false;
}

// `last` waits for `next`.
bool Watch::examine_network(const Wait& wait, const Account& last, const Account& next) {
  std::optional<Verdict> verdict = judge_network(last, next);
  if (!verdict) return false;
  judge(wait, std::move(verdict));
  return true;
}

// Extends this rank's chain of holds by the chain of `held`. If the chain comes back to the
// operation in which this rank waits, none of the operations can end.
std::optional<std::string> Watch::judge_hold(const Wait& wait, std::span<const Waiter> path,
                                             const Waiter& held) {
  if (wait.lasted() < kKnotTime) next_look_ = wait.lasted() + executor::kReportInterval;
  if (!is_held_up(path, held)) return std::nullopt;
  Stuck mine = describe_stuck(wait, *find_waiting(path.front().account));
  mine.peer = held.account.rank;
  std::vector<Stuck> chain{std::move(mine)};
  bool is_closed = false;
  for (const Stuck& next : held.account.hold->chain) {
    is_closed = next.is_same_as(chain.front());
    if (is_closed || chain.size() == Hold::kLongest) break;
    chain.push_back(next);
  }
  {
    std::lock_guard lock(mutex_);
    if (wait_->operation == wait.operation) chain_ = chain;
  }
  if (!is_closed) return std::nullopt;
  return describe_circle(chain);
}

void Watch::judge_silence(const Wait& wait, const Account& waiting, int peer) {
  if (hooks_.silences->find(hooks_.communicator, peer) == nullptr) return;
  const Reach reach = reach_beside(peer);
  if (!is_silent(peer) || reach == Reach::NotKnown) {
    next_look_ = wait.lasted() + kLongWait;
  } else if (reach == Reach::Nobody) {
    judge(wait, judge_silent(waiting, rank_, Cause::CutOff));
  } else {
    judge(wait, judge_silent(waiting, peer, Cause::DoesNotAnswer));
  }
}

// Tells whether other ranks than `peer` can be reached. If this rank's machine is cut off, all
// others are silent, and `peer` is no more at fault than they are. Without another rank to ask,
// `peer` is named: it, or the network between the two.
Watch::Reach Watch::reach_beside(int peer) {
  constexpr int kMostAsked = 3;  // each takes time if it does not answer
  int asked = 0;
  bool are_silent = true;
  for (int step = 1; step < nranks_ && asked < kMostAsked; ++step) {
    const int other = (rank_ + step) % nranks_;
    const bool is_here = hooks_.run_state(other) != RunState::Unknown;
    if (other == peer || is_here || hooks_.has_left(other)) continue;
    if (ask(other).is_ok()) return Reach::Others;
    ++asked;
    are_silent = are_silent && is_silent(other);
  }
  if (asked == 0) return Reach::Others;
  return are_silent ? Reach::Nobody : Reach::NotKnown;
}

// A silent rank is given more time: the next answer may come late instead of not at all. A silence
// counts only if this process has run itself meanwhile.
Result<Account> Watch::ask(int peer) {
  Silences& silences = *hooks_.silences;
  const Silences::Silence* const known = silences.find(hooks_.communicator, peer);
  const Time asked = hooks_.now();
  if (known != nullptr && known->asker != rank_ && asked - known->end < kFreshSilence)
    return Status::remote_error("rank {} has not answered rank {}", peer, known->asker);
  const milliseconds patience = known != nullptr ? milliseconds(kPatientAsk) : kAsk;
  Result<Account> answer = hooks_.ask(peer, patience);
  const Time now = hooks_.now();
  const bool was_held_up = now - asked > patience + kLate ||
                           (hooks_.awake_since != nullptr && now - hooks_.awake_since() < patience);
  if (answer.is_ok() || was_held_up)
    silences.end(hooks_.communicator, peer);
  else
    silences.add(hooks_.communicator, peer, rank_, asked, now);
  return answer;
}

// A rank may be too busy to answer, or on its way out: one that runs is not accused.
bool Watch::is_silent(int peer) const {
  if (hooks_.has_left(peer) || hooks_.has_failed() || hooks_.run_state(peer) == RunState::Runs)
    return false;
  const Silences::Silence* const silence = hooks_.silences->find(hooks_.communicator, peer);
  return silence != nullptr && silence->end - silence->begin >= kSilent;
}

// An unanswered question takes time, in which the executor reports the wait again.
milliseconds Watch::lasted_by_now(const Wait& wait) const {
  // relaxed: as in take_report().
  const Report report =
      executor::decode_report(std::atomic_ref(control_.report).load(std::memory_order_relaxed));
  const bool goes_on = kind_of(report) == wait.kind && static_cast<int>(report.peer) == wait.peer &&
                       report.own_tag == wait.tag && report.repeats > wait.repeats;
  if (!goes_on) return wait.lasted();
  return wait.lasted() + std::chrono::floor<milliseconds>(hooks_.now() - wait.latest);
}

// Ranks wait for each other, which proves nothing: another one may have to come first.
void Watch::say_who_is_late(const Wait& wait, const Account& mine) {
  if (has_warned_ || wait.lasted() < kPatience) return;
  const Time deadline = hooks_.now() + kFollowTime;
  const int most = std::min(nranks_, static_cast<int>(kMostFollowed));
  for (int step = 1; step < most && hooks_.now() < deadline; ++step) {
    const int other = (rank_ + step) % nranks_;
    const Result<Account> theirs = hooks_.ask(other, kAsk);
    if (!theirs.is_ok() || theirs.value().wait) continue;
    return say(wait, mine,
               fmt::format("rank {}, but ranks wait for each other while there is rank {}, {}",
                           wait.peer, other, last_call_of(theirs.value())));
  }
  say(wait, mine, fmt::format("rank {}, and ranks wait for each other", wait.peer));
}

void Watch::say(const Wait& wait, const Account& mine, const std::string& for_whom) {
  if (wait.lasted() < kLongWait) return;
  const calls::LoggedCall* const call = mine.find(wait.tag, wait.peer);
  const std::string text =
      fmt::format("rank {} has waited for {} s in {} for {}", rank_, wait.seconds(),
                  call != nullptr ? describe(call->call) : "a call", for_whom);
  if (!std::exchange(has_told_, true)) LOG(Info, Coll, "{}", text);
  // Where a verdict stands, its rank warns (warn_of_standstill()).
  if (has_warned_ || wait.lasted() < kPatience || standing_verdict()) return;
  has_warned_ = true;
  log::write(log::Level::Warn, {__builtin_FILE(), __builtin_LINE()},
             call != nullptr ? function_of(call->call) : __func__,
             text + ". Have all ranks made the same calls?");
}

}  // namespace niccolite::diagnosis
