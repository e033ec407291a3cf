#include "cli/ras/command.h"

#include <fmt/core.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>

#include "base/fd.h"
#include "cli/perf/exit_code.h"

namespace niccolite::ras_command {
namespace {

using perf::kExitFine;
using perf::kExitUsage;

constexpr const char* kFooter =
    R"(Every process with a communicator answers at port 28028 of its machine (NCCL_RAS_ADDR), for the whole job: one of them gets the question and
asks the others. NVIDIA's client ncclras gets the same answers; the section "Standstills" is ours: for whom operations stand still, and why.

Examples:
  niccolite ras
  niccolite ras --host node17 --json
  niccolite ras --monitor

Exit status: 0 nothing stands still; 1 something does; 2 wrong usage, or nobody answers.)";
constexpr int kExitStandsStill = 1;
constexpr int kConnectSeconds = 5;

int fail(const std::string& text) {
  fmt::print(stderr, "niccolite ras: {}\n", text);
  return kExitUsage;
}

void set_patience(int socket, int seconds) {
  const timeval time{.tv_sec = seconds, .tv_usec = 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

Result<Fd> connect_to(const Options& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(options.port);
  if (const int error = getaddrinfo(options.host.c_str(), port.c_str(), &hints, &found); error != 0)
    return Status::invalid_argument("{}: {}", options.host, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  int error = 0;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    Fd connection(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!connection.valid()) continue;
    set_patience(connection.get(), kConnectSeconds);
    if (connect(connection.get(), each->ai_addr, each->ai_addrlen) == 0) return connection;
    error = errno;
  }
  return Status::invalid_argument(
      "nobody answers at {} port {} ({}): is a job running there, without NCCL_RAS_ENABLE=0, and "
      "with this NCCL_RAS_ADDR?",
      options.host, options.port, std::strerror(error));
}

/// Sends commands and hands on what comes until the other side closes; false when it says nothing
/// for too long.
bool talk(const Fd& connection, const std::string& commands, int patience,
          const std::function<void(std::string_view)>& out) {
  set_patience(connection.get(), patience);
  if (send(connection.get(), commands.data(), commands.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(commands.size()))
    return false;
  std::array<char, 65536> bytes;
  while (true) {
    const ssize_t count = recv(connection.get(), bytes.data(), bytes.size(), 0);
    if (count == 0) return true;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    out({bytes.data(), static_cast<size_t>(count)});
  }
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// What comes: first the answers to TIMEOUT, SET FORMAT and MONITOR, of which only errors are for
/// people.
class Report {
 public:
  explicit Report(size_t answers) : answers_(answers) {}
  void take(std::string_view text) {
    for (; answers_ > 0 && !text.empty(); text.remove_prefix(1)) {
      line_ += text.front();
      if (text.front() != '\n') continue;
      if (!line_.starts_with("OK")) print(line_);
      line_.clear();
      --answers_;
    }
    if (!text.empty()) print(text);
  }

 private:
  size_t answers_;
  std::string line_;
};

}  // namespace

void add_options(CLI::App& app, Options& options) {
  app.set_help_flag("--help", "Print this help");
  app.add_option("-h,--host", options.host, "Machine to ask")->capture_default_str();
  app.add_option("-p,--port", options.port, "Port to ask at")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  app.add_option("-t,--timeout", options.timeout,
                 "Seconds to wait for processes that do not answer")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  app.add_flag("-v,--verbose", options.is_verbose, "List the members of larger groups, too");
  app.add_flag("--json", options.wants_json, "Print JSON, as ncclras -f json does");
  app.add_flag("-m,--monitor", options.monitors,
               "Tell of processes that come and die, until Ctrl-C");
  app.footer(kFooter);
}

int run(const Options& options) {
  const Result<Fd> connection = connect_to(options);
  if (!connection.is_ok()) return fail(connection.status().message());
  const int patience = options.monitors ? 0 : options.timeout + 6;
  std::string commands = fmt::format("TIMEOUT {}\n", options.timeout);
  const bool is_report = !options.monitors;
  Report report(1 + (options.wants_json ? 1u : 0u) + (is_report ? 0u : 1u));
  if (options.wants_json) commands += "SET FORMAT json\n";
  commands += !is_report ? "MONITOR\n" : options.is_verbose ? "VERBOSE STATUS\n" : "STATUS\n";
  if (!talk(connection.value(), commands, patience,
            [&](std::string_view text) { report.take(text); }))
    return fail(fmt::format("{} does not finish its answer", options.host));
  if (options.wants_json || !is_report) return kExitFine;

  const Result<Fd> again = connect_to(options);
  std::string verdicts;
  if (!again.is_ok() ||
      !talk(again.value(), "VERDICT\n", patience, [&](std::string_view text) { verdicts += text; }))
    return kExitFine;                                   // it has ended meanwhile
  if (verdicts.starts_with("ERROR")) return kExitFine;  // NVIDIA's library knows no such thing
  fmt::print("Standstills\n===========\n\n{}", verdicts);
  const Result<Fd> third = connect_to(options);
  std::string stragglers;
  if (third.is_ok() && talk(third.value(), "STRAGGLERS\n", patience,
                            [&](std::string_view text) { stragglers += text; }))
    fmt::print("\nStragglers\n==========\n\n{}", stragglers);
  return verdicts.empty() ? kExitFine : kExitStandsStill;
}

}  // namespace niccolite::ras_command
