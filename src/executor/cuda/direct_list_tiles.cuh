// The tiles of a direct list (direct_list.cuh): from all inputs, reduced, to all outputs.
#pragma once

#include "executor/cuda/direct_data.cuh"
#include "executor/cuda/direct_list_view.cuh"

namespace niccolite::executor::cuda {

/// Vec16s of an operand that a thread has on the way, as many as there are registers for.
template <typename Operation>
constexpr uint32_t vec16s_in_flight() {
  if constexpr (Operation::kReduces) return Operation::kAccumulatorRegisters > 8 ? 1 : 2;
  return 4;
}

template <typename Operation, uint32_t kMostPeers>
class ListTiles {
 public:
  __device__ __forceinline__ ListTiles(const LaunchHeader& header, const ListView<kMostPeers>& view)
      : header_(header), view_(view) {}

  /// All threads of the CTA: the tiles that are this rank's, warp by warp, whichever works they are
  /// of; but for those of works that some rank does not see.
  __device__ __forceinline__ void move() const {
    const uint32_t warps = ptx::threads() / kWarp;
    const uint32_t warp = ptx::thread() / kWarp;
    const bool is_whole = view_.access().form == ListForm::Whole;
    const uint32_t stride = is_whole ? view_.nranks() : 1;
    uint32_t next = warp;  // of the tiles that follow, which is this warp's
#pragma unroll 1
    for (uint32_t work = view_.first_work(); work < view_.end_of_works(); ++work) {
      uint32_t tile = view_.first_tile_of(work);
      const uint32_t end = view_.end_tile_of(work);
      if (is_whole)
        tile += (view_.rank() + view_.nranks() - owner_of_tile(work, tile, view_.nranks())) %
                view_.nranks();
      const uint32_t tiles = tile < end ? (end - tile + stride - 1) / stride : 0;
      if (view_.is_hidden(work)) continue;
      for (; next < tiles; next += warps) move_tile(work, tile + next * stride);
      next -= tiles;
    }
  }

 private:
  using Element = typename Operation::Element;
  static constexpr uint32_t kOperands = 2;  // whose vec16s are on the way together
  static constexpr uint32_t kVec16s = vec16s_in_flight<Operation>();

  __device__ __forceinline__ void move_tile(uint32_t work, uint32_t tile) const {
    const uint64_t source_at =
        uint64_t{tile} * kListTileBytes + view_.own_block_at(ListForm::Scatter, work);
    const uint64_t target_at =
        uint64_t{tile} * kListTileBytes + view_.own_block_at(ListForm::Gather, work);
    const uint32_t left = view_.block_bytes(work) - tile * kListTileBytes;
    const uint32_t bytes = left < kListTileBytes ? left : kListTileBytes;
    const auto is_misaligned = [&](uint32_t alignment) {
      return view_.is_true_of_any(work, [&](uint64_t seen, bool is_output) {
        return ((seen + (is_output ? target_at : source_at)) & (alignment - 1)) != 0;
      });
    };
    uint32_t moved = 0;
    if (!is_misaligned(kVec16)) {
      moved = bytes / kVec16 * kVec16;
      move_vec16s(work, source_at, target_at, moved / kVec16);
      if (moved == bytes) return;
    }
    const uint32_t width = is_misaligned(kVec8) ? sizeof(Element) : kVec8;
    move_vec8s(work, source_at + moved, target_at + moved, bytes - moved, width);
  }

  __device__ __forceinline__ void move_vec16s(uint32_t work, uint64_t source_at, uint64_t target_at,
                                              uint32_t vec16s) const {
    const uint32_t thread = ptx::thread() % kWarp;
#pragma unroll 1
    for (uint32_t first = 0; first < vec16s; first += kVec16s * kWarp) {
      Vec16 result[kVec16s];
      if constexpr (Operation::kReduces) {
        reduce_vec16s(work, source_at, first + thread, vec16s, result);
      } else {
        load_vec16s(source_of_copy(work) + source_at, first + thread, vec16s, result);
      }
      store_vec16s(work, source_at, target_at, first + thread, vec16s, result);
    }
  }

  __device__ __forceinline__ static void load_vec16s(const std::byte* block, uint32_t first,
                                                     uint32_t vec16s, Vec16 (&result)[kVec16s]) {
#pragma unroll
    for (uint32_t k = 0; k < kVec16s; ++k) {
      const uint32_t vec16 = first + k * kWarp;
      if (vec16 < vec16s) result[k] = ptx::load_vec16(block + vec16 * kVec16);
    }
  }

  __device__ __forceinline__ const std::byte* source_of_copy(uint32_t work) const {
    uint32_t of = 0;
    while (!has_rank(static_cast<uint8_t>(view_.sources()), of)) ++of;
    return view_.memory(of, work, /*is_output=*/false);
  }

  // In the order of ranks, so that results do not depend on who owns a tile.
  __device__ __forceinline__ void reduce_vec16s(uint32_t work, uint64_t source_at, uint32_t first,
                                                uint32_t vec16s, Vec16 (&result)[kVec16s]) const {
    using Values = typename Operation::Values;
    Values values[kVec16s][2];
#pragma unroll 1
    for (uint32_t base = 0; base < view_.nranks(); base += kOperands) {
      Vec16 loaded[kOperands][kVec16s];
#pragma unroll
      for (uint32_t i = 0; i < kOperands; ++i) {
        if (base + i >= view_.nranks()) break;
        load_vec16s(view_.memory(base + i, work, /*is_output=*/false) + source_at, first, vec16s,
                    loaded[i]);
      }
#pragma unroll
      for (uint32_t i = 0; i < kOperands; ++i) {
        if (base + i >= view_.nranks()) break;
#pragma unroll
        for (uint32_t k = 0; k < kVec16s; ++k) {
          if (first + k * kWarp >= vec16s) break;
#pragma unroll
          for (uint32_t half = 0; half < 2; ++half) {
            const Values operand =
                Operation::widen(scaled_input<Operation>(header_, loaded[i][k].half[half]));
            if (base + i == 0) {
              values[k][half] = operand;
            } else {
              Operation::accumulate(values[k][half], operand);
            }
          }
        }
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < kVec16s; ++k) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        if (first + k * kWarp < vec16s)
          result[k].half[half] =
              Operation::finish(header_, values[k][half], scales_result(header_));
      }
    }
  }

  __device__ __forceinline__ void store_vec16s(uint32_t work, uint64_t source_at,
                                               uint64_t target_at, uint32_t first, uint32_t vec16s,
                                               const Vec16 (&result)[kVec16s]) const {
#pragma unroll 1
    for (uint32_t of = 0; of < view_.nranks(); ++of) {
      std::byte* target = target_in(of, work, source_at, target_at);
      if (target == nullptr) continue;
#pragma unroll
      for (uint32_t k = 0; k < kVec16s; ++k) {
        const uint32_t vec16 = first + k * kWarp;
        if (vec16 < vec16s) ptx::store_vec16(target + vec16 * kVec16, result[k]);
      }
    }
  }

  /// Where the result goes in rank `of`'s output; null: nowhere, or it is what lies there.
  __device__ __forceinline__ std::byte* target_in(uint32_t of, uint32_t work, uint64_t source_at,
                                                  uint64_t target_at) const {
    if (!has_rank(static_cast<uint8_t>(view_.targets()), of)) return nullptr;
    std::byte* target = view_.memory(of, work, /*is_output=*/true) + target_at;
    if (!Operation::kReduces && target == source_of_copy(work) + source_at) return nullptr;
    return target;
  }

  /// Less than a tile, by vec8s whose parts are aligned to `width`.
  __device__ __forceinline__ void move_vec8s(uint32_t work, uint64_t source_at, uint64_t target_at,
                                             uint32_t bytes, uint32_t width) const {
#pragma unroll 1
    for (uint32_t at = ptx::thread() % kWarp * kVec8; at < bytes; at += kWarp * kVec8) {
      const uint32_t part = bytes - at < kVec8 ? bytes - at : kVec8;
      LlOperands<Operation> operands(/*reductions=*/true);
#pragma unroll 1
      for (uint32_t of = 0; of < view_.nranks(); ++of) {
        if (!has_rank(static_cast<uint8_t>(view_.sources()), of)) continue;
        operands.add(scaled_input<Operation>(
            header_,
            load_vec8<Element>(view_.memory(of, work, /*is_output=*/false) + source_at + at, part,
                               width)));
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
