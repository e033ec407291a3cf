// The tiles of a direct list (direct_list.cuh): from all inputs, reduced, to all outputs.
#pragma once

#include "executor/cuda/interpreter/rows.cuh"
#include "executor/cuda/patterns/direct_data.cuh"
#include "executor/cuda/patterns/direct_list_view.cuh"

namespace niccolite::executor::cuda {

static_assert(kListTileBytes >> kMostTilePartsBits == kWarp * kVec16);

/// Vec16s of an operand that a thread has on the way, as many as there are registers for.
template <typename Operation>
constexpr uint32_t vec16s_in_flight() {
  if constexpr (Operation::kReduces) return Operation::kAccumulatorRegisters > 8 ? 1 : 2;
  return 4;
}

template <typename Operation>
constexpr bool is_sum() {
  if constexpr (Operation::kReduces) return Operation::kScales;
  return false;
}

template <typename Operation, uint32_t kMostPeers>
class ListTiles {
 public:
  __device__ __forceinline__ ListTiles(const LaunchHeader& header, const ListView<kMostPeers>& view)
      : header_(header), view_(view) {}

  /// Moves this rank's tiles of all works, warp by warp; called by all threads of the CTA. Works
  /// that some rank does not see are left out.
  __device__ __forceinline__ void move() const {
    const uint32_t warps = ptx::threads() / kWarp;
    const uint32_t warp = ptx::thread() / kWarp;
    const uint32_t stride = tile_stride(view_.access(), view_.nranks());
    uint32_t next = warp;  // of the parts of tiles that follow, which is this warp's
#pragma unroll 1
    for (uint32_t work = view_.first_work(); work < view_.end_of_works(); ++work) {
      const uint32_t tile = next_tile_of(view_.access(), view_.rank(), work,
                                         view_.first_tile_of(work), view_.nranks());
      const uint32_t end = view_.end_tile_of(work);
      const uint32_t tiles = tile < end ? (end - tile + stride - 1) / stride : 0;
      const uint32_t parts = tiles << view_.tile_parts_bits();
      if (view_.is_hidden(work)) continue;
      for (; next < parts; next += warps) {
        const uint32_t bits = view_.tile_parts_bits();
        const uint32_t part = next & ((1u << bits) - 1);
        move_bytes(work, (tile + (next >> bits) * stride) * kListTileBytes + part * part_bytes());
      }
      next -= parts;
    }
  }

 private:
  using Element = typename Operation::Element;
  static constexpr uint32_t kOperands = 2;  // whose vec16s are on the way together
  static constexpr uint32_t kVec16s = vec16s_in_flight<Operation>();
  // The most that spill no registers. All operations except sums have fewer to spare.
  static constexpr bool kSums = is_sum<Operation>();
  static constexpr int kRows = kSums || !Operation::kReduces ? kVec16s : 1;
  static constexpr uint32_t kVec16sOfTwo = 2;
  static constexpr int kRowsOfTwo = 2;

  __device__ __forceinline__ uint32_t part_bytes() const {
    return kListTileBytes >> view_.tile_parts_bits();
  }
  /// Moves a part of a tile, which begins at `at` in the blocks.
  __device__ __forceinline__ void move_bytes(uint32_t work, uint32_t at) const {
    const uint32_t source_at = at + view_.source_block_at(work);
    const uint32_t target_at = at + view_.target_block_at(work);
    const uint32_t left = at < view_.block_bytes(work) ? view_.block_bytes(work) - at : 0;
    const uint32_t bytes = left < part_bytes() ? left : part_bytes();
    const auto is_misaligned = [&](uint32_t alignment) {
      return view_.is_true_of_any(work, [&](uint64_t seen, bool is_output) {
        return ((seen + (is_output ? target_at : source_at)) & (alignment - 1)) != 0;
      });
    };
    const uint32_t moved = bytes / kVec16 * kVec16;
    const Part part{work, source_at, target_at, moved / kVec16};
    const bool is_aligned = !is_misaligned(kVec16);
    move_part(part, is_aligned);
    if (moved == bytes) return;
    const uint32_t width = is_misaligned(kVec8) ? sizeof(Element) : kVec8;
    move_vec8s(work, source_at + moved, target_at + moved, bytes - moved, width);
  }

  /// Whole vec16s of a part of a tile: how many, and where they begin in sources and in targets.
  struct Part {
    uint32_t work;
    uint32_t source_at;
    uint32_t target_at;
    uint32_t vec16s;
  };
  __device__ __forceinline__ void move_part(const Part& part, bool is_aligned) const {
    if constexpr (kSums) {
      if (view_.nranks() == 2)
        return is_aligned ? reduce_two_by_vec16s(part) : reduce_two_by_rows(part);
    }
    is_aligned ? move_by_vec16s(part) : move_by_rows(part);
  }
  __device__ __forceinline__ const std::byte* source_in(uint32_t of, const Part& part) const {
    return view_.memory(of, part.work, /*is_output=*/false) + part.source_at;
  }
  __device__ __forceinline__ const std::byte* source_of_copy(uint32_t work) const {
    uint32_t of = 0;
    while (!has_rank(view_.sources(), of)) ++of;
    return view_.memory(of, work, /*is_output=*/false);
  }
  /// Calls function(target), for every output that gets the part.
  template <typename Function>
  __device__ __forceinline__ void for_each_target(const Part& part, Function&& function) const {
#pragma unroll 1
    for (uint32_t of = 0; of < view_.nranks(); ++of) {
      std::byte* target = target_in(of, part.work, part.source_at, part.target_at);
      if (target != nullptr) function(target);
    }
  }

  // ---- aligned buffers: vec16s

  __device__ __forceinline__ void move_by_vec16s(const Part& part) const {
#pragma unroll 1
    for (uint32_t base = 0; base < part.vec16s; base += kVec16s * kWarp) {
      const uint32_t first = base + thread_of_warp();
      Vec16 result[kVec16s];
      if constexpr (Operation::kReduces) {
        reduce_vec16s(part, first, result);
      } else {
        load_vec16s(source_of_copy(part.work) + part.source_at, first, part.vec16s, result);
      }
      store_vec16s(part, first, result);
    }
  }

  template <uint32_t kCount>
  __device__ __forceinline__ static void load_vec16s(const std::byte* block, uint32_t first,
                                                     uint32_t vec16s, Vec16 (&result)[kCount]) {
#pragma unroll
    for (uint32_t k = 0; k < kCount; ++k) {
      const uint32_t vec16 = first + k * kWarp;
      if (vec16 < vec16s) result[k] = ptx::load_vec16(block + vec16 * kVec16);
    }
  }
  template <uint32_t kCount>
  __device__ __forceinline__ void store_vec16s(const Part& part, uint32_t first,
                                               const Vec16 (&result)[kCount]) const {
    for_each_target(part, [&](std::byte* target) {
#pragma unroll
      for (uint32_t k = 0; k < kCount; ++k) {
        const uint32_t vec16 = first + k * kWarp;
        if (vec16 < part.vec16s) ptx::store_vec16(target + vec16 * kVec16, result[k]);
      }
    });
  }

  // In the order of ranks, so that results do not depend on who owns a tile.
  __device__ __forceinline__ void reduce_vec16s(const Part& part, uint32_t first,
                                                Vec16 (&result)[kVec16s]) const {
    using Values = typename Operation::Values;
    Values values[kVec16s][2];
#pragma unroll 1
    for (uint32_t base = 0; base < view_.nranks(); base += kOperands) {
      Vec16 loaded[kOperands][kVec16s];
#pragma unroll
      for (uint32_t i = 0; i < kOperands; ++i) {
        if (base + i >= view_.nranks()) break;
        load_vec16s(source_in(base + i, part), first, part.vec16s, loaded[i]);
      }
#pragma unroll
      for (uint32_t i = 0; i < kOperands; ++i) {
        if (base + i >= view_.nranks()) break;
#pragma unroll
        for (uint32_t k = 0; k < kVec16s; ++k) {
          if (first + k * kWarp >= part.vec16s) break;
          accumulate(base + i == 0, loaded[i][k], values[k]);
        }
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < kVec16s; ++k)
      if (first + k * kWarp < part.vec16s) finish(values[k], result[k]);
  }

  // ---- buffers that begin anywhere: rows of vec16s

  __device__ __forceinline__ void move_by_rows(const Part& part) const {
#pragma unroll 1
    for (uint32_t first = 0; first < part.vec16s; first += kRows * kWarp) {
      const uint32_t count = count_of_rows<kRows>(part, first);
      const uint64_t at = uint64_t{first} * kVec16;
      Vec16Rows<kRows> rows = {};
      if constexpr (Operation::kReduces) {
        reduce_rows(part, at, count, rows);
      } else {
        const std::byte* source = source_of_copy(part.work) + part.source_at + at;
        load_rows<kRows>(source, count, rows);
        settle_rows<kRows>(source, rows);
      }
      for_each_target(part, [&](std::byte* target) {
        store_rows<Element, kRows>(target + at, count, rows.vec16s);
      });
    }
  }
  template <uint32_t kMost>
  __device__ __forceinline__ static uint32_t count_of_rows(const Part& part, uint32_t first) {
    const uint32_t left = part.vec16s - first;
    return left < kMost * kWarp ? left : kMost * kWarp;
  }

  // Reduces in the order of ranks, as reduce_vec16s(). One operand at a time: there are no
  // registers for two, and the loads of other warps are on their way.
  __device__ __forceinline__ void reduce_rows(const Part& part, uint64_t at, uint32_t count,
                                              Vec16Rows<kRows>& rows) const {
    typename Operation::Values values[kRows][2];
#pragma unroll 1
    for (uint32_t of = 0; of < view_.nranks(); ++of) {
      const std::byte* source = source_in(of, part) + at;
      load_rows<kRows>(source, count, rows);
      settle_rows<kRows>(source, rows);
#pragma unroll
      for (int k = 0; k < kRows; ++k) accumulate(of == 0, rows.vec16s[k], values[k]);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) finish(values[k], rows.vec16s[k]);
  }

  // ---- sums of two ranks: no accumulator outlives its vec16, so that there are registers for more
  // of them

  __device__ __forceinline__ void reduce_two_by_vec16s(const Part& part) const {
#pragma unroll 1
    for (uint32_t base = 0; base < part.vec16s; base += kVec16sOfTwo * kWarp) {
      const uint32_t first = base + thread_of_warp();
      Vec16 one[kVec16sOfTwo] = {}, other[kVec16sOfTwo] = {};
      load_vec16s(source_in(0, part), first, part.vec16s, one);
      load_vec16s(source_in(1, part), first, part.vec16s, other);
#pragma unroll
      for (uint32_t k = 0; k < kVec16sOfTwo; ++k) reduce_two(one[k], other[k]);
      store_vec16s(part, first, one);
    }
  }
  __device__ __forceinline__ void reduce_two_by_rows(const Part& part) const {
#pragma unroll 1
    for (uint32_t first = 0; first < part.vec16s; first += kRowsOfTwo * kWarp) {
      const uint32_t count = count_of_rows<kRowsOfTwo>(part, first);
      const uint64_t at = uint64_t{first} * kVec16;
      Vec16Rows<kRowsOfTwo> one = {}, other = {};
      load_rows<kRowsOfTwo>(source_in(0, part) + at, count, one);
      load_rows<kRowsOfTwo>(source_in(1, part) + at, count, other);
      settle_rows<kRowsOfTwo>(source_in(0, part) + at, one);
      settle_rows<kRowsOfTwo>(source_in(1, part) + at, other);
#pragma unroll
      for (int k = 0; k < kRowsOfTwo; ++k) reduce_two(one.vec16s[k], other.vec16s[k]);
      for_each_target(part, [&](std::byte* target) {
        store_rows<Element, kRowsOfTwo>(target + at, count, one.vec16s);
      });
    }
  }

  // ---- arithmetic

  template <typename Values>
  __device__ __forceinline__ void accumulate(bool is_first, const Vec16& operand,
                                             Values (&values)[2]) const {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const auto wide = Operation::widen(operand.half[half]);
      if (is_first) {
        values[half] = wide;
      } else {
        Operation::accumulate(values[half], wide);
      }
    }
  }
  template <typename Values>
  __device__ __forceinline__ void finish(Values (&values)[2], Vec16& result) const {
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half)
      result.half[half] = Operation::finish(header_, values[half], scales_result(header_));
  }
  /// `one` becomes the result.
  __device__ __forceinline__ void reduce_two(Vec16& one, const Vec16& other) const {
    typename Operation::Values values[2];
    accumulate(true, one, values);
    accumulate(false, other, values);
    finish(values, one);
  }

  /// Returns the place of the result in rank `of`'s output; null: nowhere, or it lies there
  /// already.
  __device__ __forceinline__ std::byte* target_in(uint32_t of, uint32_t work, uint32_t source_at,
                                                  uint32_t target_at) const {
    if (!has_rank(view_.targets(), of)) return nullptr;
    std::byte* target = view_.memory(of, work, /*is_output=*/true) + target_at;
    if (!Operation::kReduces && target == source_of_copy(work) + source_at) return nullptr;
    return target;
  }

  /// Less than a tile, by vec8s whose parts are aligned to `width`.
  __device__ __forceinline__ void move_vec8s(uint32_t work, uint32_t source_at, uint32_t target_at,
                                             uint32_t bytes, uint32_t width) const {
#pragma unroll 1
    for (uint32_t at = ptx::thread() % kWarp * kVec8; at < bytes; at += kWarp * kVec8) {
      const uint32_t part = bytes - at < kVec8 ? bytes - at : kVec8;
      LlOperands<Operation> operands(/*reductions=*/true);
#pragma unroll 1
      for (uint32_t of = 0; of < view_.nranks(); ++of) {
        if (!has_rank(view_.sources(), of)) continue;
        operands.add(load_vec8<Element>(
            view_.memory(of, work, /*is_output=*/false) + source_at + at, part, width));
      }
      const uint64_t result = operands.result(header_, scales_result(header_));
#pragma unroll 1
      for (uint32_t of = 0; of < view_.nranks(); ++of) {
        std::byte* target = target_in(of, work, source_at, target_at);
        if (target != nullptr) store_vec8<Element>(target + at, result, part, width);
      }
    }
  }

  const LaunchHeader& header_;
  const ListView<kMostPeers>& view_;
};

}  // namespace niccolite::executor::cuda
