#include "observe/profiler.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <type_traits>
#include <utility>

#include "base/log.h"
#include "base/parameters.h"
#include "base/plugin_library.h"
#include "observe/profiler_abi.h"

namespace niccolite::observe {
namespace {

using abi::Descriptor;
using Handle = ProfilerHandle;

// An event is made if the plug-in wants it, or wants an event below it.
constexpr uint32_t kBelowProxyOperation = abi::kProxyStep | abi::kNetPlugin;
constexpr uint32_t kBelowOperation =
    abi::kProxyOperation | kBelowProxyOperation | abi::kKernelChannel;

constexpr uint32_t with_those_below(uint32_t kind) {
  switch (kind) {
    case abi::kProxyStep:
      return kind | abi::kNetPlugin;
    case abi::kProxyOperation:
      return kind | kBelowProxyOperation;
    case abi::kCollective:
    case abi::kMessage:
      return kind | kBelowOperation;
    case abi::kCollectiveCall:
      return kind | abi::kCollective | kBelowOperation;
    case abi::kMessageCall:
      return kind | abi::kMessage | kBelowOperation;
    case abi::kGroup:
      return kind | abi::kCollective | abi::kMessage | kBelowOperation;
    case abi::kGroupCall:
      return kind | abi::kCollectiveCall | abi::kMessageCall | abi::kKernelLaunch |
             abi::kCollective | abi::kMessage | kBelowOperation;
    default:
      return kind;
  }
}

template <int V>
constexpr uint32_t known_kinds() {
  constexpr uint32_t kFirst = abi::kGroup | abi::kCollective | abi::kMessage |
                              abi::kProxyOperation | abi::kProxyStep | abi::kProxyControl;
  if constexpr (V < 3) return kFirst;
  if constexpr (V < 5) return kFirst | abi::kKernelChannel | abi::kNetPlugin;
  return kFirst | abi::kKernelChannel | abi::kNetPlugin | abi::kGroupCall | abi::kCollectiveCall |
         abi::kMessageCall | abi::kKernelLaunch;
}

template <int V>
class Plugin final : public Profiler {
 public:
  Plugin(std::shared_ptr<PluginLibrary> library, const abi::Table<V>& table, Communicator of)
      : library_(std::move(library)), table_(table), of_(std::move(of)) {
    const char* const name = table.name != nullptr ? table.name : "without a name";
    origin_ = fmt::format("{} ({}, ncclProfiler_v{})", name, library_->file(), V);
  }
  ~Plugin() override {
    // A plug-in that is switched off leaves its context null, and expects no call of finalize.
    if (!is_initialized_ || context_ == nullptr || table_.finalize == nullptr) return;
    guard("finalize", [&] { return table_.finalize(context_); });
  }

  bool init() {
    if (table_.init == nullptr) return give_up("its table has no init"), false;
    int result = 0;
    const char* const name = of_.name.empty() ? nullptr : of_.name.c_str();
    try {
      if constexpr (V >= 5)
        result = table_.init(&context_, of_.id, &mask_, name, of_.nodes, of_.ranks, of_.rank,
                             PluginLibrary::kLogger);
      else if constexpr (V == 4)
        result = table_.init(&context_, &mask_, name, of_.id, of_.nodes, of_.ranks, of_.rank,
                             PluginLibrary::kLogger);
      else
        result = table_.init(&context_, &mask_);
    } catch (...) {
      return give_up("init threw an exception"), false;
    }
    if (result != 0) return give_up(fmt::format("init failed with result {}", result)), false;
    is_initialized_ = true;
    // Some plug-ins complete their table there.
    const std::pair<const char*, bool> members[] = {{"startEvent", table_.start != nullptr},
                                                    {"stopEvent", table_.stop != nullptr},
                                                    {"recordEventState", table_.record != nullptr}};
    for (const auto& [member, is_there] : members)
      if (!is_there) return give_up(fmt::format("its table has no {}", member)), false;
    LOG(Info, Profile, "PROFILER/Plugin: {} profiles rank {} of communicator 0x{:x}", origin_,
        of_.rank, of_.id);
    return true;
  }

  bool wants(uint32_t kind) const override {
    if ((known_kinds<V>() & kind) == 0 || is_given_up_.load(std::memory_order_relaxed))
      return false;
    // relaxed: plug-ins change their mask whenever they like; nothing is published with it.
    const int mask = std::atomic_ref(mask_).load(std::memory_order_relaxed);
    return (static_cast<uint32_t>(mask) & known_kinds<V>() & with_those_below(kind)) != 0;
  }

  Handle start_group_call(bool is_captured, int depth) override {
    Descriptor<V> event = make(abi::kGroupCall, nullptr);
    event.group_call = {.is_captured = is_captured, .depth = depth};
    return start_event(event);
  }
  Handle start_collective_call(Handle group_call, const Call& call) override {
    Descriptor<V> event = make(abi::kCollectiveCall, group_call);
    event.collective_call = {.function = call.function,
                             .count = call.count,
                             .type = call.type,
                             .root = call.root,
                             .stream = call.stream,
                             .is_captured = call.is_captured};
    return start_event(event);
  }
  Handle start_message_call(Handle group_call, const Call& call) override {
    Descriptor<V> event = make(abi::kMessageCall, group_call);
    event.message_call = {.function = call.function,
                          .count = call.count,
                          .type = call.type,
                          .stream = call.stream,
                          .is_captured = call.is_captured};
    return start_event(event);
  }
  Handle start_launch(Handle group_call, void* stream) override {
    Descriptor<V> event = make(abi::kKernelLaunch, group_call);
    event.launch = {.stream = stream};
    return start_event(event);
  }
  Handle start_group() override {
    Descriptor<V> event = make(abi::kGroup, nullptr);
    return start_event(event);
  }
  Handle start(Handle call, Handle group, const Collective& of) override {
    Descriptor<V> event = make(abi::kCollective, V >= 5 ? call : group);
    auto& to = event.collective;
    to = {};
    if constexpr (V <= 3) to.communicator = 0;  // as NCCL's adapters to these versions leave them
    to.sequence = of.sequence;
    to.input = of.input;
    to.output = of.output;
    to.count = of.call.count;
    to.root = of.call.root;
    to.channels = of.channels;
    to.warps = of.warps;
    if constexpr (V == 1) {
      to.function = static_cast<uint8_t>(of.function_number);
      to.type = static_cast<uint8_t>(of.type_number);
    } else {
      to.function = of.call.function;
      to.type = of.call.type;
      to.algorithm = of.algorithm;
      to.protocol = of.protocol;
    }
    if constexpr (V >= 5) to.group = group;
    return start_event(event);
  }
  Handle start(Handle call, Handle group, const Message& of) override {
    Descriptor<V> event = make(abi::kMessage, V >= 5 ? call : group);
    auto& to = event.message;
    to = {};
    if constexpr (V == 1) {
      to.function = static_cast<uint8_t>(of.function_number);
      to.type = static_cast<uint8_t>(of.type_number);
    } else {
      to.function = of.call.function;
      to.type = of.call.type;
    }
    to.buffer = of.buffer;
    to.count = of.call.count;
    to.peer = of.peer;
    if constexpr (V >= 4) to.channels = of.channels;
    if constexpr (V >= 5) to.group = group;
    return start_event(event);
  }
  Handle start_channel(Handle operation, int channel, uint64_t timer) override {
    Descriptor<V> event = make(abi::kKernelChannel, operation);
    event.channel = {};
    event.channel.channel = static_cast<uint8_t>(channel);
    if constexpr (V >= 4) event.channel.timer = timer;
    return start_event(event);
  }
  void stop_channel(Handle channel, uint64_t timer) override {
    if (channel == nullptr) return;
    if constexpr (V >= 4) {
      abi::StateArguments arguments{};
      arguments.timer = timer;
      guard("recordEventState",
            [&] { return table_.record(channel, abi::kKernelChannelStop, &arguments); });
    }
    stop(channel);
  }
  Handle start_proxy_operation(Handle operation, const ProxyShare& of) override {
    Descriptor<V> event = make(abi::kProxyOperation, operation);
    event.proxy_operation = {.pid = getpid(),
                             .channel = static_cast<uint8_t>(of.channel),
                             .peer = of.peer,
                             .steps = of.steps,
                             .chunk_bytes = of.chunk_bytes,
                             .is_send = of.is_send ? 1 : 0};
    return start_event(event);
  }
  Handle start_proxy_step(Handle proxy_operation, int step) override {
    Descriptor<V> event = make(abi::kProxyStep, proxy_operation);
    event.proxy_step = {.step = step};
    return start_event(event);
  }
  void record_step(Handle step, int state, size_t bytes) override {
    abi::StateArguments arguments{};
    arguments.transferred_bytes = bytes;
    record_with(step, state, arguments);
  }
  void tell_proxy_state(int state, int appended) override {
    Descriptor<V> event = make(abi::kProxyControl, nullptr);
    const Handle handle = start_event(event);
    abi::StateArguments arguments{};
    arguments.appended = appended;
    record_with(handle, state, arguments);
    stop(handle);
  }
  Handle start_network(Handle step, int64_t layout, void* data) override {
    Descriptor<V> event = make(abi::kNetPlugin, step);
    event.net = {.id = layout, .data = data};
    return start_event(event);
  }
  void update_network(Handle event, void* data) override {
    if constexpr (V < 4) return;  // whose states have no place for it
    abi::StateArguments arguments{};
    arguments.net = data;
    record_with(event, abi::kNetPluginUpdate, arguments);
  }
  // States that came with version 4 are none of older ones.
  void record(Handle handle, int state) override {
    if (handle == nullptr || (V < 4 && state >= abi::kProxyOperationInProgress)) return;
    guard("recordEventState", [&] { return table_.record(handle, state, nullptr); });
  }
  void stop(Handle handle) override {
    if (handle == nullptr) return;
    guard("stopEvent", [&] { return table_.stop(handle); });
  }

 private:
  Descriptor<V> make(uint32_t kind, Handle parent) const {
    Descriptor<V> event{};
    event.type = static_cast<typename Descriptor<V>::Type>(kind);
    event.parent = parent;
    event.rank = of_.rank;
    return event;
  }
  void record_with(Handle handle, int state, abi::StateArguments& arguments) {
    if (handle == nullptr) return;
    guard("recordEventState", [&] { return table_.record(handle, state, &arguments); });
  }
  Handle start_event(Descriptor<V>& event) {
    if (!wants(static_cast<uint32_t>(event.type))) return nullptr;
    Handle handle = nullptr;
    const bool is_started =
        guard("startEvent", [&] { return table_.start(context_, &handle, &event); });
    return is_started ? handle : nullptr;
  }

  // False: the event is lost.
  template <typename Function>
  bool guard(const char* call, Function&& function) {
    if (is_given_up_.load(std::memory_order_relaxed)) return false;
    try {
      const int result = function();
      if (result == 0) return true;
      // relaxed: it only keeps the warning from being repeated.
      if (!has_warned_.exchange(true, std::memory_order_relaxed))
        LOG(Warn, Profile,
            "profiler plug-in {}: {} failed with result {} on rank {}: events that it refuses are "
            "missing from its profile",
            origin_, call, result, of_.rank);
    } catch (...) {
      give_up(fmt::format("{} threw an exception", call));
    }
    return false;
  }
  void give_up(const std::string& what) {
    if (is_given_up_.exchange(true, std::memory_order_relaxed)) return;
    LOG(Warn, Profile,
        "profiler plug-in {}: {}; nothing more is profiled on rank {} of communicator 0x{:x}. Use "
        "another build of it, or unset NCCL_PROFILER_PLUGIN",
        origin_, what, of_.rank, of_.id);
  }

  const std::shared_ptr<PluginLibrary> library_;
  const abi::Table<V>& table_;
  const Communicator of_;
  std::string origin_;
  void* context_ = nullptr;
  mutable int mask_ = 0;  // the plug-in's, which keeps its address
  bool is_initialized_ = false;
  std::atomic<bool> has_warned_{false}, is_given_up_{false};
};

constexpr char kPrefix[] = "libnccl-profiler";

template <int V = abi::kNewest>
std::shared_ptr<Profiler> open_table(const std::shared_ptr<PluginLibrary>& library,
                                     const Profiler::Communicator& of) {
  if constexpr (V < abi::kOldest) {
    return nullptr;
  } else {
    const void* const symbol = library->find(fmt::format("ncclProfiler_v{}", V));
    if (symbol == nullptr) return open_table<V - 1>(library, of);
    auto plugin =
        std::make_shared<Plugin<V>>(library, *static_cast<const abi::Table<V>*>(symbol), of);
    return plugin->init() ? std::shared_ptr<Profiler>(std::move(plugin)) : nullptr;
  }
}

bool has_table(const PluginLibrary& library) {
  for (int version = abi::kNewest; version >= abi::kOldest; --version)
    if (library.find(fmt::format("ncclProfiler_v{}", version)) != nullptr) return true;
  return false;
}

// Finds the library once per process: the profiler's own, or the library of the network plug-in.
std::shared_ptr<PluginLibrary> find_library() {
  const std::string& name = parameters::profiler_plugin();
  if (PluginLibrary::is_none(name)) return nullptr;
  std::string why;
  if (auto library = PluginLibrary::open(kPrefix, name, why)) {
    if (has_table(*library)) return library;
    why = fmt::format("it has none of the symbols ncclProfiler_v{} to ncclProfiler_v{}",
                      abi::kOldest, abi::kNewest);
  }
  if (auto library = PluginLibrary::open_of_network())
    if (has_table(*library)) return library;
  if (!why.empty())
    LOG(Warn, Profile, "profiler plug-in {}: {}; nothing is profiled",
        PluginLibrary::describe(kPrefix, name, "NCCL_PROFILER_PLUGIN"), why);
  return nullptr;
}

}  // namespace

namespace {

// Never destroyed: threads may end after main().
const std::shared_ptr<PluginLibrary>& library_of_process() {
  static auto* const library = new std::shared_ptr<PluginLibrary>(find_library());
  return *library;
}

}  // namespace

bool Profiler::has_plugin() { return library_of_process() != nullptr; }

std::shared_ptr<Profiler> Profiler::open(const Communicator& of) {
  // Plug-ins expect one init at a time.
  static auto* const mutex = new std::mutex;
  if (!has_plugin()) return nullptr;
  std::lock_guard lock(*mutex);
  return open_table(library_of_process(), of);
}

}  // namespace niccolite::observe
