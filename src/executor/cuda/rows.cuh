// Memory that a warp accesses as a whole, wherever it begins. Threads have pieces that follow each
// other, a *row*. They load and store the aligned packs that their pieces lie in, and neighbours
// hand each other what lies in one's pack and belongs to the other's piece: an access of a row
// takes as many instructions as one that is aligned, and each byte goes over the bus once. What of
// a row shares a pack with memory that is not the row's, at its two ends, is stored by elements, a
// thread each.
//
// All threads of a warp call these functions together, with addresses that are congruent modulo the
// pack. A pack that holds a byte of a buffer can be read.
#pragma once

#include <type_traits>

#include "executor/cuda/device_types.h"
#include "executor/cuda/user_memory.cuh"

namespace niccolite::executor::cuda {

__device__ __forceinline__ uint32_t thread_of_warp() { return ptx::thread() % kWarp; }

/// `low` and, behind it, `high`, from byte `offset` (0 to 15) on.
__device__ __forceinline__ Pack pack_in(const Pack& low, const Pack& high, uint32_t offset) {
  const bool is_late = offset >= kGranule;
  const uint64_t granules[] = {low.half[0], low.half[1], high.half[0], high.half[1]};
  const uint64_t first = is_late ? granules[1] : granules[0];
  const uint64_t second = is_late ? granules[2] : granules[1];
  const uint64_t third = is_late ? granules[3] : granules[2];
  return {
      {granule_in(first, second, offset % kGranule), granule_in(second, third, offset % kGranule)}};
}
/// By value: which of two packs' memory, asked of registers, would put them into memory.
__device__ __forceinline__ Pack choose(bool is_first, Pack first, Pack second) {
  const uint64_t low = is_first ? first.half[0] : second.half[0];
  const uint64_t high = is_first ? first.half[1] : second.half[1];
  return {{low, high}};
}
__device__ __forceinline__ Pack pack_of_lane(const Pack& pack, uint32_t lane) {
  return {{ptx::value_of_lane(pack.half[0], lane), ptx::value_of_lane(pack.half[1], lane)}};
}

// ---- rows of packs

/// kRows rows of packs that follow each other, thread t having the packs t, t + 32, ...; of memory
/// that is not aligned they are put together of the packs that it lies in, one more.
template <int kRows>
struct PackRows {
  Pack packs[kRows];
  Pack behind;
};

/// Starts to load the first `count` (1 or more) packs from `address` on. What is there then is for
/// settle_rows(), once all other loads are on their way too.
template <int kRows>
__device__ __forceinline__ void load_rows(const std::byte* address, uint32_t count,
                                          PackRows<kRows>& rows) {
  const uint32_t offset = bytes_into_line(address) % kPack;
  const std::byte* first = address - offset;
  const uint32_t end = count + (offset != 0);
  const uint32_t lane = thread_of_warp();
#pragma unroll
  for (uint32_t i = 0; i < kRows; ++i) {
    const uint32_t pack = i * kWarp + lane;
    if (pack < end) rows.packs[i] = ptx::load_pack(first + size_t{pack} * kPack);
  }
  if (lane == 0 && kRows * kWarp < end) {
    rows.behind = ptx::load_pack(first + size_t{kRows} * kWarp * kPack);
  }
}

/// Makes rows.packs what lies from `address` on.
template <int kRows>
__device__ __forceinline__ void settle_rows(const std::byte* address, PackRows<kRows>& rows) {
  const uint32_t offset = bytes_into_line(address) % kPack;
  if (offset == 0) return;
  const uint32_t lane = thread_of_warp();
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    Pack below = rows.behind;
    if (i + 1 < kRows) below = rows.packs[i + 1 < kRows ? i + 1 : 0];
    const Pack next = pack_of_lane(choose(lane == 0, below, rows.packs[i]), (lane + 1) % kWarp);
    rows.packs[i] = pack_in(rows.packs[i], next, offset);
  }
}

/// Stores the first `count` (1 or more) packs, from `address` on.
template <typename Element, int kRows>
__device__ __forceinline__ void store_rows(std::byte* address, uint32_t count,
                                           const Pack (&packs)[kRows]) {
  const uint32_t offset = bytes_into_line(address) % kPack;
  const uint32_t lane = thread_of_warp();
  if (offset == 0) {
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) {
      const uint32_t pack = i * kWarp + lane;
      if (pack < count) ptx::store_pack(address + size_t{pack} * kPack, packs[i]);
    }
    return;
  }
  std::byte* first = address - offset;
  const uint32_t ahead = kPack - offset;
#pragma unroll
  for (uint32_t i = 0; i < kRows; ++i) {
    const uint32_t pack = i * kWarp + lane;
    const Pack own = choose(lane == kWarp - 1, packs[i == 0 ? 0 : i - 1], packs[i]);
    const Pack before = pack_of_lane(own, (lane + kWarp - 1) % kWarp);
    if (pack != 0 && pack < count) {
      ptx::store_pack(first + size_t{pack} * kPack, pack_in(before, packs[i], ahead));
    }
  }
  // The ends: of the first pack of memory what lies from byte `offset` on, of the last what lies
  // before it. One pack holds both.
  using Piece = typename PieceOf<sizeof(Element)>::Type;
  Pack last = packs[0];
#pragma unroll
  for (uint32_t i = 1; i < kRows; ++i) {
    last = choose((count - 1) / kWarp == i, packs[i], last);
  }
  const Pack ends =
      pack_in(pack_of_lane(last, (count - 1) % kWarp), pack_of_lane(packs[0], 0), ahead);
  const uint32_t byte = lane * sizeof(Element);
  if (byte >= kPack) return;
  const uint64_t low = ends.half[0];
  const uint64_t high = ends.half[1];
  const uint64_t half = byte < kGranule ? low : high;
  std::byte* end = byte < offset ? first + size_t{count} * kPack : first;
  ptx::store<Piece>(end + byte, static_cast<Piece>(half >> byte % kGranule * 8));
}

}  // namespace niccolite::executor::cuda
