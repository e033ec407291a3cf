// Supervisor: follows the processes of a run to their end, prints one table from their reports, and
// ends the rest when one fails, within a few seconds. Each child has a pipe on which it
// reports (pipe_sink.h); who starts them, and where, is the caller's business.
//
// Thread safety: none; one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/fd.h"
#include "cli/perf/report.h"

namespace niccolite::perf {

struct Child {
  std::string name;  // in its reports: "process 3 (rank 3)", "host b"
  std::string who;   // for its end: with what identifies the process, too
  pid_t pid = -1;
  Fd reports;
  Fd errors{};  // its standard error, to be passed on with its name; invalid: it has ours
  Fd input{};   // its standard input; who holds the other end keeps it alive

  // The supervisor's.
  std::string report_received{}, error_received{};  // beginnings of lines
  std::string last_error{};                         // the last line
  bool is_running = true;
};

class Supervisor {
 public:
  /// `end_others` is called once, at the first failure: what the children can be told, that they
  /// end by themselves. `hear` gets messages that are not for the report; may be empty.
  using Hear = std::function<Status(const nlohmann::json& message, Child& from)>;
  Supervisor(Report& report, std::function<void()> end_others, Hear hear);
  /// Leaves no child behind, however the run ended.
  ~Supervisor();

  void add(Child child) { children_.push_back(std::move(child)); }
  std::deque<Child>& children() { return children_; }

  /// Waits until no child is left. Failures of children go to the report; the Status is for what
  /// keeps the supervisor itself from working.
  Status follow();

 private:
  Status receive();
  Status read_reports(Child& child);
  void read_errors(Child& child);
  Status take(const nlohmann::json& message, Child& child);
  void reap(Child& child);
  void kill_all();
  void fail();
  std::string describe_failure() const;

  Report& report_;
  const std::function<void()> end_others_;
  const Hear hear_;
  std::deque<Child> children_;
  std::optional<std::chrono::steady_clock::time_point> failed_at_;
  bool is_killing_ = false;
  std::string death_;      // of the first child that died without a word
  std::string failure_;    // the first that said why
  std::string secondary_;  // the first that only knows that another one failed
};

}  // namespace niccolite::perf
