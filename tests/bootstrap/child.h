// Child: another process of the test, with some ranks of a communicator, that runs a named scenario
// (see child.cc) and reports in lines. Made by executing the test binary again.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/fd.h"
#include "bootstrap/unique_id.h"

namespace niccolite::bootstrap {

std::string to_hex(const UniqueId& id);
UniqueId from_hex(const std::string& hex);

struct ChildOptions {
  std::string scenario;
  UniqueId id;
  int nranks = 0;
  std::vector<int> ranks;
  int argument = 0;                   // of the scenario
  int timeout_milliseconds = 20'000;  // of its deadlines
  /// It is to have this number in a PID namespace of its own; 0: it is in that of the test.
  pid_t number_elsewhere = 0;
};

class Child {
 public:
  /// Does this system let the test make PID namespaces?
  static bool may_be_elsewhere();
  explicit Child(const ChildOptions& options);
  ~Child();  // kills it if it still runs
  Child(Child&& other) noexcept;
  Child(const Child&) = delete;

  /// The next line it reports; empty at its end or after `patience`.
  std::string line(std::chrono::milliseconds patience = std::chrono::seconds(25));
  /// Everything it reports until it ends.
  std::vector<std::string> rest();
  void kill_hard();
  void stop();   // SIGSTOP
  void go_on();  // SIGCONT
  /// Its exit code; -1: a signal.
  int wait();

 private:
  pid_t pid_ = 0;
  Fd output_;
  std::string buffer_;
};

}  // namespace niccolite::bootstrap
