// A chunk that the threads of a worker move, and reduce where it has several operands: vec16s of 16
// bytes, several in flight; where not all addresses are aligned to vec16s, as rows of a warp
// (rows.cuh).
#pragma once

#include "executor/cuda/interpreter/cta.cuh"
#include "executor/cuda/interpreter/rows.cuh"

namespace niccolite::executor::cuda {

inline constexpr int kCopyUnroll = 8;
/// Rows of vec16s (rows.cuh) that a warp has in flight, fewer than vec16s of an aligned chunk,
/// since shifts want registers: found by the spills that one row more brings. Where a kernel
/// reduces, too, there is less room for copies.
template <typename Operation, bool kReduces>
constexpr int rows_in_flight() {
  if constexpr (!Operation::kReduces) {
    return 5;
  } else {
    const bool is_wide = sizeof(typename Operation::Accumulator) == 8;
    return kReduces ? (is_wide ? 1 : 2) : (is_wide ? 2 : 3);
  }
}

/// The operands and destinations of one instruction's reduction. Operands stand in reduction order.
struct SimpleMove {
  std::byte* const* operands;  // addresses
  std::byte* const* sends;
  std::byte* target;  // or null
  uint32_t operand_count;
  uint32_t send_count;
  uint32_t source_index;  // of the local operand, or kNoSource
  uint32_t bytes;
  bool is_aligned;  // all addresses, to vec16s
  bool scales_input;
  bool scales_result;
};
inline constexpr uint32_t kNoSource = ~uint32_t{0};

/// Access to the unit that a thread moves at once: a vec16, or an element.
template <typename Piece>
struct PieceAccess {
  static constexpr int kVec8s = 1;
  __device__ __forceinline__ static Piece load(const std::byte* address) {
    return ptx::load<Piece>(address);
  }
  __device__ __forceinline__ static void store(std::byte* address, Piece piece) {
    ptx::store<Piece>(address, piece);
  }
  __device__ __forceinline__ static uint64_t vec8(Piece piece, int) { return piece; }
  __device__ __forceinline__ static void set_vec8(Piece& piece, int, uint64_t vec8) {
    piece = static_cast<Piece>(vec8);
  }
};
template <>
struct PieceAccess<Vec16> {
  static constexpr int kVec8s = 2;
  __device__ __forceinline__ static Vec16 load(const std::byte* address) {
    return ptx::load_vec16(address);
  }
  __device__ __forceinline__ static void store(std::byte* address, const Vec16& vec16) {
    ptx::store_vec16(address, vec16);
  }
  __device__ __forceinline__ static uint64_t vec8(const Vec16& vec16, int i) {
    return vec16.half[i];
  }
  __device__ __forceinline__ static void set_vec8(Vec16& vec16, int i, uint64_t vec8) {
    vec16.half[i] = vec8;
  }
};

// The pieces of a chunk that a thread has in flight. Loaded is the thread's copy of an operand
// until settle() makes pieces of it: all loads are on their way before any of them is waited for.

/// kUnroll pieces of an aligned chunk: `first`, first + stride, ..., those below `end` when
/// kChecked, counted from byte `from`. Neighbours in a warp move neighbours in memory.
template <typename PieceType, int kUnroll, bool kChecked>
struct PiecesApart {
  using Piece = PieceType;
  static constexpr int kCount = kUnroll;
  struct Loaded {
    Piece vec16s[kUnroll];
  };
  uint32_t from;
  uint32_t first;
  uint32_t stride;
  uint32_t end;

  __device__ __forceinline__ bool has(int i) const { return !kChecked || first + i * stride < end; }
  // (Of 64 bits, so that where the stride is a constant so are the distances.)
  __device__ __forceinline__ size_t at(int i) const {
    return from + size_t{first} * sizeof(Piece) + size_t(i) * stride * sizeof(Piece);
  }
  __device__ __forceinline__ void load(const std::byte* operand, Loaded& loaded) const {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (has(i)) loaded.vec16s[i] = PieceAccess<Piece>::load(operand + at(i));
    }
  }
  __device__ __forceinline__ void settle(const std::byte*, Loaded&) const {}
  __device__ __forceinline__ void store(std::byte* chunk, const Piece (&pieces)[kUnroll]) const {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (has(i)) PieceAccess<Piece>::store(chunk + at(i), pieces[i]);
    }
  }
};

/// kRows rows of vec16s, the first `count` of them, that a warp has of a chunk whose addresses are
/// anything, from byte `from` on.
template <typename Element, int kRows>
struct RowsOfVec16s {
  using Piece = Vec16;
  static constexpr int kCount = kRows;
  using Loaded = Vec16Rows<kRows>;
  uint32_t from;
  uint32_t count;

  __device__ __forceinline__ void load(const std::byte* operand, Loaded& loaded) const {
    load_rows<kRows>(operand + from, count, loaded);
  }
  __device__ __forceinline__ void settle(const std::byte* operand, Loaded& loaded) const {
    settle_rows<kRows>(operand + from, loaded);
  }
  __device__ __forceinline__ void store(std::byte* chunk, const Vec16 (&vec16s)[kRows]) const {
    store_rows<Element, kRows>(chunk + from, count, vec16s);
  }
};

/// The pieces of all operands, reduced; stored to all destinations.
template <typename Operation, bool kReduces, typename Pieces>
__device__ __forceinline__ void move_pieces(const Cta& cta, const SimpleMove& move,
                                            const Pieces& pieces) {
  using Access = PieceAccess<typename Pieces::Piece>;
  constexpr int kVec8s = Access::kVec8s;
  constexpr int kCount = Pieces::kCount;
  using Loaded = typename Pieces::Loaded;
  const auto settle = [&](uint32_t k, Loaded& loaded) {
    pieces.settle(move.operands[k], loaded);
    if constexpr (Operation::kReduces) {
      if (!move.scales_input || k != move.source_index) return;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int g = 0; g < kVec8s; ++g) {
          Access::set_vec8(loaded.vec16s[i], g,
                           scale_input<Operation>(cta, Access::vec8(loaded.vec16s[i], g)));
        }
      }
    }
  };
  // Set, as everywhere that registers are loaded on a condition: what the condition might leave as
  // it was would take its registers in all of the loop around, and before it.
  Loaded result = {};
  pieces.load(move.operands[0], result);
  if constexpr (kReduces) {
    typename Operation::Values values[kCount][kVec8s];
    Loaded next = {};
    if (move.operand_count > 1) pieces.load(move.operands[1], next);
    settle(0, result);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int g = 0; g < kVec8s; ++g) {
        values[i][g] = Operation::widen(Access::vec8(result.vec16s[i], g));
      }
    }
#pragma unroll 1
    for (uint32_t k = 1; k < move.operand_count; ++k) {
      result = next;
      // On its way while this one is reduced.
      if (k + 1 < move.operand_count) pieces.load(move.operands[k + 1], next);
      settle(k, result);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int g = 0; g < kVec8s; ++g) {
          Operation::accumulate(values[i][g], Operation::widen(Access::vec8(result.vec16s[i], g)));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int g = 0; g < kVec8s; ++g) {
        Access::set_vec8(result.vec16s[i], g,
                         Operation::finish(cta.header, values[i][g], move.scales_result));
      }
    }
  } else {
    settle(0, result);
  }
  // Not unrolled: the compiler's copies of the loop cost registers, and save nothing of the stores.
#pragma unroll 1
  for (uint32_t s = 0; s < move.send_count; ++s) pieces.store(move.sends[s], result.vec16s);
  if (move.target != nullptr) pieces.store(move.target, result.vec16s);
}

/// Bytes of the chunk before the first address of its first destination that is a multiple of `to`.
__device__ __forceinline__ uint32_t bytes_before(const SimpleMove& move, uint32_t to) {
  const std::byte* first = move.send_count != 0 ? move.sends[0] : move.target;
  return (to - bytes_into_line(first) % to) % to;
}

/// From vec16 `first` of an aligned chunk on, as many times kUnroll vec16s of every thread as there
/// are: returns the first vec16 that is left. A warp's lie side by side, so that all their places
/// are known but for one.
template <typename Operation, int kUnroll, bool kReduces>
__device__ __forceinline__ uint32_t aligned_tiles(const Cta& cta, const WorkerThreads& worker,
                                                  const SimpleMove& move, uint32_t first,
                                                  uint32_t end) {
  const uint32_t tile = kUnroll * worker.size;
  const uint32_t in_tile = worker.rank / kWarp * kWarp * kUnroll + worker.rank % kWarp;
  for (; first + tile <= end; first += tile) {
    move_pieces<Operation, kReduces>(
        cta, move, PiecesApart<Vec16, kUnroll, false>{0, first + in_tile, kWarp, end});
  }
  return first;
}

/// Byte by byte, an element a thread of the warp: the first `head` bytes of the chunk, and all from
/// byte `tail` on. Together they are less than two vec16s.
template <typename Operation, bool kReduces>
__device__ __forceinline__ void move_ends(const Cta& cta, const SimpleMove& move, uint32_t head,
                                          uint32_t tail) {
  using Piece = typename PieceOf<sizeof(typename Operation::Element)>::Type;
  const uint32_t in_ends = thread_of_warp() * sizeof(Piece);
  const uint32_t at = in_ends < head ? in_ends : tail + (in_ends - head);
  if (at >= move.bytes) return;
  move_pieces<Operation, kReduces>(cta, move, PiecesApart<Piece, 1, false>{at, 0, 0, 1});
}

/// A chunk whose addresses are all aligned to vec16s. Without arithmetic to do, a warp stores whole
/// lines of 128 bytes: one whose stores lie across them sends twice as many packets over a link.
template <typename Operation, int kUnroll, bool kReduces>
__device__ __forceinline__ void move_aligned(const Cta& cta, const WorkerThreads& worker,
                                             const SimpleMove& move) {
  const uint32_t end = move.bytes / kVec16;
  uint32_t first = 0;
  if constexpr (!Operation::kReduces) {
    const uint32_t before_line = bytes_before(move, kLine) / kVec16;
    first = before_line < end ? before_line : end;
    if (worker.rank < first) {  // a line has fewer vec16s than a worker threads
      move_pieces<Operation, kReduces>(cta, move,
                                       PiecesApart<Vec16, 1, false>{0, worker.rank, 0, first});
    }
  }
  first = aligned_tiles<Operation, kUnroll, kReduces>(cta, worker, move, first, end);
  if (first + worker.rank < end) {
    move_pieces<Operation, kReduces>(
        cta, move, PiecesApart<Vec16, kUnroll, true>{0, first + worker.rank, worker.size, end});
  }
  if (worker.rank < kWarp) move_ends<Operation, kReduces>(cta, move, 0, end * kVec16);
}

/// A chunk whose addresses may be anything: vec16s that are aligned at the first destination, and
/// as rows of a warp wherever else they are not. (A first destination on a link gets whole lines,
/// as above.)
template <typename Operation, int kRows, bool kReduces>
__device__ __forceinline__ void move_rows(const Cta& cta, const WorkerThreads& worker,
                                          const SimpleMove& move) {
  using Rows = RowsOfVec16s<typename Operation::Element, kRows>;
  const uint32_t before = bytes_before(move, kVec16);
  const uint32_t head = before < move.bytes ? before : move.bytes;
  const uint32_t vec16s = (move.bytes - head) / kVec16;
  const uint32_t warps = worker.size / kWarp;
  const uint32_t warp = worker.rank / kWarp;
  const uint32_t tile = warps * kRows * kWarp;
  const auto move_warps = [&](uint32_t vec16, uint32_t count) {
    move_pieces<Operation, kReduces>(cta, move, Rows{head + vec16 * kVec16, count});
  };
  for (uint32_t first = 0; first < vec16s;) {
    uint32_t left = vec16s - first;
    if constexpr (!Operation::kReduces) {
      const uint32_t before_line = bytes_before(move, kLine) / kVec16;
      if (first == 0 && left > tile && before_line != 0) left = before_line;
    }
    // All warps share the remaining pieces.
    const uint32_t rows = left >= tile ? kRows : (left + warps * kWarp - 1) / (warps * kWarp);
    const uint32_t most = rows * kWarp;
    const uint32_t own = warp * most;
    if (own < left) move_warps(first + own, left - own < most ? left - own : most);
    first += left < tile ? left : tile;
  }
  if (warp == warps - 1) move_ends<Operation, kReduces>(cta, move, head, head + vec16s * kVec16);
}

/// The whole chunk.
template <typename Operation, int kUnroll, bool kReduces>
__device__ __forceinline__ void simple_chunk(const Cta& cta, const WorkerThreads& worker,
                                             const SimpleMove& move) {
  if (move.is_aligned) {
    move_aligned<Operation, kUnroll, kReduces>(cta, worker, move);
  } else {
    move_rows<Operation, rows_in_flight<Operation, kReduces>(), kReduces>(cta, worker, move);
  }
}

}  // namespace niccolite::executor::cuda
