#include "cli/which/command.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fd.h"
#include "base/status.h"
#include "cli/grammar/exit_code.h"
#include "cli/grammar/names.h"
#include "cli/grammar/options.h"
#include "cli/perf/library.h"
#include "cli/which/protocol.h"

namespace niccolite::which {
namespace {

using grammar::kExitFailed;
using grammar::kExitFine;
using grammar::kExitUsage;
using grammar::kExitWrong;
using Clock = std::chrono::steady_clock;

constexpr const char* kFooter =
    R"(Usage: niccolite which [--wait SECONDS] [--json] -- PROGRAM [ARGUMENTS]

Starts the program, and ends it when it opens a libnccl: what it prints and does until then, it does. The answer is
the dynamic linker's own, so that LD_PRELOAD, LD_LIBRARY_PATH, RPATH, RUNPATH, dlopen and child processes count. A library that
is linked into the program, and programs without a dynamic linker, cannot be seen.

Examples:
  niccolite which -- python train.py
  niccolite which -- python -c 'import torch'
  niccolite which --wait 5 -- ./train --epochs 1

Exit status: 0 a libnccl was loaded; 1 none was; 2 wrong usage; 3 the program cannot be run.)";

int fail(const Status& status, int exit_code) {
  fmt::print(stderr, "niccolite which: {}\n", status.message());
  return exit_code;
}

/// A FIFO with a name, which goes when this goes.
class Fifo {
 public:
  static Result<Fifo> create() {
    std::string folder = std::filesystem::temp_directory_path() / "niccolite_which_XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) return Status::from_errno(errno, "mkdtemp " + folder);
    Fifo fifo(folder);
    if (mkfifo(fifo.path().c_str(), 0600) != 0)
      return Status::from_errno(errno, "mkfifo " + fifo.path());
    // For writing too: without a writer a reader would be told the end of the file.
    fifo.fd_ = Fd(open(fifo.path().c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (!fifo.fd_.valid()) return Status::from_errno(errno, "open " + fifo.path());
    return fifo;
  }
  Fifo(Fifo&& other) noexcept
      : folder_(std::exchange(other.folder_, {})), fd_(std::move(other.fd_)) {}
  Fifo& operator=(Fifo&&) = delete;
  ~Fifo() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  std::string path() const { return folder_ + "/report"; }
  int fd() const { return fd_.get(); }

  /// The first line that came, if one has.
  std::optional<std::string> line() const {
    char text[4097];
    const ssize_t length = read(fd_.get(), text, sizeof text - 1);
    if (length <= 0) return std::nullopt;
    const auto end = std::find(text, text + length, '\n');
    return std::string(text, end);
  }

 private:
  explicit Fifo(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
  Fd fd_;
};

Result<std::string> find_spy() {
  std::error_code error;
  const std::filesystem::path command = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status::system_error("cannot read /proc/self/exe: {}", error.message());
  const std::filesystem::path folder = command.parent_path();
  for (const char* place : {"../lib", "."}) {
    const std::filesystem::path path = folder / place / "libniccolite_which.so";
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return Status::system_error("no ../lib/libniccolite_which.so beside {}", folder.string());
}

/// The program in a process group of its own. The whole group is killed in the end.
class Program {
 public:
  /// `is_silent`: its standard output goes to standard error.
  static Result<Program> start(std::vector<std::string>& arguments, const Fifo& fifo,
                               const std::string& spy, bool is_silent) {
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    const char* const audits = std::getenv("LD_AUDIT");
    const std::string audit = audits == nullptr ? spy : fmt::format("{}:{}", spy, audits);
    int ends[2];  // tells why the program did not start, else nothing
    if (pipe2(ends, O_CLOEXEC) != 0) return Status::from_errno(errno, "pipe");
    const Fd read_end(ends[0]);
    Fd write_end(ends[1]);
    const pid_t pid = fork();
    if (pid < 0) return Status::from_errno(errno, "fork");
    if (pid == 0) {
      // Only async-signal-safe calls but setenv from here to exec: this process has one thread.
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setenv("LD_AUDIT", audit.c_str(), 1);
      setenv(kReport, fifo.path().c_str(), 1);
      if (is_silent) dup2(STDERR_FILENO, STDOUT_FILENO);
      execvp(pointers[0], pointers.data());
      const int reason = errno;
      [[maybe_unused]] const ssize_t written = write(write_end.get(), &reason, sizeof reason);
      _exit(kExitFailed);
    }
    setpgid(pid, pid);  // whoever comes first
    Program program(pid);
    write_end.reset();
    int reason = 0;
    if (read(read_end.get(), &reason, sizeof reason) == sizeof reason)
      return Status::from_errno(reason, "cannot run " + arguments[0]);
    return program;
  }
  Program(Program&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Program& operator=(Program&&) = delete;
  ~Program() {
    if (pid_ < 0) return;
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  /// How it ended, if it has. It is not reaped: its number stays the number of its group.
  std::optional<std::string> ending() const {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
      return std::nullopt;
    if (info.si_code == CLD_EXITED) return fmt::format("ended with status {}", info.si_status);
    return fmt::format("was killed by signal {} ({})", info.si_status, strsignal(info.si_status));
  }
  pid_t pid() const { return pid_; }

 private:
  explicit Program(pid_t pid) : pid_(pid) {}
  pid_t pid_;
};

struct Outcome {
  std::string library;  // empty: none
  std::string why;      // none
};

Result<Outcome> follow(std::vector<std::string>& arguments, const Options& options) {
  const std::string spy = TRY(find_spy());
  const Fifo fifo = TRY(Fifo::create());
  const Program program = TRY(Program::start(arguments, fifo, spy, options.wants_json));
  // Without pidfd_open (before Linux 5.3) its end is seen at the next look.
  const Fd process(static_cast<int>(syscall(SYS_pidfd_open, program.pid(), 0)));
  constexpr int kLookMilliseconds = 100;
  const auto end = Clock::now() + std::chrono::duration<double>(options.wait_seconds);
  while (true) {
    const std::optional<std::string> ending = program.ending();  // before the last line is read
    if (std::optional<std::string> line = fifo.line()) return Outcome{*line, ""};
    if (ending) return Outcome{"", *ending};
    if (Clock::now() > end)
      return Outcome{"", fmt::format("did not in {} s (--wait)", options.wait_seconds)};
    pollfd polled[] = {{fifo.fd(), POLLIN, 0}, {process.get(), POLLIN, 0}};
    poll(polled, 2, kLookMilliseconds);
  }
}

enum class Maker { Niccolite, Nvidia, Unknown };

/// By words that the library of each has in any version.
Maker maker_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto has = [&](const std::string& word) {
    return std::search(bytes.begin(), bytes.end(),
                       std::boyer_moore_horspool_searcher(word.begin(), word.end())) != bytes.end();
  };
  if (has("NICCOLITE_DEVICES")) return Maker::Niccolite;
  return has("NCCL version ") && has("+cuda") ? Maker::Nvidia : Maker::Unknown;
}

std::string describe(const std::string& path, Maker maker) {
  const char* const whose = maker == Maker::Niccolite ? "Niccolite"
                            : maker == Maker::Nvidia  ? "NVIDIA's NCCL"
                                                      : "neither Niccolite's nor NVIDIA's";
  const Result<perf::Library> library = perf::Library::open(path);
  if (!library.is_ok()) return fmt::format("{} ({})", whose, library.status().message());
  return fmt::format("{}, version {}", whose, library.value().version_text());
}

int print_json(const std::vector<std::string>& program, const Outcome& outcome) {
  nlohmann::json document{{"program", program}, {"library", nullptr}};
  if (outcome.library.empty()) {
    document["why"] = outcome.why;
  } else {
    constexpr const char* kMakers[] = {"niccolite", "nvidia", "unknown"};
    const Result<perf::Library> library = perf::Library::open(outcome.library);
    document["library"] = outcome.library;
    document["maker"] = kMakers[static_cast<size_t>(maker_of(outcome.library))];
    document["version"] =
        library.is_ok() ? nlohmann::json(library.value().version_text()) : nlohmann::json();
  }
  fmt::print("{}\n", document.dump(1));
  return outcome.library.empty() ? kExitWrong : kExitFine;
}

std::string quoted(const std::vector<std::string>& arguments) {
  std::string text;
  for (const std::string& argument : arguments) {
    const bool is_plain = !argument.empty() &&
                          argument.find_first_of(" \t\n\"'\\$`;&|<>()*?[]#~!{}") == argument.npos;
    std::string inside;
    for (const char letter : argument) inside += letter == '\'' ? "'\\''" : std::string(1, letter);
    text += (text.empty() ? "" : " ") + (is_plain ? argument : "'" + inside + "'");
  }
  return text;
}

}  // namespace

void add_options(CLI::App& app, Options& options) {
  app.footer(kFooter);
  app.prefix_command();
  app.add_option("--wait", options.wait_seconds, "Give up after this time")
      ->type_name(grammar::kSeconds)
      ->capture_default_str();
  grammar::add_flag(app, grammar::kJsonFlag, options.wants_json, " instead of text");
}

int run(const Options& options, std::vector<std::string> program) {
  if (program.empty())
    return fail(Status::invalid_argument("which program? See niccolite which --help"), kExitUsage);
  if (program[0].starts_with("-")) {
    const std::string meant = grammar::nearest(program[0], {"--wait", "--json", "--help"});
    return fail(Status::invalid_argument(
                    "there is no option {}{}; a program of that name stands behind --", program[0],
                    meant.empty() ? "" : fmt::format("; did you mean {}?", meant)),
                kExitUsage);
  }
  if (!(options.wait_seconds > 0))
    return fail(Status::invalid_argument("--wait: {} is no time", options.wait_seconds),
                kExitUsage);
  const Result<Outcome> outcome = follow(program, options);
  if (!outcome.is_ok()) return fail(outcome.status(), kExitFailed);
  const std::string& library = outcome.value().library;
  if (options.wants_json) return print_json(program, outcome.value());
  if (library.empty()) {
    fmt::print("{} loaded no {}: it {}\n", program[0], kName, outcome.value().why);
    return kExitWrong;
  }
  const Maker maker = maker_of(library);
  fmt::print("{}\n  {}\n", library, describe(library, maker));
  const Result<std::string> ours = perf::default_library_path();
  if (maker == Maker::Niccolite || !ours.is_ok()) return kExitFine;
  std::error_code ignored;
  const std::string path = std::filesystem::canonical(ours.value(), ignored).parent_path() /
                           std::filesystem::path(ours.value()).filename();
  fmt::print("For Niccolite in its place:\n  LD_PRELOAD={} {}\n", path, quoted(program));
  // The program's CUDA runtime, too, must come from there: NVIDIA's sees no virtual GPUs.
  const std::filesystem::path vcuda = std::filesystem::path(path).parent_path() / "vcuda";
  if (std::filesystem::is_directory(vcuda, ignored))
    fmt::print(
        "On virtual GPUs, without any of CUDA:\n"
        "  NICCOLITE_DEVICES=virtual LD_LIBRARY_PATH={}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} "
        "LD_PRELOAD={} {}\n",
        vcuda.string(), path, quoted(program));
  return kExitFine;
}

}  // namespace niccolite::which
