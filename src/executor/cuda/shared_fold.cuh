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
// Each warp has a ring in shared memory that bulk copies fill (fold_ring.cuh). Or the peers are
// asked to send what is folded (requested_fold.cuh), if this launch is for that and all of them
// can.
//
// Units are counted from the first multiple of 16 bytes in what is sent first, or else in the own
// output; what lies before it is folded by one thread, as what is left at the end. Operands, and
// other destinations, may lie anywhere.
//
// A piece is read, folded and stored by one warp, and stored after it has been read, so that the
// result may take the place of an operand (in place), here or at a peer.
//
// The counter (ControlBlock::claims[0], of the lane's first receiving connection, first channel) is
// 0 between operations: for each unit that is taken one number is claimed, and whoever claims the
// last resets it. (Aborted operations: claims.cuh.)
//
// When: lane_forms.cc has found that every operand of a peer may be lent, and that every peer's
// result may land and stays there; all of them are offered, and every channel has data, so that all
// CTAs come to the same decision.
//
// Order, besides that of simple_step.cuh and of the ring: [seen] -> lane barrier -> fence -> loads.
#pragma once

#include "executor/cuda/fold_ring.cuh"
#include "executor/cuda/requested_fold.cuh"

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
    if (cta_.header.request_bytes != 0) RequestedFold<Operation>::prepare(cta_, lane_);
    const Answer answer = await_offers(plan);
    if (answer != Answer::Agreed) return answer == Answer::Aborted;

    const bool folds_ends = cta_.channel() == 0 && lane_.rank == 0;
    const uint32_t head = find_head(plan);
    if (head != 0) {
      if (folds_ends) fold_end(plan.target, 0, head);
      lane_.barrier();
      pass_head(plan, head);
    }
    const uint64_t bytes = block_bytes() - head;
    const auto block = static_cast<uint32_t>(bytes / kPack);
    // (Units that are requested are those of the lender's block.)
    const bool requests =
        head == 0 && RequestedFold<Operation>::is_possible(cta_, lane_, ports_, block);
    const typename Ring::Blocks blocks{cta_, instruction_, addresses(), plan.target, requests};
    if (folds_ends) fold_end(plan.target, bytes / kPack * kPack, bytes % kPack);
    if (requests) {
      const RequestedFold<Operation> fold(cta_, lane_, ports_, blocks, block, counter());
      if (!fold.run()) plan.live = nullptr;
      lane_.barrier();
      if (plan.live == nullptr) return true;
      fold.finish();
    } else {
      fold_units(blocks, block);
      lane_.barrier();
    }
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
  using Ring = FoldRing<Operation>;
  static constexpr uint64_t kMostPacks = uint64_t{1} << 32;  // of a block: offsets have 32 bits
  static constexpr uint64_t kRefused = ~uint64_t{0};         // SimplePlan::bytes
  static constexpr uint32_t kPiecesOfUnit = 8;  // at most: longer ones make the end uneven
  static constexpr uint64_t kUnitsOfWarp = 8;   // at least, where pieces are short enough

  __device__ __forceinline__ bool has_source() const { return instruction_.source != Place::None; }
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

  enum class Answer : uint8_t { Agreed, Refused, Aborted };

  /// Notes where the blocks begin. In all threads alike; Refused: not all of them are offered.
  __device__ __forceinline__ Answer await_offers(SimplePlan& plan) {
    if (lane_.rank == 0) {
      plan.target = block_at(instruction_.target, instruction_.target_block);
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
      addresses()[i + is_behind_source] = port.slots - cta_.channel() * stride_bytes();
    }
    lane_.barrier();
    const Answer answer = plan.live == nullptr     ? Answer::Aborted
                          : plan.bytes == kRefused ? Answer::Refused
                                                   : Answer::Agreed;
    // Before the plan is used for something else, also by the next step.
    if (answer != Answer::Agreed) lane_.barrier();
    return answer;
  }

  // ---- units

  __device__ __forceinline__ uint32_t warp() const { return lane_.rank / kWarp; }
  __device__ __forceinline__ uint32_t thread() const { return lane_.rank % kWarp; }
  __device__ __forceinline__ uint64_t* counter() const {
    return (cta_.ports[ports_.receives[0].port].control - cta_.channel())->claims;
  }

  /// `block`: packs, as all lengths below.
  __device__ __forceinline__ void fold_units(const typename Ring::Blocks& blocks,
                                             uint32_t block) const {
    Ring ring(blocks, warp());
    const uint32_t channels = cta_.work->partition.channels;
    const uint32_t warps = lane_.size / kWarp * channels;
    const uint32_t piece = ring.piece_bytes() / kPack;
    const auto share = static_cast<uint32_t>(block / (kUnitsOfWarp * piece * warps));
    const uint32_t unit = piece * (share < 1 ? 1 : share > kPiecesOfUnit ? kPiecesOfUnit : share);
    const uint32_t units = block / unit + (block % unit != 0);

    // Of the first thread: the unit to be loaded next, counted from behind all first ones. The
    // warp's own lies before them.
    uint32_t claimed = warp() * channels + cta_.channel() - warps;
    uint32_t at = 0;
    uint32_t left = 0;  // of the unit that is being loaded, from `at` on
    for (;;) {
      while (!ring.is_full()) {
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
        ring.load(at, packs * kPack, [&](uint32_t k) -> const std::byte* {
          return addresses()[k] + uint64_t{at} * kPack;
        });
        at += packs;
        left -= packs;
      }
      if (ring.is_empty()) break;
      ring.await();
      ring.fold();
    }
    // Of all claims the last, which this warp, like all others, has made before it came here.
    if (thread() == 0 && claimed + 1 == units) {
      ptx::store_relaxed_system(counter(), uint64_t{0});
    }
  }

  // ---- ends

  __device__ __forceinline__ uint32_t operands() const {
    return uint32_t{instruction_.receive_count} + has_source();
  }
  /// Bytes before the units begin.
  __device__ __forceinline__ uint32_t find_head(const SimplePlan& plan) const {
    const std::byte* first = instruction_.send_count != 0 ? addresses()[operands()] : plan.target;
    const uint32_t head = (kPack - bytes_into_line(first) % kPack) % kPack;
    return head < block_bytes() ? head : static_cast<uint32_t>(block_bytes());
  }
  /// All threads of the lane: the blocks begin behind it now.
  __device__ __forceinline__ void pass_head(SimplePlan& plan, uint32_t head) const {
    if (lane_.rank == 0 && plan.target != nullptr) plan.target += head;
    for (uint32_t k = lane_.rank; k < operands() + instruction_.send_count; k += lane_.size) {
      addresses()[k] += head;
    }
    lane_.barrier();
  }

  /// `bytes` bytes from `from` on, less than a pack: by one thread.
  __device__ __forceinline__ void fold_end(std::byte* target, uint64_t from, uint32_t bytes) const {
    constexpr uint32_t kElement = sizeof(Element);
    const bool scales_result =
        (cta_.header.flags & kScalesResult) && (instruction_.flags & kFinish);
    for (uint32_t done = 0; done < bytes; done += kGranule) {
      const uint32_t part = bytes - done < kGranule ? bytes - done : kGranule;
      const uint64_t at = from + done;
      const auto load = [&](uint32_t k) {
        return Operation::widen(load_granule<Element>(addresses()[k] + at, part, kElement));
      };
      Values values = load(0);
#pragma unroll 1
      for (uint32_t k = 1; k < operands(); ++k) Operation::accumulate(values, load(k));
      const uint64_t result = Operation::finish(cta_.header, values, scales_result);
#pragma unroll 1
      for (uint32_t s = 0; s < instruction_.send_count; ++s) {
        store_granule<Element>(addresses()[operands() + s] + at, result, part, kElement);
      }
      if (target != nullptr) store_granule<Element>(target + at, result, part, kElement);
    }
  }

  const Cta& cta_;
  const LaneThreads& lane_;
  const CompactInstruction& instruction_;
  const PortsOfInstruction ports_;
  std::byte** const pointers_;
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
