// A reducing warp's use of its ring of stages (pipeline.cuh): a stage holds a part of each operand.
// When it is full, all threads reduce it and store the result:
//
//   own input ----.                                        .-> own output
//   peers' data ---+--> | stage | stage | stage |-- reduce +-> peers' outputs
//
// Loads across lines of 128 bytes take twice as many packets. If an operand does not begin at a
// line, its parts begin at the line before and are read from their offset in it, by words if need
// be. (A line that holds one byte of a buffer can be read.) Stores are aligned to vec16s at the
// first destination (reduce_worker.cuh), and at most others.
//
// Loads by threads take registers while they are on the way: 24 CTAs without rings do not fill a
// link that 10 CTAs with rings fill.
#pragma once

#include "executor/cuda/interpreter/simple_step.cuh"
#include "executor/cuda/pipeline/pipeline.cuh"

namespace niccolite::executor::cuda {

template <typename Operation>
class StageReduction {
 public:
  using Ring = StageRing</*kStages=*/0, /*kByWarp=*/true>;

  /// The blocks to reduce. Kept in shared memory as far as possible: registers are for the
  /// arithmetic.
  struct Blocks {
    const Cta& cta;
    const CompactInstruction& instruction;
    std::byte* const* addresses;  // the begins of the blocks: of the operands in reduction order,
                                  // then of the sent blocks
    std::byte* target;            // or null
    bool pulled;                  // the operands of peers come in slots, which begin at a line

    __device__ __forceinline__ uint32_t operands() const {
      return uint32_t{instruction.receive_count} + (instruction.source != OperandBuffer::None);
    }
    /// The own input among the operands, or kNoSource.
    __device__ __forceinline__ uint32_t source() const {
      return instruction.source == OperandBuffer::None ? kNoSource : instruction.source_position;
    }
    __device__ __forceinline__ bool scales_result() const {
      return (cta.header.flags & kScalesResult) && (instruction.flags & kFinish);
    }
  };

  /// Called by all threads of the warp, which is the `warp`th of the worker.
  __device__ __forceinline__ StageReduction(const Blocks& blocks, uint32_t warp)
      : blocks_(blocks), ring_(blocks.cta.header.reduce_stages, warp, blocks.operands()) {
    uint32_t shifts = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < blocks_.operands(); ++k) shifts |= shift_of(k);
    is_loose_ = shifts != 0;
    uint32_t ends = 0;  // of the addresses of destinations
#pragma unroll 1
    for (uint32_t s = 0; s < blocks_.instruction.send_count; ++s) {
      ends |= bytes_into_line(blocks_.addresses[blocks_.operands() + s]);
    }
    ends |= bytes_into_line(blocks_.target);
    stores_elements_ = ends % sizeof(Word) != 0;
    takes_words_ = (shifts | ends) % kVec16 != 0;
    ring_.start();
    if (ring_.leads()) ptx::fence_bulk();
  }

  /// The most that a stage may have of an operand.
  __device__ __forceinline__ uint32_t part_bytes() const {
    return ring_.bytes() - (is_loose_ ? kLine : 0);
  }
  __device__ __forceinline__ const Ring& ring() const { return ring_; }

  /// Starts, by all threads, while there is room, the loads of the part of `vec16s` vec16s, which
  /// may be none, that begins `at` vec16s from the start of the block. `address_of(k)`: where it
  /// lies in the block of operand k.
  template <typename Function>
  __device__ __forceinline__ void fill(uint32_t at, uint32_t vec16s, Function&& address_of) {
    ring_.fill(at, vec16s * kVec16, /*is_last=*/false, [&](uint32_t k) -> typename Ring::Part {
      const uint32_t shift = is_loose_ && vec16s != 0 ? shift_of(k) : 0;
      return {address_of(k) - shift, (shift + vec16s * kVec16 + kVec16 - 1) / kVec16 * kVec16};
    });
  }

  /// Reduces, by all threads, a pending stage, and stores the result. `loaded` is
  /// called as soon as it is full.
  template <typename Function>
  __device__ __forceinline__ void drain(Function&& loaded) {
    const typename Ring::Tile tile = ring_.await();
    loaded();
    uint32_t p = ptx::thread() % kWarp;
    // Kept apart: with the rarer code among the code for aligned operands, small reductions are 1
    // us slower.
    if (takes_words_) [[unlikely]] {
      p = reduce_while<Word, kWordUnroll, true>(tile, p);
      reduce_while<Word, 1, true>(tile, p);
    } else {
      if (!is_loose_) {
        p = reduce_while<Vec16, Operation::kUnroll, false>(tile, p);
        if constexpr (Operation::kUnroll > 2) p = reduce_while<Vec16, 2, false>(tile, p);
      } else {
        p = reduce_while<Vec16, 2, true>(tile, p);
      }
      reduce_while<Vec16, 1, true>(tile, p);
    }
    ring_.release(/*is_last=*/false);
  }

 private:
  using Tile = typename Ring::Tile;
  using Element = typename Operation::Element;
  using Values = typename Operation::Values;
  // Threads reduce vec16s, or words, where operands are not aligned to vec16s. To shift vec16s
  // together takes several times as many instructions as to reduce them; and neighbours that read
  // words read them from different banks of shared memory.
  using Word = std::conditional_t<sizeof(Element) == 8, uint64_t, uint32_t>;
  static constexpr int kWordUnroll = 5;  // a third of the longest part, if words have 4 bytes

  __device__ __forceinline__ uint32_t shift_of(uint32_t k) const {
    return blocks_.pulled && k != blocks_.source() ? 0 : bytes_into_line(blocks_.addresses[k]);
  }

  /// The piece `shift` bytes further on.
  template <typename Piece>
  __device__ __forceinline__ static Piece load_shifted(const std::byte* piece, uint32_t shift) {
    if constexpr (std::is_same_v<Piece, Vec16>) {
      return ptx::load_vec16_shared(piece + shift);
    } else if constexpr (sizeof(Element) >= sizeof(Word)) {
      return ptx::load_shared<Word>(piece + shift);
    } else {
      piece += shift / sizeof(Word) * sizeof(Word);
      const Word low = ptx::load_shared<Word>(piece);
      const Word high = ptx::load_shared<Word>(piece + sizeof(Word));
      const uint32_t bits = shift % sizeof(Word) * 8;
      return static_cast<Word>((uint64_t{high} << 32 | low) >> bits);
    }
  }

  __device__ __forceinline__ void store_word(std::byte* address, Word word) const {
    if (sizeof(Element) < sizeof(Word) && stores_elements_) {
      store_pieces<typename PieceOf<sizeof(Element)>::Type>(address, word, sizeof(Word));
    } else {
      ptx::store<Word>(address, word);
    }
  }

  /// Reduces kRows rows of pieces from piece p on, as often as there are so many. Returns the next
  /// piece.
  template <typename Piece, int kRows, bool kIsLoose>
  __device__ __forceinline__ uint32_t reduce_while(const Tile& tile, uint32_t p) const {
    const uint32_t pieces = tile.bytes / sizeof(Piece);
    for (; p + (kRows - 1) * kWarp < pieces; p += kRows * kWarp) {
      reduce_rows<Piece, kRows, kIsLoose>(tile.memory, p, tile.at);
    }
    return p;
  }
  template <typename Piece, int kRows, bool kIsLoose>
  __device__ __forceinline__ void reduce_rows(const std::byte* memory, uint32_t p,
                                              uint32_t at) const {
    using Access = PieceAccess<Piece>;
    constexpr uint32_t kRow = kWarp * sizeof(Piece);
    memory += p * sizeof(Piece);
    // Before the loads, whose latency hides its own.
    const bool scales_result = blocks_.scales_result();
    uint32_t shift = kIsLoose ? shift_of(0) : 0;
    Values values[kRows * Access::kVec8s];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Piece piece = load_shifted<Piece>(memory + i * kRow, shift);
#pragma unroll
      for (int g = 0; g < Access::kVec8s; ++g) {
        values[i * Access::kVec8s + g] = Operation::widen(Access::vec8(piece, g));
      }
    }
#pragma unroll 1
    for (uint32_t k = 1; k < blocks_.operands(); ++k) {
      memory += ring_.bytes();
      if (kIsLoose) shift = shift_of(k);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const Piece piece = load_shifted<Piece>(memory + i * kRow, shift);
#pragma unroll
        for (int g = 0; g < Access::kVec8s; ++g) {
          Operation::accumulate(values[i * Access::kVec8s + g],
                                Operation::widen(Access::vec8(piece, g)));
        }
      }
    }
    Piece result[kRows];
    if constexpr (Operation::kFinishesTogether) {
      Operation::finish_all(blocks_.cta.header, values, scales_result, [&](int i, uint64_t vec8) {
        Access::set_vec8(result[i / Access::kVec8s], i % Access::kVec8s, vec8);
      });
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int g = 0; g < Access::kVec8s; ++g) {
          Access::set_vec8(
              result[i], g,
              Operation::finish(blocks_.cta.header, values[i * Access::kVec8s + g], scales_result));
        }
      }
    }
    const uint64_t first = uint64_t{at} * kVec16 + p * sizeof(Piece);
    const auto store = [&](std::byte* block) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if constexpr (std::is_same_v<Piece, Word>) {
          store_word(block + first + i * kRow, result[i]);
        } else {
          Access::store(block + first + i * kRow, result[i]);
        }
      }
    };
#pragma unroll 1
    for (uint32_t s = 0; s < blocks_.instruction.send_count; ++s)
      store(blocks_.addresses[blocks_.operands() + s]);
    if (blocks_.target != nullptr) store(blocks_.target);
  }

  const Blocks& blocks_;
  Ring ring_;
  bool is_loose_;
  bool takes_words_;
  bool stores_elements_;
};

}  // namespace niccolite::executor::cuda
