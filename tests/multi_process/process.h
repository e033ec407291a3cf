// Process: a copy of this test program that plays a role, for tests that need several processes.
// The role's name and arguments follow "--role" on its command line; roles are registered with
// ROLE(name). Output is collected.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace niccolite::test {

using Arguments = std::vector<std::string>;
using Role = int (*)(const Arguments&);

std::map<std::string, Role>& roles();

struct RegisteredRole {
  RegisteredRole(const char* name, Role role) {
    if (roles().emplace(name, role).second) return;
    std::fprintf(stderr, "two roles are called %s\n", name);
    std::abort();
  }
};
#define ROLE(name)                                                               \
  int role_##name(const ::niccolite::test::Arguments& arguments);                \
  const ::niccolite::test::RegisteredRole registered_##name(#name, role_##name); \
  int role_##name([[maybe_unused]] const ::niccolite::test::Arguments& arguments)

/// The role's main() if the command line asks for one, else -1.
int play_role(int argc, char** argv);

/// The limits of its calls are four times as long under a sanitizer.
class Process {
 public:
  using Environment = std::map<std::string, std::string>;
  /// `network`: the descriptor of the network namespace it runs in; -1: this one's.
  Process(const std::string& role, const Arguments& arguments, const Environment& environment = {},
          int network = -1);
  Process(Process&& other) noexcept;
  /// Kills it if it still runs.
  ~Process();

  /// Reads its output until a line that contains `text`; false when it ended, or the limit passed,
  /// before that.
  bool wait_for_line(const std::string& text,
                     std::chrono::seconds limit = std::chrono::seconds(60));
  /// Its exit status, 128 + signal when one ended it, or -1 when it still runs after the limit (it
  /// is then killed).
  int wait(std::chrono::seconds limit = std::chrono::seconds(60));
  /// SIGSTOP: all its threads have stopped afterwards.
  void kill(int signal);
  const std::string& output() const { return output_; }
  pid_t id() const { return pid_; }

 private:
  bool read_some(std::chrono::steady_clock::time_point limit);
  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string output_;
};

}  // namespace niccolite::test
