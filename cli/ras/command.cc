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
#include <charconv>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>

#include "base/fd.h"
#include "base/parameters.h"
#include "cli/grammar/exit_code.h"
#include "cli/grammar/options.h"

namespace niccolite::ras_command {
namespace {

using grammar::kExitFine;
using grammar::kExitUsage;

constexpr const char* kFooter =
    R"(Every process with a communicator answers at NCCL_RAS_ADDR, for the whole job: one of them gets the question and asks the others. Jobs listen at
localhost:28028, and are asked on a machine of theirs, unless they have another NCCL_RAS_ADDR: with 0.0.0.0:28028 others can ask, too. Where this
command has NCCL_RAS_ADDR, it asks there. NVIDIA's client ncclras gets the same answers (its -h HOST is --host here); the section "Standstills" is ours: for whom operations
stand still, and why.

Examples:
  niccolite ras
  niccolite ras --json
  ssh node17 niccolite ras
  niccolite ras --host node17    (of a job with NCCL_RAS_ADDR=0.0.0.0:28028)
  niccolite ras --monitor

Exit status: 0 nothing stands still; 1 something does; 2 wrong usage, or nobody answers.)";
constexpr int kExitStandsStill = 1;
constexpr int kConnectSeconds = 5;
// A greeting is answered at once, unless by a process that is stopped: the processes of a machine
// share the port, and the system gives each connection to any of them.
constexpr int kGreetingSeconds = 1;
constexpr int kMostGreetings = 16;
// Beyond the time-out, for the answer itself. Who asks for no time-out does not know the job's,
// which is 5 s times a factor of at most 1,000.
constexpr int kAnswerSeconds = 6;
constexpr int kLongestDefault = 5'000;

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

int patience_of(const Options& options) {
  if (options.monitors) return 0;  // none is needed
  return options.timeout.value_or(kLongestDefault) + kAnswerSeconds;
}

bool say(const Fd& connection, const std::string& words) {
  return send(connection.get(), words.data(), words.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(words.size());
}

bool is_greeted_by(const Fd& connection) {
  set_patience(connection.get(), kGreetingSeconds);
  if (!say(connection, "CLIENT PROTOCOL 2\n")) return false;
  char byte = 0;
  while (byte != '\n')
    if (recv(connection.get(), &byte, 1, 0) != 1) return false;
  return true;
}

/// A connection to a process that answers. RemoteError: there are some, and none does.
Result<Fd> connect_to_one_that_answers(const Options& options) {
  for (int greetings = 0; greetings < kMostGreetings; ++greetings) {
    Fd connection = TRY(connect_to(options));
    if (is_greeted_by(connection)) return connection;
  }
  return Status::remote_error(
      "somebody listens at {} port {}, but none of {} connections was answered: are the job's "
      "processes stopped, by a signal (SIGSTOP; SIGCONT continues them) or a debugger?",
      options.host, options.port, kMostGreetings);
}

enum class Answer { Whole, Broken, Missing };

/// Sends commands, behind the time-out of the options, and hands on the answers until the other
/// side closes. Missing if it says nothing for too long.
Answer talk(const Fd& connection, const Options& options, const std::string& commands,
            const std::function<void(std::string_view)>& out) {
  std::string words;
  if (options.timeout) words += fmt::format("TIMEOUT {}\n", *options.timeout);
  words += commands;
  int answers = options.timeout ? 1 : 0;  // that are not to be handed on
  set_patience(connection.get(), patience_of(options));
  if (!say(connection, words)) return Answer::Broken;
  std::array<char, 65536> bytes;
  while (true) {
    const ssize_t count = recv(connection.get(), bytes.data(), bytes.size(), 0);
    if (count == 0) return Answer::Whole;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      return errno == EAGAIN || errno == EWOULDBLOCK ? Answer::Missing : Answer::Broken;
    std::string_view text(bytes.data(), static_cast<size_t>(count));
    for (; answers > 0 && !text.empty(); text.remove_prefix(1))
      if (text.front() == '\n') --answers;
    if (!text.empty()) out(text);
  }
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// Prints the answer. The replies to SET FORMAT and MONITOR come first; only errors among them are
/// printed.
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

/// Takes the value of NCCL_RAS_ADDR, host:port or [IPv6]:port. Other text changes nothing.
void use_address(std::string_view address, Options& options) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return;
  std::string_view host = address.substr(0, colon);
  const std::string_view digits = address.substr(colon + 1);
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port < 1 || port > 65535)
    return;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  options.host = host;
  options.port = port;
}

}  // namespace

void add_options(CLI::App& app, Options& options) {
  use_address(parameters::ras_address(), options);
  app.add_option("--host", options.host, "Machine to ask")
      ->type_name("HOST")
      ->capture_default_str();
  app.add_option("-p,--port", options.port, "Port to ask at")
      ->check(CLI::Range(1, 65535))
      ->type_name("PORT")
      ->capture_default_str();
  app.add_option("-t,--timeout", options.timeout,
                 "Seconds to wait for processes that do not answer (default: 5 times the job's "
                 "NCCL_RAS_TIMEOUT_FACTOR)")
      ->check(CLI::Range(1, 86400))
      ->type_name(grammar::kSeconds);
  app.add_flag("-v,--verbose", options.is_verbose, "List the members of larger groups, too");
  grammar::add_flag(app, grammar::kJsonFlag, options.wants_json, ", as ncclras -f json does");
  app.add_flag("-m,--monitor", options.monitors,
               "Tell of processes that come and die, until Ctrl-C");
  app.footer(kFooter);
}

int run(const Options& options) {
  const Result<Fd> connection = connect_to_one_that_answers(options);
  if (!connection.is_ok()) return fail(connection.status().message());
  std::string commands;
  const bool is_report = !options.monitors;
  Report report((options.wants_json ? 1u : 0u) + (is_report ? 0u : 1u));
  if (options.wants_json) commands += "SET FORMAT json\n";
  commands += !is_report ? "MONITOR\n" : options.is_verbose ? "VERBOSE STATUS\n" : "STATUS\n";
  if (talk(connection.value(), options, commands,
           [&](std::string_view text) { report.take(text); }) != Answer::Whole)
    return fail(fmt::format("{} does not finish its answer", options.host));
  if (options.wants_json || !is_report) return kExitFine;

  const Result<Fd> again = connect_to_one_that_answers(options);
  if (again.status().code() == Code::RemoteError) return fail(again.status().message());
  std::string verdicts;
  const Answer answer = again.is_ok() ? talk(again.value(), options, "VERDICT\n",
                                             [&](std::string_view text) { verdicts += text; })
                                      : Answer::Broken;
  if (answer == Answer::Missing)
    return fail(fmt::format("{} does not say what stands still", options.host));
  if (answer == Answer::Broken) return kExitFine;       // it has ended meanwhile
  if (verdicts.starts_with("ERROR")) return kExitFine;  // NVIDIA's library knows no such thing
  fmt::print("Standstills\n===========\n\n{}", verdicts);
  const Result<Fd> third = connect_to_one_that_answers(options);
  std::string stragglers;
  if (third.is_ok() && talk(third.value(), options, "STRAGGLERS\n",
                            [&](std::string_view text) { stragglers += text; }) == Answer::Whole)
    fmt::print("\nStragglers\n==========\n\n{}", stragglers);
  return verdicts.empty() ? kExitFine : kExitStandsStill;
}

}  // namespace niccolite::ras_command
