#include "base/log.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/fd.h"
#include "base/forks.h"
#include "base/parameters.h"
#include "base/per_thread.h"

namespace niccolite::log {
namespace {

constexpr uint64_t kDefaultSubsystems = Init | Bootstrap | Env;
constexpr size_t kMostUnasked = 16;    // error lines of a process that has not asked for any
constexpr size_t kLongestLine = 1023;  // NCCL's; readers of its log have buffers of this size

struct Name {
  const char* name;
  uint64_t value;
};
// ATTN is NCCL's level between WARN and INFO. No line of this library has it.
constexpr Name kLevels[] = {{"NONE", 0}, {"VERSION", 1}, {"WARN", 2}, {"ATTN", 2},
                            {"INFO", 3}, {"ABORT", 4},   {"TRACE", 5}};
constexpr Name kSubsystems[] = {{"INIT", Init},
                                {"COLL", Coll},
                                {"P2P", P2p},
                                {"SHM", Shm},
                                {"NET", Net},
                                {"GRAPH", Graph},
                                {"TUNING", Tuning},
                                {"ENV", Env},
                                {"ALLOC", Alloc},
                                {"CALL", Call},
                                {"PROXY", Proxy},
                                {"NVLS", Nvls},
                                {"BOOTSTRAP", Bootstrap},
                                {"REG", Reg},
                                {"PROFILE", Profile},
                                {"RAS", Ras},
                                {"DESTROY", Destroy},
                                {"ALLOC_HOST", AllocHost},
                                {"ALL", All}};

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (std::toupper(static_cast<unsigned char>(a[i])) !=
        std::toupper(static_cast<unsigned char>(b[i])))
      return false;
  return true;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  return text;
}

// A comma list of names, with a leading ^ for "all but"; nullopt when a name is unknown.
template <size_t kCount>
std::optional<uint64_t> parse_bits(std::string_view text, const Name (&names)[kCount],
                                   uint64_t all) {
  const bool inverted = !text.empty() && text.front() == '^';
  if (inverted) text.remove_prefix(1);
  uint64_t bits = 0;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view token = trim(text.substr(0, comma));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    bool known = false;
    for (const Name& entry : names)
      if (equal_ignoring_case(token, entry.name)) {
        bits |= entry.value;
        known = true;
      }
    if (!known) return std::nullopt;
  }
  return inverted ? all & ~bits : bits;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  name[strcspn(name, ".")] = '\0';
  return name;
}

std::string expand_file_name(const std::string& pattern, std::string host) {
  for (char& c : host)
    if (c == '%' || c == '/') c = '-';
  std::string name;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      name += pattern[i];
      continue;
    }
    switch (pattern[++i]) {
      case 'h':
        name += host;
        break;
      case 'p':
        name += fmt::format("{}", getpid());
        break;
      case '%':
        name += '%';
        break;
      default:
        name += '%', name += pattern[i];
    }
  }
  return name;
}

// strftime with `_` for a blank and one %1f ... %9f for fractions of a second, as
// NCCL_DEBUG_TIMESTAMP_FORMAT allows.
std::string timestamp(std::string format) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  for (char& c : format)
    if (c == '_') c = ' ';
  for (size_t i = 0; i + 2 < format.size(); ++i)
    if (format[i] == '%' && format[i + 1] >= '1' && format[i + 1] <= '9' && format[i + 2] == 'f') {
      const std::string digits = fmt::format("{:09}", now.tv_nsec);
      format.replace(i, 3, digits.substr(0, static_cast<size_t>(format[i + 1] - '0')));
      break;
    }
  tm local{};
  localtime_r(&now.tv_sec, &local);
  char text[256];
  const size_t length = strftime(text, sizeof text, format.c_str(), &local);
  return std::string(text, length);
}

struct Settings {
  Level level = Level::None;
  bool unset = true;  // NCCL_DEBUG names no level: errors are then printed, each once, to stderr
  uint64_t subsystems = kDefaultSubsystems;
  uint64_t timestamp_levels = 1u << static_cast<int>(Level::Warn);
  std::string timestamp_format = "[%F %T] ";
  std::string host;
  std::shared_ptr<FILE> file;        // null: stdout
  std::vector<std::string> refused;  // refused values of variables; printed once read
};

// Does another descriptor of this process than `fd` have its file open?
bool is_open_elsewhere(int fd) {
  struct stat mine {};
  if (fstat(fd, &mine) != 0) return false;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    struct stat other {};
    // By name: the descriptor may be another thread's, which closes it meanwhile.
    if (entry->d_name[0] != '.' && atoi(entry->d_name) != fd &&
        fstatat(dirfd(folder.get()), entry->d_name, &other, 0) == 0 &&
        other.st_dev == mine.st_dev && other.st_ino == mine.st_ino)
      return true;
  }
  return false;
}

// Several libraries of a process may write to one file, each with a copy of this code. So lines are
// appended, and the copy that opens the file first empties it.
std::shared_ptr<FILE> open_file(const std::string& name) {
  static std::string emptied;  // by this copy; guarded by State::mutex
  Fd fd(open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd.valid()) return nullptr;
  const std::string mine = fmt::format("{} {}", getpid(), name);
  if (emptied != mine && !is_open_elsewhere(fd.get()) && ftruncate(fd.get(), 0) == 0)
    emptied = mine;  // pipes and terminals have nothing to empty
  FILE* file = fdopen(fd.get(), "a");
  if (file == nullptr) return nullptr;
  (void)fd.release();
  setvbuf(file, nullptr, _IOLBF, 0);
  return {file, fclose};
}

Settings read_settings() {
  parameters::load_files();
  const auto get = environment::get;
  Settings settings;
  settings.host = host_name();
  const auto refuse = [&settings](const char* name, const std::string& text, std::string_view why) {
    settings.refused.push_back(fmt::format("{}={} {}", name, text, why));
  };
  if (auto text = get("NCCL_DEBUG"); text && !trim(*text).empty()) {
    for (const Name& entry : kLevels)
      if (equal_ignoring_case(trim(*text), entry.name)) {
        settings.level = static_cast<Level>(entry.value);
        settings.unset = false;
      }
    if (settings.unset)
      refuse("NCCL_DEBUG", *text,
             "is none of NONE, VERSION, WARN, ATTN, INFO, ABORT, TRACE: taken as unset");
  }
  if (auto text = get("NCCL_DEBUG_SUBSYS")) {
    const auto bits = parse_bits(*text, kSubsystems, All);
    settings.subsystems = bits.value_or(kDefaultSubsystems);
    if (!bits)
      refuse("NCCL_DEBUG_SUBSYS", *text,
             "has a name that is no subsystem: INIT,BOOTSTRAP,ENV is taken");
  }
  if (auto text = get("NCCL_DEBUG_TIMESTAMP_LEVELS")) {
    constexpr Name kBits[] = {{"VERSION", 1 << 1},  {"WARN", 1 << 2},  {"ATTN", 0},
                              {"INFO", 1 << 3},     {"ABORT", 1 << 4}, {"TRACE", 1 << 5},
                              {"ALL", ~uint64_t{0}}};
    const auto bits = parse_bits(*text, kBits, ~uint64_t{0});
    settings.timestamp_levels = bits.value_or(settings.timestamp_levels);
    if (!bits)
      refuse("NCCL_DEBUG_TIMESTAMP_LEVELS", *text, "has a name that is no level: WARN is taken");
  }
  if (auto text = get("NCCL_DEBUG_TIMESTAMP_FORMAT")) {
    if (text->size() < 256) {
      settings.timestamp_format = *text;
    } else {
      refuse("NCCL_DEBUG_TIMESTAMP_FORMAT", *text,
             "has more than 255 characters: the default is taken");
    }
  }
  if (auto text = get("NCCL_DEBUG_FILE");
      text && !text->empty() && settings.level > Level::Version) {
    settings.file = open_file(expand_file_name(*text, settings.host));
    if (settings.file == nullptr)
      refuse("NCCL_DEBUG_FILE", *text,
             fmt::format("cannot be opened ({}): stdout is taken", strerror(errno)));
  }
  return settings;
}

struct State {
  std::mutex mutex;
  std::shared_ptr<const Settings> settings;  // null: read again at the next line; guarded by mutex
  std::string last_error;                    // guarded by mutex
  std::set<std::string> printed;             // guarded by mutex; at most kMostUnasked
  bool version_printed = false;              // guarded by mutex

  // A child made by fork() while another thread writes a line can write, too.
  State() { pthread_atfork(lock, unlock, unlock); }
  static void lock();
  static void unlock();
};

// Never destroyed: threads may log while the process ends.
State& state() {
  static State* const instance = new State;
  return *instance;
}

void State::lock() { state().mutex.lock(); }
void State::unlock() { state().mutex.unlock(); }

// A copy of the settings that enabled() needs, so that a disabled line costs one load. kUnread: the
// settings must be read first.
constexpr int kUnread = -1;
std::atomic<int> cached_level{kUnread};
std::atomic<uint64_t> cached_subsystems{0};
std::atomic<int (*)()> device_source{nullptr};

constexpr int kCurrent = -1;
thread_local int spoken_for = kCurrent;  // ScopedDevice

int device_of_line() {
  if (spoken_for != kCurrent) return spoken_for;
  if (forks::is_orphan()) return 0;
  // Acquire: a function; nothing else is published.
  int (*source)() = device_source.load(std::memory_order_acquire);
  return source != nullptr ? source() : 0;
}

/// "ncclX: ..." and "ncclX : ..." of ncclX itself.
bool begins_with(std::string_view text, std::string_view function) {
  if (!text.starts_with(function)) return false;
  text.remove_prefix(function.size());
  return text.starts_with(":") || text.starts_with(" :");
}

std::shared_ptr<const Settings> settings() {
  std::unique_lock lock(state().mutex);
  if (state().settings != nullptr) return state().settings;
  auto read = std::make_shared<const Settings>(read_settings());
  state().settings = read;
  cached_subsystems.store(read->subsystems, std::memory_order_relaxed);
  // [release] the subsystems, to enabled().
  cached_level.store(static_cast<int>(read->level), std::memory_order_release);
  lock.unlock();
  environment::write_notes();
  for (const std::string& text : read->refused) LOG(Warn, Env, "{}", text);
  return read;
}

const char* relative_to_source(const char* file) {
  const char* found = strstr(file, "/src/");
  return found != nullptr ? found + 5 : file;
}

const char* name_of_level(Level level) {
  switch (level) {
    case Level::Warn:
      return "WARN";
    case Level::Info:
      return "INFO";
    case Level::Abort:
      return "ABORT";
    case Level::Trace:
      return "TRACE";
    case Level::None:
    case Level::Version:
      break;
  }
  return "VERSION";
}

}  // namespace

bool enabled(Level level, uint64_t subsystems) {
  if (level == Level::Warn) return true;  // kept as the last error even when it is not printed
  int current =
      cached_level.load(std::memory_order_acquire);  // pairs with the release in settings()
  if (current == kUnread) current = static_cast<int>(settings()->level);
  return current >= static_cast<int>(level) &&
         (cached_subsystems.load(std::memory_order_relaxed) & subsystems) != 0;
}

void write(Level level, SourceLocation place, const char* function, const std::string& text,
           Unasked how) {
  const auto current = settings();
  std::unique_lock lock(state().mutex);
  if (level == Level::Warn) state().last_error = text.substr(0, kLongestLine);
  const bool unasked = level == Level::Warn && current->unset &&
                       (how == Unasked::Always || (state().printed.size() < kMostUnasked &&
                                                   state().printed.insert(text).second));
  lock.unlock();
  if (!unasked && (level > current->level || current->subsystems == 0)) return;
  std::string line;
  if (level == Level::Warn) line += '\n';
  if ((current->timestamp_levels >> static_cast<int>(level) & 1) != 0 &&
      !current->timestamp_format.empty())
    line += timestamp(current->timestamp_format);
  line +=
      fmt::format("{}:{}:{} [{}] ", current->host, getpid(), syscall(SYS_gettid), device_of_line());
  if (level == Level::Warn) {
    line += fmt::format("{}:{} ", relative_to_source(place.file), place.line);
    if (!begins_with(text, function)) line += fmt::format("({}) ", function);
  }
  line += fmt::format("NCCL {} {}", name_of_level(level), text);
  if (line.size() > kLongestLine - 1) line.resize(kLongestLine - 1);
  line += '\n';
  FILE* file = unasked ? stderr : current->file ? current->file.get() : stdout;
  fwrite(line.data(), 1, line.size(),
         file);  // one call: stdio locks the stream, so that the line stays whole
  fflush(file);
}

void error(const Status& status, const char* call) {
  write(Level::Warn, status.place(), call, status.message());
}

void keep_error(const Status& status) {
  if (status.is_ok()) return;
  std::lock_guard lock(state().mutex);
  state().last_error = status.message().substr(0, kLongestLine);
}

void version_line(const std::string& text, const std::string& details, bool first_rank) {
  const auto current = settings();
  {
    std::lock_guard lock(state().mutex);
    if (state().version_printed || current->level < Level::Version) return;
    if (current->level < Level::Info && !first_rank) return;
    state().version_printed = true;
  }
  if (current->level >= Level::Info) {
    if ((current->subsystems & Init) == 0) return;
    write(Level::Info, {"", 0}, "", text);
    write(Level::Info, {"", 0}, "", details);
    return;
  }
  FILE* file = current->file ? current->file.get() : stdout;
  fputs((text + "\n").c_str(), file);
  fflush(file);
}

const char* last_error() {
  struct Copy {
    std::string text;
  };
  std::string& copy = PerThread<Copy>::get().text;
  std::lock_guard lock(state().mutex);
  copy = state().last_error;
  return copy.c_str();
}

void reset() {
  std::lock_guard lock(state().mutex);
  state().settings = nullptr;
  cached_level.store(kUnread, std::memory_order_relaxed);  // the next reader takes the mutex
}

ScopedDevice::ScopedDevice(int device) : previous_(std::exchange(spoken_for, device)) {}
ScopedDevice::~ScopedDevice() { spoken_for = previous_; }

void set_device_source(int (*current_device)()) {
  device_source.store(current_device, std::memory_order_release);
}

}  // namespace niccolite::log
