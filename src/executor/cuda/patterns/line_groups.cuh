// User memory as the kernels by hand that go by LL128 access it. The unit is a *group*: the data of
// the four lines that a warp moves by one access (ll128_step.cuh). The eight threads of a line have
// 16 bytes of it each, the last one 8.
#pragma once

#include "executor/cuda/interpreter/ll128_step.cuh"

namespace niccolite::executor::cuda {

inline constexpr uint32_t kGroupBytes = kWarpLines * ll128::kLineBytes;
inline constexpr uint32_t kGroupData = kWarpLines * ll128::kDataBytes;

/// The calling thread's place in every group.
class LineThread {
 public:
  __device__ __forceinline__ uint32_t lane() const { return worker_; }
  __device__ __forceinline__ uint32_t warp() const { return warp_; }
  __device__ __forceinline__ uint32_t warps() const { return ptx::threads() / kWarp; }
  __device__ __forceinline__ bool has_flag() const {
    return lane() % kLineThreads == kLineThreads - 1;
  }
  /// The offset of the thread's line and part in a group's data.
  __device__ __forceinline__ uint32_t line_offset() const {
    return lane() / kLineThreads * ll128::kDataBytes;
  }
  __device__ __forceinline__ uint32_t offset() const {
    return line_offset() + lane() % kLineThreads * kLinePart;
  }
  __device__ __forceinline__ static uint32_t groups_of(uint32_t bytes) {
    return (bytes + kGroupData - 1) / kGroupData;
  }
  /// Does the thread's line of a group of `bytes` bytes of data exist? The same for all threads of
  /// the line.
  __device__ __forceinline__ bool line_exists(uint32_t bytes, uint32_t group) const {
    return group * kGroupData + line_offset() < bytes;
  }
  /// Is there any of the group? The same for all threads of a warp.
  __device__ __forceinline__ static bool has_group(uint32_t bytes, uint32_t group) {
    return group * kGroupData < bytes;
  }

  /// Computes the thread's indices anew: kept over a whole kernel, they would take registers that
  /// each part of it needs for itself.
  __device__ __forceinline__ void find_place_anew() {
    worker_ = ptx::opaque(worker_);
    warp_ = ptx::opaque(warp_);
  }

 private:
  uint32_t worker_ = ptx::thread() % kWarp;
  uint32_t warp_ = ptx::thread() / kWarp;
};

/// Loads and stores of `bytes` bytes of user memory, by all threads of a warp together. `part`: the
/// thread's part of the first group, which is offset() bytes behind the begin of the bytes.
template <typename Element>
class LineMemory {
 public:
  using Around = PairAround<Element>;

  /// Are there groups up to `last` that are not aligned to vec8s, or whose end is not? The same
  /// for all threads of a warp. `width`: WorkTask's.
  __device__ __forceinline__ static bool needs_pieces(uint32_t width, uint32_t bytes,
                                                      uint32_t last) {
    if constexpr (sizeof(Element) >= kVec8) return false;
    return width < kVec8 || (bytes % kVec8 != 0 && bytes < (last + 1) * kGroupData);
  }

  /// Loads the thread's part of a group in whole vec8s. load_around() serves groups that begin and
  /// end anywhere.
  __device__ __forceinline__ static Words load(const LineThread& thread, const std::byte* part,
                                               uint32_t bytes, uint32_t group) {
    part += size_t{group * kGroupData};
    const uint32_t at = group * kGroupData + thread.offset();
    Words words{0, 0};
    if (at < bytes) words.first = ptx::load<uint64_t>(part);
    if (at + kVec8 < bytes && !thread.has_flag()) words.second = ptx::load<uint64_t>(part + kVec8);
    return words;
  }
  __device__ __forceinline__ static Around load_around(const LineThread& thread,
                                                       const std::byte* part, uint32_t bytes,
                                                       uint32_t group) {
    part += size_t{group * kGroupData};
    if ((group + 1) * kGroupData <= bytes) return Around::load_whole(part, !thread.has_flag());
    if (!LineThread::has_group(bytes, group)) return {};
    const uint32_t most = thread.has_flag() ? kVec8 : 2 * kVec8;
    const uint32_t left = left_of(bytes, group * kGroupData + thread.offset());
    return Around::load(part, left < most ? left : most);
  }
  /// Stores it. `needs_care`: needs_pieces().
  __device__ __forceinline__ static void store(const LineThread& thread, std::byte* part,
                                               uint32_t bytes, uint32_t group, const Words& words,
                                               bool needs_care) {
    part += size_t{group * kGroupData};
    const uint32_t at = group * kGroupData + thread.offset();
    if constexpr (sizeof(Element) < kVec8) {
      if (needs_care) {
        if (!LineThread::has_group(bytes, group)) return;
        return store_row_part<Element>(part - thread.offset(), kGroupData, thread.offset(), words,
                                       thread.has_flag() ? 1 : 2, left_of(bytes, at));
      }
    }
    if (at < bytes) ptx::store<uint64_t>(part, words.first);
    if (at + kVec8 < bytes && !thread.has_flag()) ptx::store<uint64_t>(part + kVec8, words.second);
  }

 private:
  /// Bytes behind `at` of them.
  __device__ __forceinline__ static uint32_t left_of(uint32_t bytes, uint32_t at) {
    return at < bytes ? bytes - at : 0;
  }
};

}  // namespace niccolite::executor::cuda
