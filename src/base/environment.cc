#include "base/environment.h"

#include <fmt/core.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/plugin_library.h"

namespace niccolite::environment {
namespace {

// Both versions; the result is an ncclResult_t.
struct TableV1 {
  const char* name;
  int (*init)(uint8_t major, uint8_t minor, uint8_t patch, const char* suffix);
  int (*finalize)();
  const char* (*get)(const char* name);
};
struct TableV2 {
  const char* name;
  int (*init)(uint8_t major, uint8_t minor, uint8_t patch, const char* suffix,
              PluginLibrary::Logger log);
  int (*finalize)();
  const char* (*get)(const char* name);
};
static_assert(sizeof(TableV1) == 32 && sizeof(TableV2) == 32);

constexpr const char* kVariable = "NCCL_ENV_PLUGIN";

struct Note {
  log::Level level;
  uint64_t subsystem;
  std::string text;
};

struct State {
  std::once_flag opened;
  std::shared_ptr<PluginLibrary> library;
  std::string origin;
  int (*finalize)() = nullptr;
  // [release] all of the above, to get().
  std::atomic<const char* (*)(const char*)> get{nullptr};
  std::mutex mutex;
  std::vector<Note> notes;  // under mutex
};

// Never destroyed: threads may read variables while the process ends.
State& state() {
  static State* const instance = new State;
  return *instance;
}

// Written before the first variable is read.
std::optional<Version> library_version;
// True while the plug-in runs on this thread. Then variables that the plug-in reads and lines that
// it logs must not call the plug-in again, nor wait for the variable that the plug-in is looking
// up.
thread_local bool is_inside = false;

class Inside {
 public:
  Inside() { is_inside = true; }
  ~Inside() { is_inside = false; }
};

// Keeps the plug-in's lines for later, because the log itself may be asking for a variable.
__attribute__((format(printf, 5, 6))) void keep_line(int level, unsigned long flags, const char*,
                                                     int, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  note(static_cast<log::Level>(level), flags, text);
}

void give_up(const std::string& origin, const std::string& what) {
  note(log::Level::Warn, log::Env,
       fmt::format("environment plug-in {}: {}; the process environment serves instead. Use "
                   "another build of it, or unset {}",
                   origin, what, kVariable));
}

// Exits of the process: others may still read variables, which are the process's own then.
void finalize() {
  State& of = state();
  // acq_rel: from here on no new call enters the plug-in; calls under way finish.
  if (of.get.exchange(nullptr, std::memory_order_acq_rel) == nullptr) return;
  if (of.finalize == nullptr) return;
  try {
    Inside inside;
    of.finalize();
  } catch (...) {
    std::fputs("environment plug-in: finalize threw an exception\n", stderr);
  }
}

template <typename Table>
void start(const Table& table, int version) {
  State& of = state();
  of.origin = fmt::format("{} ({}, ncclEnvPlugin_v{})",
                          table.name != nullptr ? table.name : "without a name", of.library->file(),
                          version);
  if (table.init == nullptr) return give_up(of.origin, "its table has no init");
  const Version of_library = *library_version;
  int result = 0;
  try {
    Inside inside;
    if constexpr (std::is_same_v<Table, TableV2>)
      result = table.init(of_library.major, of_library.minor, of_library.patch, "", keep_line);
    else
      result = table.init(of_library.major, of_library.minor, of_library.patch, "");
  } catch (...) {
    return give_up(of.origin, "init threw an exception");
  }
  if (result != 0) return give_up(of.origin, fmt::format("init failed with result {}", result));
  // Some plug-ins complete their table there.
  if (table.get == nullptr) return give_up(of.origin, "its table has no getEnv");
  of.finalize = table.finalize;
  of.get.store(table.get, std::memory_order_release);
  std::atexit(finalize);
  note(log::Level::Info, log::Env, fmt::format("ENV/Plugin: {} gives the variables", of.origin));
}

void open_once() {
  State& of = state();
  const char* text = getenv(kVariable);
  const std::string name = text == nullptr ? "" : text;
  constexpr char kPrefix[] = "libnccl-env";
  if (PluginLibrary::is_none(name)) return;
  std::string why;
  of.library = PluginLibrary::open(kPrefix, name, why);
  if (of.library == nullptr) {
    if (!why.empty())
      give_up(PluginLibrary::describe(kPrefix, name, kVariable),
              fmt::format("dlopen cannot open it: {}", why));
    return;
  }
  if (const void* v2 = of.library->find("ncclEnvPlugin_v2"))
    return start(*static_cast<const TableV2*>(v2), 2);
  if (const void* v1 = of.library->find("ncclEnvPlugin_v1"))
    return start(*static_cast<const TableV1*>(v1), 1);
  give_up(of.library->file(), "it has neither ncclEnvPlugin_v2 nor ncclEnvPlugin_v1");
}

std::optional<std::string> of_process(const char* name) {
  const char* text = getenv(name);
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

}  // namespace

std::string origin() {
  // acquire: pairs with start().
  const auto ask = state().get.load(std::memory_order_acquire);
  return ask == nullptr ? "environment" : "environment plug-in " + state().origin;
}

void note(log::Level level, uint64_t subsystem, std::string text) {
  std::lock_guard lock(state().mutex);
  state().notes.push_back({level, subsystem, std::move(text)});
}

void note_once(log::Level level, uint64_t subsystem, std::string text) {
  if (library_version) note(level, subsystem, std::move(text));
}

void use_plugin(Version version) { library_version = version; }

void open_plugin() {
  if (is_inside || !library_version) return;
  std::call_once(state().opened, open_once);
}

std::optional<std::string> get(const char* name) {
  if (is_inside) return of_process(name);
  // acquire: pairs with start().
  const auto ask = state().get.load(std::memory_order_acquire);
  if (ask == nullptr) return of_process(name);
  try {
    Inside inside;
    const char* const text = ask(name);
    return text == nullptr ? std::nullopt : std::optional<std::string>(text);
  } catch (...) {
    // Done once: the plug-in is asked no more.
    if (state().get.exchange(nullptr, std::memory_order_acq_rel) != nullptr)
      give_up(state().origin, fmt::format("getEnv({}) threw an exception", name));
    return of_process(name);
  }
}

void write_notes() {
  std::vector<Note> notes;
  {
    std::lock_guard lock(state().mutex);
    notes.swap(state().notes);
  }
  for (const Note& one : notes)
    if (log::enabled(one.level, one.subsystem))
      log::write(one.level, {__FILE__, __LINE__}, "environment", one.text);
}

}  // namespace niccolite::environment
