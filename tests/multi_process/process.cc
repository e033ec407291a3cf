#include "tests/multi_process/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace niccolite::test {

using Clock = std::chrono::steady_clock;

// A limit is to end a process that hangs, and not one that a sanitizer slows down.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSlower = 4;
#else
constexpr int kSlower = 1;
#endif

std::map<std::string, Role>& roles() {
  static std::map<std::string, Role> all;
  return all;
}

int play_role(int argc, char** argv) {
  if (argc < 3 || std::strcmp(argv[1], "--role") != 0) return -1;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  return roles().at(argv[2])(Arguments(argv + 3, argv + argc));
}

Process::Process(const std::string& role, const Arguments& arguments,
                 const Environment& environment, int network) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  std::vector<std::string> text = {"/proc/self/exe", "--role", role};
  text.insert(text.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : text) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string line = *entry;
    variables[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
  }
  for (const auto& [name, value] : environment) variables[name] = value;
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  std::vector<char*> envp;
  for (std::string& line : lines) envp.push_back(line.data());
  envp.push_back(nullptr);

  pid_ = fork();
  if (pid_ < 0) std::abort();
  if (pid_ == 0) {
    // Only calls that are safe after fork in a program with threads.
    if (network >= 0 && setns(network, CLONE_NEWNET) != 0) _exit(126);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(ends[1]);
  pipe_ = ends[0];
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pipe_(std::exchange(other.pipe_, -1)),
      output_(std::move(other.output_)) {}

Process::~Process() {
  if (pid_ > 0) {
    kill(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (pipe_ >= 0) close(pipe_);
}

void Process::kill(int signal) {
  if (pid_ <= 0) return;
  ::kill(pid_, signal);
  // Threads run on until each has seen it. WNOWAIT: an exit is left to wait().
  siginfo_t info{};
  if (signal == SIGSTOP)
    waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT);
}

bool Process::read_some(Clock::time_point limit) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - Clock::now()).count();
  pollfd event{pipe_, POLLIN, 0};
  if (left <= 0 || poll(&event, 1, static_cast<int>(left)) <= 0) return false;
  char buffer[4096];
  const ssize_t got = read(pipe_, buffer, sizeof buffer);
  if (got <= 0) return false;
  output_.append(buffer, static_cast<size_t>(got));
  return true;
}

bool Process::wait_for_line(const std::string& text, std::chrono::seconds limit) {
  const auto until = Clock::now() + limit * kSlower;
  const auto is_whole = [&] {
    const size_t found = output_.find(text);
    return found != std::string::npos && output_.find('\n', found) != std::string::npos;
  };
  while (!is_whole())
    if (!read_some(until)) return false;
  return true;
}

int Process::wait(std::chrono::seconds limit) {
  const auto until = Clock::now() + limit * kSlower;
  while (read_some(until)) {
  }
  if (Clock::now() >= until) kill(SIGKILL);
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  if (Clock::now() >= until) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace niccolite::test
