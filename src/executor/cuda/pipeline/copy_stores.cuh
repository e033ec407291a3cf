// The parts of a copy (copy_worker.cuh) that threads store: stages that bulk copies cannot store,
// because the architecture has none or addresses are not aligned alike, and ends that are less than
// a vec16.
#pragma once

#include "executor/cuda/pipeline/stage_ring.cuh"

namespace niccolite::executor::cuda {

__device__ __forceinline__ uint32_t into_vec16(const std::byte* address) {
  return bytes_into_line(address) % kVec16;
}
__device__ __forceinline__ bool is_aligned(const std::byte* address) {
  return into_vec16(address) == 0;
}

/// Stores less than a vec16, which lies anywhere, by one thread to several places, `at` bytes
/// behind each of them.
template <typename Element>
__device__ __forceinline__ void move_bytes(const std::byte* from, std::byte* const* targets,
                                           uint32_t ntargets, int64_t at, uint32_t bytes) {
  const uint32_t first = bytes < kVec8 ? bytes : kVec8;
  const uint32_t second = bytes - first;
  const uint64_t low = load_vec8<Element>(from, first, sizeof(Element));
  uint64_t high = 0;
  if (second != 0) high = load_vec8<Element>(from + kVec8, second, sizeof(Element));
  for (uint32_t t = 0; t < ntargets; ++t) {
    std::byte* target = targets[t] + at;
    store_vec8<Element>(target, low, first, sizeof(Element));
    if (second != 0) store_vec8<Element>(target + kVec8, high, second, sizeof(Element));
  }
}

/// Moves, by a warp, rows of one `Value` for each thread from thread `at` on, as far as they end
/// before `end`: several loads are under way before the first store.
template <typename Value, typename Load, typename Store>
__device__ __forceinline__ void store_rows(uint32_t at, uint32_t end, Load&& load, Store&& store) {
  constexpr int kRows = 8;
  constexpr uint32_t kRow = kWarp * sizeof(Value);
  for (; at + (kRows - 1) * kRow < end; at += kRows * kRow) {
    Value values[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) values[i] = load(at + i * kRow);
#pragma unroll
    for (int i = 0; i < kRows; ++i) store(at + i * kRow, values[i]);
  }
  for (; at < end; at += kRow) store(at, load(at));
}

/// Stores by a warp, where shared memory and the target are aligned to vec16s.
__device__ __forceinline__ void store_vec16s(std::byte* target, const std::byte* shared,
                                             uint32_t bytes) {
  store_rows<Vec16>(
      ptx::thread() % kWarp * kVec16, bytes,
      [&](uint32_t at) { return ptx::load_vec16_shared(shared + at); },
      [&](uint32_t at, const Vec16& vec16) { ptx::store_vec16(target + at, vec16); });
}

/// Stores by a warp to any address: vec8s from the first aligned one in the target, mostly in rows
/// that begin at a line. One thread stores the bytes before the first vec8, another the rest behind
/// the last.
template <typename Element>
__device__ __forceinline__ void store_vec8s(std::byte* target, const std::byte* shared,
                                            uint32_t bytes) {
  using Piece = typename PieceOf<sizeof(Element)>::Type;
  const uint32_t thread = ptx::thread() % kWarp;
  const uint32_t into_line = bytes_into_line(target);
  const uint32_t before = (kLine - into_line) % kVec8;
  const uint32_t head = before < bytes ? before : bytes;
  const uint32_t end = head + (bytes - head) / kVec8 * kVec8;
  const auto load = [&](uint32_t at) { return load_around_shared(shared + at, kVec8); };
  const auto store = [&](uint32_t at, uint64_t vec8) { ptx::store<uint64_t>(target + at, vec8); };
  if (thread == 0 && head != 0) store_pieces<Piece>(target, load_around_shared(shared, head), head);
  if (thread == 1 && end != bytes)
    store_pieces<Piece>(target + end, load_around_shared(shared + end, bytes - end), bytes - end);
  const uint32_t before_line = (kLine - into_line) % kLine;
  const uint32_t first = before_line < end ? before_line : end;
  const uint32_t at = head + thread * kVec8;
  if (at < first) store(at, load(at));
  store_rows<uint64_t>(first + thread * kVec8, end, load, store);
}

}  // namespace niccolite::executor::cuda
