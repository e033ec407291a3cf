// A shared fold: a lane that folds what its peers lend (protocol/offer.h), in units that the warps
// of all CTAs claim, and that bulk copies bring.
//
// Parts of a channel that are fixed make the operation as slow as its slowest multiprocessor
// (claims.cuh), and rounds make all warps of a lane wait for the last of them. What is lent is
// there from the start, and results that stay where they land need no order: between the offers and
// the end nothing has to be waited for but loads.
//
//   block   | u0 | u1 | u2 | u3 | u4 | u5 | u6 | u7 | ...     the first units by number of the warp
//   warps     00   10   01   11   free ones claim the others  (warp, CTA), here two of two
//
// A warp has a ring of groups in shared memory, of one piece of each operand. One thread starts the
// loads of a group; all fold it when it is there, and store the result:
//
//   own input ---.
//   peer's input -+--bulk loads--> | group | group | group |--fold--> own output, peers' outputs
//
// Loads that lie across lines of 128 bytes take twice as many packets: where an operand does not
// begin at a line, pieces begin at the line before, and are shifted as they are read. (A line that
// holds one byte of a buffer can be read.) What is stored is aligned to packs, or the fold is not
// shared.
//
// What threads load themselves takes registers while it is on its way, and 24 CTAs of them do not
// fill a link that 10 with rings do (docs/design/0015).
//
// A unit is read, folded and stored by one warp, each piece after it has been read, so that the
// result may take the place of an operand (in place), here or at a peer.
//
// The counter (ControlBlock::claims[0], of the lane's first receiving connection, first channel) is
// 0 between operations: for each unit that is taken one number is claimed, and whoever claims the
// last resets it. (Aborted operations: claims.cuh.)
//
// When: tables.cc has found that every operand of a peer may be lent, and that every peer's result
// may land and stays there; all of them are offered, and every channel has data, so that all CTAs
// come to the same decision.
//
// Order, besides that of simple_step.cuh: [seen] -> lane barrier -> fence -> loads; loads -> wait
// at the group's barrier -> reads of the group -> warp barrier -> next loads into it.
#pragma once

#include "executor/cuda/simple_step.cuh"

namespace niccolite::executor::cuda {

template <typename Operation>
class SharedFold {
 public:
  /// All threads of a lane that is LaneTask::kSharesFold. `pointers`: the lane's, shared.
  __device__ __forceinline__ SharedFold(const Cta& cta, const LaneThreads& lane,
                                        const CompactInstruction& instruction, std::byte** pointers)
      : cta_(cta),
        lane_(lane),
        instruction_(instruction),
        ports_(cta, instruction),
        pointers_(pointers) {}

  /// As far as can be said before there are offers; the same in all CTAs.
  __device__ __forceinline__ bool is_possible() const {
    const uint64_t block = block_bytes();
    return cta_.header.fold_piece_bytes != 0 && block / kPack < kMostPacks &&
           block > (cta_.work->partition.channels - 1) * stride_bytes();
  }

  /// Waits for the offers. True: everything is done, or aborted.
  __device__ __forceinline__ bool run() {
    SimplePlan& plan = plan_at(pointers_);
    const Answer answer = await_offers(plan);
    if (answer != Answer::Agreed) return answer == Answer::Aborted;
    fold_units(plan.target);
    if (cta_.channel() == 0 && lane_.rank == 0) fold_rest(plan.target);
    lane_.barrier();
    // All steps of the channel are done, as far as this CTA has to do with them.
    for (uint32_t i = lane_.rank; i < ports_.count; i += lane_.size) {
      PortState& port = cta_.ports[ports_.use(i).port];
      set_done(port, port.end - 1);
    }
    return true;
  }

 private:
  using Element = typename Operation::Element;
  using Values = typename Operation::Values;
  static constexpr uint64_t kMostPacks = uint64_t{1} << 32;  // of a block: offsets have 32 bits
  static constexpr uint64_t kRefused = ~uint64_t{0};         // SimplePlan::bytes
  static constexpr uint32_t kPiecesOfUnit = 8;  // at most: longer ones make the end uneven
  static constexpr uint64_t kUnitsOfWarp = 4;   // at least, where pieces are short enough

  __device__ __forceinline__ bool has_source() const { return instruction_.source != Place::None; }
  __device__ __forceinline__ uint32_t operands() const {
    return uint32_t{instruction_.receive_count} + has_source();
  }
  /// Where the blocks begin: of the operands in fold order, then of what is sent.
  __device__ __forceinline__ std::byte** addresses() const { return pointers_ + kPlanPointers; }
  __device__ __forceinline__ uint64_t block_bytes() const {
    return cta_.work->partition.count_from(instruction_.chunk_block, 0) *
           Operation::element_bytes(cta_.header);
  }
  __device__ __forceinline__ uint64_t stride_bytes() const {
    return cta_.work->partition.channel_stride * Operation::element_bytes(cta_.header);
  }
  __device__ __forceinline__ std::byte* block_at(Place place, uint32_t block) const {
    return place == Place::None ? nullptr : address_of<Operation>(cta_, place, block, Chunk{});
  }
  __device__ __forceinline__ bool scales_result() const {
    return (cta_.header.flags & kScalesResult) && (instruction_.flags & kFinish);
  }

  enum class Answer : uint8_t { Agreed, Refused, Aborted };

  /// Notes where the blocks begin. In all threads alike; Refused: not all of them are offered.
  __device__ __forceinline__ Answer await_offers(SimplePlan& plan) {
    if (lane_.rank == 0) {
      plan.target = block_at(instruction_.target, instruction_.target_block);
      if (bytes_into_line(plan.target) % kPack != 0) plan.bytes = kRefused;
      if (has_source()) {
        addresses()[instruction_.source_position] =
            block_at(instruction_.source, instruction_.source_block);
      }
    }
    bool live = true;
    for (uint32_t i = lane_.rank; i < ports_.count; i += lane_.size) {
      const PortState& port = cta_.ports[ports_.use(i).port];
      live = live && wait_until_open(cta_, port, port.base);
      if (!live) plan.live = nullptr;
      if (!has_agreed(port)) plan.bytes = kRefused;
      const bool is_behind_source = has_source() && i >= instruction_.source_position;
      std::byte* block = port.slots - cta_.channel() * stride_bytes();
      if (ports_.is_send(i) && bytes_into_line(block) % kPack != 0) plan.bytes = kRefused;
      addresses()[i + is_behind_source] = block;
    }
    lane_.barrier();
    const Answer answer = plan.live == nullptr     ? Answer::Aborted
                          : plan.bytes == kRefused ? Answer::Refused
                                                   : Answer::Agreed;
    if (answer != Answer::Agreed) {
      lane_.barrier();  // before the plan is used for something else, also by the next step
      return answer;
    }
    bool is_loose = false;
    for (uint32_t k = 0; k < operands(); ++k) is_loose |= bytes_into_line(addresses()[k]) != 0;
    piece_bytes_ = stage_bytes() - (is_loose ? kLine : 0);
    return Answer::Agreed;
  }

  // ---- a warp's ring

  __device__ __forceinline__ uint32_t warp() const { return lane_.rank / kWarp; }
  __device__ __forceinline__ uint32_t thread() const { return lane_.rank % kWarp; }
  __device__ __forceinline__ BulkStage& state_of(uint32_t group) const {
    auto* states = reinterpret_cast<BulkStage*>(ptx::shared_memory() + cta_.header.fold_states_at);
    return states[warp() * cta_.header.fold_groups + group];
  }
  __device__ __forceinline__ std::byte* memory_of(uint32_t group) const {
    const uint32_t pieces = (warp() * cta_.header.fold_groups + group) * operands();
    return ptx::shared_memory() + cta_.header.fold_stages_at + pieces * stage_bytes();
  }
  /// Of one operand's stage in a group; the most of a piece in it.
  __device__ __forceinline__ uint32_t stage_bytes() const { return cta_.header.fold_piece_bytes; }
  __device__ __forceinline__ uint32_t piece_bytes() const { return piece_bytes_; }
  __device__ __forceinline__ bool is_loose() const { return piece_bytes_ != stage_bytes(); }
  /// The next group to load, or to fold.
  struct Cursor {
    uint32_t group = 0;
    uint32_t turn = 0;  // parity of how often the ring has gone round
  };
  __device__ __forceinline__ void pass(Cursor& cursor) const {
    if (++cursor.group != cta_.header.fold_groups) return;
    cursor.group = 0;
    cursor.turn ^= 1;
  }

  __device__ __forceinline__ void start_ring() const {
    if (thread() == 0) {
      for (uint32_t g = 0; g < cta_.header.fold_groups; ++g) {
        ptx::init_bulk_barrier(&state_of(g).barrier, operands());
      }
      ptx::fence_bulk_barriers();
      ptx::fence_bulk();
    }
    ptx::barrier_warp();
  }

  /// By one thread.
  __device__ __forceinline__ void load(uint32_t group, uint32_t at, uint32_t bytes) const {
    BulkStage& state = state_of(group);
    state.at = at;
    state.bytes = bytes;
    std::byte* memory = memory_of(group);
    for (uint32_t k = 0; k < operands(); ++k) {
      const std::byte* block = addresses()[k];
      const uint32_t shift = bytes_into_line(block);
      ptx::bulk_load(memory + k * stage_bytes(), block - shift + uint64_t{at} * kPack,
                     (shift + bytes + kPack - 1) / kPack * kPack, &state.barrier);
    }
  }

  /// By all threads of the warp.
  __device__ __forceinline__ void fold(const Cursor& cursor, std::byte* target) const {
    BulkStage& state = state_of(cursor.group);
    ptx::await_bulk_load(&state.barrier, cursor.turn);
    const std::byte* memory = memory_of(cursor.group);
    const uint32_t packs = state.bytes / kPack;
    constexpr int kRows = Operation::kUnroll;
    constexpr int kLooseRows = 2;
    uint32_t p = thread();
    if (!is_loose()) {
      for (; p + (kRows - 1) * kWarp < packs; p += kRows * kWarp) {
        fold_rows<kRows, false>(memory, p, state.at, target);
      }
    }
    for (; p + (kLooseRows - 1) * kWarp < packs; p += kLooseRows * kWarp) {
      fold_rows<kLooseRows, true>(memory, p, state.at, target);
    }
    for (; p < packs; p += kWarp) fold_rows<1, true>(memory, p, state.at, target);
    ptx::barrier_warp();
  }

  /// A pack of a stage, `shift` bytes further on if kLoose.
  template <bool kLoose>
  __device__ __forceinline__ static Pack load_row(const std::byte* stage, uint32_t shift) {
    if (kLoose) {
      stage += shift / kPack * kPack;
      shift %= kPack;
    }
    Pack pack = ptx::load_pack_shared(stage);
    if (!kLoose || shift == 0) return pack;
    const Pack next = ptx::load_pack_shared(stage + kPack);
    const bool skips_half = shift >= kGranule;
    const uint64_t parts[3] = {skips_half ? pack.half[1] : pack.half[0],
                               skips_half ? next.half[0] : pack.half[1],
                               skips_half ? next.half[1] : next.half[0]};
    const uint32_t bits = shift % kGranule * 8;
    // (By 64 bits nothing can be shifted.)
    pack.half[0] = parts[0] >> bits | parts[1] << 1 << (63 - bits);
    pack.half[1] = parts[1] >> bits | parts[2] << 1 << (63 - bits);
    return pack;
  }

  template <int kRows, bool kLoose>
  __device__ __forceinline__ void fold_rows(const std::byte* memory, uint32_t p, uint32_t at,
                                            std::byte* target) const {
    memory += p * kPack;
    uint32_t shift = kLoose ? bytes_into_line(addresses()[0]) : 0;
    Values values[kRows][2];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Pack pack = load_row<kLoose>(memory + i * kWarp * kPack, shift);
      values[i][0] = Operation::widen(pack.half[0]);
      values[i][1] = Operation::widen(pack.half[1]);
    }
#pragma unroll 1
    for (uint32_t k = 1; k < operands(); ++k) {
      memory += stage_bytes();
      if (kLoose) shift = bytes_into_line(addresses()[k]);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const Pack pack = load_row<kLoose>(memory + i * kWarp * kPack, shift);
        Operation::accumulate(values[i][0], Operation::widen(pack.half[0]));
        Operation::accumulate(values[i][1], Operation::widen(pack.half[1]));
      }
    }
    Pack result[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      result[i].half[0] = Operation::finish(cta_.header, values[i][0], scales_result());
      result[i].half[1] = Operation::finish(cta_.header, values[i][1], scales_result());
    }
    const uint64_t first = (uint64_t{at} + p) * kPack;
    const auto store = [&](std::byte* block) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        ptx::store_pack(block + first + i * kWarp * kPack, result[i]);
      }
    };
#pragma unroll 1
    for (uint32_t s = 0; s < instruction_.send_count; ++s) store(addresses()[operands() + s]);
    if (target != nullptr) store(target);
  }

  // ---- units

  __device__ __forceinline__ uint64_t* counter() const {
    return (cta_.ports[ports_.receives[0].port].control - cta_.channel())->claims;
  }

  __device__ __forceinline__ void fold_units(std::byte* target) const {
    const uint32_t channels = cta_.work->partition.channels;
    const uint32_t warps = lane_.size / kWarp * channels;
    const auto block = static_cast<uint32_t>(block_bytes() / kPack);  // packs, as all below
    const uint32_t piece = piece_bytes() / kPack;
    const auto share = static_cast<uint32_t>(block / (kUnitsOfWarp * piece * warps));
    const uint32_t unit = piece * (share < 1 ? 1 : share > kPiecesOfUnit ? kPiecesOfUnit : share);
    const uint32_t units = block / unit + (block % unit != 0);

    start_ring();
    // Of the first thread: the unit to be loaded next, counted from behind all first ones. The
    // warp's own lies before them.
    uint32_t claimed = warp() * channels + cta_.channel() - warps;
    uint32_t at = 0;
    uint32_t left = 0;  // of the unit that is being loaded, from `at` on
    Cursor load_cursor;
    Cursor fold_cursor;
    uint32_t pending = 0;  // groups
    for (;;) {
      while (pending < cta_.header.fold_groups) {
        if (left == 0) {
          const uint32_t next = warps + ptx::first_of_warp(claimed);
          if (next >= units) break;
          at = next * unit;
          left = block - at < unit ? block - at : unit;
          // One unit ahead, and not looked at before, so that the counter's latency is hidden.
          // Relaxed: nothing but the number is passed on.
          if (thread() == 0) claimed = static_cast<uint32_t>(ptx::fetch_add_relaxed(counter(), 1));
        }
        const uint32_t packs = left < piece ? left : piece;
        if (thread() == 0) load(load_cursor.group, at, packs * kPack);
        pass(load_cursor);
        ++pending;
        at += packs;
        left -= packs;
      }
      if (pending == 0) break;
      fold(fold_cursor, target);
      pass(fold_cursor);
      --pending;
    }
    // Of all claims the last, which this warp, like all others, has made before it came here.
    if (thread() == 0 && claimed + 1 == units) ptx::store_relaxed_system(counter(), 0);
  }

  /// What is not a whole pack, at the end of the block: by one thread.
  __device__ __forceinline__ void fold_rest(std::byte* target) const {
    const uint64_t block = block_bytes();
    const auto rest = static_cast<uint32_t>(block % kPack);
    for (uint32_t done = 0; done < rest; done += kGranule) {
      const uint32_t bytes = rest - done < kGranule ? rest - done : kGranule;
      const uint64_t at = block - rest + done;
      const auto load = [&](uint32_t k) {
        return Operation::widen(load_granule<Element>(addresses()[k] + at, bytes, sizeof(Element)));
      };
      Values values = load(0);
#pragma unroll 1
      for (uint32_t k = 1; k < operands(); ++k) Operation::accumulate(values, load(k));
      const uint64_t result = Operation::finish(cta_.header, values, scales_result());
#pragma unroll 1
      for (uint32_t s = 0; s < instruction_.send_count; ++s) {
        store_granule<Element>(addresses()[operands() + s] + at, result, bytes, kPack);
      }
      if (target != nullptr) store_granule<Element>(target + at, result, bytes, kPack);
    }
  }

  const Cta& cta_;
  const LaneThreads& lane_;
  const CompactInstruction& instruction_;
  const PortsOfInstruction ports_;
  std::byte** const pointers_;
  uint32_t piece_bytes_ = 0;
};

/// All threads of a lane that is LaneTask::kSharesFold. False: it is to be run round by round.
template <typename Operation>
__device__ __forceinline__ bool run_shared_fold(const Cta& cta,
                                                const CompactInstruction& instruction,
                                                const LaneThreads& lane, std::byte** pointers) {
  SharedFold<Operation> fold(cta, lane, instruction, pointers);
  if (!fold.is_possible() || !fold.run()) return false;
  if (lane.rank == 0 && plan_at(pointers).live == nullptr) leave_offers(cta);
  return true;
}

}  // namespace niccolite::executor::cuda
