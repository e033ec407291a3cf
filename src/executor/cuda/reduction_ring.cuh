// The ring of one warp of a shared reduction (shared_reduction.cuh): groups in shared memory, of
// one piece of each operand. One thread starts the loads of a group; all reduce it when it is
// there, and store the result:
//
//   own input ---.
//   peer's data --+--bulk loads--> | group | group | group |--reduce--> own output, peers' outputs
//
// Loads that lie across lines of 128 bytes take twice as many packets: where an operand does not
// begin at a line, pieces begin at the line before, and are read from where they begin in it, by
// words if need be. (A line that holds one byte of a buffer can be read.) What is stored is aligned
// to vec16s at the first destination (shared_reduction.cuh), and at most others.
//
// What threads load themselves takes registers while it is on its way, and 24 CTAs of them do not
// fill a link that 10 with rings do (docs/design/0015).
//
// Order: loads -> wait at the group's barrier -> reads of the group -> warp barrier -> next loads
// into it.
#pragma once

#include "executor/cuda/simple_step.cuh"

namespace niccolite::executor::cuda {

template <typename Operation>
class ReductionRing {
 public:
  /// What is reduced. Kept in shared memory as far as it can be: registers are for the reductions.
  struct Blocks {
    const Cta& cta;
    const CompactInstruction& instruction;
    std::byte* const* addresses;  // where the blocks begin: of the operands in reduction order,
                                  // then of what is sent
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

  /// By all threads of the warp, which is the `warp`th of the worker.
  __device__ __forceinline__ ReductionRing(const Blocks& blocks, uint32_t warp)
      : header_(blocks.cta.header), blocks_(blocks), warp_(warp) {
    uint32_t shifts = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < blocks_.operands(); ++k) shifts |= shift_of(k);
    piece_bytes_ = stage_bytes() - (shifts != 0 ? kLine : 0);
    uint32_t ends = 0;  // of the addresses of destinations
#pragma unroll 1
    for (uint32_t s = 0; s < blocks_.instruction.send_count; ++s) {
      ends |= bytes_into_line(blocks_.addresses[blocks_.operands() + s]);
    }
    ends |= bytes_into_line(blocks_.target);
    stores_elements_ = ends % sizeof(Word) != 0;
    takes_words_ = (shifts | ends) % kVec16 != 0;
    if (thread() == 0) {
      for (uint32_t g = 0; g < header_.reduction_groups; ++g) {
        ptx::init_bulk_barrier(&state_of(g).barrier, blocks_.operands());
      }
      ptx::fence_bulk_barriers();
      ptx::fence_bulk();
    }
    ptx::barrier_warp();
  }

  /// The most that a piece may have.
  __device__ __forceinline__ uint32_t piece_bytes() const { return piece_bytes_; }
  __device__ __forceinline__ bool is_full() const { return pending_ == header_.reduction_groups; }
  __device__ __forceinline__ bool is_empty() const { return pending_ == 0; }

  /// By all threads, while the ring is not full: starts the loads of the piece of `bytes`, which
  /// may be none, that begins `at` vec16s from the start of the block. `address_of(k)`: where it
  /// lies in the block of operand k, called by one thread. (Bulk copies take their operands from
  /// uniform registers: several threads of a warp would take turns.)
  template <typename Function>
  __device__ __forceinline__ void load(uint32_t at, uint32_t bytes, Function&& address_of) {
    if (thread() == 0) {
      const uint32_t behind = first_ + pending_;
      const uint32_t group =
          behind < header_.reduction_groups ? behind : behind - header_.reduction_groups;
      BulkStage& state = state_of(group);
      state.at = at;
      state.bytes = bytes;
      std::byte* memory = memory_of(group);
      for (uint32_t k = 0; k < blocks_.operands(); ++k, memory += stage_bytes()) {
        const uint32_t shift = is_loose() && bytes != 0 ? shift_of(k) : 0;
        ptx::bulk_load(memory, address_of(k) - shift, round_to_vec16(shift + bytes),
                       &state.barrier);
      }
    }
    ++pending_;
  }

  /// By all threads, while the ring is not empty: waits for the first group.
  __device__ __forceinline__ void await() const {
    ptx::await_bulk_load(&state_of(first_).barrier, turn_);
  }

  /// By all threads, after await(): reduces the first group, and stores the result.
  __device__ __forceinline__ void reduce() {
    const uint32_t at = state_of(first_).at;
    const uint32_t bytes = state_of(first_).bytes;
    const std::byte* memory = memory_of(first_);
    uint32_t p = thread();
    // Out of the way: with the rarer code among that of aligned operands, small reductions are 1 us
    // slower.
    if (takes_words_) [[unlikely]] {
      p = reduce_while<Word, kWordUnroll, true>(memory, p, bytes, at);
      reduce_while<Word, 1, true>(memory, p, bytes, at);
    } else {
      if (!is_loose()) {
        p = reduce_while<Vec16, Operation::kUnroll, false>(memory, p, bytes, at);
        if constexpr (Operation::kUnroll > 2)
          p = reduce_while<Vec16, 2, false>(memory, p, bytes, at);
      } else {
        p = reduce_while<Vec16, 2, true>(memory, p, bytes, at);
      }
      reduce_while<Vec16, 1, true>(memory, p, bytes, at);
    }
    ptx::barrier_warp();
    --pending_;
    if (++first_ != header_.reduction_groups) return;
    first_ = 0;
    turn_ ^= 1;
  }

 private:
  using Element = typename Operation::Element;
  using Values = typename Operation::Values;
  // Threads reduce vec16s, or words, where operands are not aligned to vec16s. To shift vec16s
  // together takes several times as many instructions as to reduce them; and neighbours that read
  // words read them from different banks of shared memory.
  using Word = std::conditional_t<sizeof(Element) == 8, uint64_t, uint32_t>;
  static constexpr int kWordUnroll = 5;  // a third of the longest piece, if words have 4 bytes

  __device__ __forceinline__ static uint32_t thread() { return ptx::thread() % kWarp; }
  __device__ __forceinline__ BulkStage& state_of(uint32_t group) const {
    auto* states = reinterpret_cast<BulkStage*>(ptx::shared_memory() + header_.reduction_states_at);
    return states[warp_ * header_.reduction_groups + group];
  }
  __device__ __forceinline__ std::byte* memory_of(uint32_t group) const {
    const uint32_t pieces = (warp_ * header_.reduction_groups + group) * blocks_.operands();
    return ptx::shared_memory() + header_.reduction_stages_at + pieces * stage_bytes();
  }
  __device__ __forceinline__ static uint32_t round_to_vec16(uint32_t bytes) {
    return (bytes + kVec16 - 1) / kVec16 * kVec16;
  }
  /// Of one operand's stage in a group; the most of a piece in it.
  __device__ __forceinline__ uint32_t stage_bytes() const { return header_.reduction_piece_bytes; }
  __device__ __forceinline__ bool is_loose() const { return piece_bytes_ != stage_bytes(); }
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

  /// As many times kRows rows of pieces from piece p on as there are. Returns the next piece.
  template <typename Piece, int kRows, bool kIsLoose>
  __device__ __forceinline__ uint32_t reduce_while(const std::byte* memory, uint32_t p,
                                                   uint32_t bytes, uint32_t at) const {
    const uint32_t pieces = bytes / sizeof(Piece);
    for (; p + (kRows - 1) * kWarp < pieces; p += kRows * kWarp) {
      reduce_rows<Piece, kRows, kIsLoose>(memory, p, at);
    }
    return p;
  }
  template <typename Piece, int kRows, bool kIsLoose>
  __device__ __forceinline__ void reduce_rows(const std::byte* memory, uint32_t p,
                                              uint32_t at) const {
    using Access = PieceAccess<Piece>;
    constexpr uint32_t kRow = kWarp * sizeof(Piece);
    memory += p * sizeof(Piece);
    uint32_t shift = kIsLoose ? shift_of(0) : 0;
    Values values[kRows][Access::kVec8s];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Piece piece = load_shifted<Piece>(memory + i * kRow, shift);
#pragma unroll
      for (int g = 0; g < Access::kVec8s; ++g) {
        values[i][g] = Operation::widen(Access::vec8(piece, g));
      }
    }
#pragma unroll 1
    for (uint32_t k = 1; k < blocks_.operands(); ++k) {
      memory += stage_bytes();
      if (kIsLoose) shift = shift_of(k);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const Piece piece = load_shifted<Piece>(memory + i * kRow, shift);
#pragma unroll
        for (int g = 0; g < Access::kVec8s; ++g) {
          Operation::accumulate(values[i][g], Operation::widen(Access::vec8(piece, g)));
        }
      }
    }
    Piece result[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int g = 0; g < Access::kVec8s; ++g) {
        Access::set_vec8(result[i], g,
                         Operation::finish(header_, values[i][g], blocks_.scales_result()));
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

  const LaunchHeader& header_;
  const Blocks& blocks_;
  const uint32_t warp_;
  uint32_t piece_bytes_;
  bool takes_words_;
  bool stores_elements_;
  uint32_t first_ = 0;    // the group to be reduced next
  uint32_t turn_ = 0;     // parity of how often the ring has gone round
  uint32_t pending_ = 0;  // groups
};

}  // namespace niccolite::executor::cuda
