// Profiler: a profiler plug-in (NCCL_PROFILER_PLUGIN) as one communicator of one rank sees it:
// events go in, tables of all versions come out (profiler_abi.h). If a plug-in returns an error,
// the event is lost; if it throws, it is not called again. One line tells of that, and the job goes
// on. Thread safety: any thread, as plug-ins must be. Nothing here waits, except for the plug-in
// itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace niccolite::observe {

/// A plug-in's handle of an event; null: it does not want this event.
using ProfilerHandle = void*;

class Profiler {
 public:
  struct Communicator {
    uint64_t id = 0;
    std::string name;  // ncclConfig_t::commName; empty: none
    int nodes = 1, ranks = 1, rank = 0;
  };
  /// Names are constants, or live as long as the process: plug-ins keep the pointers.
  struct Call {
    const char* function = "";  // "AllReduce", "Send"
    const char* type = "";      // "ncclFloat32"
    size_t count = 0;
    int root = 0;
    void* stream = nullptr;
    bool is_captured = false;
  };
  struct Collective {
    Call call;
    const void* input = nullptr;
    void* output = nullptr;
    uint64_t sequence = 0;  // among the live ones of this function and communicator
    const char *algorithm = "", *protocol = "";
    uint8_t channels = 0, warps = 0;
    int function_number = 0, type_number = 0;  // of plug-ins of version 1
  };
  struct Message {
    Call call;
    void* buffer = nullptr;
    int peer = 0;
    uint8_t channels = 0;
    int function_number = 0, type_number = 0;
  };

  /// The plug-in that NCCL_PROFILER_PLUGIN names, the same for all communicators of the process;
  /// null: none, or it refuses.
  static std::shared_ptr<Profiler> open(const Communicator& of);
  /// Is there such a plug-in?
  static bool has_plugin();
  virtual ~Profiler() = default;

  /// Does the plug-in want such events (abi::Kind), or events below them?
  virtual bool wants(uint32_t kind) const = 0;

  virtual ProfilerHandle start_group_call(bool is_captured, int depth) = 0;
  virtual ProfilerHandle start_collective_call(ProfilerHandle group_call, const Call& call) = 0;
  virtual ProfilerHandle start_message_call(ProfilerHandle group_call, const Call& call) = 0;
  virtual ProfilerHandle start_launch(ProfilerHandle group_call, void* stream) = 0;
  virtual ProfilerHandle start_group() = 0;
  virtual ProfilerHandle start(ProfilerHandle call, ProfilerHandle group, const Collective& of) = 0;
  virtual ProfilerHandle start(ProfilerHandle call, ProfilerHandle group, const Message& of) = 0;
  /// One channel of the kernel of an operation; `timer` in nanoseconds.
  virtual ProfilerHandle start_channel(ProfilerHandle operation, int channel, uint64_t timer) = 0;
  virtual void stop_channel(ProfilerHandle channel, uint64_t timer) = 0;
  /// One operation's share of a connection's channel that a proxy carries.
  struct ProxyShare {
    int channel = 0, peer = 0, steps = 0, chunk_bytes = 0;
    bool is_send = false;
  };
  virtual ProfilerHandle start_proxy_operation(ProfilerHandle operation, const ProxyShare& of) = 0;
  virtual ProfilerHandle start_proxy_step(ProfilerHandle proxy_operation, int step) = 0;
  /// abi::kProxyStep..., with the bytes that are moved.
  virtual void record_step(ProfilerHandle step, int state, size_t bytes) = 0;
  /// abi::kProxyControl...: an event of its own for each.
  virtual void tell_proxy_state(int state, int appended) = 0;
  /// Starts an event that a network plug-in reports on a step; `layout` and `data` are its own.
  virtual ProfilerHandle start_network(ProfilerHandle step, int64_t layout, void* data) = 0;
  virtual void update_network(ProfilerHandle event, void* data) = 0;
  /// A state without arguments: abi::kGroupStartStop, kGroupEndStart, kProxyOperationInProgress.
  virtual void record(ProfilerHandle handle, int state) = 0;
  virtual void stop(ProfilerHandle handle) = 0;
};

}  // namespace niccolite::observe
