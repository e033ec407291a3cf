#include "cli/perf/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/grammar/exit_code.h"
#include "cli/perf/row_json.h"

namespace niccolite::perf {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// How long survivors may take to end by themselves after a failure; then they are killed.
constexpr std::chrono::seconds kGrace{6};
constexpr const char* kSecondary =
    "another rank failed";  // Team::barrier() says it to the survivors

/// Takes the whole lines from `received`.
std::vector<std::string> take_lines(std::string& received) {
  std::vector<std::string> lines;
  for (size_t end = 0; (end = received.find('\n')) != std::string::npos;) {
    lines.push_back(received.substr(0, end));
    received.erase(0, end + 1);
  }
  return lines;
}

/// False at the end.
Result<bool> read_some(Fd& fd, std::string& received) {
  char buffer[65536];
  const ssize_t n = read(fd.get(), buffer, sizeof buffer);
  if (n < 0 && errno == EINTR) return true;
  if (n < 0) return Status::from_errno(errno, "reading a child's pipe");
  if (n == 0) {
    fd.reset();
    return false;
  }
  received.append(buffer, static_cast<size_t>(n));
  return true;
}

}  // namespace

Supervisor::Supervisor(Report& report, std::function<void()> end_others, Hear hear)
    : report_(report), end_others_(std::move(end_others)), hear_(std::move(hear)) {}

Supervisor::~Supervisor() {
  kill_all();
  for (const Child& child : children_)
    if (child.is_running) waitpid(child.pid, nullptr, 0);
}

void Supervisor::kill_all() {
  for (const Child& child : children_)
    if (child.is_running) kill(child.pid, SIGKILL);
}

Status Supervisor::follow() {
  for (;;) {
    TRY(receive());
    bool is_any_running = false;
    for (Child& child : children_) {
      if (child.is_running) reap(child);
      is_any_running |= child.is_running;
    }
    if (!is_any_running) break;
    if (failed_at_ && Clock::now() - *failed_at_ > kGrace) {
      is_killing_ = true;
      kill_all();
    }
  }
  TRY(receive());  // their last lines
  if (failed_at_) report_.failure(describe_failure());
  return {};
}

std::string Supervisor::describe_failure() const {
  if (death_.empty()) return failure_.empty() ? secondary_ : failure_;
  const std::string& context = failure_.empty() ? secondary_ : failure_;
  return context.empty() ? death_ : death_ + "; " + context;
}

Status Supervisor::receive() {
  std::vector<pollfd> polled;
  std::vector<std::pair<Child*, bool>> readers;  // whether reports, or errors
  for (Child& child : children_)
    for (const bool is_report : {true, false})
      if (const Fd& fd = is_report ? child.reports : child.errors; fd.valid()) {
        polled.push_back({fd.get(), POLLIN, 0});
        readers.emplace_back(&child, is_report);
      }
  if (poll(polled.data(), polled.size(), 50) < 0 && errno != EINTR)
    return Status::from_errno(errno, "poll");
  for (size_t i = 0; i < polled.size(); ++i) {
    if (polled[i].revents == 0) continue;
    if (readers[i].second)
      TRY(read_reports(*readers[i].first));
    else
      read_errors(*readers[i].first);
  }
  return {};
}

Status Supervisor::read_reports(Child& child) {
  TRY(read_some(child.reports, child.report_received).status().copy());
  for (const std::string& line : take_lines(child.report_received)) {
    // A shell's greeting, for instance.
    const json message = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!message.is_object()) {
      fmt::print(stderr, "{}: {}\n", child.name, line);
      continue;
    }
    TRY(guarded([&] { return take(message, child); }));
  }
  return {};
}

void Supervisor::read_errors(Child& child) {
  const Result<bool> is_open = read_some(child.errors, child.error_received);
  if (!is_open.is_ok()) child.errors.reset();
  for (std::string& line : take_lines(child.error_received)) {
    fmt::print(stderr, "{}: {}\n", child.name, line);
    if (!line.empty()) child.last_error = std::move(line);
  }
}

Status Supervisor::take(const json& message, Child& child) {
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
    std::string& first = text.find(kSecondary) == std::string::npos ? failure_ : secondary_;
    if (first.empty()) first = fmt::format("{}: {}", child.name, text);
  }
  return hear_ ? hear_(message, child) : Status();
}

void Supervisor::reap(Child& child) {
  int state = 0;
  const pid_t reaped = waitpid(child.pid, &state, WNOHANG);
  if (reaped == 0) return;
  child.is_running = false;
  if (WIFEXITED(state) && WEXITSTATUS(state) == grammar::kExitFine) return;
  fail();
  // An ordinary failure has its own message on the pipe; kills after the first failure are ours.
  if (is_killing_ || !death_.empty()) return;
  pollfd said = {child.errors.get(), POLLIN, 0};
  if (child.errors.valid() && poll(&said, 1, 0) > 0) read_errors(child);
  const std::string last = child.last_error.empty() ? "" : ": " + child.last_error;
  if (WIFSIGNALED(state))
    death_ = fmt::format("{} was killed by signal {} ({})", child.who, WTERMSIG(state),
                         strsignal(WTERMSIG(state)));
  else if (WIFEXITED(state) && WEXITSTATUS(state) != grammar::kExitFailed)
    death_ = fmt::format("{} left with status {}{}", child.who, WEXITSTATUS(state), last);
}

void Supervisor::fail() {
  if (failed_at_) return;
  failed_at_ = Clock::now();
  end_others_();
}

}  // namespace niccolite::perf
