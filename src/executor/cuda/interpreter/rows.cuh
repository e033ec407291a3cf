// Memory that a warp accesses as a whole, wherever it begins. Threads have pieces that follow each
// other, a *row*. They load and store the aligned vec16s that their pieces lie in, and neighbours
// hand each other what lies in one's vec16 and belongs to the other's piece: an access of a row
// takes as many instructions as one that is aligned, and each byte goes over the bus once. What of
// a row shares a vec16 with memory that is not the row's, at its two ends, is stored by elements, a
// thread each.
//
// All threads of a warp call these functions together, with addresses that are congruent modulo the
// vec16. A vec16 that holds a byte of a buffer can be read.
#pragma once

#include <type_traits>

#include "executor/cuda/interpreter/device_types.h"
#include "executor/cuda/interpreter/user_memory.cuh"

namespace niccolite::executor::cuda {

__device__ __forceinline__ uint32_t thread_of_warp() { return ptx::thread() % kWarp; }

/// `low` and, behind it, `high`, from byte `offset` (0 to 15) on.
__device__ __forceinline__ Vec16 vec16_in(const Vec16& low, const Vec16& high, uint32_t offset) {
  const bool is_late = offset >= kVec8;
  const uint64_t vec8s[] = {low.half[0], low.half[1], high.half[0], high.half[1]};
  const uint64_t first = is_late ? vec8s[1] : vec8s[0];
  const uint64_t second = is_late ? vec8s[2] : vec8s[1];
  const uint64_t third = is_late ? vec8s[3] : vec8s[2];
  return {{vec8_in(first, second, offset % kVec8), vec8_in(second, third, offset % kVec8)}};
}
/// Chooses by value: a choice of addresses would force the two vec16s from registers into memory.
__device__ __forceinline__ Vec16 choose(bool is_first, Vec16 first, Vec16 second) {
  const uint64_t low = is_first ? first.half[0] : second.half[0];
  const uint64_t high = is_first ? first.half[1] : second.half[1];
  return {{low, high}};
}
__device__ __forceinline__ Vec16 vec16_of_lane(const Vec16& vec16, uint32_t lane) {
  return {{ptx::value_of_lane(vec16.half[0], lane), ptx::value_of_lane(vec16.half[1], lane)}};
}

// ---- rows of vec16s

/// kRows rows of vec16s that follow each other, thread t having the vec16s t, t + 32, ...; of
/// memory that is not aligned they are put together of the vec16s that it lies in, one more.
template <int kRows>
struct Vec16Rows {
  Vec16 vec16s[kRows];
  Vec16 behind;
};

/// Starts to load the first `count` (1 or more) vec16s from `address` on. settle_rows() makes use
/// of the loaded values, once all other loads are on their way too.
template <int kRows>
__device__ __forceinline__ void load_rows(const std::byte* address, uint32_t count,
                                          Vec16Rows<kRows>& rows) {
  const uint32_t offset = bytes_into_line(address) % kVec16;
  const std::byte* first = address - offset;
  const uint32_t end = count + (offset != 0);
  const uint32_t lane = thread_of_warp();
#pragma unroll
  for (uint32_t i = 0; i < kRows; ++i) {
    const uint32_t vec16 = i * kWarp + lane;
    if (vec16 < end) rows.vec16s[i] = ptx::load_vec16(first + size_t{vec16} * kVec16);
  }
  if (lane == 0 && kRows * kWarp < end) {
    rows.behind = ptx::load_vec16(first + size_t{kRows} * kWarp * kVec16);
  }
}

/// Sets rows.vec16s to the data from `address` on.
template <int kRows>
__device__ __forceinline__ void settle_rows(const std::byte* address, Vec16Rows<kRows>& rows) {
  const uint32_t offset = bytes_into_line(address) % kVec16;
  if (offset == 0) return;
  const uint32_t lane = thread_of_warp();
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    Vec16 below = rows.behind;
    if (i + 1 < kRows) below = rows.vec16s[i + 1 < kRows ? i + 1 : 0];
    const Vec16 next = vec16_of_lane(choose(lane == 0, below, rows.vec16s[i]), (lane + 1) % kWarp);
    rows.vec16s[i] = vec16_in(rows.vec16s[i], next, offset);
  }
}

/// Stores the first `count` (1 or more) vec16s, from `address` on.
template <typename Element, int kRows>
__device__ __forceinline__ void store_rows(std::byte* address, uint32_t count,
                                           const Vec16 (&vec16s)[kRows]) {
  const uint32_t offset = bytes_into_line(address) % kVec16;
  const uint32_t lane = thread_of_warp();
  if (offset == 0) {
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) {
      const uint32_t vec16 = i * kWarp + lane;
      if (vec16 < count) ptx::store_vec16(address + size_t{vec16} * kVec16, vec16s[i]);
    }
    return;
  }
  std::byte* first = address - offset;
  const uint32_t ahead = kVec16 - offset;
#pragma unroll
  for (uint32_t i = 0; i < kRows; ++i) {
    const uint32_t vec16 = i * kWarp + lane;
    const Vec16 own = choose(lane == kWarp - 1, vec16s[i == 0 ? 0 : i - 1], vec16s[i]);
    const Vec16 before = vec16_of_lane(own, (lane + kWarp - 1) % kWarp);
    if (vec16 != 0 && vec16 < count) {
      ptx::store_vec16(first + size_t{vec16} * kVec16, vec16_in(before, vec16s[i], ahead));
    }
  }
  // The ends: of the first vec16 of memory what lies from byte `offset` on, of the last what lies
  // before it. One vec16 holds both.
  using Piece = typename PieceOf<sizeof(Element)>::Type;
  Vec16 last = vec16s[0];
#pragma unroll
  for (uint32_t i = 1; i < kRows; ++i) {
    last = choose((count - 1) / kWarp == i, vec16s[i], last);
  }
  const Vec16 ends =
      vec16_in(vec16_of_lane(last, (count - 1) % kWarp), vec16_of_lane(vec16s[0], 0), ahead);
  const uint32_t byte = lane * sizeof(Element);
  if (byte >= kVec16) return;
  const uint64_t low = ends.half[0];
  const uint64_t high = ends.half[1];
  const uint64_t half = byte < kVec8 ? low : high;
  std::byte* end = byte < offset ? first + size_t{count} * kVec16 : first;
  ptx::store<Piece>(end + byte, static_cast<Piece>(half >> byte % kVec8 * 8));
}

}  // namespace niccolite::executor::cuda
