#include "cli/perf/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>

#include "cli/grammar/exit_code.h"
#include "cli/perf/pipe_sink.h"
#include "cli/perf/share.h"
#include "cli/perf/supervisor.h"

namespace niccolite::perf {
namespace {

std::string ranks_of(const Options& options, int process) {
  const int first = process * options.ranks_per_process();
  const int last = first + options.ranks_per_process() - 1;
  return first == last ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, last);
}

void set_inherited(int fd, bool is_inherited) { fcntl(fd, F_SETFD, is_inherited ? 0 : FD_CLOEXEC); }

Result<Child> start_child(const Options& options, const std::vector<std::string>& command,
                          int process, const Team& team) {
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
    if (getppid() != supervisor) _exit(grammar::kExitFailed);  // it died before the line above
    set_inherited(team.fd(), true);
    set_inherited(write_end.get(), true);
    execv("/proc/self/exe", pointers.data());
    _exit(grammar::kExitFailed);
  }
  const std::string ranks = ranks_of(options, process);
  return Child{.name = fmt::format("process {} ({})", process, ranks),
               .who = fmt::format("process {} (pid {}, {})", process, pid, ranks),
               .pid = pid,
               .reports = std::move(read_end)};
}

}  // namespace

Status supervise(const Options& options, const std::vector<std::string>& command, Report& report) {
  Team team = TRY(Team::create(options.processes * options.threads, options.nranks()));
  Supervisor supervisor(report, [&] { team.abort(); }, {});
  for (int process = 0; process < options.processes; ++process)
    supervisor.add(TRY(start_child(options, command, process, team)));
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
  if (status.is_ok()) return grammar::kExitFine;
  sink.failure(status.message());
  return grammar::kExitFailed;
}

}  // namespace niccolite::perf
