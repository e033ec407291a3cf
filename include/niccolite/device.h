// niccolite/device.h: kernels that communicate by themselves, in few words. C++17; for nvcc, and
// for any C++ compiler on virtual GPUs (niccolite/emulation.h). Link libnccl.so.2.
//
//   word                      does                                               who calls
//   put                       copies elements to a peer's buffer                 a group of threads
//   Channel::signal, wait     tells a peer; waits until a peer has told          a group
//   Channel::flush            sources of puts may be used again                  a group
//   load_reduce               the sum of one pack of all peers' buffers          one thread
//   store_all                 stores a pack to all peers' buffers                one thread
//   Barrier::sync             no rank goes on before all have come               a group
//   Network                   put, get, signal, wait, flush with any rank        a group
//
// A *peer* is a rank of the load-store team, 0 to Comm::nranks() - 1; the own rank is a peer, too.
// A *Buffer* is memory of a window: one copy on each peer. A *pack* is 16 bytes of elements.
// Indices and counts are elements.
//
// Groups. A call's first argument says which threads make it: ThisThread, Warp or ThisBlock. All
// threads of the group call, with equal arguments.
//
// Memory order, at system scope. What the threads of a group did before signal() or sync() is
// visible to the threads of the peer's group after the wait() or sync() that it ends. Nothing else
// is ordered: two puts may arrive in any order, and loads of a peer's buffer need a wait or a sync
// before. A peer's data must not be overwritten before the peer has said that it is done with them.
//
// Aborts. When the communicator is aborted, or has failed with NICCOLITE_END_FAILED=1, each wait
// ends: it returns false, in all threads of its group, and data are undefined. Kernels should
// return. A Barrier or Channel whose wait has returned false must not be used by later kernels:
// destroy the device communicator.
//
// Multicast. Where the device communicator has multicast addresses (requirement lsaMultimem), the
// machine's switch adds and copies: load_reduce, store_all and Barrier are one access to an address
// of all peers instead of one for each of them. Nothing else about a kernel changes, but the order
// in which the elements are added, and that sums of 2-byte elements are rounded by the switch.
// Elements of 1 byte are added as without.
//
// State. Barriers and channels keep their epochs in the device communicator's memory, between
// kernels, too. One group of a rank uses a barrier, or a channel with one peer, at a time, and all
// ranks use it alike.
//
// Network. Ranks outside of the load-store team are reached by a Network, whose peers are ranks of
// the communicator: the host's proxy copies between windows and adds to signals. See there.
//
// Checks. Compiled with NICCOLITE_DEVICE_CHECK=1, calls test ranges of windows, peers and indices
// of barriers and channels. A bad call does nothing, and the host fails the communicator with an
// error that names rank, block, thread, call and peer. A wait that stands still for half a second
// is named in the log. Without it, checks cost nothing.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef NICCOLITE_DEVICE_H_
#define NICCOLITE_DEVICE_H_

#ifdef __CUDACC__
#include <cuda_runtime.h>
#ifndef NCCL_DEVICE_HOST_ONLY
#define NCCL_DEVICE_HOST_ONLY
#endif
#else
#include "niccolite/emulation.h"
#include "niccolite/emulation_words.h"
#endif
#include <nccl.h>
#include <nccl_device.h>

#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#ifndef NICCOLITE_DEVICE_CHECK
#define NICCOLITE_DEVICE_CHECK 0
#endif

#ifdef __CUDACC__
#define NICCOLITE_DEVICE __device__ __forceinline__
#define NICCOLITE_BOTH __host__ __device__ __forceinline__
#define NICCOLITE_UNROLL _Pragma("unroll")
/// Declares `count` elements of shared memory of the block, as `name`.
#define NICCOLITE_SHARED(type, name, count) __shared__ type name[count]
#else
#define NICCOLITE_DEVICE inline
#define NICCOLITE_BOTH inline
#define NICCOLITE_UNROLL
#define NICCOLITE_SHARED(type, name, count) \
  static const char name##_declaration = 0; \
  type* const name = static_cast<type*>(    \
      ::niccolite::emulation::static_shared(&name##_declaration, sizeof(type) * (count)))
#endif

struct __half;
struct __nv_bfloat16;

namespace niccolite {

/// The dynamic shared memory of the block, aligned to 16 bytes.
NICCOLITE_DEVICE void* dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ uint4 niccolite_dynamic_shared[];
  return niccolite_dynamic_shared;
#else
  std::vector<uint64_t>& memory = emulation::here().block->dynamic_memory;
  const bool is_aligned = reinterpret_cast<uintptr_t>(memory.data()) % 16 == 0;
  return memory.data() + (is_aligned ? 0 : 1);
#endif
}

#ifndef __CUDACC__
namespace emulation {

/// At the beginning of a device communicator's resources: the kernels that use it, which launch()
/// counts, since ncclDevCommDestroy refuses to pull the memory from under them.
struct KernelCount {
  static constexpr uint32_t kMark = 0x6b726e6c;
  uint32_t mark;
  uint32_t running;
};
/// `resources`: of this rank, or null.
inline KernelCount* count_at(char* resources) {
  auto* const count = reinterpret_cast<KernelCount*>(resources);
  return count != nullptr && count->mark == KernelCount::kMark ? count : nullptr;
}
/// The count of a kernel's argument; null: it is no device communicator, or has no resources.
template <typename T>
KernelCount* count_of(const T&) {
  return nullptr;
}
inline KernelCount* count_of(const ncclDevComm_t& made) {
  const auto& resources = made.resourceWindow_inlined;
  if (resources.lsaFlatBase == nullptr) return nullptr;
  return count_at(static_cast<char*>(resources.lsaFlatBase) +
                  (static_cast<uint64_t>(resources.stride4G) << 32) *
                      static_cast<uint64_t>(made.lsaRank));
}

/// Counts a kernel as long as it lives.
class Counted {
 public:
  template <typename... Arguments>
  explicit Counted(const Arguments&... arguments) : counts_{count_of(arguments)..., nullptr} {
    for (KernelCount* const count : counts_)
      if (count != nullptr) __atomic_fetch_add(&count->running, 1u, __ATOMIC_RELAXED);
  }
  Counted(const Counted&) = delete;
  ~Counted() {
    for (KernelCount* const count : counts_)
      if (count != nullptr) __atomic_fetch_sub(&count->running, 1u, __ATOMIC_RELEASE);
  }

 private:
  std::vector<KernelCount*> counts_;
};

}  // namespace emulation
#endif

/// Launches `kernel(arguments...)` on a GPU or on a virtual GPU. cudaErrorNotSupported: neither.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                   cudaStream_t stream, Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "the kernel has other parameters");
#ifdef __CUDACC__
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  return std::apply(
      [&](Parameters&... each) {
        void* addresses[] = {static_cast<void*>(&each)..., nullptr};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, addresses,
                                shared, stream);
      },
      values);
#else
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  auto counted = std::apply(
      [](const Parameters&... each) { return std::make_shared<const emulation::Counted>(each...); },
      values);
  return emulation::launch([kernel, counted = std::move(counted),
                            values = std::move(values)] { std::apply(kernel, values); },
                           "a kernel", grid, block, shared, stream);
#endif
}

namespace device {

// ---- Groups of threads

struct ThisThread {
  NICCOLITE_DEVICE unsigned rank() const { return 0; }
  NICCOLITE_DEVICE unsigned size() const { return 1; }
  NICCOLITE_DEVICE void sync() const {}
  NICCOLITE_DEVICE bool any(bool value) const { return value; }
};
/// All 32 threads of a warp of a block of one dimension.
struct Warp {
  NICCOLITE_DEVICE unsigned rank() const { return threadIdx.x % 32; }
  NICCOLITE_DEVICE unsigned size() const { return 32; }
  NICCOLITE_DEVICE void sync() const { __syncwarp(); }
  NICCOLITE_DEVICE bool any(bool value) const { return __any_sync(0xffffffffu, value) != 0; }
};
/// All threads of the block.
struct ThisBlock {
  NICCOLITE_DEVICE unsigned rank() const {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  }
  NICCOLITE_DEVICE unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
  NICCOLITE_DEVICE void sync() const { __syncthreads(); }
  NICCOLITE_DEVICE bool any(bool value) const { return __syncthreads_or(value) != 0; }
};

// ---- Layouts in memory that host and device share

/// Where a window's copies are; ncclWindow_t points to one, in device memory.
struct WindowRecord {
  uint64_t bytes;  // of the smallest copy
  char* base;      // of peer 0's copy
  int32_t rank;    // the own peer number
  int32_t world_rank;
  uint32_t stride;     // from copy to copy, in units of 4 GiB
  uint32_t multicast;  // from the multicast base to the window, in units of 4096; or kNoMulticast
  uint32_t network_offset;  // of the window in what `network` names, in units of 4096 bytes
  uint32_t flags;
  uint64_t network;  // the window's name in descriptors
};
constexpr uint32_t kNoMulticast = 0xffffffff;

/// Queues to the host's proxy, and its answers; a device communicator has several.
struct NetworkContext {
  int32_t nranks;
  uint32_t depth;            // of a queue: a power of two
  uint64_t* queues;          // by peer; 16 words for each descriptor
  uint32_t* produced;        // by peer: descriptors ever begun
  const uint32_t* consumed;  // by peer: descriptors ever done, modulo 2^32
  uint64_t* counters;
  uint64_t* signals;
  uint64_t* signal_offsets;
  uint32_t* issued_gets;
  uint32_t* visible_gets;
};
static_assert(sizeof(NetworkContext) == 72, "as kernels of 2.30.7 have it");

/// Behind the abort flag, in host memory: bad calls and long waits, for the host to name. One slot
/// for all blocks of a number modulo kSlots: the last one to write is named.
struct Report {
  static constexpr unsigned kSlots = 8;
  struct alignas(16) Slot {
    uint64_t where;  // 0: nothing. Bits: call 8, block 24, thread 12, peer 20
    uint64_t value;
  };
  Slot slots[kSlots];
};
constexpr size_t kReportOffset = 128;  // from the abort flag

enum class Call : uint8_t {
  None,
  BarrierSync,
  ChannelSignal,
  ChannelWait,
  Put,
  LoadReduce,
  StoreAll,
  // Waits that stand still.
  BarrierStands,
  ChannelStands,
  NetworkStands,
};

namespace detail {

#ifdef __CUDACC__
NICCOLITE_DEVICE uint32_t load_acquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
NICCOLITE_DEVICE uint64_t load_acquire(const uint64_t* address) {
  unsigned long long value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
NICCOLITE_DEVICE void store_release(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
NICCOLITE_DEVICE void store_release(uint64_t* address, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address),
               "l"(static_cast<unsigned long long>(value))
               : "memory");
}
NICCOLITE_DEVICE uint32_t load_relaxed(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
NICCOLITE_DEVICE void store_report(Report::Slot* slot, uint64_t where, uint64_t value) {
  asm volatile("st.volatile.v2.u64 [%0], {%1, %2};" ::"l"(slot),
               "l"(static_cast<unsigned long long>(where)),
               "l"(static_cast<unsigned long long>(value))
               : "memory");
}
NICCOLITE_DEVICE void fence() { __threadfence_system(); }
/// Behind a fence().
NICCOLITE_DEVICE void store_word(uint64_t* address, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address),
               "l"(static_cast<unsigned long long>(value))
               : "memory");
}
NICCOLITE_DEVICE uint32_t fetch_add(uint32_t* address) { return atomicAdd_system(address, 1u); }
NICCOLITE_DEVICE uint64_t nanoseconds() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}
NICCOLITE_DEVICE void pause() {}
NICCOLITE_DEVICE void interleave() {}
#else
template <typename T>
T load_acquire(const T* address) {
  return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}
template <typename T>
void store_release(T* address, T value) {
  emulation::Engine::instance().maybe_yield();
  __atomic_store_n(address, value, __ATOMIC_RELEASE);
}
inline uint32_t load_relaxed(const uint32_t* address) {
  return __atomic_load_n(address, __ATOMIC_RELAXED);
}
// The words themselves release, which ThreadSanitizer sees, as it does not see fences.
inline void fence() {}
inline void store_word(uint64_t* address, uint64_t value) { store_release(address, value); }
inline uint32_t fetch_add(uint32_t* address) {
  return __atomic_fetch_add(address, 1, __ATOMIC_ACQ_REL);
}
inline void store_report(Report::Slot* slot, uint64_t where, uint64_t value) {
  __atomic_store_n(&slot->value, value, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->where, where, __ATOMIC_RELEASE);
}
inline uint64_t nanoseconds() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}
inline void pause() { emulation::Engine::instance().yield(/*is_idle=*/true); }
inline void interleave() { emulation::Engine::instance().maybe_yield(); }
#endif

}  // namespace detail

// ---- Communicator

/// Signals of channels, in a device communicator's memory: see require_channels().
struct ChannelsHandle {
  uint32_t handle;
  int count;
};

/// A device communicator, as kernels of this header use it. By value.
class Comm {
 public:
  /// From the struct that ncclDevCommCreate has written.
  NICCOLITE_BOTH explicit Comm(const ncclDevComm_t& made)
      : base_(made.resourceWindow_inlined.lsaFlatBase),
        abort_(made.abortFlag),
        barriers_(made.lsaBarrier),
        multicast_(static_cast<char*>(made.lsaMultimem.mcBasePtr)),
        multicast_resources_(made.resourceWindow_inlined.mcOffset4K),
        contexts_(static_cast<const NetworkContext*>(made.ginHandles[0])),
        context_count_(static_cast<int>(made.ginContextCount)),
        stride_(made.resourceWindow_inlined.stride4G),
        rank_(made.lsaRank),
        nranks_(made.lsaSize),
        world_rank_(made.rank),
        world_nranks_(made.nRanks) {}

  /// This rank's number in the load-store team, and the number of its ranks.
  NICCOLITE_BOTH int rank() const { return rank_; }
  NICCOLITE_BOTH int nranks() const { return nranks_; }
  /// This rank in the communicator, and the number of its ranks: the peers of a Network.
  NICCOLITE_BOTH int world_rank() const { return world_rank_; }
  NICCOLITE_BOTH int world_nranks() const { return world_nranks_; }
  /// Contexts for Networks (ginContextCount), if networking was required.
  NICCOLITE_BOTH int contexts() const { return context_count_; }
  NICCOLITE_BOTH const NetworkContext* context(int index) const { return contexts_ + index; }
  /// The number in the team of a rank of the communicator; negative or too large: outside.
  NICCOLITE_BOTH int team_rank(int world_peer) const { return world_peer - world_rank_ + rank_; }

  /// The bytes of a peer's resources behind a handle of the list of requirements.
  NICCOLITE_BOTH char* resources(uint32_t handle, int peer) const {
    return base_ + (static_cast<uint64_t>(stride_) << 32) * static_cast<uint64_t>(peer) +
           static_cast<uint64_t>(handle) * 128;
  }
  /// The base of multicast addresses; null: there are none.
  NICCOLITE_BOTH char* multicast_base() const { return multicast_; }
  /// The bytes of all peers' resources at once, for multicast accesses. With a base alone.
  NICCOLITE_BOTH char* multicast_resources(uint32_t handle) const {
    return multicast_ + static_cast<uint64_t>(multicast_resources_) * 4096 +
           static_cast<uint64_t>(handle) * 128;
  }
  NICCOLITE_BOTH ncclLsaBarrierHandle_t barriers() const { return barriers_; }
  NICCOLITE_DEVICE bool is_aborted() const {
    return abort_ != nullptr && detail::load_relaxed(abort_) != 0;
  }

#ifndef __CUDACC__
  friend emulation::KernelCount* count_of(const Comm& comm) {
    return comm.base_ == nullptr ? nullptr : emulation::count_at(comm.resources(0, comm.rank()));
  }
#endif

  /// Tells the host, where checks are compiled in.
  NICCOLITE_DEVICE void report(Call call, int peer, uint64_t value) const {
    if (abort_ == nullptr) return;
    const uint64_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const uint64_t where = static_cast<uint64_t>(call) | (block & 0xffffff) << 8 |
                           static_cast<uint64_t>(ThisBlock().rank() & 0xfff) << 32 |
                           static_cast<uint64_t>(peer & 0xfffff) << 44;
    auto* const report = reinterpret_cast<Report*>(reinterpret_cast<char*>(abort_) + kReportOffset);
    detail::store_report(&report->slots[block % Report::kSlots], where, value);
  }
  NICCOLITE_DEVICE bool is_peer(int peer) const { return 0 <= peer && peer < nranks_; }

 private:
  char* base_;
  uint32_t* abort_;
  ncclLsaBarrierHandle_t barriers_;
  char* multicast_;
  uint32_t multicast_resources_;
  const NetworkContext* contexts_;
  int context_count_;
  uint32_t stride_;
  int rank_, nranks_;
  int world_rank_, world_nranks_;
};

namespace detail {

/// Spins until `is_done` or an abort; true: it is done.
template <typename IsDone>
NICCOLITE_DEVICE bool spin(const Comm& comm, Call stands, int peer, uint64_t value,
                           IsDone&& is_done) {
  (void)stands;
  (void)peer;
  (void)value;
#if NICCOLITE_DEVICE_CHECK
  uint64_t since = 0;
#endif
  for (unsigned looks = 1;; ++looks) {
    if (is_done()) return true;
    pause();
    if (looks % 512 != 0) continue;
    if (comm.is_aborted()) return false;
#if NICCOLITE_DEVICE_CHECK
    const uint64_t now = nanoseconds();
    if (since == 0) since = now;
    if (now - since > 500'000'000) {
      comm.report(stands, peer, value);
      since = now;
    }
#endif
  }
}

}  // namespace detail

// ---- Buffers

/// 16 bytes of elements.
template <typename T>
struct alignas(16) Pack {
  static_assert(16 % sizeof(T) == 0, "an element has 1, 2, 4, 8 or 16 bytes");
  static constexpr int kElements = static_cast<int>(16 / sizeof(T));
  T values[kElements];
};

// ---- Multicast accesses

namespace detail {

template <typename T>
struct Accumulator {
  using Type = std::conditional_t<sizeof(T) >= 4, T, float>;
};
template <>
struct Accumulator<int8_t> {
  using Type = int32_t;
};
template <>
struct Accumulator<uint8_t> {
  using Type = uint32_t;
};

enum class Sum { None, Float32, Float64, Half, Bfloat16, Word32, Word64 };
/// Which sums a switch has for an element of type T.
template <typename T>
NICCOLITE_BOTH constexpr Sum switch_sum() {
  if constexpr (std::is_same_v<T, float>) return Sum::Float32;
  if constexpr (std::is_same_v<T, double>) return Sum::Float64;
  if constexpr (std::is_same_v<T, __half>) return Sum::Half;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return Sum::Bfloat16;
  if constexpr (std::is_integral_v<T> && sizeof(T) == 4) return Sum::Word32;
  if constexpr (std::is_integral_v<T> && sizeof(T) == 8) return Sum::Word64;
  return Sum::None;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
// Device communicators have no multicast addresses there.
template <typename T>
NICCOLITE_DEVICE void store_multicast(T*, const Pack<T>&) {
  __trap();
}
template <typename T>
NICCOLITE_DEVICE Pack<T> load_multicast(const T*) {
  __trap();
  return {};
}
NICCOLITE_DEVICE void add_multicast(uint32_t*, uint32_t) { __trap(); }
NICCOLITE_DEVICE void fence_aliases() {}
#elif defined(__CUDACC__)
template <typename T>
NICCOLITE_DEVICE void store_multicast(T* address, const Pack<T>& pack) {
  uint32_t words[4];
  memcpy(words, &pack, sizeof words);
  asm volatile("multimem.st.weak.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
               "f"(__uint_as_float(words[0])), "f"(__uint_as_float(words[1])),
               "f"(__uint_as_float(words[2])), "f"(__uint_as_float(words[3]))
               : "memory");
}
/// switch_sum<T>() is not None.
template <typename T>
NICCOLITE_DEVICE Pack<T> load_multicast(const T* from) {
  constexpr Sum kSum = switch_sum<T>();
  const char* const address = reinterpret_cast<const char*>(from);
  Pack<T> pack;
  if constexpr (kSum == Sum::Float64 || kSum == Sum::Word64) {
    unsigned long long words[2];
    for (int i = 0; i < 2; ++i) {
      if constexpr (kSum == Sum::Float64) {
        double value;
        asm volatile("multimem.ld_reduce.weak.global.add.f64 %0, [%1];"
                     : "=d"(value)
                     : "l"(address + 8 * i)
                     : "memory");
        words[i] = static_cast<unsigned long long>(__double_as_longlong(value));
      } else {
        asm volatile("multimem.ld_reduce.weak.global.add.u64 %0, [%1];"
                     : "=l"(words[i])
                     : "l"(address + 8 * i)
                     : "memory");
      }
    }
    memcpy(&pack, words, sizeof pack);
    return pack;
  }
  uint32_t words[4] = {};
  if constexpr (kSum == Sum::Float32) {
    float values[4];
    asm volatile("multimem.ld_reduce.weak.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
                 : "l"(address)
                 : "memory");
    for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(values[i]);
  } else if constexpr (kSum == Sum::Half) {
    asm volatile("multimem.ld_reduce.weak.global.add.acc::f32.v4.f16x2 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(address)
                 : "memory");
  } else if constexpr (kSum == Sum::Bfloat16) {
    asm volatile("multimem.ld_reduce.weak.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(address)
                 : "memory");
  } else if constexpr (kSum == Sum::Word32) {
    for (int i = 0; i < 4; ++i)
      asm volatile("multimem.ld_reduce.weak.global.add.u32 %0, [%1];"
                   : "=r"(words[i])
                   : "l"(address + 4 * i)
                   : "memory");
  }
  memcpy(&pack, words, sizeof pack);
  return pack;
}
/// Release.
NICCOLITE_DEVICE void add_multicast(uint32_t* address, uint32_t value) {
  asm volatile("multimem.red.release.sys.global.add.u32 [%0], %1;" ::"l"(address), "r"(value)
               : "memory");
}
/// Orders the thread's accesses through one address of a place, and all that it acquired, with its
/// accesses to come through another: a multicast address is an alias of each peer's own.
NICCOLITE_DEVICE void fence_aliases() { asm volatile("fence.proxy.alias;" ::: "memory"); }
#else
template <typename T>
void store_multicast(T* address, const Pack<T>& pack) {
  char* members[emulation::MulticastMemory::kMostMembers];
  const int count = emulation::MulticastMemory::instance().find(address, members);
  for (int i = 0; i < count; ++i) {
    interleave();
    *reinterpret_cast<Pack<T>*>(members[i]) = pack;
  }
}
/// In the order in which the GPUs joined the team; each element rounded once.
template <typename T>
Pack<T> load_multicast(const T* address) {
  using Value = typename Accumulator<T>::Type;
  char* members[emulation::MulticastMemory::kMostMembers];
  const int count = emulation::MulticastMemory::instance().find(address, members);
  Value sums[Pack<T>::kElements] = {};
  for (int i = 0; i < count; ++i) {
    const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(members[i]);
    for (int e = 0; e < Pack<T>::kElements; ++e) sums[e] += static_cast<Value>(pack.values[e]);
  }
  Pack<T> result;
  for (int e = 0; e < Pack<T>::kElements; ++e) result.values[e] = static_cast<T>(sums[e]);
  return result;
}
inline void add_multicast(uint32_t* address, uint32_t value) {
  char* members[emulation::MulticastMemory::kMostMembers];
  const int count = emulation::MulticastMemory::instance().find(address, members);
  for (int i = 0; i < count; ++i) {
    emulation::Engine::instance().maybe_yield();
    __atomic_fetch_add(reinterpret_cast<uint32_t*>(members[i]), value, __ATOMIC_RELEASE);
  }
}
inline void fence_aliases() {}
#endif

/// For ThreadSanitizer, which does not know that a multicast address is an alias: the access of a
/// peer's copy, and the order that a barrier makes.
#ifdef NICCOLITE_EMULATION_TSAN
inline void note_load(const void* address) { __tsan_read16(const_cast<void*>(address)); }
inline void note_store(void* address) { __tsan_write16(address); }
inline void note_release(void* address) { __tsan_release(address); }
inline void note_acquire(void* address) { __tsan_acquire(address); }
#else
NICCOLITE_DEVICE void note_load(const void*) {}
NICCOLITE_DEVICE void note_store(void*) {}
NICCOLITE_DEVICE void note_release(void*) {}
NICCOLITE_DEVICE void note_acquire(void*) {}
#endif

NICCOLITE_DEVICE void fence_aliases_of(const Comm& comm) {
  if (comm.multicast_base() != nullptr) fence_aliases();
}

}  // namespace detail

/// `count` elements of a window, from byte `offset` on; a copy on each peer. By value.
template <typename T>
class Buffer {
 public:
  NICCOLITE_BOTH Buffer(ncclWindow_t window, size_t count, size_t offset = 0)
      : window_(reinterpret_cast<const WindowRecord*>(window)), offset_(offset), count_(count) {}

  NICCOLITE_BOTH size_t count() const { return count_; }
  /// The first element of a peer's copy. Loads and stores through it are not checked.
  NICCOLITE_DEVICE T* of(int peer) const {
    return reinterpret_cast<T*>(
        window_->base +
        (static_cast<uint64_t>(window_->stride) << 32) * static_cast<uint64_t>(peer) + offset_);
  }
  NICCOLITE_DEVICE T* own() const { return of(window_->rank); }
  /// The first element of all peers' copies, for multicast accesses; null: there is no such
  /// address.
  NICCOLITE_DEVICE T* of_all(const Comm& comm) const {
    if (comm.multicast_base() == nullptr || window_->multicast == kNoMulticast) return nullptr;
    return reinterpret_cast<T*>(comm.multicast_base() +
                                static_cast<uint64_t>(window_->multicast) * 4096 + offset_);
  }
  /// For descriptors: the window's name, and where an element is in it, in bytes.
  NICCOLITE_DEVICE uint64_t network() const { return window_->network; }
  NICCOLITE_DEVICE uint64_t network_offset(size_t index) const {
    return (static_cast<uint64_t>(window_->network_offset) << 12) + offset_ + index * sizeof(T);
  }

  /// Do `count` elements from `first` on lie in the buffer, and that in the window?
  NICCOLITE_DEVICE bool holds(size_t first, size_t count) const {
    return count <= count_ && first <= count_ - count &&
           offset_ + count_ * sizeof(T) <= window_->bytes;
  }

 private:
  const WindowRecord* window_;
  size_t offset_, count_;
};

/// Copies `count` elements from `source`, memory of this GPU, to `peer`'s copy of `target`, from
/// element `first` on. The source must stay until Channel::flush(), Channel::signal() or a barrier;
/// the data are there when the peer's wait for such a signal or barrier has ended.
template <typename Group, typename T>
NICCOLITE_DEVICE void put(Group group, const Comm& comm, const Buffer<T>& target, size_t first,
                          int peer, const T* source, size_t count) {
#if NICCOLITE_DEVICE_CHECK
  if (!comm.is_peer(peer) || !target.holds(first, count)) {
    comm.report(Call::Put, peer, first + count);
    return;
  }
#endif
  (void)comm;
  T* const to = target.of(peer) + first;
  using Words = Pack<uint32_t>;
  const bool is_aligned = ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(source)) %
                           sizeof(Words)) == 0;
  const size_t packs = is_aligned ? count * sizeof(T) / sizeof(Words) : 0;
  const size_t done = packs * sizeof(Words) / sizeof(T);
  auto* const packs_to = reinterpret_cast<Words*>(to);
  const auto* const packs_from = reinterpret_cast<const Words*>(source);
  for (size_t i = group.rank(); i < packs; i += group.size()) {
    detail::interleave();
    packs_to[i] = packs_from[i];
  }
  for (size_t i = done + group.rank(); i < count; i += group.size()) to[i] = source[i];
}

/// Stores 16 bytes of elements to all peers' copies, from element `first` on, a multiple of a
/// pack's. One thread calls.
template <typename T>
NICCOLITE_DEVICE void store_all(const Comm& comm, const Buffer<T>& target, size_t first,
                                const Pack<T>& pack) {
#if NICCOLITE_DEVICE_CHECK
  if (!target.holds(first, Pack<T>::kElements) || first % Pack<T>::kElements != 0) {
    comm.report(Call::StoreAll, comm.rank(), first);
    return;
  }
#endif
  if (T* const all = target.of_all(comm)) {
    for (int peer = 0; peer < comm.nranks(); ++peer) detail::note_store(target.of(peer) + first);
    return detail::store_multicast(all + first, pack);
  }
  // Each rank begins at another peer, so that they do not all store to one.
  for (int i = 0; i < comm.nranks(); ++i) {
    int peer = comm.rank() + i;
    if (peer >= comm.nranks()) peer -= comm.nranks();
    detail::interleave();
    *reinterpret_cast<Pack<T>*>(target.of(peer) + first) = pack;
  }
}

/// Sums of a pack's elements: float for elements of 2 bytes.
template <typename T>
struct Sums {
  using Value = typename detail::Accumulator<T>::Type;
  Value values[Pack<T>::kElements];
  /// Each rounded once.
  NICCOLITE_DEVICE Pack<T> rounded() const {
    Pack<T> pack;
    for (int i = 0; i < Pack<T>::kElements; ++i) pack.values[i] = static_cast<T>(values[i]);
    return pack;
  }
};

/// The sums over all peers of the 16 bytes of elements from `first` on, a multiple of a pack's, in
/// the order of the peers: all ranks get the same bits. By multicast the switch adds, in an order
/// of its own. One thread calls.
template <typename T>
NICCOLITE_DEVICE Sums<T> load_reduce(const Comm& comm, const Buffer<T>& source, size_t first) {
  using Value = typename Sums<T>::Value;
  Sums<T> sums;
  for (int i = 0; i < Pack<T>::kElements; ++i) sums.values[i] = Value(0);
#if NICCOLITE_DEVICE_CHECK
  if (!source.holds(first, Pack<T>::kElements) || first % Pack<T>::kElements != 0) {
    comm.report(Call::LoadReduce, comm.rank(), first);
    return sums;
  }
#endif
  if constexpr (detail::switch_sum<T>() != detail::Sum::None) {
    if (const T* const all = source.of_all(comm)) {
      for (int peer = 0; peer < comm.nranks(); ++peer) detail::note_load(source.of(peer) + first);
      const Pack<T> pack = detail::load_multicast(all + first);
      for (int i = 0; i < Pack<T>::kElements; ++i)
        sums.values[i] = static_cast<Value>(pack.values[i]);
      return sums;
    }
  }
  for (int begin = 0; begin < comm.nranks(); begin += 8) {  // loads of several peers are under way
    Pack<T> packs[8];
    detail::interleave();
    NICCOLITE_UNROLL
    for (int i = 0; i < 8; ++i)
      if (begin + i < comm.nranks())
        packs[i] = *reinterpret_cast<const Pack<T>*>(source.of(begin + i) + first);
    NICCOLITE_UNROLL
    for (int i = 0; i < 8; ++i)
      if (begin + i < comm.nranks())
        for (int e = 0; e < Pack<T>::kElements; ++e)
          sums.values[e] += static_cast<Value>(packs[i].values[e]);
  }
  return sums;
}

// ---- Barriers

/// One barrier of a device communicator (lsaBarrierCount of them), for one group of each rank.
/// Kernels of NVIDIA's headers use the same words: a barrier may be theirs in one kernel and ours
/// in the next. With multicast addresses it is one of theirs with multimem; a kernel with checks
/// does without, so that the kernels of all ranks must be compiled alike.
template <typename Group>
class Barrier {
 public:
  /// All threads of the group construct it, and destroy it when no thread needs it any more.
  NICCOLITE_DEVICE Barrier(Group group, const Comm& comm, int index) : group_(group), comm_(comm) {
    const ncclLsaBarrierHandle_t barriers = comm.barriers();
#if NICCOLITE_DEVICE_CHECK
    if (index < 0 || index >= barriers.nBarriers) {
      if (group.rank() == 0)
        comm.report(Call::BarrierSync, comm.rank(), static_cast<uint64_t>(index));
      is_bad_ = true;
      return;
    }
#endif
    index_ = index;
    count_ = barriers.nBarriers;
    // Checks name the peer who has not come, whom a common counter does not know.
    is_multicast_ = comm.multicast_base() != nullptr && NICCOLITE_DEVICE_CHECK == 0;
    epoch_ = *word(comm.rank(), saved_epoch());
  }
  NICCOLITE_DEVICE ~Barrier() {
    if (is_bad_) return;
    group_.sync();
    if (group_.rank() == 0) *word(comm_.rank(), saved_epoch()) = epoch_;
    group_.sync();
  }
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  /// arrive() and wait().
  NICCOLITE_DEVICE bool sync() {
    arrive();
    return wait();
  }
  /// Tells all peers that this group has come. Release: see above.
  NICCOLITE_DEVICE void arrive() {
    if (is_bad_) return;
    detail::fence_aliases_of(comm_);
    group_.sync();
    if (is_multicast_) {
      if (group_.rank() == 0) arrive_at_all();
      return;
    }
    for (int i = static_cast<int>(group_.rank()); i < comm_.nranks();
         i += static_cast<int>(group_.size()))
      if (i != comm_.rank()) detail::store_release(inbox(i, comm_.rank()), epoch_ + 1);
  }
  /// Waits until all peers have come as often as this group. Acquire. False after an abort.
  NICCOLITE_DEVICE bool wait() {
    if (is_bad_) return false;
    bool is_over = is_multicast_ && group_.rank() == 0 && !await_all();
    for (int i = static_cast<int>(group_.rank()); i < comm_.nranks() && !is_over && !is_multicast_;
         i += static_cast<int>(group_.size())) {
      if (i == comm_.rank()) continue;
      const uint32_t* const arrived = inbox(comm_.rank(), i);
      is_over = !detail::spin(comm_, Call::BarrierStands, i, static_cast<uint64_t>(index_), [&] {
        return static_cast<int32_t>(detail::load_acquire(arrived) - (epoch_ + 1)) >= 0;
      });
    }
    is_over = group_.any(is_over);
    detail::fence_aliases_of(comm_);
    if (!is_over) epoch_ += is_multicast_ ? static_cast<uint32_t>(comm_.nranks()) : 1;
    return !is_over;
  }

 private:
  NICCOLITE_DEVICE uint32_t* word(int peer, int number) const {
    return reinterpret_cast<uint32_t*>(comm_.resources(comm_.barriers().bufHandle, peer)) + number;
  }
  NICCOLITE_DEVICE uint32_t* inbox(int of, int from) const {
    return word(of, 3 * count_ + index_ * comm_.nranks() + from);
  }
  // The two kinds of barrier have epochs of their own.
  NICCOLITE_DEVICE int saved_epoch() const { return is_multicast_ ? index_ : count_ + index_; }
  NICCOLITE_DEVICE int counter() const { return 2 * count_ + index_; }
  NICCOLITE_DEVICE void arrive_at_all() {
    for (int peer = 0; peer < comm_.nranks(); ++peer) detail::note_release(word(peer, counter()));
    detail::add_multicast(
        reinterpret_cast<uint32_t*>(comm_.multicast_resources(comm_.barriers().bufHandle)) +
            counter(),
        1);
  }
  NICCOLITE_DEVICE bool await_all() {
    const uint32_t* const arrived = word(comm_.rank(), counter());
    const uint32_t all = epoch_ + static_cast<uint32_t>(comm_.nranks());
    const bool is_done = detail::spin(
        comm_, Call::BarrierStands, comm_.rank(), static_cast<uint64_t>(index_),
        [&] { return static_cast<int32_t>(detail::load_acquire(arrived) - all) >= 0; });
    detail::note_acquire(word(comm_.rank(), counter()));
    return is_done;
  }

  Group group_;
  const Comm& comm_;
  int index_ = 0;
  int count_ = 0;
  uint32_t epoch_ = 0;
  bool is_multicast_ = false;
  bool is_bad_ = false;
};

// ---- Channels

/// One-way signals between all pairs of ranks, each with a counter of its own: signals are neither
/// lost nor merged. By require_channels().
template <typename Group>
class Channel {
 public:
  NICCOLITE_DEVICE Channel(Group group, const Comm& comm, ChannelsHandle channels, int index)
      : group_(group), comm_(comm) {
#if NICCOLITE_DEVICE_CHECK
    if (index < 0 || index >= channels.count) {
      if (group.rank() == 0)
        comm.report(Call::ChannelSignal, comm.rank(), static_cast<uint64_t>(index));
      is_bad_ = true;
      return;
    }
#endif
    handle_ = channels.handle;
    index_ = index;
  }

  /// Tells `peer` once, after all that the group has done before. Release: see above.
  NICCOLITE_DEVICE void signal(int peer) {
#if NICCOLITE_DEVICE_CHECK
    if (is_bad_ || !comm_.is_peer(peer)) {
      if (group_.rank() == 0 && !is_bad_) comm_.report(Call::ChannelSignal, peer, 0);
      return;
    }
#endif
    detail::fence_aliases_of(comm_);
    group_.sync();
    if (group_.rank() == 0) tell(peer);
  }
  /// Tells all peers, the own rank included.
  NICCOLITE_DEVICE void signal_all() {
    if (is_bad_) return;
    detail::fence_aliases_of(comm_);
    group_.sync();
    for (int peer = static_cast<int>(group_.rank()); peer < comm_.nranks();
         peer += static_cast<int>(group_.size()))
      tell(peer);
  }
  /// Waits for the next signal of `peer` and takes it. Acquire. False after an abort.
  NICCOLITE_DEVICE bool wait(int peer) {
#if NICCOLITE_DEVICE_CHECK
    if (is_bad_ || !comm_.is_peer(peer)) {
      if (group_.rank() == 0 && !is_bad_) comm_.report(Call::ChannelWait, peer, 0);
      return false;
    }
#endif
    const bool is_over = group_.any(group_.rank() == 0 && !take(peer));
    detail::fence_aliases_of(comm_);
    return !is_over;
  }
  /// Waits for one signal of each peer, the own rank included.
  NICCOLITE_DEVICE bool wait_all() {
    if (is_bad_) return false;
    bool is_over = false;
    for (int peer = static_cast<int>(group_.rank()); peer < comm_.nranks() && !is_over;
         peer += static_cast<int>(group_.size()))
      is_over = !take(peer);
    is_over = group_.any(is_over);
    detail::fence_aliases_of(comm_);
    return !is_over;
  }
  /// The sources of the group's puts may be used again. (Puts are stores: they have been read.)
  NICCOLITE_DEVICE void flush() { group_.sync(); }

 private:
  enum Kind { Sent, Taken, Inbox };
  NICCOLITE_DEVICE uint64_t* word(int of, Kind kind, int peer) const {
    return reinterpret_cast<uint64_t*>(comm_.resources(handle_, of)) +
           (static_cast<size_t>(index_) * 3 + kind) * static_cast<size_t>(comm_.nranks()) + peer;
  }
  // One writer for each word: no atomic operation is needed.
  NICCOLITE_DEVICE void tell(int peer) const {
    uint64_t* const sent = word(comm_.rank(), Sent, peer);
    *sent = *sent + 1;
    detail::store_release(word(peer, Inbox, comm_.rank()), *sent);
  }
  NICCOLITE_DEVICE bool take(int peer) const {
    uint64_t* const taken = word(comm_.rank(), Taken, peer);
    const uint64_t* const arrived = word(comm_.rank(), Inbox, peer);
    const uint64_t next = *taken + 1;
    if (!detail::spin(comm_, Call::ChannelStands, peer, static_cast<uint64_t>(index_),
                      [&] { return detail::load_acquire(arrived) >= next; }))
      return false;
    *taken = next;
    return true;
  }

  Group group_;
  const Comm& comm_;
  uint32_t handle_ = 0;
  int index_ = 0;
  bool is_bad_ = false;
};

// ---- Networks

/// Operations with any rank of the communicator, by one context of a device communicator that was
/// required with ginConnectionType = NCCL_GIN_CONNECTION_FULL. Peers are ranks of the communicator.
/// Signals and counters have numbers below ginSignalCount and ginCounterCount, of each context;
/// they begin at 0, and their words only grow.
///
/// Inside the load-store team puts and gets are plain stores and loads; all else is done by the
/// host's proxy, one operation at a time for each peer and context, in order. Different contexts
/// may be used by any number of groups, and one context, too.
///
/// Memory order, at system scope: whoever has waited for a signal sees all data that the signalling
/// group has put to it before, by this context. Nothing else is ordered. A source must stay until
/// flush(), or its counter; data of a get are there after flush().
///
/// Aborts: wait() and wait_counter() return false, and operations do nothing. flush() may return
/// true all the same, since the proxy drops operations then: data of gets are undefined.
///
/// Errors: an operation beyond a window, a window that is none, or a signal or counter that
/// was not required makes the communicator fail with an error that names rank, peer and operation;
/// it and all later ones of the rank do nothing.
template <typename Group>
class Network {
 public:
  NICCOLITE_DEVICE Network(Group group, const Comm& comm, int context)
      : group_(group), comm_(comm), context_(comm.context(context)) {}

  NICCOLITE_DEVICE int rank() const { return comm_.world_rank(); }
  NICCOLITE_DEVICE int nranks() const { return comm_.world_nranks(); }

  /// Copies `count` elements of this rank's copy of `source`, from `from` on, to `peer`'s copy of
  /// `target`, from `to` on.
  template <typename T>
  NICCOLITE_DEVICE void put(const Buffer<T>& target, size_t to, int peer, const Buffer<T>& source,
                            size_t from, size_t count) {
    if (is_near(peer)) {
      group_.sync();  // other threads may have written the source
      device::put(group_, comm_, target, to, comm_.team_rank(peer), source.own() + from, count);
      return;
    }
    post(peer, copy(kPut, source, from, target, to, count));
  }
  /// put(), and adds 1 to this rank's counter once the source may be written again.
  template <typename T>
  NICCOLITE_DEVICE void put_counted(const Buffer<T>& target, size_t to, int peer,
                                    const Buffer<T>& source, size_t from, size_t count,
                                    uint32_t counter) {
    Descriptor words = copy(kPut | kCounter, source, from, target, to, count);
    words.word[5] |= static_cast<uint64_t>(counter) << 1;
    post(peer, words);
  }
  /// Stores one element of at most 8 bytes.
  template <typename T>
  NICCOLITE_DEVICE void put_value(const Buffer<T>& target, size_t to, int peer, T value) {
    static_assert(sizeof(T) <= 8, "a value has at most 8 bytes");
    if (is_near(peer)) {
      group_.sync();
      if (group_.rank() == 0) target.of(comm_.team_rank(peer))[to] = value;
      return;
    }
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    Descriptor words = copy(kPut | kInline, target, to, target, to, 1);
    words.word[1] = 1 | (bits & 0xffffffff) << 8 | (bits >> 32 & 0xffff) << 40;
    words.word[2] = 1 | (bits >> 48) << 8;
    post(peer, words);
  }
  /// Copies `count` elements of `peer`'s copy of `source`, from `from` on, to this rank's copy of
  /// `target`, from `to` on.
  template <typename T>
  NICCOLITE_DEVICE void get(const Buffer<T>& source, size_t from, int peer, const Buffer<T>& target,
                            size_t to, size_t count) {
    if (is_near(peer)) {
      group_.sync();
      const T* const there = source.of(comm_.team_rank(peer)) + from;
      T* const here = target.own() + to;
      for (size_t i = group_.rank(); i < count; i += group_.size()) here[i] = there[i];
      return;
    }
    post(peer, copy(kGet, source, from, target, to, count));
  }

  /// Adds `amount` to `peer`'s signal, after all that the group has done before. Release.
  NICCOLITE_DEVICE void signal(int peer, uint32_t signal, uint64_t amount = 1) {
    Descriptor words = empty(kPut | kAdd);
    words.word[5] |= static_cast<uint64_t>(signal) << 24;
    set_amount(words, amount);
    post(peer, words);
  }
  /// signal() with a word of a window as the signal; nothing else may add to it. `peer` reads it by
  /// value_at() and wait_at().
  NICCOLITE_DEVICE void signal_at(const Buffer<uint64_t>& words_of, size_t index, int peer,
                                  uint64_t amount = 1) {
    Descriptor words = empty(kAdd | kInMemory);
    words.word[1] |= words_of.network_offset(index) << 1;
    words.word[2] |= words_of.network() << 1;
    set_amount(words, amount);
    post(peer, words);
  }

  /// Waits until this rank's signal has at least `least`. Acquire. False after an abort.
  NICCOLITE_DEVICE bool wait(uint32_t signal, uint64_t least) {
    return reaches(context_->signals + signal, least);
  }
  NICCOLITE_DEVICE bool wait_at(const Buffer<uint64_t>& words_of, size_t index, uint64_t least) {
    return reaches(words_of.own() + index, least);
  }
  NICCOLITE_DEVICE bool wait_counter(uint32_t counter, uint64_t least) {
    return reaches(context_->counters + counter, least);
  }
  /// The value now. Acquire.
  NICCOLITE_DEVICE uint64_t value(uint32_t signal) const {
    return detail::load_acquire(context_->signals + signal);
  }

  /// Waits until all that this context's users on this rank have asked for is done: sources may be
  /// written, and data of gets be read. False after an abort, if it has waited for one.
  NICCOLITE_DEVICE bool flush() {
    group_.sync();
    bool is_over = false;
    for (int peer = static_cast<int>(group_.rank()); peer < nranks() && !is_over;
         peer += static_cast<int>(group_.size())) {
      const uint32_t until = detail::load_acquire(context_->produced + peer);
      is_over = !detail::spin(comm_, Call::NetworkStands, peer, until, [&] {
        return static_cast<int32_t>(detail::load_acquire(context_->consumed + peer) - until) >= 0;
      });
    }
    return !group_.any(is_over);
  }

 private:
  enum Operation : uint32_t {
    kPut = 1,
    kInline = 2,
    kCounter = 4,
    kAdd = 16,
    kInMemory = 32,
    kGet = 64
  };
  static constexpr int kWords = 16;
  /// The first half of a descriptor's words; bit 0 of each says that it is there.
  struct Descriptor {
    uint64_t word[8];
  };

  NICCOLITE_DEVICE bool is_near(int peer) const { return comm_.is_peer(comm_.team_rank(peer)); }
  NICCOLITE_DEVICE static Descriptor empty(uint32_t operation) {
    constexpr uint64_t kVersion = 2;
    constexpr uint64_t kStrong = 2;
    return {
        {1 | kVersion << 1, 1, 1, 1, 1, 1, 1 | kStrong, 1 | static_cast<uint64_t>(operation) << 8}};
  }
  template <typename T>
  NICCOLITE_DEVICE static Descriptor copy(uint32_t operation, const Buffer<T>& source, size_t from,
                                          const Buffer<T>& target, size_t to, size_t count) {
    Descriptor words = empty(operation);
    words.word[0] |= static_cast<uint64_t>(count * sizeof(T)) << 7;
    words.word[1] |= source.network_offset(from) << 1;
    words.word[2] |= source.network() << 1;
    words.word[3] |= target.network_offset(to) << 1;
    words.word[4] |= target.network() << 1;
    return words;
  }
  NICCOLITE_DEVICE static void set_amount(Descriptor& words, uint64_t amount) {
    words.word[5] |= amount << 48;
    words.word[6] |= (amount >> 16 & 0xffff) << 8 | (amount >> 32) << 24;
  }
  NICCOLITE_DEVICE void post(int peer, const Descriptor& words) {
    group_.sync();
    if (group_.rank() != 0) return;
    detail::fence();
    const uint32_t index = detail::fetch_add(context_->produced + peer);
    const uint32_t depth = context_->depth;
    const bool has_room = detail::spin(comm_, Call::NetworkStands, peer, index, [&] {
      return index - detail::load_acquire(context_->consumed + peer) < depth;
    });
    if (!has_room) return;
    uint64_t* const slot =
        context_->queues + (static_cast<size_t>(peer) * depth + (index & (depth - 1))) * kWords;
    for (int i = 0; i < kWords; ++i) detail::store_word(slot + i, i < 8 ? words.word[i] : 1);
  }
  NICCOLITE_DEVICE bool reaches(const uint64_t* word, uint64_t least) {
    return !group_.any(group_.rank() == 0 &&
                       !detail::spin(comm_, Call::NetworkStands, rank(), least, [&] {
                         return static_cast<int64_t>(detail::load_acquire(word) - least) >= 0;
                       }));
  }

  Group group_;
  const Comm& comm_;
  const NetworkContext* context_;
};

/// Host: an entry for the list of requirements, for `count` channels of a team of `nranks` ranks
/// (ncclTeamLsa). `channels` is complete once ncclDevCommCreate is; both live until then.
inline ncclDevResourceRequirements_t require_channels(int count, int nranks,
                                                      ChannelsHandle* channels) {
  ncclDevResourceRequirements_t need;
  std::memset(&need, 0, sizeof need);
  channels->handle = 0;
  channels->count = count;
  need.bufferSize = static_cast<size_t>(count) * 3 * static_cast<size_t>(nranks) * sizeof(uint64_t);
  need.bufferAlign = sizeof(uint64_t);
  need.outBufferHandle = &channels->handle;
  return need;
}

}  // namespace device
}  // namespace niccolite

#endif  // NICCOLITE_DEVICE_H_
