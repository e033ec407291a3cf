#include "diagnosis/watch.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

#include "base/log.h"

namespace niccolite::diagnosis {
namespace {

using executor::Report;
using executor::ReportKind;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kFirstInterval{1};  // between comparisons with the neighbour
constexpr seconds kLongestWarningInterval{30};
constexpr seconds kSurveyInterval{1};

seconds after(seconds interval) { return std::min(2 * interval, kLongestWarningInterval); }

}  // namespace

Watch::Watch(int rank, int nranks, const calls::CallLog& log, executor::ControlWords& control,
             Hooks hooks)
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
  hear_complaints();
  is_over_ = is_over_ || hooks_.has_failed();
  std::optional<Wait> wait;
  if (report.kind != ReportKind::None && is_other_rank(static_cast<int>(report.peer), rank_)) {
    if (report.kind == ReportKind::Mismatch) {
      if (!std::exchange(mismatch_, mismatch_.value_or(report))) noticed_ = looked_;
    } else {
      wait = {.kind = kind_of(report),
              .peer = static_cast<int>(report.peer),
              .tag = report.own_tag,
              .repeats = report.repeats,
              .earliest = earliest,
              .latest = latest};
      keep_wait(*wait);  // also after a failure, because the wait goes on holding up others
    }
  }
  if (is_over_) return;
  if (wait && !mismatch_) examine_wait(*wait);
  if (mismatch_ && !is_over_) examine_mismatch();
  if (!is_over_) examine_host_call();
  if (!is_over_) examine_one_sided();
  if (!is_over_) warn_of_standstill();
  if (!is_over_) compare_with_neighbor();
  if (!is_over_ && !wait && hooks_.survey != nullptr && looked_ >= next_survey_) {
    // An answer of each of many ranks takes its time.
    next_survey_ = looked_ + kSurveyInterval * (1 + nranks_ / 64);
    hooks_.survey();
  }
}

namespace {

using executor::KernelCall;
using executor::KernelComplaint;

bool is_wait(KernelCall call) {
  return call == KernelCall::BarrierStands || call == KernelCall::ChannelStands ||
         call == KernelCall::NetworkStands;
}

std::string describe(const KernelComplaint& bad) {
  switch (bad.call) {
    case KernelCall::None:
      break;
    case KernelCall::Barrier:
      return fmt::format(
          "makes barrier {}, which is not one of the device communicator's (lsaBarrierCount)",
          static_cast<int64_t>(bad.value));
    case KernelCall::Signal:
      return fmt::format("signals peer {}, or on a channel, that there is not", bad.peer);
    case KernelCall::Wait:
      return fmt::format("waits for peer {}, or on a channel, that there is not", bad.peer);
    case KernelCall::Put:
      return fmt::format(
          "puts elements up to {} to peer {}: that is beyond the buffer or its window, or there is "
          "no such peer",
          bad.value, bad.peer);
    case KernelCall::LoadReduce:
    case KernelCall::StoreAll:
      return fmt::format(
          "{} the pack at element {}: that is beyond the buffer or its window, or not a multiple "
          "of "
          "a pack's elements",
          bad.call == KernelCall::LoadReduce ? "loads and reduces" : "stores to all peers",
          bad.value);
    case KernelCall::BarrierStands:
      return fmt::format(
          "waits at barrier {} for peer {}, who has not come. Do all ranks launch as many blocks, "
          "and use the barrier as often?",
          bad.value, bad.peer);
    case KernelCall::ChannelStands:
      return fmt::format(
          "waits on channel {} for a signal of peer {}, who has sent none since the "
          "last one that was taken",
          bad.value, bad.peer);
    case KernelCall::NetworkStands:
      return fmt::format(
          "waits for a Network: at its own rank for a signal or counter to reach {}, at another "
          "for "
          "operation {} of its queue to be done (rank {} of the communicator)",
          bad.value, bad.value, bad.peer);
  }
  return fmt::format("complains with the unknown number {}", static_cast<int>(bad.call));
}

}  // namespace

void Watch::hear_complaints() {
  for (executor::KernelComplaints::Slot& slot : control_.complaints.slots) {
    const std::atomic_ref where_word(slot.where);
    // [acquire] pairs with the kernel's release, or with its store of both words at once.
    const uint64_t where = where_word.load(std::memory_order_acquire);
    if (where == 0) continue;
    const uint64_t value = std::atomic_ref(slot.value).load(std::memory_order_relaxed);
    where_word.store(0, std::memory_order_relaxed);
    const KernelComplaint complaint = executor::decode_complaint(where, value);
    const std::string text = fmt::format("rank {}: block {}, thread {} of a kernel {}", rank_,
                                         complaint.block, complaint.thread, describe(complaint));
    if (!is_wait(complaint.call)) {
      if (!hooks_.has_failed()) hooks_.fail_all(Status::invalid_usage("{}", text));
    } else if (heard_.insert(where).second) {
      LOG(Warn, Coll, "{}", text);
    }
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

// A kernel that has given all of its data to the proxy waits for acknowledgements. If the proxy
// waits for room with the peer, then the kernel in fact waits for a call of the peer.
executor::ReportKind Watch::kind_of(const Report& report) const {
  if (report.kind != ReportKind::WaitingForAcknowledgement || hooks_.network == nullptr)
    return report.kind;
  const std::optional<transport::NetworkState> network = hooks_.network();
  const transport::Traffic* const traffic =
      network ? network->find(static_cast<int>(report.peer)) : nullptr;
  const bool waits_for_room = traffic != nullptr && traffic->waits_for_room();
  return waits_for_room ? ReportKind::WaitingForCredit : report.kind;
}

// The operations of a communicator run one after the other. So an operation that was under way when
// `before` was reported is the operation that waited then. A repeated report is about the same
// wait, unless reports were lost because nobody looked for an interval or longer: `before` or
// `wait` was then not taken at once.
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
  // A long wait records some of its reports.
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
  // Both operations are on one stream, so only one runs. It is the operation whose wait was seen
  // later.
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
  // After the wait was seen: the waiting operation was launched before, on a stream that is known
  // by now.
  if (!wait || hooks_.device != device || log_.only_stream() != stream) return std::nullopt;
  // It ends by itself, whatever ranks call.
  if (wait->kind == executor::ReportKind::WaitingForAcknowledgement) return std::nullopt;
  // An aborted operation ends before the operations for which it waits. acquire: as the executors
  // read it.
  if (std::atomic_ref(control_.abort).load(std::memory_order_acquire) != 0) return std::nullopt;
  const Account mine = own_account(wait->peer, wait);
  if (!mine.wait) return std::nullopt;
  hold.wait = *mine.wait;
  if (!hold.chain.empty()) return hold;
  const calls::LoggedCall* const call = find_waiting(mine);
  if (call == nullptr) return std::nullopt;
  hold.chain.push_back(describe_stuck(*wait, *call));
  return hold;
}

Stuck Watch::describe_stuck(const Wait& wait, const calls::LoggedCall& logged) const {
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
  const std::optional<calls::CallLog::HostCall> host_call = log_.host_call();
  account.connects = host_call && host_call->connects;
  // Threads that take turns wait for each other, too, for moments.
  if (const auto call = log_.blocked_call(); call && now - call->since >= kBlocked)
    account.blocked = {.function = call->function,
                       .holder = host_call ? host_call->function : std::string()};
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
  if (!theirs.is_ok()) return;  // a call that needs the neighbour finds the reason
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

}  // namespace niccolite::diagnosis
