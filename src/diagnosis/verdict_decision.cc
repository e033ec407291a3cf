// How the watches of all ranks agree on one verdict: a rank that finds a cause proposes it to the
// lowest rank that can decide, which tells all.
#include <array>

#include "base/log.h"
#include "diagnosis/watch.h"
#include "observe/dumps.h"

namespace niccolite::diagnosis {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A rank that waits for the culprit itself tells the others. A rank that waits for such a rank
// tells them only if it has heard nothing by its next look.
void Watch::judge(const Wait& wait, std::optional<Verdict> verdict) {
  const milliseconds lasted = lasted_by_now(wait);
  if (lasted < kLongWait || !verdict) return;
  const std::optional<Verdict> known = last_verdict();
  if (known && known->is_same_as(*verdict)) return;
  // The log keeps the newest calls. When it has dropped the call that waits, it names another call
  // that is equal, by another number.
  const bool was_judged = judged_ == wait.operation && known &&
                          known->operation.call == verdict->operation.call &&
                          known->cause == verdict->cause && known->rank == verdict->rank;
  if (was_judged) return;
  if (verdict->waiting != rank_ && lasted < 2 * kLongWait) return;
  judged_ = wait.operation;
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
  observe::Dumps::of_process().request(text);
  // A late rank may be busy, which is no fault. A fault is a warning in one log only, so that the
  // screen of a large job has it once.
  if (is_fault(verdict.cause) && verdict.waiting == rank_) {
    LOG(Warn, Init, "{}", text);
  } else {
    LOG(Info, Init, "{}", text);  // of the subsystems that NCCL_DEBUG=INFO shows
  }
}

// The rank that waits for the culprit prints the verdict, whether asked to or not, if the
// standstill lasts. An operation that goes on and comes to stand still again begins anew.
void Watch::warn_of_standstill() {
  constexpr std::array<int, 3> kTimes{1, 6, 60};
  const std::optional<Verdict> verdict = standing_verdict();
  if (!verdict || verdict->waiting != rank_ || hooks_.stall_warning == seconds(0)) return;
  Standstill now;
  if (verdict->host_call.empty()) {
    std::lock_guard lock(mutex_);
    now.what = {false, wait_->operation};
    now.since = wait_->latest - wait_->lasted();
  } else {
    now.what = {true, verdict->operation.number};
    if (const auto call = log_.host_call()) now.since = call->since;
  }
  if (!standstill_ || standstill_->what != now.what) standstill_ = now;
  const auto lasted = std::chrono::floor<seconds>(hooks_.now() - standstill_->since);
  size_t& warned = standstill_->warned;
  if (warned == kTimes.size() || lasted < kTimes[warned] * hooks_.stall_warning) return;
  while (warned < kTimes.size() && lasted >= kTimes[warned] * hooks_.stall_warning) ++warned;
  const std::string text = verdict->describe(hooks_.communicator, hooks_.describe(verdict->rank));
  log::write(log::Level::Warn, {__builtin_FILE(), __builtin_LINE()}, __func__,
             fmt::format("{} ({} s so far)", text, lasted.count()), log::Unasked::Always);
}

// The process may have gone on, and the next operation wait for it.
std::optional<Verdict> Watch::standing_verdict() const {
  std::optional<Verdict> verdict = verdict_of_wait();
  if (verdict && verdict->cause == Cause::Stopped &&
      hooks_.run_state(verdict->rank) == RunState::Runs)
    return std::nullopt;
  return verdict;
}

std::optional<Verdict> Watch::verdict_of_wait() const {
  std::lock_guard lock(mutex_);
  if (verdict_ && !verdict_->host_call.empty()) {
    const std::optional<calls::CallLog::HostCall> call = log_.host_call();
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

}  // namespace niccolite::diagnosis
