// The ends of a worker that copies (copy_worker.cuh): a source, and sinks, each in slots or in
// somebody's buffer; and the counters by which it tells the peers of both.
#pragma once

#include "executor/cuda/interpreter/service_warp.cuh"
#include "executor/cuda/pipeline/copy_stores.cuh"
#include "executor/cuda/pipeline/handover.cuh"
#include "executor/cuda/pipeline/pipeline.cuh"

namespace niccolite::executor::cuda {

/// The threads that copy. Thread: one thread, by bulk copies. ThreadAndShifters: one thread, and
/// other warps that shift the contents of a stage (stage_shift.cuh). Warp: a warp whose threads
/// store.
enum class CopyCrew : uint8_t { Thread, ThreadAndShifters, Warp };

template <typename Operation, CopyCrew kCrew>
class CopyEnds {
 protected:
  static constexpr bool kByWarp = kCrew == CopyCrew::Warp;
  static constexpr bool kIsShifted = kCrew == CopyCrew::ThreadAndShifters;
  using Element = typename Operation::Element;
  using Ring = StageRing<kCopyStages, kByWarp, kIsShifted>;

  __device__ __forceinline__ CopyEnds(const Cta& cta, const WorkerTask& task, std::byte** pointers,
                                      Handover* handover)
      : cta_(cta),
        instruction_(cta.instructions[task.first]),
        receives_(cta.uses + instruction_.receive),
        sends_(cta.uses + instruction_.send),
        destinations_(pointers),
        handover_(handover),
        ring_(cta.header.copy_stages, task.ring, /*operands=*/1) {}

  /// Waits for the advertisement of the received data, if it may be got. False: aborted.
  __device__ __forceinline__ bool find_source() {
    const Partition& partition = cta_.work->partition;
    const uint32_t element_bytes = Operation::element_bytes(cta_.header);
    const Transfer first = transfer_of<Operation>(cta_, instruction_, 0);
    rounds_ = partition.rounds;
    chunk_bytes_ = partition.chunk * element_bytes;
    total_bytes_ =
        first.bytes == 0
            ? 0
            : partition.count_from(instruction_.chunk_block, cta_.channel()) * element_bytes;
    source_ = first.source;
    target_ = first.target;
    if (receives() && !find_received()) return false;
    ndestinations_ = instruction_.send_count + (target_ != nullptr);
    is_loose_ = false;
    shift_ = 0;
    if constexpr (kIsShifted) return true;  // find_shift()
    if (!kByWarp && may_pass_head()) pass_head(into_vec16(source_));
    is_loose_ = !is_aligned(source_) || !is_aligned(target_);
    if constexpr (kByWarp) shift_ = into_vec16(source_);
    return true;
  }

  // ---- sizes

  __device__ __forceinline__ uint32_t chunk_bytes(uint32_t round) const {
    const uint64_t start = uint64_t{round} * chunk_bytes_;
    const uint64_t left = start < total_bytes_ ? total_bytes_ - start : 0;
    return left < chunk_bytes_ ? static_cast<uint32_t>(left) : chunk_bytes_;
  }
  __device__ __forceinline__ uint32_t whole_bytes(uint32_t round) const {
    return chunk_bytes(round) & ~(kVec16 - 1);
  }
  __device__ __forceinline__ uint64_t whole_block_bytes() const {
    return cta_.work->partition.count_from(instruction_.chunk_block, 0) *
           Operation::element_bytes(cta_.header);
  }
  __device__ __forceinline__ uint64_t block_bytes() const {
    const uint64_t whole = whole_block_bytes();
    return whole > head_ ? whole - head_ : 0;
  }
  // ---- sources

  __device__ __forceinline__ bool receives() const { return instruction_.receive_count != 0; }
  __device__ __forceinline__ bool sends() const { return instruction_.send_count != 0; }
  __device__ __forceinline__ PortState& port_of(const PortUse& use) const {
    return cta_.ports[use.port];
  }

  /// Returns the source of the round's chunk.
  __device__ __forceinline__ const std::byte* source_of(uint32_t round) const {
    if (source_ != nullptr || !receives()) return source_ + uint64_t{round} * chunk_bytes_;
    const PortState& port = port_of(receives_[0]);
    return port.slots + cta_.header.shape.slot_offset(0, step_of(port, receives_[0], round));
  }
  /// Does the received data come straight from a peer's buffer?
  __device__ __forceinline__ bool is_got() const {
    return !makes_advertisement(port_of(receives_[0])) && source_ != nullptr;
  }

  // ---- sinks

  __device__ __forceinline__ bool all_are_put() const {
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      if (!has_agreed(port_of(sends_[s]))) return false;
    }
    return true;
  }
  __device__ __forceinline__ static int64_t from_own(uint32_t at) {
    return int64_t{static_cast<int32_t>(at)} * kVec16;
  }

  __device__ __forceinline__ void store(const typename Ring::Tile& tile) const {
    if (tile.bytes == 0) return;
    const int64_t at = from_own(tile.at);
    if constexpr (kByWarp) {
      for (uint32_t d = 0; d < ndestinations_; ++d) {
        std::byte* target = destinations_[d] + at;
        if (!ptx::has_bulk_copies() && shift_ == 0 && is_aligned(target)) {
          store_vec16s(target, tile.memory, tile.bytes);
        } else {
          store_vec8s<Element>(target, tile.memory + shift_, tile.bytes);
        }
      }
    } else {
      ptx::bulk_store(destination_ + at, tile.memory, tile.bytes);
      for (uint32_t d = 1; d < ndestinations_; ++d) {
        ptx::bulk_store(destinations_[d] + at, tile.memory, tile.bytes);
      }
    }
  }

  /// Waits until the round's chunk may be stored. False: aborted, or to be run by the warp.
  __device__ __forceinline__ bool open_destinations() {
    if (!ring_.agree([&] { return find_destinations(); })) return false;
    destination_ = destinations_[0];
    return true;
  }
  /// Moves the begin of the block to where the first destinations are aligned, and sets the shift
  /// of the source from there. For a shifted copy whose first destinations are open. Returns false
  /// if the destinations are not aligned alike.
  __device__ __forceinline__ bool find_shift() {
    const uint32_t into = into_vec16(destination_);
    for (uint32_t d = 1; d < ndestinations_; ++d) {
      if (into_vec16(destinations_[d]) != into) return false;
    }
    if (into != 0) {
      if (!all_stay()) return false;
      pass_head(into);
      for (uint32_t d = 0; d < ndestinations_; ++d) destinations_[d] += head_;
      destination_ = destinations_[0];
    }
    shift_ = into_vec16(source_);
    store_head();
    return true;
  }
  /// The round's last tile, of whole vec16s, is being stored; it ends `at` bytes into the chunk.
  __device__ __forceinline__ void end_round(uint32_t at) {
    const uint32_t rest = chunk_bytes(storing_) % kVec16;
    if (rest != 0 && ring_.leads()) store_rest(source_of(storing_), at, rest);
    if (receives() && ring_.leads()) {
      PortState& port = port_of(receives_[0]);
      set_done(port, step_of(port, receives_[0], storing_));
    }
    ++storing_;
  }
  /// Stores the part that is less than a vec16, by the thread itself.
  __device__ __forceinline__ void store_rest(const std::byte* source, uint64_t at,
                                             uint32_t rest) const {
    move_bytes<Element>(source + at, destinations_, ndestinations_, static_cast<int64_t>(at), rest);
  }

  /// The first round that is stored and not published. Its stores are complete.
  __device__ __forceinline__ void publish_next() {
    if constexpr (!kByWarp) ptx::fence_bulk();
    for (uint32_t s = 0; ring_.leads() && s < instruction_.send_count; ++s) {
      PortState& port = port_of(sends_[s]);
      set_sent(cta_, sends_[s], port, step_of(port, sends_[s], published_),
               chunk_bytes(published_));
    }
    ++published_;
  }
  __device__ __forceinline__ void publish_all() {
    ring_.complete();
    while (published_ != storing_) publish_next();
  }

  const Cta& cta_;
  const CompactInstruction& instruction_;
  const PortUse* const receives_;
  const PortUse* const sends_;
  std::byte** const destinations_;  // of the round that is being stored: sends, then the target
  Handover* const handover_;
  Ring ring_;
  uint32_t rounds_;
  uint32_t chunk_bytes_;     // of a round, but for the last
  uint64_t total_bytes_;     // from the first chunk to the end of the block
  const std::byte* source_;  // of the first round's chunk, in a user's buffer; null: the slots
  std::byte* target_;        // the same; or null
  bool is_loose_;            // a buffer is not aligned: found before anything is stored
  uint32_t shift_;           // bytes from a vec16 to where the source begins in it
  uint32_t ndestinations_;
  std::byte* destination_;  // the first of destinations_
  uint32_t storing_ = 0;    // the round
  uint32_t published_ = 0;  // rounds

 private:
  /// Finds the place of the received data, if it is not in slots. False: aborted.
  __device__ __forceinline__ bool find_received() {
    const PortState& port = port_of(receives_[0]);
    if (!makes_advertisement(port)) {
      if (!ring_.agree([&] { return wait_until_open(cta_, port, port.base); })) return false;
      if (has_agreed(port)) {
        source_ = port.slots;
        if (ring_.leads()) ptx::fence_bulk();
      }
    } else if (has_agreed(port)) {
      source_ = target_;  // it is put there
      target_ = nullptr;
    }
    return true;
  }
  __device__ __forceinline__ bool find_destinations() {
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      const PortState& port = port_of(sends_[s]);
      const uint64_t step = step_of(port, sends_[s], storing_);
      if (!is_open(cta_, port, step)) {
        // The peer may be waiting for data that has been stored.
        publish_all();
        if (!wait_until_open(cta_, port, step)) return false;
      }
      destinations_[s] = chunk_at<Operation>(cta_, port, sends_[s], storing_) + head_;
      // The alignment is the same in all rounds.
      is_loose_ |= !is_aligned(destinations_[s]);
    }
    if (target_ != nullptr) {
      destinations_[instruction_.send_count] = target_ + uint64_t{storing_} * chunk_bytes_;
    }
    if (kCrew == CopyCrew::Thread && is_loose_) return false;
    if (storing_ == 0 && !kIsShifted) {
      if (!kByWarp && handover_ != nullptr) handover_->leave(Handover::kNothing);
      store_head();
    }
    return true;
  }

  // ---- where nothing is aligned, but all alike: the block begins where it is aligned, and what
  // lies before that is stored byte by byte. (A warp need not: it stores anywhere. The thread finds
  // out in time if data go through slots after all, since those are aligned otherwise.)

  __device__ __forceinline__ bool may_pass_head() const {
    return !is_aligned(source_) && (!receives() || is_got()) && all_stay();
  }
  /// Whether no peer reads the stored data round by round.
  __device__ __forceinline__ bool all_stay() const {
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      if (port_of(sends_[s]).stays == 0) return false;
    }
    return true;
  }
  /// `into`: where the block begins in a vec16; not 0.
  __device__ __forceinline__ void pass_head(uint32_t into) {
    head_ = kVec16 - into;
    source_ += head_;
    if (target_ != nullptr) target_ += head_;
    total_bytes_ = total_bytes_ > head_ ? total_bytes_ - head_ : 0;
  }
  __device__ __forceinline__ void store_head() const {
    if (head_ == 0 || cta_.channel() != 0) return;
    const uint64_t block = whole_block_bytes();
    const uint32_t bytes = head_ < block ? head_ : static_cast<uint32_t>(block);
    move_bytes<Element>(source_ - head_, destinations_, ndestinations_, -int64_t{head_}, bytes);
  }

  uint32_t head_ = 0;  // bytes that were passed
};

}  // namespace niccolite::executor::cuda
