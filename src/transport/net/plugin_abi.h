// The tables by which NCCL's net plug-ins are called, of versions 6 to 12. Members were only ever
// appended, but signatures changed in place: a table is a template of its version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace niccolite::transport::net::abi {

using Outcome = int;  // ncclResult_t
inline constexpr Outcome kSuccess = 0;

inline constexpr int kOldest = 6;
inline constexpr int kNewest = 12;
inline constexpr int kHostMemory = 1;                // NCCL_PTR_HOST
inline constexpr int kDeviceMemory = 2;              // NCCL_PTR_CUDA
inline constexpr int kDmaBuffers = 4;                // NCCL_PTR_DMABUF
inline constexpr int kDriverOnHost = 0;              // NCCL_NET_DEVICE_HOST
inline constexpr size_t kMostOld = size_t{1} << 30;  // of a message, before properties say it
inline constexpr size_t kMostBytes = size_t{1} << 40;

using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);
using Profiler = Outcome (*)(void** event, int type, void* parent, int64_t plugin, void* data);
struct Config {
  int traffic_class;
};

template <int kDevices>
struct MergedDevices {
  int count;
  int devices[kDevices];
};

template <int V>
struct Properties;

template <>
struct Properties<6> {
  char* name;
  char* pci_path;
  uint64_t guid;
  int memory;  // kHostMemory and others
  int speed;
  int port;
  float latency;
  int most_connections;
  int most_receives;
};
template <>
struct Properties<7> : Properties<6> {
  int driver;
  int driver_version;
};
template <>
struct Properties<8> {
  char* name;
  char* pci_path;
  uint64_t guid;
  int memory;
  int is_registration_global;
  int speed;
  int port;
  float latency;
  int most_connections;
  int most_receives;
  int driver;
  int driver_version;
};
template <int kDevices>
struct PropertiesOf {
  char* name;
  char* pci_path;
  uint64_t guid;
  int memory;
  int is_registration_global;
  int forces_flush;
  int speed;
  int port;
  float latency;
  int most_connections;
  int most_receives;
  int driver;
  int driver_version;
  MergedDevices<kDevices> merged;
  size_t most_bytes;
  size_t most_collective_bytes;
};
template <>
struct Properties<9> : PropertiesOf<4> {};
template <>
struct Properties<10> : PropertiesOf<4> {};
template <>
struct Properties<11> : PropertiesOf<4> {
  int most_requests;
};
template <>
struct Properties<12> : PropertiesOf<8> {
  int most_requests;
  int16_t rail;
  int16_t plane;
};
static_assert(sizeof(Properties<6>) == 48 && sizeof(Properties<7>) == 56);
static_assert(sizeof(Properties<8>) == 64 && sizeof(Properties<9>) == 104);
static_assert(sizeof(Properties<11>) == 112 && sizeof(Properties<12>) == 128);

using Call = Outcome (*)(void*);

template <int V>
struct Signatures {
  template <bool kIs, typename Then, typename Else>
  using If = std::conditional_t<kIs, Then, Else>;
  template <typename... A>
  using Function = Outcome (*)(A...);

  using Size = If<(V >= 9), size_t, int>;
  using MemorySize = If<(V >= 8), size_t, int>;
  using Init = If<(V >= 11), Function<void**, uint64_t, Config*, Logger, Profiler>,
                  If<(V >= 10), Function<Logger, Profiler>, Function<Logger>>>;
  using Listen = If<(V >= 11), Function<void*, int, void*, void**>, Function<int, void*, void**>>;
  using Connect =
      If<(V >= 11), Function<void*, int, void*, void**, void**>,
         If<(V >= 10), Function<int, Config*, void*, void**, void**>,
            If<(V >= 7), Function<int, void*, void**, void**>, Function<int, void*, void**>>>>;
  using Accept = If<(V >= 7), Function<void*, void**, void**>, Function<void*, void**>>;
  using Send = If<(V >= 10), Function<void*, void*, Size, int, void*, void*, void**>,
                  Function<void*, void*, Size, int, void*, void**>>;
  using Receive = If<(V >= 10), Function<void*, int, void**, Size*, int*, void**, void**, void**>,
                     Function<void*, int, void**, Size*, int*, void**, void**>>;
};

template <int V>
struct Rest {};  // of older versions nothing more is used
template <int V>
requires(V >= 11) struct Rest<V> {
  void* get_device_memory;
  void* receive_consumed;
  void* make_virtual_device;
  Call finalize;
  void* set_attributes;
};

template <int V>
struct Table {
  using S = Signatures<V>;
  const char* name;
  typename S::Init init;
  Outcome (*devices)(int* count);
  Outcome (*get_properties)(int device, Properties<V>* properties);
  typename S::Listen listen;
  typename S::Connect connect;
  typename S::Accept accept;
  Outcome (*register_memory)(void* connection, void* data, typename S::MemorySize bytes, int type,
                             void** memory);
  void* register_dma_buffer;
  Outcome (*deregister_memory)(void* connection, void* memory);
  typename S::Send send;
  typename S::Receive receive;
  void* flush;
  Outcome (*test)(void* request, int* is_done, int* sizes);
  Call close_send;
  Call close_receive;
  Call close_listener;
  [[no_unique_address]] Rest<V> rest;
};
static_assert(sizeof(Table<12>) == 176 && sizeof(Table<6>) == 136);

// CollNet, in the same library: ncclCollNetPlugin_v6 to _v12.

/// A piece of memory, as gatherings and scatterings take it.
template <int V>
struct Piece {
  void* memory;
  void* address;
  std::conditional_t<(V >= 9), size_t, uint32_t> bytes;
};

template <int V>
struct Gatherings {};  // older versions only reduce
template <int V>
requires(V >= 8) struct Gatherings<V> {
  Outcome (*gather)(void* collective, void* send, int parts, Piece<V>* receive,
                    size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                    void* send_memory, void** request);
  Outcome (*reduce_scatter)(void* collective, int parts, Piece<V>* send, void* receive,
                            size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                            int type, int operation, void* receive_memory, void** request);
};
template <int V>
struct CollectiveDevices {};
template <int V>
requires(V >= 9) struct CollectiveDevices<V> {
  void* make_virtual_device;
};
template <int V>
struct CollectiveEnd {};
template <int V>
requires(V >= 11) struct CollectiveEnd<V> {
  Call finalize;
};

template <int V>
struct CollectiveTable {
  template <bool kIs, typename Then, typename Else>
  using If = std::conditional_t<kIs, Then, Else>;
  template <typename... A>
  using Function = Outcome (*)(A...);
  using S = Signatures<V>;
  using Count = If<(V >= 9), size_t, int>;

  const char* name;
  If<(V >= 11), Function<void**, uint64_t, Logger>, Function<Logger>> init;
  Outcome (*devices)(int* count);
  Outcome (*get_properties)(int device, Properties<V>* properties);
  typename S::Listen listen;
  Outcome (*connect)(void* handles[], int members, int place, void* listener, void** collective);
  Outcome (*reduce_support)(int type, int operation, int* is_supported);
  Outcome (*register_memory)(void* collective, void* data, typename S::MemorySize bytes, int type,
                             void** memory);
  Outcome (*register_dma_buffer)(void* collective, void* data, size_t bytes, int type,
                                 uint64_t offset, int descriptor, void** memory);
  Outcome (*deregister_memory)(void* collective, void* memory);
  Outcome (*all_reduce)(void* collective, void* send, void* receive, Count count, int type,
                        int operation, void* send_memory, void* receive_memory, void** request);
  [[no_unique_address]] Gatherings<V> gatherings;
  void* flush;
  Outcome (*test)(void* request, int* is_done, int* size);
  Call close;
  Call close_listener;
  [[no_unique_address]] CollectiveDevices<V> devices_of_version;
  [[no_unique_address]] CollectiveEnd<V> end;
};
static_assert(sizeof(CollectiveTable<6>) == 120 && sizeof(CollectiveTable<8>) == 136);
static_assert(sizeof(CollectiveTable<10>) == 144 && sizeof(CollectiveTable<12>) == 152);

}  // namespace niccolite::transport::net::abi
