// Plug-ins that misbehave, or are of old versions, by what they were compiled as: HOSTILE_PROFILER
// and HOSTILE_TUNER are versions. The variable HOSTILE says how they misbehave. With HOSTILE_LATE a
// table is complete when init returns.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "observe/profiler_abi.h"
#include "planner/plugins/tuner_abi.h"

namespace {

[[maybe_unused]] bool does(const char* what) {
  const char* const wanted = std::getenv("HOSTILE");
  return wanted != nullptr && std::strcmp(wanted, what) == 0;
}

#define EXPORTED extern "C" __attribute__((visibility("default")))
#define NAME_OF(prefix, version) prefix##version
#define NAME(prefix, version) NAME_OF(prefix, version)

#ifdef HOSTILE_LATE
#define TABLE
void complete_table();
#else
#define TABLE const
[[maybe_unused]] void complete_table() {}
#endif

#ifdef HOSTILE_PROFILER
namespace abi = niccolite::observe::abi;
using Descriptor = abi::Descriptor<HOSTILE_PROFILER>;

struct Event {
  explicit Event(std::string of) : kind(std::move(of)) {}
  std::string kind;
};

int init(void** context) {
  complete_table();
  if (does("init fails")) return 3;
  if (does("init throws")) throw std::runtime_error("init");
  *context = does("no context") ? nullptr : context;
  return 0;
}
// The mask stands at another place before version 5.
#if HOSTILE_PROFILER >= 5
int init_of_table(void** context, uint64_t, int* mask, const char*, int, int, int,
                  niccolite::PluginLibrary::Logger) {
#elif HOSTILE_PROFILER == 4
int init_of_table(void** context, int* mask, const char*, uint64_t, int, int, int,
                  niccolite::PluginLibrary::Logger) {
#else
int init_of_table(void** context, int* mask) {
#endif
  *mask = does("mask lies") ? -1 : 0xfff;
  return init(context);
}

std::string describe(const Descriptor& of) {
  char text[200] = "";
#if HOSTILE_PROFILER == 1
  if (of.type == abi::kCollective)
    std::snprintf(text, sizeof text, "function %d type %d count %zu", of.collective.function,
                  of.collective.type, of.collective.count);
  if (of.type == abi::kMessage)
    std::snprintf(text, sizeof text, "function %d peer %d", of.message.function, of.message.peer);
#else
  if (of.type == abi::kCollective)
    std::snprintf(text, sizeof text, "%s %s count %zu %s", of.collective.function,
                  of.collective.type, of.collective.count, of.collective.protocol);
  if (of.type == abi::kMessage)
    std::snprintf(text, sizeof text, "%s peer %d", of.message.function, of.message.peer);
#endif
  return text;
}

// Others may hang below an event: all of them are kept. Not made by the first thread that needs
// them, since a sanitizer that has not instrumented this file does not see who waits for that.
std::mutex events_mutex;
std::deque<Event>& events = *new std::deque<Event>;

int start(void*, void** handle, Descriptor* of) {
  if (does("start fails")) return 3;
  if (does("start throws")) throw std::runtime_error("start");
  if (does("start gives nothing")) return 0;
  std::lock_guard lock(events_mutex);
  Event* const event = &events.emplace_back(std::to_string(of->type));
  const std::string parent = of->parent == nullptr ? "none" : static_cast<Event*>(of->parent)->kind;
  std::printf("EVENT %s below %s: %s\n", event->kind.c_str(), parent.c_str(),
              describe(*of).c_str());
  *handle = event;
  return 0;
}
int stop(void*) {
  if (does("stop fails")) return 3;
  if (does("stop throws")) throw std::runtime_error("stop");
  return 0;
}
int record(void*, int, abi::StateArguments*) {
  if (does("record throws")) throw std::runtime_error("record");
  return 0;
}
int finalize(void*) {
  if (does("finalize throws")) throw std::runtime_error("finalize");
  std::printf("FINALIZED\n");
  return 0;
}
#endif

}  // namespace

#ifdef HOSTILE_PROFILER
EXPORTED TABLE abi::Table<HOSTILE_PROFILER> NAME(ncclProfiler_v, HOSTILE_PROFILER);
TABLE abi::Table<HOSTILE_PROFILER> NAME(ncclProfiler_v, HOSTILE_PROFILER) = {
#ifdef HOSTILE_LATE
    "hostile", init_of_table};
namespace {
void complete_table() {
  NAME(ncclProfiler_v, HOSTILE_PROFILER) = {"hostile", init_of_table, start,
                                            stop,      record,        finalize};
}
}  // namespace
#else
    "hostile", init_of_table, start, stop, record, finalize};
#endif
#endif

#ifdef HOSTILE_TUNER
namespace {
namespace tuner = niccolite::planner::abi;

int begin(void** context) {
  complete_table();
  if (does("init fails")) return 3;
  if (does("init throws")) throw std::runtime_error("init");
  *context = context;
  return 0;
}
[[maybe_unused]] int init_tuner(size_t, size_t, niccolite::PluginLibrary::Logger, void** context) {
  return begin(context);
}
[[maybe_unused]] int init_tuner_of_communicator(void** context, uint64_t, size_t ranks,
                                                size_t nodes, niccolite::PluginLibrary::Logger,
                                                tuner::Domains* domains,
                                                tuner::Constants* constants) {
  std::printf("TOLD %zu ranks on %zu nodes, %d domains of %d to %d, hop %.2f\n", ranks, nodes,
              domains->count, domains->least_ranks, domains->most_ranks,
              constants->hardware_latencies[0][tuner::kRing][tuner::kLL128]);
  if (does("constants change")) constants->base_latencies[tuner::kRing][0] = 1;
  return begin(context);
}
// False: it fails.
bool answer(float** costs, int* channels) {
  auto& table = *reinterpret_cast<tuner::CostTable*>(costs);
  if (does("choose fails")) return false;
  if (does("choose throws")) throw std::runtime_error("choose");
  for (auto& row : table)
    for (float& cost : row)
      if (does("nothing is left")) cost = does("not a number") ? 0.0f / 0.0f : -1;
  if (does("wants what is not there")) table[tuner::kCollnetChain][tuner::kLL] = 0;
  if (does("channels lie")) *channels = -5;
  if (does("many channels")) *channels = 1000;
  if (does("ring")) {
    table[tuner::kRing][tuner::kSimple] = 0;
    *channels = 2;
  }
  return true;
}
[[maybe_unused]] int choose_two(void*, int, size_t, int, int, int, int* algorithm, int* protocol,
                                int* channels) {
  if (!does("ring")) return 0;
  *algorithm = tuner::kRing;
  *protocol = tuner::kSimple;
  *channels = 2;
  return 0;
}
[[maybe_unused]] int choose_three(void*, int, size_t, int, float** costs, int, int, int* channels) {
  return answer(costs, channels) ? 0 : 3;
}
[[maybe_unused]] int choose_four(void*, int, size_t, int, float** costs, int, int, int,
                                 int* channels) {
  return answer(costs, channels) ? 0 : 3;
}
[[maybe_unused]] int chunk(void*, int, size_t, int, int, int, size_t* bytes) {
  if (does("chunk throws")) throw std::runtime_error("chunk");
  if (does("small chunks")) *bytes = 1;
  return 0;
}
int finalize_tuner(void*) {
  if (does("finalize throws")) throw std::runtime_error("finalize");
  std::printf("FINALIZED\n");
  return 0;
}
}  // namespace
EXPORTED TABLE tuner::Table<HOSTILE_TUNER> NAME(ncclTunerPlugin_v, HOSTILE_TUNER);
#ifdef HOSTILE_LATE
TABLE tuner::Table<HOSTILE_TUNER> NAME(ncclTunerPlugin_v, HOSTILE_TUNER) = {
    "hostile", init_tuner_of_communicator};
namespace {
void complete_table() {
  NAME(ncclTunerPlugin_v, HOSTILE_TUNER) = {"hostile", init_tuner_of_communicator, choose_four,
                                            finalize_tuner, chunk};
}
}  // namespace
#else
TABLE tuner::Table<HOSTILE_TUNER> NAME(ncclTunerPlugin_v, HOSTILE_TUNER) = {
    "hostile",
#if HOSTILE_TUNER >= 5
    init_tuner_of_communicator,
#else
    init_tuner,
#endif
#if HOSTILE_TUNER == 2
    choose_two,
#elif HOSTILE_TUNER == 3
    choose_three,
#else
    choose_four,
#endif
    finalize_tuner,
#if HOSTILE_TUNER >= 6
    chunk,
#endif
};
#endif
#endif

#ifdef HOSTILE_ENV
namespace {
int init_env(uint8_t, uint8_t, uint8_t, const char*) {
  complete_table();
  if (does("init throws")) throw std::runtime_error("init");
  return does("init fails") ? 3 : 0;
}
int finalize_env() { return 0; }
const char* get_env(const char* name) {
  if (does("get throws")) throw std::runtime_error("get");
  if (std::strcmp(name, "NCCL_MIN_CTAS") == 0) return "2";
  return std::getenv(name);
}
struct EnvTable {
  const char* name;
  int (*init)(uint8_t, uint8_t, uint8_t, const char*);
  int (*finalize)();
  const char* (*get)(const char*);
};
}  // namespace
EXPORTED TABLE EnvTable ncclEnvPlugin_v1;
#ifdef HOSTILE_LATE
TABLE EnvTable ncclEnvPlugin_v1 = {"hostile", init_env, nullptr, nullptr};
namespace {
void complete_table() { ncclEnvPlugin_v1 = {"hostile", init_env, finalize_env, get_env}; }
}  // namespace
#else
TABLE EnvTable ncclEnvPlugin_v1 = {"hostile", init_env, finalize_env, get_env};
#endif
#endif
