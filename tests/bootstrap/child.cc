#include "child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>

#include "bootstrap/absences.h"
#include "bootstrap/messages.h"
#include "ranks.h"

namespace {
bool is_forked_child = false;
}

// LeakSanitizer asks: in a child made by fork() the stacks that lead to the parent's objects are
// not searched.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return is_forked_child ? 1 : 0;
}

namespace niccolite::bootstrap {

std::string to_hex(const UniqueId& id) {
  std::string hex;
  for (std::byte byte : id.bytes()) hex += fmt::format("{:02x}", static_cast<int>(byte));
  return hex;
}

UniqueId from_hex(const std::string& hex) {
  std::array<std::byte, UniqueId::kBytes> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return std::move(UniqueId::parse(bytes).value());
}

namespace {

void report(const std::string& text) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::string line = text;
  for (char& c : line)
    if (c == '\n') c = ' ';
  line += '\n';
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(3);
}

std::string describe(const Status& status) {
  return fmt::format("{}: peer {}: {}", name_of(status.code()), status.peer(), status.message());
}

struct Task {
  ChildOptions options;
  int rank;
  Deadline deadline() const {
    return Deadline::after(std::chrono::milliseconds(options.timeout_milliseconds));
  }
};

std::unique_ptr<Member> join(const Task& task) {
  report(fmt::format("joining {}", task.rank));
  auto member = Member::join({.id = task.options.id,
                              .nranks = task.options.nranks,
                              .rank = task.rank,
                              .deadline = task.deadline()});
  if (!member.is_ok()) {
    report(fmt::format("rank {} failed: {}", task.rank, describe(member.status())));
    return nullptr;
  }
  report(fmt::format("joined {}", task.rank));
  return std::move(member.value());
}

// Everything once: gathers of different sizes, messages in order to near and far ranks, requests.
Status exchange(Member& member, Deadline deadline) {
  const int rank = member.rank(), n = member.nranks();
  member.serve([&member](int from, std::span<const std::byte> request) -> Result<Bytes> {
    return to_bytes(fmt::format("{} to {}: {}", from, member.rank(), to_text(request)));
  });
  for (int round = 0; round < 5; ++round) {
    const auto size = [round](int r) { return static_cast<size_t>(r * 37 % 101 * (round + 1)); };
    const Gathered all = TRY(member.all_gather(pattern(rank, size(rank), round), deadline));
    for (int r = 0; r < n; ++r)
      if (!same(all[r], pattern(r, size(r), round)))
        return Status::internal("all-gather {}: wrong for {}", round, r);
  }
  for (int distance : {1, n / 2}) {
    const int to = (rank + distance) % n, from = (rank + n - distance) % n;
    const uint32_t tag = static_cast<uint32_t>(distance);
    for (int i = 0; i < 10; ++i)
      TRY(member.send(to, tag, pattern(rank, static_cast<size_t>(i * 1000), i)));
    for (int i = 0; i < 10; ++i) {
      const Bytes got = TRY(member.receive(from, tag, deadline));
      if (!same(got, pattern(from, static_cast<size_t>(i * 1000), i)))
        return Status::internal("message {} from {} is wrong", i, from);
    }
    const Bytes answer = TRY(member.request(to, to_bytes("hello"), deadline));
    if (to_text(answer) != fmt::format("{} to {}: hello", rank, to))
      return Status::internal("wrong answer");
  }
  return member.barrier(deadline);
}

int run_exchange(const Task& task) {
  auto member = join(task);
  if (member == nullptr) return 1;
  const Status status = exchange(*member, task.deadline());
  report(fmt::format("rank {}: {}", task.rank, status.is_ok() ? "exchanged" : describe(status)));
  return status.is_ok() ? 0 : 1;
}

// Waits for the loss of rank `argument` without doing anything.
int idle(const Task& task, Member& member) {
  std::mutex mutex;
  std::condition_variable changed;
  bool lost = false;
  member.on_peer_lost([&](int rank, const Status& why) {
    report(fmt::format("rank {} lost {}: {}", task.rank, rank, describe(why)));
    const std::lock_guard lock(mutex);
    if (rank == task.options.argument) lost = true;
    changed.notify_all();
  });
  report(fmt::format("idle {}", task.rank));
  std::unique_lock lock(mutex);
  const bool heard = changed.wait_until(lock, task.deadline().at(), [&] { return lost; });
  lock.unlock();
  if (!heard) return 1;
  // What comes after says the same.
  const Status gather = member.barrier(task.deadline());
  report(fmt::format("rank {} gathers: {}", task.rank, describe(gather)));
  const Status send = member.send(task.options.argument, 0, {});
  report(fmt::format("rank {} sends: {}", task.rank, describe(send)));
  return 0;
}

int run_idle(const Task& task) {
  auto member = join(task);
  return member == nullptr ? 1 : idle(task, *member);
}

// The child of rank `argument` has all its descriptors, and outlives it.
int run_heir(const Task& task) {
  auto member = join(task);
  if (member == nullptr) return 1;
  if (task.rank == task.options.argument) {
    const pid_t child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (child == 0) {
      close(STDOUT_FILENO);
      while (true) pause();
    }
    report(fmt::format("heir {}", child));
  }
  return idle(task, *member);
}

// All but rank `argument` wait in an all-gather.
int run_gather(const Task& task) {
  auto member = join(task);
  if (member == nullptr) return 1;
  if (!member->barrier(task.deadline()).is_ok()) return 1;
  member->explain_waits("the test");
  report(fmt::format("gathering {}", task.rank));
  if (task.rank == task.options.argument) pause();
  const auto start = Deadline::Clock::now();
  const Status status = member->barrier(task.deadline());
  const auto waited =
      std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - start);
  report(fmt::format("rank {} after {} ms: {}", task.rank, waited.count(), describe(status)));
  return status.is_ok() ? 1 : 0;
}

// Rank `argument` exits without leaving; the others must not take that for its death.
int run_exit(const Task& task) {
  auto member = join(task);
  if (member == nullptr) return 1;
  std::atomic<bool> lost{false};
  member->on_peer_lost([&](int, const Status&) { lost.store(true, std::memory_order_relaxed); });
  if (!member->barrier(task.deadline()).is_ok()) return 1;
  if (task.rank == task.options.argument) {
    // Still there when the process exits; volatile, or nobody would remember where.
    [[maybe_unused]] static Member* volatile kept;
    kept = member.release();
    std::exit(0);
  }
  const auto message = member->receive(task.options.argument, 1, task.deadline());
  // relaxed: a callback that came before the end of receive() has been seen by this thread through
  // the roster's mutex.
  const bool told = lost.load(std::memory_order_relaxed);
  report(fmt::format("rank {}: {}; lost {}", task.rank, describe(message.status()), told));
  return 0;
}

// TCP ports on which this process listens, from the kernel's list.
std::vector<int> listening_ports() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<int> ports;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retries, uid, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retries >> uid >> timeout >>
        inode;
    if (state == "0A" && inodes.contains(inode))
      ports.push_back(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
  }
  return ports;
}

// Says where it listens, then `argument` barriers.
int run_repeat(const Task& task) {
  auto member = join(task);
  if (member == nullptr) return 1;
  for (int port : listening_ports()) report(fmt::format("listens 127.0.0.1:{}", port));
  for (int i = 0; i < task.options.argument; ++i)
    if (const Status status = member->barrier(task.deadline()); !status.is_ok()) {
      report(describe(status));
      return 1;
    }
  return 0;
}

// A child made by fork() that exits must not say goodbye for its parent, nor hang.
int run_fork(const Task& task) {
  auto member = join(task);
  if (member == nullptr) return 1;
  const pid_t child = fork();
  if (child == 0) {
    is_forked_child = true;
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const Status after = member->barrier(task.deadline());
  report(fmt::format("rank {}: child {} barrier {}", task.rank, status,
                     after.is_ok() ? "fine" : describe(after)));
  return after.is_ok() ? 0 : 1;
}

// Rank 0 asks rank 1 as one that leaves does, for longer than a stopped process is waited for.
int run_ask(const Task& task) {
  auto member = join(task);
  if (member == nullptr) return 1;
  member->serve([](int, std::span<const std::byte>) -> Result<Bytes> {
    std::this_thread::sleep_for(Absences::kLong + 500ms);
    return to_bytes("here");
  });
  if (task.rank == 0) {
    const Bytes question = to_bytes("where");
    const std::array queries = {Query{.peer = 1, .message = question}};
    const auto answers = member->request(queries, task.deadline(), Patience::WhileItRuns);
    report(fmt::format("rank 0: {}", answers[0].is_ok() ? to_text(answers[0].value())
                                                        : describe(answers[0].status())));
  }
  return member->barrier(task.deadline()).is_ok() ? 0 : 1;
}

bool becomes_stopped(const ProcessId& process, Deadline deadline) {
  while (run_state(process) != RunState::Stopped) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(10ms);
  }
  return true;
}

// Rank 0 tells rank 1, which is stopped, more than the system takes for it; both go on.
int run_tell(const Task& task) {
  auto member = join(task);
  if (member == nullptr) return 1;
  member->serve([](int, std::span<const std::byte>) -> Result<Bytes> { return Bytes(); });
  report(fmt::format("telling {}", task.rank));
  if (task.rank == 0) {
    if (!becomes_stopped(member->process(1), task.deadline())) return 1;
    const Bytes megabyte(1 << 20);
    for (int i = 0; i < 8; ++i)
      if (!member->notify(1, megabyte).is_ok()) return 1;
    if (!member->send(1, 1, {}).is_ok()) return 1;
    report("told");
  } else if (!member->receive(0, 1, task.deadline()).is_ok()) {
    return 1;
  }
  const Status status = member->barrier(task.deadline());
  report(fmt::format("rank {}: {}", task.rank, status.is_ok() ? "met" : describe(status)));
  return status.is_ok() ? 0 : 1;
}

// A pipe that nobody reads and that takes no more is where this process logs.
int log_to_nobody() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  for (const char blank = ' '; write(ends[1], &blank, 1) == 1;) continue;
  setenv("NCCL_DEBUG_FILE", fmt::format("/proc/self/fd/{}", ends[1]).c_str(), 1);
  return ends[0];
}

// Rank 1 is stopped, rank 0 waits for it and has a line to say of that, and another rank of its
// process leaves.
int run_unread(const Task& task) {
  [[maybe_unused]] static const int log = log_to_nobody();
  auto member = join(task);
  if (member == nullptr) return 1;
  const ProcessId stopped = member->process(1);
  if (!member->barrier(task.deadline()).is_ok()) return 1;
  report(fmt::format("gathering {}", task.rank));
  if (task.rank == 1) pause();
  if (!becomes_stopped(stopped, task.deadline())) return 1;
  if (task.rank == 0) {
    member->explain_waits("the test");
    (void)member->barrier(task.deadline()).code();
    return 0;
  }
  std::this_thread::sleep_for(messages::kLongWait + 1s);
  member->leave();
  report(fmt::format("left {}", task.rank));
  return 0;
}

struct EndsLate {
  ~EndsLate() {
    if (member == nullptr) return;
    const Status status =
        member->request(1 - member->rank(), {}, Deadline::after(5s)).status().copy();
    member.reset();
    report(fmt::format("late: {}", describe(status)));
  }
  std::unique_ptr<Member> member;
};

// Rank `argument` leaves in the end of an object that was made before it joined.
int run_late(const Task& task) {
  static EndsLate late;
  auto member = join(task);
  if (member == nullptr || !member->barrier(task.deadline()).is_ok()) return 1;
  if (task.rank == task.options.argument) {
    late.member = std::move(member);
    std::exit(0);
  }
  (void)member->receive(task.options.argument, 1, task.deadline()).is_ok();
  return 0;
}

// Makes the id, and has no descriptor for those that come. Ends as soon as it hears of that.
int run_short(const Task& task) {
  Task own = task;
  own.options.id = loopback_id();
  report("id " + to_hex(own.options.id));
  std::jthread lack([] {
    // This rank has all that it needs: the root's port, and one of its own.
    while (listening_ports().size() < 2) std::this_thread::sleep_for(10ms);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(next);
    limit.rlim_cur = static_cast<rlim_t>(next);
    setrlimit(RLIMIT_NOFILE, &limit);
    report("short");
  });
  return join(own) == nullptr ? 0 : 1;
}

int run_join(const Task& task) {
  auto member = join(task);
  return member == nullptr ? 1 : 0;
}

int entries(const char* directory) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

// Communicators one after the other: what is open afterwards is what was open after the first.
int run_leaks(const Task&) {
  int descriptors = 0;
  const int threads = entries("/proc/self/task");
  for (int i = 0; i <= 50; ++i) {
    auto members = join_all(loopback_id(), 3);
    members[0]->serve([](int, std::span<const std::byte>) -> Result<Bytes> { return Bytes(); });
    if (!members[1]->request(0, {}, soon()).is_ok()) return 1;
    members.clear();
    if (i > 0 && i < 50) continue;
    // Roots end on their own thread once the last rank is ready, and a joined thread takes a moment
    // to leave the list.
    const Deadline deadline = soon();
    while (Root::count_running() > 0 && !deadline.passed()) std::this_thread::yield();
    while (entries("/proc/self/task") > threads && !deadline.passed()) std::this_thread::yield();
    if (i == 0) descriptors = entries("/proc/self/fd");
  }
  report(fmt::format("descriptors {} threads {}", entries("/proc/self/fd") - descriptors,
                     entries("/proc/self/task") - threads));
  return 0;
}

/// The fewest in 100 ms: whoever tries a port that was another's may be connected for a moment.
int lasting_descriptors() {
  int fewest = entries("/proc/self/fd");
  for (int look = 0; look < 20; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    fewest = std::min(fewest, entries("/proc/self/fd"));
  }
  return fewest;
}

// What a thousand ids add to a process that has one; nothing of other tests is left to end here.
int run_ids(const Task&) {
  [[maybe_unused]] const UniqueId first = loopback_id();
  const auto descriptors = lasting_descriptors(), threads = entries("/proc/self/task");
  for (int i = 0; i < 1000; ++i) loopback_id();
  report(fmt::format("descriptors {} threads {} roots {}", lasting_descriptors() - descriptors,
                     entries("/proc/self/task") - threads, Root::count_running()));
  return 0;
}

int run_scenario(const ChildOptions& options) {
  const std::vector<std::pair<std::string, int (*)(const Task&)>> scenarios = {
      {"exchange", run_exchange}, {"idle", run_idle},   {"gather", run_gather}, {"exit", run_exit},
      {"join", run_join},         {"leaks", run_leaks}, {"repeat", run_repeat}, {"fork", run_fork},
      {"ids", run_ids},           {"ask", run_ask},     {"tell", run_tell},     {"late", run_late},
      {"unread", run_unread},     {"heir", run_heir},   {"short", run_short}};
  for (const auto& [name, run] : scenarios) {
    if (name != options.scenario) continue;
    std::atomic<int> code{0};
    on_threads(options.ranks, [&, run = run](int rank) {
      if (run({options, rank}) != 0)
        code.store(1, std::memory_order_relaxed);  // read after the threads are joined
    });
    return code.load(std::memory_order_relaxed);
  }
  return 2;
}

}  // namespace

// `unshare` makes the process that ends with its first child, and the shell is that child,
// number 1.
std::vector<std::string> elsewhere(const std::vector<std::string>& then) {
  std::vector<std::string> command = {"unshare", "--user",       "--map-root-user", "--pid",
                                      "--fork",  "--kill-child", "--mount-proc"};
  command.insert(command.end(), then.begin(), then.end());
  return command;
}

[[noreturn]] void execute(std::vector<std::string> command) {
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(127);
}

bool Child::may_be_elsewhere() {
  const pid_t pid = fork();
  if (pid == 0) execute(elsewhere({"sh", "-c", "echo 1000 > /proc/sys/kernel/ns_last_pid"}));
  int status = 0;
  waitpid(pid, &status, 0);
  return status == 0;
}

Child::Child(const ChildOptions& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  output_ = Fd(ends[0]);
  const Fd input(ends[1]);
  std::string ranks;
  for (int rank : options.ranks) ranks += fmt::format("{}{}", ranks.empty() ? "" : ",", rank);
  std::vector<std::string> arguments = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                        "--child",
                                        options.scenario,
                                        to_hex(options.id),
                                        std::to_string(options.nranks),
                                        ranks,
                                        std::to_string(options.argument),
                                        std::to_string(options.timeout_milliseconds)};
  if (options.number_elsewhere != 0) {
    // The shell's next child has the number. It does not become the program itself.
    std::vector<std::string> shell = {"sh", "-c",
                                      "echo $0 > /proc/sys/kernel/ns_last_pid && \"$@\"; exit $?",
                                      std::to_string(options.number_elsewhere - 1)};
    shell.insert(shell.end(), arguments.begin(), arguments.end());
    arguments = elsewhere(shell);
  }
  pid_ = fork();
  if (pid_ != 0) return;
  dup2(input.get(), STDOUT_FILENO);
  execute(std::move(arguments));
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      output_(std::move(other.output_)),
      buffer_(std::move(other.buffer_)) {}

Child::~Child() {
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::string Child::line(std::chrono::milliseconds patience) {
  const Deadline deadline = Deadline::after(patience);
  while (true) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    pollfd ready{.fd = output_.get(), .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, deadline.poll_milliseconds(60'000)) <= 0) return {};
    char bytes[4096];
    const ssize_t got = read(output_.get(), bytes, sizeof bytes);
    if (got <= 0) return {};
    buffer_.append(bytes, static_cast<size_t>(got));
  }
}

std::vector<std::string> Child::rest() {
  std::vector<std::string> lines;
  for (std::string next = line(); !next.empty(); next = line()) lines.push_back(next);
  return lines;
}

void Child::stop() { kill(pid_, SIGSTOP); }

void Child::go_on() { kill(pid_, SIGCONT); }

void Child::kill_hard() { kill(pid_, SIGKILL); }

int Child::wait() {
  int status = 0;
  waitpid(std::exchange(pid_, 0), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace niccolite::bootstrap

int main(int argc, char** argv) {
  using namespace niccolite::bootstrap;
  if (argc == 8 && std::strcmp(argv[1], "--child") == 0) {
    ChildOptions options{.scenario = argv[2],
                         .id = from_hex(argv[3]),
                         .nranks = std::atoi(argv[4]),
                         .ranks = {},
                         .argument = std::atoi(argv[6]),
                         .timeout_milliseconds = std::atoi(argv[7])};
    std::string_view ranks = argv[5];
    while (!ranks.empty()) {
      const size_t comma = std::min(ranks.find(','), ranks.size());
      int rank = 0;
      std::from_chars(ranks.data(), ranks.data() + comma, rank);
      options.ranks.push_back(rank);
      ranks.remove_prefix(std::min(comma + 1, ranks.size()));
    }
    return run_scenario(options);
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
