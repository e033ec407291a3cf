// The binary interface of NCCL's profiler plug-ins, ncclProfiler_v1 to _v6: tables, descriptors of
// events, their states. Names are ours, layouts are theirs. Source: reference plugins §6.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/plugin_library.h"

namespace niccolite::observe::abi {

inline constexpr int kOldest = 1, kNewest = 6;

/// Kinds of events: bits of a descriptor's type and of the activation mask.
enum Kind : uint32_t {
  kGroup = 0x1,
  kCollective = 0x2,
  kMessage = 0x4,
  kProxyOperation = 0x8,
  kProxyStep = 0x10,
  kProxyControl = 0x20,
  kKernelChannel = 0x40,  // from v3
  kNetPlugin = 0x80,      // from v3
  kGroupCall = 0x100,     // this and the following: from v5
  kCollectiveCall = 0x200,
  kMessageCall = 0x400,
  kKernelLaunch = 0x800,
};

enum State : int {
  kProxyStepSendGpuWait = 8,
  kProxyStepSendWait = 9,
  kProxyStepReceiveWait = 10,
  kProxyStepReceiveGpuWait = 12,
  kProxyControlIdle = 13,
  kProxyControlActive = 14,
  kProxyControlSleep = 15,
  kProxyControlWakeup = 16,
  kProxyControlAppend = 17,
  kProxyControlAppendEnd = 18,
  kProxyOperationInProgress = 19,  // from v4
  kNetPluginUpdate = 21,
  kKernelChannelStop = 22,
  kGroupStartStop = 23,
  kGroupEndStart = 24,
};

/// State arguments; of v1 to v3 16 bytes, from v4 on the first 8 of them.
union StateArguments {
  size_t transferred_bytes;  // of a proxy's step
  int appended;
  void* net;
  uint64_t timer;  // of a kernel's channel: nanoseconds
  std::byte room[16];
};

struct CollectiveV1 {
  const char* name;
  uint64_t communicator, sequence;
  uint8_t function;
  const void* input;
  void* output;
  size_t count;
  int root;
  uint8_t type;
  uint32_t operation;
  size_t traffic_bytes;
  uint8_t channels, warps, algorithm, protocol;
  int is_collnet, is_nvls;
};
struct CollectiveV2 {
  const char* name;
  uint64_t communicator, sequence;
  const char* function;
  const void* input;
  void* output;
  size_t count;
  int root;
  const char* type;
  size_t traffic_bytes;
  uint8_t channels, warps;
  const char *algorithm, *protocol;
};
struct CollectiveV3 {
  const char* name;
  uint64_t communicator, sequence;
  const char* function;
  const void* input;
  void* output;
  size_t count;
  int root;
  const char* type;
  uint8_t channels, warps;
  const char *algorithm, *protocol;
};
struct CollectiveV4 {
  uint64_t sequence;
  const char* function;
  const void* input;
  void* output;
  size_t count;
  int root;
  const char* type;
  uint8_t channels, warps;
  const char *algorithm, *protocol;
};
struct CollectiveV5 : CollectiveV4 {
  void* group;
};

struct MessageV1 {
  const char* name;
  uint64_t communicator;
  uint8_t function;
  void* buffer;
  uint8_t type;
  size_t count;
  int peer;
};
struct MessageV2 {
  const char* name;
  uint64_t communicator;
  const char* function;
  void* buffer;
  const char* type;
  size_t count;
  int peer;
};
struct MessageV4 {
  const char* function;
  void* buffer;
  const char* type;
  size_t count;
  int peer;
  uint8_t channels;
};
struct MessageV5 : MessageV4 {
  void* group;
};

struct ProxyOperation {
  pid_t pid;
  uint8_t channel;
  int peer, steps, chunk_bytes, is_send;
};
struct ProxyStep {
  int step;
};
struct KernelChannelV3 {
  uint8_t channel;
};
struct KernelChannel {
  uint8_t channel;
  uint64_t timer;
};
struct NetPlugin {
  int64_t id;
  void* data;
};
struct GroupCall {
  bool is_captured;
  int depth;
};
struct CollectiveCall {
  const char* function;
  size_t count;
  const char* type;
  int root;
  void* stream;
  bool is_captured;
};
struct MessageCall {
  const char* function;
  size_t count;
  const char* type;
  void* stream;
  bool is_captured;
};
struct KernelLaunch {
  void* stream;
};

template <int V>
struct Members;
template <>
struct Members<1> {
  using Collective = CollectiveV1;
  using Message = MessageV1;
  using Channel = KernelChannelV3;
};
template <>
struct Members<2> : Members<1> {
  using Collective = CollectiveV2;
  using Message = MessageV2;
};
template <>
struct Members<3> : Members<2> {
  using Collective = CollectiveV3;
};
template <>
struct Members<4> {
  using Collective = CollectiveV4;
  using Message = MessageV4;
  using Channel = KernelChannel;
};
template <>
struct Members<5> : Members<4> {
  using Collective = CollectiveV5;
  using Message = MessageV5;
};
template <>
struct Members<6> : Members<5> {};

template <int V>
struct Descriptor {
  using Type = std::conditional_t<(V >= 5), uint64_t, uint8_t>;
  Type type;
  void* parent;
  int rank;
  union {
    typename Members<V>::Collective collective;
    typename Members<V>::Message message;
    ProxyOperation proxy_operation;
    ProxyStep proxy_step;
    typename Members<V>::Channel channel;
    NetPlugin net;
    GroupCall group_call;
    CollectiveCall collective_call;
    MessageCall message_call;
    KernelLaunch launch;
    // The copy-engine events of v6, which nothing here emits, have 88 bytes, as the largest above.
  };
};
static_assert(sizeof(Descriptor<1>) == 120 && sizeof(Descriptor<2>) == 128);
static_assert(sizeof(Descriptor<3>) == 120 && sizeof(Descriptor<4>) == 104);
static_assert(sizeof(Descriptor<5>) == 112 && sizeof(Descriptor<6>) == 112);

template <int V>
struct Initialization {
  using Function = int (*)(void** context, int* mask);
};
template <>
struct Initialization<4> {
  using Function = int (*)(void** context, int* mask, const char* name, uint64_t communicator,
                           int nodes, int ranks, int rank, PluginLibrary::Logger log);
};
template <>
struct Initialization<5> {
  using Function = int (*)(void** context, uint64_t communicator, int* mask, const char* name,
                           int nodes, int ranks, int rank, PluginLibrary::Logger log);
};
template <>
struct Initialization<6> : Initialization<5> {};

template <int V>
struct Table {
  const char* name;
  typename Initialization<V>::Function init;
  int (*start)(void* context, void** handle, Descriptor<V>* of);
  int (*stop)(void* handle);
  int (*record)(void* handle, int state, StateArguments* arguments);
  int (*finalize)(void* context);
};
static_assert(sizeof(Table<6>) == 48);

}  // namespace niccolite::observe::abi
