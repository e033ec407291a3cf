// Plug-ins that misbehave, or are of old versions, by what they were compiled as: HOSTILE_PROFILER
// and HOSTILE_TUNER are versions. What they do is in the variable HOSTILE.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "observe/profiler_abi.h"

namespace {

[[maybe_unused]] bool does(const char* what) {
  const char* const wanted = std::getenv("HOSTILE");
  return wanted != nullptr && std::strcmp(wanted, what) == 0;
}

#define EXPORTED extern "C" __attribute__((visibility("default")))
#define NAME_OF(prefix, version) prefix##version
#define NAME(prefix, version) NAME_OF(prefix, version)

#ifdef HOSTILE_PROFILER
namespace abi = niccolite::observe::abi;
using Descriptor = abi::Descriptor<HOSTILE_PROFILER>;

struct Event {
  std::string kind;
};

int init(void** context) {
  if (does("init fails")) return 3;
  if (does("init throws")) throw std::runtime_error("init");
  *context = context;
  return 0;
}
// The mask stands at another place before version 5.
#if HOSTILE_PROFILER >= 5
int init_of_table(void** context, uint64_t, int* mask, const char*, int, int, int,
                  niccolite::PluginLibrary::Logger) {
#elif HOSTILE_PROFILER == 4
int init_of_table(void** context, int* mask, const char*, uint64_t, int, int, int,
                  niccolite::PluginLibrary::Logger){
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

int start(void*, void** handle, Descriptor* of) {
  if (does("start fails")) return 3;
  if (does("start throws")) throw std::runtime_error("start");
  if (does("start gives nothing")) return 0;
  auto* const event = new Event{std::to_string(of->type)};
  const std::string parent = of->parent == nullptr ? "none" : static_cast<Event*>(of->parent)->kind;
  std::printf("EVENT %s below %s: %s\n", event->kind.c_str(), parent.c_str(),
              describe(*of).c_str());
  *handle = event;  // never deleted: others may hang below it
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
EXPORTED const abi::Table<HOSTILE_PROFILER> NAME(ncclProfiler_v, HOSTILE_PROFILER);
const abi::Table<HOSTILE_PROFILER> NAME(ncclProfiler_v, HOSTILE_PROFILER) = {
    "hostile", init_of_table, start, stop, record, finalize};
#endif

#ifdef HOSTILE_ENV
namespace {
int init_env(uint8_t, uint8_t, uint8_t, const char*) {
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
EXPORTED const EnvTable ncclEnvPlugin_v1;
const EnvTable ncclEnvPlugin_v1 = {"hostile", init_env, finalize_env, get_env};
#endif
