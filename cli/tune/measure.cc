#include "cli/tune/measure.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fd.h"
#include "cli/grammar/collective.h"
#include "cli/grammar/exit_code.h"
#include "cli/grammar/file.h"
#include "planner/choice/choice.h"

extern char** environ;

namespace niccolite::tune {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

// `niccolite perf --timeout` ends a run that stands still; this ends one that even that cannot.
constexpr std::chrono::seconds kLongestJob{120};
constexpr size_t kElementBytes = 4;  // perf's default type, float

/// A file in the directory for temporary ones, removed at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& suffix)
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("niccolite_tune_{}{}", getpid(), suffix)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { remove(); }

  void remove() const {
    std::error_code ignored;  // there may be none
    std::filesystem::remove(path_, ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// This process's environment with `changes`; an empty value unsets.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (changes.count(text.substr(0, text.find('='))) == 0) result.push_back(text);
  }
  for (const auto& [name, value] : changes)
    if (!value.empty()) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

/// Translates the end of a process, with its last words in `log`.
Status outcome_of(int state, const std::string& log) {
  if (WIFEXITED(state) && WEXITSTATUS(state) == grammar::kExitFine) return {};
  const bool is_usage = WIFEXITED(state) && WEXITSTATUS(state) == grammar::kExitUsage;
  std::ifstream errors(log);
  std::string text, line;
  while (std::getline(errors, line))
    if (!line.empty() && (text.empty() || !is_usage)) text = line;  // the last names its end
  if (is_usage) return Status::invalid_usage("{}", text);
  if (WIFSIGNALED(state))
    return Status::internal("died of signal {} ({})", WTERMSIG(state), strsignal(WTERMSIG(state)));
  return Status::internal("{}", text.empty() ? "failed without a word" : text);
}

/// Runs `arguments` to their end, with standard error in the file `log`.
Status run_process(std::vector<std::string> arguments, std::vector<std::string> environment,
                   const std::string& log) {
  const Fd output(open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const Fd nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!output.valid() || !nowhere.valid()) return Status::from_errno(errno, "cannot write " + log);
  const std::vector<char*> argument_pointers = pointers_to(arguments);
  const std::vector<char*> variable_pointers = pointers_to(environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Status::from_errno(errno, "fork");
  if (pid == 0) {
    // Only async-signal-safe calls from here to exec: other threads may have held locks.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(grammar::kExitFailed);  // it died before the line above
    dup2(nowhere.get(), STDOUT_FILENO);
    dup2(output.get(), STDERR_FILENO);
    execve(argument_pointers[0], argument_pointers.data(), variable_pointers.data());
    _exit(grammar::kExitFailed);
  }
  const Fd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  pollfd ended = {.fd = process.get(), .events = POLLIN, .revents = 0};
  const auto longest = std::chrono::milliseconds(kLongestJob).count();
  // Without pidfd_open (before Linux 5.3) this waits without a limit of its own.
  const bool is_late = process.valid() && poll(&ended, 1, static_cast<int>(longest)) == 0;
  if (is_late) kill(pid, SIGKILL);
  int state = 0;
  while (waitpid(pid, &state, 0) < 0 && errno == EINTR) {
  }
  if (is_late) return Status::internal("took more than {} s", kLongestJob.count());
  return outcome_of(state, log);
}

struct Found {
  size_t points = 0;
  std::set<Collective> finished;  // every size measured
  std::string devices;
};

/// The library's prediction, were there no environment.
double predict_own(const Measurements& measurements, const Workload& work) {
  Result<planner::Settings> settings =
      planner::make_settings(measurements.machine, work.nranks, {});
  if (!settings.is_ok()) return 0;
  set_path(*settings, measurements.path);
  Result<planner::Choice> choice = planner::choose(*settings, work.collective, work.bytes);
  return choice.is_ok() ? choice->microseconds : 0;
}

void add(const Job& job, const Workload& work, const Form* form, double microseconds,
         Measurements& measurements) {
  if (job.is_free) {
    measurements.own.push_back({work, microseconds, predict_own(measurements, work)});
    return;
  }
  measurements.points.push_back({.work = work,
                                 .variant = {form, job.protocol, job.channels, job.parts},
                                 .chunk_bytes = job.chunk_bytes,
                                 .microseconds = microseconds});
}

/// Reads the rows of the job's document, if there is one.
Found collect(const Job& job, const std::string& path, Measurements& measurements) {
  Found found;
  std::ifstream file(path);
  const json document = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return found;
  for (const auto& [name, count] : document.at("machine").at("ranks_on").items())
    found.devices +=
        fmt::format("{}{} x {}", found.devices.empty() ? "" : ", ", count.get<int>(), name);
  for (const auto& [collective, form] : job.variants) {
    size_t rows = 0;
    for (const json& row : document.at("rows")) {
      if (row.at("collective") != grammar::collective_name(collective) ||
          row.at("out_of_place").is_null())
        continue;
      ++rows;
      const size_t bytes = row.at("count").get<size_t>() * kElementBytes;
      const double microseconds = row.at("out_of_place").at("time_us");
      if (bytes == 0 || microseconds <= 0) continue;
      add(job, {collective, job.nranks, bytes}, form, microseconds, measurements);
      ++found.points;
    }
    if (rows == job.sizes.size()) found.finished.insert(collective);
  }
  return found;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Status measure(std::vector<Job> jobs, const Run& run, Measurements& measurements) {
  const auto start = Clock::now();
  const TemporaryFile result(".json"), log(".log");
  std::error_code unreadable;
  const std::string command = std::filesystem::read_symlink("/proc/self/exe", unreadable).string();
  if (unreadable) return Status::from_errno(unreadable.value(), "cannot read /proc/self/exe");
  std::deque<Job> queue(jobs.begin(), jobs.end());
  size_t done = 0;
  while (!queue.empty()) {
    if (run.limit_seconds > 0 && done > 0 && seconds_since(start) > run.limit_seconds) {
      measurements.failures.push_back(
          fmt::format("{} runs left out: the time of --limit was over", queue.size()));
      break;
    }
    Job job = std::move(queue.front());
    queue.pop_front();
    const auto began = Clock::now();
    result.remove();
    std::vector<std::string> arguments = job.arguments(result.path());
    arguments.insert(arguments.begin(), command);
    if (!run.library.empty()) arguments.insert(arguments.end(), {"--lib", run.library});
    Status status = run_process(arguments, environment_with(job.environment()), log.path());
    if (status.code() == Code::InvalidUsage) return status;  // the next job will fare no better
    ++done;
    Found found;
    try {
      found = collect(job, result.path(), measurements);
    } catch (const json::exception& error) {
      return Status::internal("niccolite perf wrote what cannot be read: {}", error.what());
    }
    if (measurements.devices.empty()) measurements.devices = found.devices;
    // Not even the ranks came about, in the first job: neither will they in the next.
    if (!status.is_ok() && measurements.devices.empty())
      return std::move(status).with_context("{}", job.describe());
    fmt::print(stderr, "[{:3}/{}] {}: {} points, {:.1f} s\n", done, done + queue.size(),
               job.describe(), found.points, seconds_since(began));
    if (!run.json_path.empty()) TRY(grammar::write_json(run.json_path, to_json(measurements)));
    if (status.is_ok()) continue;
    // perf goes through the collectives in turn: the first unfinished one is where it ended.
    std::erase_if(job.variants,
                  [&](const auto& variant) { return found.finished.count(variant.first) > 0; });
    const std::string culprit =
        job.variants.empty() ? "" : fmt::format("{}: ", name_of(job.variants[0].first));
    measurements.failures.push_back(
        fmt::format("{}: {}{}", job.describe(), culprit, status.message()));
    fmt::print(stderr, "         {}\n", measurements.failures.back());
    if (job.variants.size() < 2) continue;
    job.variants.erase(job.variants.begin());
    queue.push_front(std::move(job));
  }
  if (measurements.is_empty())
    return Status::internal(
        "nothing could be measured{}",
        measurements.failures.empty() ? "" : fmt::format(": {}", measurements.failures.front()));
  return {};
}

}  // namespace niccolite::tune
