#include "cli/perf/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>

#include "cli/perf/exit_code.h"
#include "cli/perf/row_json.h"
#include "cli/perf/share.h"

namespace niccolite::perf {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// How long survivors may take to end by themselves after a failure; then they are killed.
constexpr std::chrono::seconds kGrace{6};
constexpr const char* kSecondary =
    "another rank failed";  // what Team::barrier() says to the survivors

// ---- in the child

class PipeSink : public Sink {
 public:
  explicit PipeSink(int fd) : fd_(fd) {}
  void start(const Start& start) override { send({{"start", to_json(start)}}); }
  void row(const Row& row) override { send({{"row", to_json(row)}}); }
  void memory(const std::vector<MemoryUse>& uses) override {
    json values = json::array();
    for (const MemoryUse& use : uses) values.push_back(to_json(use));
    send({{"memory", values}});
  }
  void failure(const std::string& message) override { send({{"failure", message}}); }

 private:
  void send(const json& message) {
    const std::string line = message.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
    size_t sent = 0;
    while (sent < line.size()) {
      const ssize_t n = write(fd_, line.data() + sent, line.size() - sent);
      if (n < 0 && errno != EINTR) return;  // the supervisor is gone, and nobody is left to tell
      if (n > 0) sent += static_cast<size_t>(n);
    }
  }
  int fd_;
};

// ---- in the supervisor

struct Child {
  int process = 0;
  pid_t pid = -1;
  Fd pipe;
  std::string received;  // the beginning of a line
  bool is_running = true;
};

std::string ranks_of(const Options& options, int process) {
  const int first = process * options.ranks_per_process();
  const int last = first + options.ranks_per_process() - 1;
  return first == last ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, last);
}

void set_inherited(int fd, bool is_inherited) { fcntl(fd, F_SETFD, is_inherited ? 0 : FD_CLOEXEC); }

Result<Child> start_child(const std::vector<std::string>& command, int process, const Team& team) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Status::from_errno(errno, "pipe");
  Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  std::vector<std::string> arguments = command;
  arguments.push_back(fmt::format("--child-process={}", process));
  arguments.push_back(fmt::format("--team-fd={}", team.fd()));
  arguments.push_back(fmt::format("--report-fd={}", write_end.get()));
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const pid_t supervisor = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Status::from_errno(errno, "fork");
  if (pid == 0) {
    // Only async-signal-safe calls from here to exec: other threads of the supervisor may have held
    // locks.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor) _exit(kExitFailed);  // it died before the line above
    set_inherited(team.fd(), true);
    set_inherited(write_end.get(), true);
    execv("/proc/self/exe", pointers.data());
    _exit(kExitFailed);
  }
  return Child{.process = process, .pid = pid, .pipe = std::move(read_end), .received = {}};
}

class Supervisor {
 public:
  Supervisor(const Options& options, Team& team, Report& report)
      : options_(options), team_(team), report_(report) {}

  ~Supervisor() {
    // Leaves no child behind, however the run ended.
    for (const Child& child : children_)
      if (child.is_running) {
        kill(child.pid, SIGKILL);
        waitpid(child.pid, nullptr, 0);
      }
  }

  Status start(const std::vector<std::string>& command) {
    for (int process = 0; process < options_.processes; ++process)
      children_.push_back(TRY(start_child(command, process, team_)));
    return {};
  }

  /// Follows the children until none is left.
  Status follow() {
    for (;;) {
      TRY(receive());
      bool is_any_running = false;
      for (Child& child : children_) {
        if (child.is_running) reap(child);
        is_any_running |= child.is_running;
      }
      if (!is_any_running) break;
      if (failed_at_ && Clock::now() - *failed_at_ > kGrace)
        for (const Child& child : children_)
          if (child.is_running) kill(child.pid, SIGKILL);
    }
    TRY(receive());  // what they wrote last
    if (!failed_at_) return {};
    report_.failure(!deaths_.empty()
                        ? deaths_ + (first_failure_.empty() ? "" : "; " + first_failure_)
                        : first_failure_);
    return {};
  }

 private:
  Status receive() {
    std::vector<pollfd> polled;
    std::vector<Child*> readers;
    for (Child& child : children_)
      if (child.pipe.valid()) {
        polled.push_back({child.pipe.get(), POLLIN, 0});
        readers.push_back(&child);
      }
    if (poll(polled.data(), polled.size(), 50) < 0 && errno != EINTR)
      return Status::from_errno(errno, "poll");
    for (size_t i = 0; i < polled.size(); ++i)
      if (polled[i].revents != 0) TRY(read_from(*readers[i]));
    return {};
  }

  Status read_from(Child& child) {
    char buffer[65536];
    const ssize_t n = read(child.pipe.get(), buffer, sizeof buffer);
    if (n < 0)
      return errno == EINTR ? Status() : Status::from_errno(errno, "reading a child's pipe");
    if (n == 0) {
      child.pipe.reset();
      return {};
    }
    child.received.append(buffer, static_cast<size_t>(n));
    for (size_t end = 0; (end = child.received.find('\n')) != std::string::npos;) {
      const std::string line = child.received.substr(0, end);
      child.received.erase(0, end + 1);
      TRY(guarded([&] { return take(json::parse(line), child); }));
    }
    return {};
  }

  Status take(const json& message, const Child& child) {
    if (message.contains("start")) report_.start(start_from_json(message.at("start")));
    if (message.contains("row")) report_.row(row_from_json(message.at("row")));
    if (message.contains("memory")) {
      std::vector<MemoryUse> uses;
      for (const json& use : message.at("memory")) uses.push_back(memory_use_from_json(use));
      report_.memory(uses);
    }
    if (message.contains("failure")) {
      const std::string text = message.at("failure");
      fail();
      if (text.find(kSecondary) == std::string::npos && first_failure_.empty())
        first_failure_ = fmt::format("process {} ({}): {}", child.process,
                                     ranks_of(options_, child.process), text);
    }
    return {};
  }

  void reap(Child& child) {
    int state = 0;
    const pid_t reaped = waitpid(child.pid, &state, WNOHANG);
    if (reaped == 0) return;
    child.is_running = false;
    if (WIFEXITED(state) && WEXITSTATUS(state) == kExitFine) return;
    const bool was_failing = failed_at_.has_value();
    fail();
    const std::string who = fmt::format("process {} (pid {}, {})", child.process, child.pid,
                                        ranks_of(options_, child.process));
    // An ordinary failure has its own message on the pipe; kills after the first failure are ours.
    if (WIFSIGNALED(state) && !was_failing)
      deaths_ = fmt::format("{} was killed by signal {} ({})", who, WTERMSIG(state),
                            strsignal(WTERMSIG(state)));
    else if (WIFEXITED(state) && WEXITSTATUS(state) != kExitFailed && !was_failing)
      deaths_ = fmt::format("{} left with status {}", who, WEXITSTATUS(state));
  }

  void fail() {
    if (failed_at_) return;
    failed_at_ = Clock::now();
    team_.abort();
  }

  const Options& options_;
  Team& team_;
  Report& report_;
  std::deque<Child> children_;
  std::optional<Clock::time_point> failed_at_;
  std::string deaths_;         // the first child that died without a word
  std::string first_failure_;  // the first that said why
};

}  // namespace

Status supervise(const Options& options, const std::vector<std::string>& command, Report& report) {
  Team team = TRY(Team::create(options.processes * options.threads, options.nranks()));
  Supervisor supervisor(options, team, report);
  TRY(supervisor.start(command));
  return supervisor.follow();
}

int run_child(const Options& options) {
  PipeSink sink(options.report_fd);
  set_inherited(options.team_fd, false);
  set_inherited(options.report_fd, false);
  const auto run = [&]() -> Status {
    Team team = TRY(
        Team::attach(Fd(options.team_fd), options.processes * options.threads, options.nranks()));
    return run_share(options, team, sink);
  };
  const Status status = run();
  if (status.is_ok()) return kExitFine;
  sink.failure(status.message());
  return kExitFailed;
}

}  // namespace niccolite::perf
