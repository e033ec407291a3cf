#include "cli/perf/hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "cli/grammar/exit_code.h"
#include "cli/grammar/numbers.h"
#include "cli/perf/machines.h"
#include "cli/perf/pipe_sink.h"
#include "cli/perf/supervisor.h"

namespace niccolite::perf {
namespace {

using nlohmann::json;

// Fails where it would ask: several hosts cannot ask at once.
constexpr const char* kSsh = "ssh -T -o BatchMode=yes";
constexpr int kMostThreads = 1024;

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

Result<bootstrap::UniqueId> id_of(const std::string& hex) {
  std::array<std::byte, bootstrap::UniqueId::kBytes> bytes{};
  if (hex.size() != 2 * bytes.size())
    return Status::invalid_usage("the supervisor has sent no unique id");
  for (size_t i = 0; i < bytes.size(); ++i) {
    unsigned value = 0;
    std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, value, 16);
    bytes[i] = static_cast<std::byte>(value);
  }
  return bootstrap::UniqueId::parse(bytes);
}

// ---- in the supervisor

Result<Host> parse_host(const std::string& text) {
  const size_t colon = text.rfind(':');
  const bool is_bracketed = text.front() == '[';
  const bool has_count =
      colon != std::string::npos &&
      (is_bracketed ? text[colon - 1] == ']' : std::ranges::count(text, ':') == 1);
  Host host{.name = has_count ? text.substr(0, colon) : text};
  if (is_bracketed && host.name.back() == ']')
    host.name = host.name.substr(1, host.name.size() - 2);
  if (host.name.empty() || host.name.front() == '-')
    return Status::invalid_argument("--hosts: \"{}\" is no host", text);
  if (!has_count) return host;
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data() + colon + 1, end, host.threads);
  if (error != std::errc() || read != end || host.threads < 1 || host.threads > kMostThreads)
    return Status::invalid_argument(
        "--hosts: \"{}\": behind the colon stands how many threads, with -g GPUs each, 1 to {}",
        text, kMostThreads);
  return host;
}

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// Takes the shell of this machine for localhost, unless --remote-shell names another way.
std::vector<std::string> shell_of(const std::string& remote_shell, const Host& host) {
  std::vector<std::string> words;
  char own[256] = {};
  gethostname(own, sizeof own - 1);
  const bool is_here = host.name == "localhost" || host.name == own;
  if (!remote_shell.empty() || !is_here) {
    std::istringstream split(remote_shell.empty() ? kSsh : remote_shell);
    for (std::string word; split >> word;) words.push_back(word);
    words.push_back(host.name);
  }
  words.insert(words.end(), {"sh", "-s"});
  return words;
}

// Little enough for the socket's buffer: the shell reads it, or has ended.
void say(const Fd& input, const std::string& text) {
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t n = send(input.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) return;  // it has ended, as its supervisor is about to see
    if (n > 0) sent += static_cast<size_t>(n);
  }
}

Result<Child> start_shell(const std::vector<std::string>& words, const Host& host) {
  int input[2], output[2], errors[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input) != 0)
    return Status::from_errno(errno, "socketpair");
  Fd own_input(input[0]), its_input(input[1]);
  if (pipe2(output, O_CLOEXEC) != 0) return Status::from_errno(errno, "pipe");
  Fd own_output(output[0]), its_output(output[1]);
  if (pipe2(errors, O_CLOEXEC) != 0) return Status::from_errno(errno, "pipe");
  Fd own_errors(errors[0]), its_errors(errors[1]);
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return Status::from_errno(errno, "fork");
  if (pid == 0) {
    // Only async-signal-safe calls from here to exec.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(its_input.get(), STDIN_FILENO);
    dup2(its_output.get(), STDOUT_FILENO);
    dup2(its_errors.get(), STDERR_FILENO);
    execvp(pointers[0], pointers.data());
    static constexpr char kMissing[] = "the remote shell cannot be started (--remote-shell)\n";
    if (write(STDERR_FILENO, kMissing, sizeof kMissing - 1) < 0) _exit(127);
    _exit(127);
  }
  return Child{.name = "host " + host.name,
               .who = "host " + host.name,
               .pid = pid,
               .reports = std::move(own_output),
               .errors = std::move(own_errors),
               .input = std::move(own_input)};
}

Result<std::string> own_path() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length < 0) return Status::from_errno(errno, "/proc/self/exe");
  return std::string(path, static_cast<size_t>(length));
}

/// Hands the id of process 0 to each other one, as soon as both have come.
class IdCourier {
 public:
  Status hear(const json& message, Child& from) {
    if (message.contains("id")) id_ = message.at("id").get<std::string>() + "\n";
    if (message.contains("ready")) waiting_.push_back(&from);
    if (id_.empty()) return {};
    for (const Child* child : waiting_) say(child->input, id_);
    waiting_.clear();
    return {};
  }

 private:
  std::string id_;
  std::vector<const Child*> waiting_;
};

// ---- in the child

/// Reads a line of standard input byte by byte: the following bytes belong to the watcher.
std::string read_line() {
  std::string line;
  for (char c = 0; read(STDIN_FILENO, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

// Ends the process when nobody is left to report to, whatever its threads are doing.
void watch_standard_input() {
  std::thread([] {
    char byte = 0;
    ssize_t n = 0;
    while ((n = read(STDIN_FILENO, &byte, 1)) > 0 || (n < 0 && errno == EINTR)) continue;
    std::_Exit(grammar::kExitFailed);
  }).detach();
}

}  // namespace

Result<std::vector<Host>> parse_hosts(const std::string& text) {
  std::string list = text;
  if (text.starts_with('@')) {
    std::ifstream file(text.substr(1));
    if (!file) return Status::invalid_argument("--hosts: {} cannot be read", text.substr(1));
    list.clear();
    for (std::string line; std::getline(file, line);) list += line.substr(0, line.find('#')) + ",";
  }
  std::vector<Host> hosts;
  std::set<std::string> names;
  for (std::string part : grammar::split_list(list)) {
    std::erase_if(part, [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; });
    if (part.empty()) continue;
    hosts.push_back(TRY(parse_host(part)));
    if (!names.insert(hosts.back().name).second)
      return Status::invalid_argument("--hosts: {} stands there twice", hosts.back().name);
  }
  if (hosts.empty()) return Status::invalid_argument("--hosts: \"{}\" names no host", text);
  return hosts;
}

std::string make_script(const std::vector<std::string>& command, const std::string& folder,
                        const char* const* environment) {
  std::string script = "cd " + quoted(folder) + " 2>/dev/null\n";
  for (; *environment != nullptr; ++environment) {
    const std::string line = *environment;
    const std::string name = line.substr(0, line.find('='));
    if ((!name.starts_with("NCCL_") && !name.starts_with("NICCOLITE_")) || name == "NCCL_HOSTID")
      continue;
    script += "export " + name + "=" + quoted(line.substr(name.size() + 1)) + "\n";
  }
  script += "exec";
  for (const std::string& word : command) script += " " + quoted(word);
  return script + "\n";
}

Status supervise_hosts(const Options& options, std::span<const Host> hosts,
                       const std::vector<std::string>& command, Report& report) {
  std::vector<std::string> words = command;
  words[0] = TRY(own_path());
  char folder[PATH_MAX] = "/";
  if (getcwd(folder, sizeof folder) == nullptr) return Status::from_errno(errno, "getcwd");
  IdCourier courier;
  Supervisor* all = nullptr;
  // The message about the cause is on its way; processes need not wait for it.
  const auto end_all = [&] {
    for (Child& child : all->children()) child.input.reset();
  };
  Supervisor supervisor(report, end_all, [&](const json& message, Child& from) {
    return courier.hear(message, from);
  });
  all = &supervisor;
  for (size_t i = 0; i < hosts.size(); ++i) {
    supervisor.add(TRY(start_shell(shell_of(options.remote_shell, hosts[i]), hosts[i])));
    std::vector<std::string> its_words = words;
    its_words.push_back(fmt::format("--host-process={}", i));
    its_words.push_back(fmt::format("--host-processes={}", hosts.size()));
    its_words.push_back(fmt::format("--host-threads={}", hosts[i].threads));
    say(supervisor.children().back().input, make_script(its_words, folder, environ));
  }
  return supervisor.follow();
}

int run_on_host(Options options) {
  // The library may log to standard output, which is the supervisor's.
  const int reports = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  signal(SIGPIPE, SIG_IGN);
  PipeSink sink(reports);
  const auto meet = [&]() -> Result<bootstrap::UniqueId> {
    if (options.place.process != 0) {
      sink.send({{"ready", options.place.process}});
      return id_of(read_line());
    }
    bootstrap::UniqueId id = TRY(bootstrap::create_unique_id());
    sink.send({{"id", to_hex(id.bytes())}});
    return id;
  };
  const Result<bootstrap::UniqueId> id = meet();
  if (!id.is_ok()) {
    sink.failure(id.status().message());
    return grammar::kExitFailed;
  }
  watch_standard_input();
  return run_place(std::move(options), id.value(), sink).is_ok() ? grammar::kExitFine
                                                                 : grammar::kExitFailed;
}

}  // namespace niccolite::perf
