// Watch: looks after one communicator of several ranks. It takes reports of waits
// (executor/report.h), asks other ranks for their calls, and has the communicator fail on all ranks
// once it is proved that they have called different things. A rank that merely waits for a late
// rank goes on waiting. The decisions and their reasons: docs/design/failures.md.
//
// Thread safety: look() by one thread at a time; account() by any.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/thread_annotations.h"
#include "base/wait.h"
#include "calls/call_log.h"
#include "diagnosis/account.h"
#include "diagnosis/mismatch.h"
#include "diagnosis/silences.h"
#include "diagnosis/verdict.h"
#include "executor/launch.h"
#include "executor/report.h"

namespace niccolite::diagnosis {

class Watch {
 public:
  using Time = Deadline::Clock::time_point;

  /// The functions and facts that the watch needs; outlives the watch.
  struct Hooks {
    int device = 0;
    uint64_t communicator = 0;  // its id, as log lines have it
    std::function<Time()> now;
    /// Asks a rank for its account; waits for `patience` at most.
    std::function<Result<Account>(int peer, std::chrono::milliseconds patience)> ask;
    std::function<bool(int peer)> has_left;
    /// The newest holding() of this process's other watches.
    std::function<std::optional<Hold>(uint64_t stream)> find_holder;
    /// Asks as ask() does, and has `peer` keep_farewell() of this rank's last account.
    std::function<Result<Account>(int peer, const Account& mine)> say_farewell;
    /// Returns the state of the peer's process, as its machine tells it. Never asks the process
    /// itself.
    std::function<RunState(int peer)> run_state;
    /// How this rank's ways to other machines do. Null: it has none.
    std::function<std::optional<transport::NetworkState>()> network;
    /// Since when the process has run without being held up for long. Null: for ever.
    std::function<Time()> awake_since;
    std::shared_ptr<Silences> silences;  // of the process; not null
    /// Has `peer` decide() on the verdict; ok when it has.
    std::function<Status(int peer, const Verdict&, std::chrono::milliseconds patience)> propose;
    /// Has every other rank note() the verdict.
    std::function<void(const Verdict&)> publish;
    /// "process 4711 on host a12", of this rank, too.
    std::function<std::string(int rank)> describe;
    /// Takes stock of all ranks from time to time while this rank does not wait. One rank of the
    /// communicator has it; null: not this one.
    std::function<void()> survey;
    /// Returns a rank that has left while one-sided work of this rank waits for it, and in which
    /// call. Such waits send no reports. Null: there are none.
    std::function<std::optional<std::pair<int, std::string_view>>()> awaited_leaver;
    /// A standstill of this length becomes a warning; zero: never.
    std::chrono::seconds stall_warning{10};
    std::function<bool()> has_failed;             // nothing is left to be found out
    std::function<void(const Status&)> fail_all;  // makes the communicator fail on all ranks
  };

  /// `log` and `control` outlive the watch.
  Watch(int rank, int nranks, const calls::CallLog& log, executor::ControlWords& control,
        Hooks hooks);

  /// Looks at the reports. To be called about twenty times a second. It is nearly always one load,
  /// but may take seconds when ranks have to be asked.
  void look();

  /// Decides on a verdict that a rank has found: has all ranks note() it, unless a verdict on the
  /// same operation, equal or not, has just been decided. This rank decides for all. Any thread.
  void decide(const Verdict& verdict) EXCLUDES(mutex_);
  /// A verdict that has been decided: prints it, unless it was the last. Any thread.
  void note(const Verdict& verdict) EXCLUDES(mutex_);
  /// The last verdict, while this rank waits in its operation, and the process that it calls
  /// stopped does not run. Any thread.
  std::optional<Verdict> standing_verdict() const EXCLUDES(mutex_);
  /// The last verdict. Any thread.
  std::optional<Verdict> last_verdict() const EXCLUDES(mutex_);

  /// Returns this rank's answer to `asker`.
  Account account(int asker) const EXCLUDES(mutex_);
  /// The operation that waits, if it is on this stream, as all of this communicator's are. Any
  /// thread.
  std::optional<Hold> holding(int device, uint64_t stream) const EXCLUDES(mutex_);

  /// Compares this rank's calls with both neighbours' calls before it leaves, when it calls nothing
  /// any more. Leaves its account with them, so that the last to leave can compare. Called once,
  /// beside look(); takes as long as the neighbours' answers.
  std::optional<std::string> compare_before_leaving() EXCLUDES(mutex_);
  /// The last account of a neighbour. Any thread.
  void keep_farewell(Account account) EXCLUDES(mutex_);

 private:
  static constexpr std::chrono::seconds kLongWait{1};  // is worth a verdict and a line of INFO
  static constexpr std::chrono::milliseconds kAsk{
      800};  // so that a verdict comes within two seconds
  // A wait that goes on is reported every second at least.
  static constexpr std::chrono::milliseconds kFresh{1500};
  /// A call that has waited for another thread's call for this long is reported.
  static constexpr std::chrono::milliseconds kBlocked{500};

  struct Wait {
    executor::ReportKind kind = executor::ReportKind::Waiting;
    int peer = -1;
    uint16_t tag = 0;
    uint16_t repeats = 0;
    Time earliest{}, latest{};  // between which it was reported
    uint64_t operation = 0;     // Stuck::operation
    uint64_t launch = 0;        // that was under way when it was first seen; 0: not known
    std::chrono::milliseconds lasted() const { return (repeats + 1) * executor::kReportInterval; }
    int seconds() const { return static_cast<int>(lasted() / std::chrono::seconds(1)); }
  };

  // This rank's waits, and the reports on them (watch.cc).
  executor::Report take_report(Time* earliest, Time* latest);
  static bool is_same_operation(const Wait& before, const Wait& wait);
  void keep_wait(Wait& wait) EXCLUDES(mutex_);
  executor::ReportKind kind_of(const executor::Report& report) const;
  /// Return account() without a hold, of the present wait or of an earlier one.
  Account own_account(int asker) const EXCLUDES(mutex_);
  Account own_account(int asker, const std::optional<Wait>& wait) const EXCLUDES(mutex_);
  Stuck describe_stuck(const Wait& wait, const calls::LoggedCall& logged) const;
  void compare_with_neighbor();
  bool accuse(const std::optional<std::string>& text);
  void fail_all(const Status& status);
  std::string cause_of_leaving(int peer) const;
  bool is_other_rank(int rank, int of) const { return rank >= 0 && rank < nranks_ && rank != of; }

  /// Names bad calls and long waits of the user's kernels.
  void hear_complaints();

  // Why it waits (inquiry.cc).
  void examine_host_call();
  void examine_mismatch();
  void examine_wait(const Wait& wait);
  bool is_doomed(const Wait& wait);
  void examine_one_sided();
  void follow(const Wait& wait);
  bool name_leaver(const Wait& wait, const Account& mine);
  bool name_stopped(const Wait& wait, const Account& last);
  bool examine_network(const Wait& wait, const Account& last, const Account& next);
  std::optional<std::string> judge_hold(const Wait& wait, std::span<const Waiter> path,
                                        const Waiter& held) EXCLUDES(mutex_);
  /// Asks for an account; notes for how long `peer` has been silent.
  Result<Account> ask(int peer);
  bool is_silent(int peer) const;
  /// Asks some ranks of other machines, while `peer` does not answer: do they?
  enum class Reach : uint8_t { Others, Nobody, NotKnown };
  Reach reach_beside(int peer);
  void judge_silence(const Wait& wait, const Account& waiting, int peer);
  /// For how long the wait has lasted by now, if it goes on.
  std::chrono::milliseconds lasted_by_now(const Wait& wait) const;
  void say_who_is_late(const Wait& wait, const Account& mine);
  void say(const Wait& wait, const Account& mine, const std::string& for_whom);

  // Which verdict all ranks print (verdict_decision.cc).
  void judge(const Wait& wait, std::optional<Verdict> verdict);
  void announce(const Verdict& verdict);
  void print(const Verdict& verdict);
  void warn_of_standstill();
  std::optional<Verdict> verdict_of_wait() const EXCLUDES(mutex_);

  const int rank_;
  const int nranks_;
  const calls::CallLog& log_;
  executor::ControlWords& control_;
  const Hooks hooks_;

  bool is_over_ = false;      // has failed the communicator
  std::set<uint64_t> heard_;  // KernelComplaints::Slot::where of waits
  Time looked_;               // before the last look at the report
  std::optional<executor::Report> mismatch_;
  Time noticed_{};                              // when mismatch_ was
  bool has_asked_ = false;                      // the other rank of mismatch_ for its calls
  std::chrono::milliseconds next_look_{0};      // how long a wait lasts when ranks are next asked
  bool has_told_ = false, has_warned_ = false;  // of the present wait
  std::optional<uint64_t> judged_;              // Wait::operation of the last verdict from here
  // The operation or the host's call whose standstill this rank warns of.
  struct Standstill {
    std::pair<bool, uint64_t> what;  // is it a host's call? and the number of either
    Time since{};
    size_t warned = 0;  // times
  };
  std::optional<Standstill> standstill_;
  int left_peer_ = -1;  // a rank that was waited for and found to have left,
  Time left_since_{};   // then or before
  std::optional<std::pair<int, std::string_view>> awaited_leaver_;  // at the last look at it
  Time next_look_at_leavers_{};
  uint64_t compared_ = 0;  // collectives when last compared with the neighbour
  Time next_comparison_;
  Time next_survey_;
  Time next_host_look_{};
  std::pair<bool, uint64_t> judged_host_call_{};  // HostCall::connects and its number
  std::chrono::seconds comparison_interval_;

  mutable std::mutex mutex_;
  bool is_leaving_ GUARDED_BY(mutex_) = false;
  std::vector<Account> farewells_ GUARDED_BY(mutex_);  // of neighbours; at most one of each
  std::optional<Verdict> verdict_ GUARDED_BY(mutex_);  // the last
  Time decided_ GUARDED_BY(mutex_){};                  // decide(): when it was
  std::optional<Wait> wait_ GUARDED_BY(mutex_);        // the last
  uint64_t operations_ GUARDED_BY(mutex_) = 0;         // that were seen to wait
  std::vector<Stuck> chain_ GUARDED_BY(mutex_);        // Hold::chain of wait_; empty: not known
};

}  // namespace niccolite::diagnosis
