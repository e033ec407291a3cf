// Memory that a warp accesses as a whole, wherever it begins. Threads have pieces that follow each
// other, a *row*. They load and store the aligned words or packs that their pieces lie in, and
// neighbours hand each other what lies in one's word and belongs to the other's piece: an access
// of a row takes as many instructions as one that is aligned, and each byte goes over the bus once.
// What of a row shares a word with memory that is not the row's, at its two ends, is stored by
// elements, a thread each.
//
// All threads of a warp call these functions together, with addresses that are congruent modulo the
// word or pack. A word that holds a byte of a buffer can be read.
#pragma once

#include <type_traits>

#include "executor/cuda/user_memory.cuh"

namespace niccolite::executor::cuda {

inline constexpr uint32_t kPack = 16;

__device__ __forceinline__ uint32_t lane_of_warp() { return ptx::thread() % kWarp; }

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

// ---- rows of granules, one or two a thread (lines of LL128)

/// Starts to load a row, of which thread t has `most` (1 or 2; the warp's last thread 1) granules
/// from `address` on: `left` bytes (0 or less: none) lie from there to the end of the memory. What
/// it returns is for settle_row(), once all other loads are on their way too.
__device__ __forceinline__ Words load_row(const std::byte* address, uint32_t most, int32_t left) {
  const auto offset = static_cast<int32_t>(reinterpret_cast<uintptr_t>(address) % kGranule);
  const std::byte* word = address - offset;
  const int32_t end = left + offset;
  // The word behind its only granule's is the next thread's, but for the last thread.
  const bool has_second = most == 2 || lane_of_warp() == kWarp - 1;
  Words words{0, 0};
  if (end > 0) words.first = ptx::load<uint64_t>(word);
  if (has_second && end > static_cast<int32_t>(kGranule)) {
    words.second = ptx::load<uint64_t>(word + kGranule);
  }
  return words;
}

/// The granules of a row that was loaded from `address`, with anything behind the memory's end.
__device__ __forceinline__ Words settle_row(const std::byte* address, uint32_t most,
                                            const Words& words) {
  const auto offset = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) % kGranule);
  const uint64_t next = ptx::value_of_lane(words.first, (lane_of_warp() + 1) % kWarp);
  const bool has_second = most == 2 || lane_of_warp() == kWarp - 1;
  return {granule_in(words.first, has_second ? words.second : next, offset),
          granule_in(words.second, next, offset)};
}

/// Stores up to 16 bytes that thread 0 has, from `address` on, by elements.
template <typename Element>
__device__ __forceinline__ void store_first_of_warp(std::byte* address, const Words& granules,
                                                    uint32_t bytes) {
  using Piece = typename PieceOf<sizeof(Element)>::Type;
  const uint64_t first = ptx::value_of_lane(granules.first, 0);
  const uint64_t second = ptx::value_of_lane(granules.second, 0);
  const uint64_t start = ptx::value_of_lane(reinterpret_cast<uint64_t>(address), 0);
  const uint32_t end = ptx::first_of_warp(bytes);
  const uint32_t at = lane_of_warp() * sizeof(Element);
  if (at >= end) return;
  const uint64_t granule = at < kGranule ? first : second;
  ptx::store<Piece>(reinterpret_cast<std::byte*>(start + at),
                    static_cast<Piece>(granule >> at % kGranule * 8));
}

/// Stores a row, of which thread t has `most` (1 or 2) granules from `address` on; `left` bytes lie
/// from there to the end of the memory, and threads that have none left are the last ones.
template <typename Element>
__device__ __forceinline__ void store_row(std::byte* address, const Words& granules, uint32_t most,
                                          uint32_t left) {
  const uint32_t lane = lane_of_warp();
  const uint32_t threads = ptx::count_in_warp(left != 0);
  if (threads == 0) return;
  const uint32_t bytes = left < most * kGranule ? left : most * kGranule;
  if (threads == 1) return store_first_of_warp<Element>(address, granules, bytes);

  const auto offset = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) % kGranule);
  std::byte* word = address - offset;
  // Of two granules that follow each other, what belongs into the word that both lie in.
  const auto join = [&](uint64_t low, uint64_t high) {
    return offset == 0 ? high : granule_in(low, high, kGranule - offset);
  };
  const uint64_t last = most == 2 ? granules.second : granules.first;
  const uint64_t before = ptx::value_of_lane(last, (lane + kWarp - 1) % kWarp);
  const uint64_t first_word = join(before, granules.first);
  const uint64_t second_word = join(granules.first, granules.second);
  if ((lane != 0 || offset == 0) && offset + left >= kGranule) {
    ptx::store<uint64_t>(word, first_word);
  }
  if (most == 2 && offset + left >= 2 * kGranule) {
    ptx::store<uint64_t>(word + kGranule, second_word);
  }
  if constexpr (sizeof(Element) < kGranule) {
    // The ends: thread 0's first word, from byte `offset` on, and the last word of the last thread
    // that has any, up to where the row ends. Bounds go with the addresses, in bits that are 0.
    using Piece = typename PieceOf<sizeof(Element)>::Type;
    constexpr uint32_t kElements = kGranule / sizeof(Element);
    const uint32_t end = offset + bytes;
    const uint64_t beyond = join(last, 0);
    const uint64_t last_word = end < kGranule                     ? first_word
                               : most == 1 || end >= 2 * kGranule ? beyond
                                                                  : second_word;
    const bool is_first = lane == 0;
    const uint64_t edge = reinterpret_cast<uint64_t>(word) + (is_first ? offset : end);
    const bool takes_first = lane < kElements;
    const uint32_t owner = takes_first ? 0 : threads - 1;
    const uint64_t value = ptx::value_of_lane(is_first ? first_word : last_word, owner);
    const uint64_t at = ptx::value_of_lane(edge, owner);
    const auto bound = static_cast<uint32_t>(at % kGranule);
    const uint32_t byte = lane % kElements * sizeof(Element);
    const bool is_inside = takes_first ? byte >= bound : byte < bound;
    if (lane < 2 * kElements && bound != 0 && is_inside) {
      ptx::store<Piece>(reinterpret_cast<std::byte*>(at - bound + byte),
                        static_cast<Piece>(value >> byte * 8));
    }
  }
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
  const uint32_t lane = lane_of_warp();
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
  const uint32_t lane = lane_of_warp();
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
  const uint32_t lane = lane_of_warp();
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
