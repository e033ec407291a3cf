#include "comm/watch.h"

#include <algorithm>
#include <atomic>
#include <set>

#include "base/log.h"
#include "observe/dumps.h"

namespace niccolite::comm {
namespace {

using executor::Report;
using executor::ReportKind;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kFirstInterval{1};  // between comparisons with the neighbour
constexpr seconds kLongestInterval{30};
constexpr seconds kSurveyInterval{1};
constexpr seconds kLongWait{1};       // is worth a line of INFO,
constexpr seconds kPatience{30};      // and this a warning
constexpr milliseconds kFresh{1500};  // a wait that goes on is reported every second at least
constexpr milliseconds kAsk{800};     // so that a verdict comes within two seconds
constexpr milliseconds kLate{300};    // of an answer's time-out: this rank had no core itself
constexpr seconds kPatientAsk{2};     // for what is worth waiting for
constexpr seconds kFollowTime{4};     // for asking one rank after the other
constexpr size_t kMostFollowed = 64;
constexpr int kFew = 16;  // ranks
constexpr seconds kKnotTime{
    8};  // for ranks to learn of a chain of communicators, one after another
constexpr int kMostAttempts = 20;  // a second's looks: a call is logged right after its launch

seconds after(seconds interval) { return std::min(2 * interval, kLongestInterval); }

std::string last_call_of(const Account& account) {
  if (account.log.calls.empty()) return "which has called nothing yet";
  const LoggedCall& last = account.log.calls.back();
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

Watch::Watch(int rank, int nranks, const CallLog& log, executor::ControlWords& control, Hooks hooks)
    : rank_(rank),
      nranks_(nranks),
      log_(log),
      control_(control),
      hooks_(std::move(hooks)),
      looked_(hooks_.now()),
      next_comparison_(looked_ + kFirstInterval),
      next_survey_(looked_ + kSurveyInterval),
      comparison_interval_(kFirstInterval) {}

void Watch::look() {
  const log::ScopedDevice speaks_for(hooks_.device);
  log_.recorder()->look();
  Time earliest, latest;
  const Report report = take_report(&earliest, &latest);
  is_over_ = is_over_ || hooks_.has_failed();
  std::optional<Wait> wait;
  if (report.kind != ReportKind::None && is_other_rank(static_cast<int>(report.peer), rank_)) {
    if (report.kind == ReportKind::Mismatch) {
      if (!mismatch_) mismatch_ = report;
    } else {
      wait = {.kind = report.kind,
              .peer = static_cast<int>(report.peer),
              .tag = report.own_tag,
              .repeats = report.repeats,
              .earliest = earliest,
              .latest = latest};
      keep_wait(*wait);  // of what has failed, too: it goes on holding up others
    }
  }
  if (is_over_) return;
  if (wait && !mismatch_) examine_wait(*wait);
  if (mismatch_ && !is_over_) examine_mismatch();
  if (!is_over_) examine_host_call();
  if (!is_over_) compare_with_neighbor();
  if (!is_over_ && !wait && hooks_.survey != nullptr && looked_ >= next_survey_) {
    // An answer of each of many ranks takes its time.
    next_survey_ = looked_ + kSurveyInterval * (1 + nranks_ / 64);
    hooks_.survey();
  }
}

// A report was stored since the look before, which left none.
Report Watch::take_report(Time* earliest, Time* latest) {
  *earliest = looked_;
  looked_ = hooks_.now();
  const std::atomic_ref word(control_.report);
  // relaxed: the word says all there is to say.
  if (word.load(std::memory_order_relaxed) == 0) return {};
  const uint64_t report = word.exchange(0, std::memory_order_relaxed);
  *latest = hooks_.now();
  return executor::decode_report(report);
}

// The operations of a communicator run one after the other: what was under way when the wait before
// was reported is what waited then. A wait that has been reported earlier was, unless reports were
// lost: this one's or that one's, while nobody looked for an interval or longer.
bool Watch::is_same_operation(const Wait& before, const Wait& wait) {
  const auto was_taken_at_once = [](const Wait& taken) {
    return taken.latest - taken.earliest < executor::kReportInterval;
  };
  if (wait.latest - wait.lasted() <= before.earliest) return true;
  return wait.repeats > 0 && was_taken_at_once(before) && was_taken_at_once(wait);
}

void Watch::keep_wait(Wait& wait) {
  std::lock_guard lock(mutex_);
  if (!wait_ || !is_same_operation(*wait_, wait)) {
    ++operations_;
    chain_.clear();
    wait.launch = log_.recorder()->progress().begun;
  } else {
    wait.launch = wait_->launch;
  }
  wait.operation = operations_;
  wait_ = wait;
  // Of a wait that lasts, some of its reports.
  if ((wait.repeats & (wait.repeats + 1)) != 0) return;
  observe::Event event;
  event.time = observe::ticks();
  event.kind = observe::EventKind::Waiting;
  event.value = static_cast<uint64_t>(wait.lasted().count());
  event.peer = wait.peer;
  log_.recorder()->add(event);
}

Account Watch::account(int asker) const {
  Account account = own_account(asker);
  const auto stream = log_.only_stream();
  if (!stream) return account;
  // Both on one stream: one of them runs, the one that was seen to wait later.
  std::optional<Hold> hold = hooks_.find_holder(*stream);
  if (!hold || (account.wait && account.wait->least_age <= hold->wait.most_age)) return account;
  account.hold = std::move(hold);
  account.wait.reset();
  return account;
}

std::optional<Hold> Watch::holding(int device, uint64_t stream) const {
  std::optional<Wait> wait;
  Hold hold;
  {
    std::lock_guard lock(mutex_);
    wait = wait_;
    hold.chain = chain_;
  }
  // After the wait was seen: what waits was launched before, on a stream that is known by now.
  if (!wait || hooks_.device != device || log_.only_stream() != stream) return std::nullopt;
  // What is told to end does so before those that it waits for. acquire: as the executors read it.
  if (std::atomic_ref(control_.abort).load(std::memory_order_acquire) != 0) return std::nullopt;
  const Account mine = own_account(wait->peer, wait);
  if (!mine.wait) return std::nullopt;
  hold.wait = *mine.wait;
  if (!hold.chain.empty()) return hold;
  const LoggedCall* const call = find_waiting(mine);
  if (call == nullptr) return std::nullopt;
  hold.chain.push_back(describe_stuck(*wait, *call));
  return hold;
}

Stuck Watch::describe_stuck(const Wait& wait, const LoggedCall& logged) const {
  return {.communicator = hooks_.communicator,
          .rank = rank_,
          .operation = wait.operation,
          .call = logged.call,
          .peer = wait.peer};
}

Account Watch::own_account(int asker) const {
  std::optional<Wait> wait;
  {
    std::lock_guard lock(mutex_);
    wait = wait_;
  }
  return own_account(asker, wait);
}

Account Watch::own_account(int asker, const std::optional<Wait>& wait) const {
  Account account{
      .rank = rank_, .log = log_.content(asker), .wait = std::nullopt, .hold = std::nullopt};
  const Time now = hooks_.now();
  {
    std::lock_guard lock(mutex_);
    account.is_final = is_leaving_;
  }
  account.host_calls = log_.host_calls();
  const std::optional<CallLog::HostCall> host_call = log_.host_call();
  account.connects = host_call && host_call->connects;
  account.progress = log_.recorder()->progress();
  if (hooks_.network != nullptr) account.network = hooks_.network();
  if (hooks_.awake_since != nullptr)
    account.awake =
        std::max(std::chrono::floor<milliseconds>(now - hooks_.awake_since()), milliseconds(0));
  // Where the executor tells that all that was begun has ended, or that an equal call has begun
  // since, the wait has ended, too.
  const observe::Recorder::Progress& progress = account.progress;
  const bool is_over =
      wait && progress.begun != 0 && (!progress.is_running || progress.begun != wait->launch);
  if (!wait || is_over || now - wait->latest > kFresh) return account;
  account.wait = {.kind = wait->kind,
                  .peer = wait->peer,
                  .tag = wait->tag,
                  .least_age = std::chrono::floor<milliseconds>(now - wait->latest),
                  .most_age = std::chrono::ceil<milliseconds>(now - wait->earliest),
                  .lasted = wait->lasted(),
                  .is_joined = log_.was_joined(wait->tag)};
  return account;
}

// Who is in a call of the host that all ranks make waits for those that have not made it; who
// connects, for processes that do not answer.
void Watch::examine_host_call() {
  if (looked_ < next_host_look_) return;
  const std::optional<CallLog::HostCall> call = log_.host_call();
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
  for (int step = 1; step < most && verdict.rank < 0 && hooks_.now() < deadline; ++step) {
    const int peer = (rank_ + step) % nranks_;
    const bool is_excluded = std::ranges::find(call->excluded, peer) != call->excluded.end();
    if (is_excluded || hooks_.has_left(peer)) continue;
    if (hooks_.run_state(peer) == RunState::Stopped) {
      verdict.cause = Cause::Stopped;
      verdict.rank = peer;
      break;
    }
    const Time asked = hooks_.now();
    Result<Account> theirs = hooks_.ask(peer, kAsk);
    if (!theirs.is_ok()) {
      if (!is_silent(peer, asked)) continue;
      verdict.cause = Cause::DoesNotAnswer;
      verdict.rank = peer;
    } else if (!call->connects && theirs.value().host_calls < call->number) {
      verdict.rank = peer;
      const std::vector<LoggedCall>& calls = theirs.value().log.calls;
      if (!calls.empty()) verdict.last = calls.back();
    }
  }
  const std::optional<CallLog::HostCall> now = log_.host_call();
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
  attempts_ += answer.is_ok() ? 1 : kMostAttempts / 2;
  if (answer.is_ok()) theirs = std::move(answer).take();
  const bool is_complete =
      mine.find(mismatch_->own_tag) != nullptr && theirs.find(mismatch_->peer_tag) != nullptr;
  if (!is_complete && attempts_ < kMostAttempts && !hooks_.has_left(peer)) return;
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

// A rank leaves when its work is done: all that it was ever going to send is there. What was seen
// to wait after that waits in vain.
bool Watch::is_doomed(const Wait& wait) {
  if (!hooks_.has_left(wait.peer)) return false;
  if (left_peer_ != wait.peer) {
    left_peer_ = wait.peer;
    left_since_ = hooks_.now();
  } else if (wait.earliest >= left_since_) {
    const Account mine = own_account(wait.peer);
    const LoggedCall* const call = mine.find(wait.tag, wait.peer);
    fail_all(Status::remote_error(
        "rank {} waits in {} for rank {}, which has left the communicator (ncclCommDestroy or "
        "ncclCommAbort) without taking part",
        rank_, call != nullptr ? describe(call->call) : "a call", wait.peer));
  }
  return true;
}

// From this rank to the one that it waits for, to the one that that one waits for, and so on: to a
// rank that is late, to a difference, or to a rank that was met before.
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
    if (!is_other_rank(next, last.rank)) return;
    const auto met = std::find_if(path.begin(), path.end(), [&](const Waiter& waiter) {
      return waiter.account.rank == next;
    });
    if (met != path.end()) {
      if (examine_network(wait, last, met->account)) return;
      if (accuse(judge_cycle({met, path.end()})) || name_stopped(wait, last)) return;
      say_who_is_late(wait, mine);
      return;
    }
    if (hooks_.run_state(next) == RunState::Stopped) {
      judge(wait, judge_silent(last, next, Cause::Stopped));
      return;
    }
    const Time asked = hooks_.now();
    Result<Account> answer = hooks_.ask(next, kAsk);
    const Time answered = hooks_.now();
    if (!answer.is_ok()) {
      judge_silence(wait, last, next, asked);
      say(wait, mine,
          fmt::format("rank {}, which does not answer ({})", next, answer.status().message()));
      return;
    }
    Account theirs = std::move(answer).take();
    if (accuse(compare_collectives(last, theirs)) || accuse(compare_collectives(mine, theirs)) ||
        (next == wait.peer && accuse(compare_messages(mine, theirs))))
      return;
    if (examine_network(wait, last, theirs)) return;
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

// Ranks wait for each other, each for several others, of which it reports one: another one of them
// may be stopped.
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

// `last` waits for `next`.
bool Watch::examine_network(const Wait& wait, const Account& last, const Account& next) {
  std::optional<Verdict> verdict = judge_network(last, next);
  if (!verdict) return false;
  judge(wait, std::move(verdict));
  return true;
}

// One rank learns from the next what it waits for in the end. Where that is the operation that this
// one waits in, none of them will end.
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

// A question that is not answered takes time, in which the same wait is reported again.
milliseconds Watch::lasted_by_now(const Wait& wait) const {
  // relaxed: as in take_report().
  const Report report =
      executor::decode_report(std::atomic_ref(control_.report).load(std::memory_order_relaxed));
  const bool goes_on = report.kind == wait.kind && static_cast<int>(report.peer) == wait.peer &&
                       report.own_tag == wait.tag && report.repeats > wait.repeats;
  if (!goes_on) return wait.lasted();
  return wait.lasted() + std::chrono::floor<milliseconds>(hooks_.now() - wait.latest);
}

// Who waits for the culprit itself tells the others; whoever waits for one of those does so only
// when it has heard nothing by the next time.
void Watch::judge(const Wait& wait, std::optional<Verdict> verdict) {
  const milliseconds lasted = lasted_by_now(wait);
  if (lasted < kLongWait || !verdict) return;
  const std::optional<Verdict> known = last_verdict();
  if (known && known->is_same_as(*verdict)) return;
  if (verdict->waiting != rank_ && lasted < 2 * kLongWait) return;
  announce(*verdict);
}

// Two ranks may find different causes at once, of two links that are cut together, say. The lowest
// rank that can tells all ranks the first that it hears of.
void Watch::announce(const Verdict& verdict) {
  const bool is_silent = verdict.cause == Cause::Stopped || verdict.cause == Cause::DoesNotAnswer;
  for (int other = 0; other < rank_; ++other) {
    const bool cannot = (is_silent && other == verdict.rank) || hooks_.has_left(other) ||
                        hooks_.run_state(other) == RunState::Stopped;
    if (cannot) continue;
    if (hooks_.propose(other, verdict, kAsk).is_ok()) return;
    break;  // asking the next would take as long again
  }
  decide(verdict);
}

void Watch::decide(const Verdict& verdict) {
  {
    std::lock_guard lock(mutex_);
    const Time now = hooks_.now();
    const bool is_decided =
        verdict_ && now - decided_ < kFresh && verdict_->is_of_same_operation_as(verdict);
    if (is_decided || (verdict_ && verdict_->is_same_as(verdict))) return;
    verdict_ = verdict;
    decided_ = now;
  }
  print(verdict);
  hooks_.publish(verdict);
}

// It was asked then, and has not answered. A rank may be too busy to answer, or on its way out: one
// that runs is not accused, nor is any by a rank that has hardly run itself meanwhile.
bool Watch::is_silent(int peer, Time asked) const {
  if (hooks_.has_left(peer) || hooks_.has_failed() || hooks_.run_state(peer) == RunState::Runs)
    return false;
  const Time now = hooks_.now();
  const bool was_held_up = hooks_.awake_since != nullptr && now - hooks_.awake_since() < kAsk;
  return !was_held_up && now - asked < kAsk + kLate;
}

void Watch::judge_silence(const Wait& wait, const Account& waiting, int peer, Time asked) {
  if (is_silent(peer, asked)) judge(wait, judge_silent(waiting, peer, Cause::DoesNotAnswer));
}

void Watch::note(const Verdict& verdict) {
  {
    std::lock_guard lock(mutex_);
    if (verdict_ && verdict_->is_same_as(verdict)) return;
    verdict_ = verdict;
  }
  print(verdict);
}

void Watch::print(const Verdict& verdict) {
  observe::Event event;
  event.time = observe::ticks();
  event.kind = observe::EventKind::Stalled;
  event.launch = verdict.operation.launch;
  event.value = static_cast<uint64_t>(verdict.cause);
  event.peer = verdict.rank;
  log_.recorder()->add(event);
  const std::string text = verdict.describe(hooks_.communicator, hooks_.describe(verdict.rank));
  // Whoever is late may be busy, which is no fault.
  observe::Dumps::of_process().request(text);
  if (is_fault(verdict.cause)) {
    LOG(Warn, Init, "{}", text);
  } else {
    LOG(Info, Init, "{}", text);  // of the subsystems that NCCL_DEBUG=INFO shows
  }
}

std::optional<Verdict> Watch::standing_verdict() const {
  std::lock_guard lock(mutex_);
  if (verdict_ && !verdict_->host_call.empty()) {
    const std::optional<CallLog::HostCall> call = log_.host_call();
    const bool is_it =
        call && call->function == verdict_->host_call && call->number == verdict_->operation.number;
    return is_it ? verdict_ : std::nullopt;
  }
  if (!verdict_ || !wait_ || hooks_.now() - wait_->latest > kFresh) return std::nullopt;
  if (tag_of(verdict_->operation.call) != wait_->tag) return std::nullopt;
  return verdict_;
}

std::optional<Verdict> Watch::last_verdict() const {
  std::lock_guard lock(mutex_);
  return verdict_;
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
  const LoggedCall* const call = mine.find(wait.tag, wait.peer);
  const std::string text =
      fmt::format("rank {} has waited for {} s in {} for {}", rank_, wait.seconds(),
                  call != nullptr ? describe(call->call) : "a call", for_whom);
  if (!std::exchange(has_told_, true)) LOG(Info, Coll, "{}", text);
  if (has_warned_ || wait.lasted() < kPatience) return;
  has_warned_ = true;
  log::write(log::Level::Warn, {__builtin_FILE(), __builtin_LINE()},
             call != nullptr ? function_of(call->call) : __func__,
             text + ". Have all ranks made the same calls?");
}

// Finds calls that do not match and that nobody waits for, such as two broadcasts from different
// roots. Each rank looks after the next one: if there are two different logs, then there are two
// different neighbours.
void Watch::compare_with_neighbor() {
  if (looked_ < next_comparison_ || log_.host_call()) return;
  const uint64_t collectives = log_.collectives();
  if (collectives == compared_) return;
  const int neighbor = (rank_ + 1) % nranks_;
  next_comparison_ = looked_ + comparison_interval_;
  comparison_interval_ = after(comparison_interval_);
  if (hooks_.has_left(neighbor) || hooks_.run_state(neighbor) == RunState::Stopped) return;
  const Account mine = own_account(neighbor);
  const Result<Account> theirs = hooks_.ask(neighbor, kAsk);
  if (!theirs.is_ok()) return;  // whoever needs the neighbour finds out why
  compared_ = collectives;
  if (!accuse(compare_collectives(mine, theirs.value())))
    accuse(compare_messages(mine, theirs.value()));
}

// Every two neighbours compare: with two different logs, there are two different neighbours. The
// one that asks later gets the other's account, either as the answer or, if that one has left, from
// the farewell that it said before: a rank leaves only when both farewells are said.
std::optional<std::string> Watch::compare_before_leaving() {
  {
    std::lock_guard lock(mutex_);
    is_leaving_ = true;
  }
  std::optional<std::string> difference;
  const auto compare = [&](const Account& theirs) {
    const Account mine = own_account(theirs.rank);
    if (!difference) difference = compare_collectives(mine, theirs);
    if (!difference) difference = compare_messages(mine, theirs);
    if (!difference) difference = compare_final(mine, theirs);
  };
  const std::set<int> neighbors{(rank_ + 1) % nranks_, (rank_ + nranks_ - 1) % nranks_};
  for (const int neighbor : neighbors) {
    if (hooks_.has_left(neighbor)) continue;
    const Result<Account> theirs = hooks_.say_farewell(neighbor, own_account(neighbor));
    if (theirs.is_ok()) compare(theirs.value());
  }
  std::vector<Account> farewells;
  {
    std::lock_guard lock(mutex_);
    farewells = farewells_;
  }
  for (const Account& farewell : farewells) compare(farewell);
  return difference;
}

void Watch::keep_farewell(Account account) {
  std::lock_guard lock(mutex_);
  std::erase_if(farewells_, [&](const Account& kept) { return kept.rank == account.rank; });
  farewells_.push_back(std::move(account));
}

bool Watch::accuse(const std::optional<std::string>& text) {
  if (text) fail_all(Status::invalid_usage("{}", *text));
  return text.has_value();
}

void Watch::fail_all(const Status& status) {
  is_over_ = true;
  hooks_.fail_all(status);
}

}  // namespace niccolite::comm
