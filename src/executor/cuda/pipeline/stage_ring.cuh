// A ring of stages in shared memory (pipeline.cuh has the picture): tiles are filled in, and
// drained, in order. A stage holds a part of each operand, one behind the other.
//
//   pending: filled, not drained | thread: being stored by bulk copies | free
#pragma once

#include "executor/cuda/interpreter/cta.cuh"

namespace niccolite::executor::cuda {

/// The crew that drives a ring: one thread, or a warp, whose threads go the same way. The warp's
/// first thread does the work that is due once, and decides.
template <bool kByWarp>
struct Crew {
  __device__ __forceinline__ static bool leads() { return !kByWarp || ptx::thread() % kWarp == 0; }
  __device__ __forceinline__ static void barrier() {
    if constexpr (kByWarp) ptx::barrier_warp();
  }
  /// Returns the result of decide() in all threads, behind a barrier.
  template <typename Function>
  __device__ __forceinline__ static bool agree(Function&& decide) {
    if constexpr (!kByWarp) {
      return decide();
    } else {
      const uint32_t decision = leads() && decide() ? 1 : 0;
      const bool agreed = ptx::first_of_warp(decision) != 0;
      ptx::barrier_warp();
      return agreed;
    }
  }
};

/// Waits for a stage; called by all threads of a warp. Only one thread looks: looks of all would
/// take time from the thread that drives a copy.
__device__ __forceinline__ void await_stage_together(uint64_t* barrier, uint32_t parity) {
  if (Crew<true>::leads()) ptx::await_stage(barrier, parity);
  ptx::barrier_warp();
}

/// `kStages`: how many, or 0: as many as the area says. `kIsShifted`, of a thread: other warps
/// shift the content of a stage between its load and its store (stage_shift.cuh).
template <uint32_t kStages, bool kByWarp, bool kIsShifted = false>
class StageRing : public Crew<kByWarp> {
  static_assert(!kByWarp || !kIsShifted);

 public:
  using Crew<kByWarp>::leads;

  /// A part of an operand, as it is loaded: both multiples of kVec16.
  struct Part {
    const std::byte* address;
    uint32_t bytes;
  };
  /// The content of a stage.
  struct Tile {
    const std::byte* memory;  // of the first operand's part
    uint32_t at;              // as fill() was told
    uint32_t bytes;
    bool is_last;
  };

  /// The `ring`th of the area.
  __device__ __forceinline__ StageRing(const StageArea& area, uint32_t ring, uint32_t operands)
      : area_(area),
        operands_(operands),
        states_(reinterpret_cast<Stage*>(ptx::shared_memory() + area.states_at) + ring * stages()),
        memory_(ptx::shared_memory() + area.stages_at +
                ring * stages() * operands * area.stage_bytes) {}

  /// Called before anything else, by the crew, or by one thread before a barrier with it.
  __device__ __forceinline__ void start() {
    if (leads()) {
      // Where threads fill, each of them arrives for its loads, and the leader for its note.
      const uint32_t arrivals = ptx::has_bulk_copies() ? operands_ : kWarp + 1;
      for (uint32_t s = 0; s < stages(); ++s) {
        ptx::init_stage_barrier(&stage(s).barrier, arrivals);
        if constexpr (kIsShifted) ptx::init_stage_barrier(shifted_barrier(s), /*arrivals=*/1);
      }
      ptx::fence_bulk_of_shared();
    }
    this->barrier();
  }
  /// For a ring that was started for stages that are not shifted, with nothing pending: it is to be
  /// started anew.
  __device__ __forceinline__ void invalidate() {
    for (uint32_t s = 0; s < kStages; ++s) ptx::invalidate_stage_barrier(&stage(s).barrier);
  }
  /// Returns the ring's position, with nothing pending, for another crew that goes on there; not 0.
  __device__ __forceinline__ uint32_t position() const { return 1 + turn_ * stages() + first_; }
  __device__ __forceinline__ void resume(uint32_t position) {
    turn_ = (position - 1) / stages();
    first_ = (position - 1) % stages();
  }

  /// The most that a stage has room for, in bytes of each operand.
  __device__ __forceinline__ uint32_t bytes() const { return area_.stage_bytes; }
  __device__ __forceinline__ uint32_t stages() const {
    if constexpr (kStages != 0) return kStages;
    return area_.stages;
  }
  __device__ __forceinline__ uint32_t pending() const { return pending_; }
  __device__ __forceinline__ bool is_empty() const { return pending_ == 0; }
  /// Whether a stage is free. A thread keeps some stages for the stores that are under way to the
  /// sinks.
  __device__ __forceinline__ bool has_room() const {
    return pending_ < (kByWarp ? stages() : kStages - kBeingStored);
  }

  /// Starts to fill the next stage, while there is room, with source(k), a Part of every operand k.
  /// Notes the place `at`, the `bytes` (a multiple of kVec16; the load may be longer), and whether
  /// it is the last stage of a part that is announced. (Bulk copies take their operands from
  /// uniform registers: several threads of a warp would take turns.)
  template <typename Function>
  __device__ __forceinline__ void fill(uint32_t at, uint32_t bytes, bool is_last,
                                       Function&& source) {
    const uint32_t s = place_of(first_ + pending_);
    Stage& next = stage(s);
    std::byte* memory = memory_of(s);
    // At least kBeingStored tiles were stored after the earlier tile of this stage.
    if constexpr (!kByWarp) ptx::await_bulk_reads<kBeingStored>();
    if (leads()) {
      next.at = at;
      next.bytes = bytes | static_cast<uint32_t>(is_last);
    }
    if (ptx::has_bulk_copies()) {
      for (uint32_t k = 0; leads() && k < operands_; ++k, memory += area_.stage_bytes) {
        const Part part = source(k);
        ptx::bulk_load(memory, part.address, part.bytes, &next.barrier);
      }
    } else {
      for (uint32_t k = 0; k < operands_; ++k, memory += area_.stage_bytes) {
        const Part part = source(k);
        for (uint32_t b = ptx::thread() % kWarp * kVec16; b < part.bytes; b += kWarp * kVec16) {
          ptx::async_load(memory + b, part.address + b);
        }
      }
      ptx::arrive_after_async_loads(&next.barrier);
      if (leads()) ptx::arrive(&next.barrier);  // releases the note
    }
    ++pending_;
  }

  /// While a stage is pending: waits until the first one is full.
  __device__ __forceinline__ Tile await() const {
    Stage& first = stage(first_);
    uint32_t at = 0;
    uint32_t bytes = 0;
    // The thread that has written the note need not wait for it.
    if constexpr (!kByWarp) {
      at = first.at;
      bytes = first.bytes;
    }
    ptx::await_stage(filled_barrier(first_), turn_);
    if constexpr (kByWarp) {
      at = first.at;
      bytes = first.bytes;
    }
    return {memory_of(first_), at, bytes & ~kLastTile, (bytes & kLastTile) != 0};
  }

  /// Called after the stores of the first stage. True: all stores of a last tile are complete that
  /// was not reported before; by a thread, one that was released kLag tiles ago.
  __device__ __forceinline__ bool release(bool is_last) {
    if constexpr (kByWarp) {
      ptx::barrier_warp();
      pass_first();
      return is_last;
    } else {
      ptx::commit_bulk_stores();
      pass_first();
      ended_ = ended_ << 1 | static_cast<uint32_t>(is_last);
      if ((ended_ >> kLag & 1) == 0) return false;
      ptx::await_bulk_stores<kLag>();
      return true;
    }
  }
  /// Waits until all stores are complete, also the stores of every last tile.
  __device__ __forceinline__ void complete() {
    if constexpr (!kByWarp) ptx::await_bulk_stores<0>();
    ended_ = 0;
  }
  /// Waits for the loads of all stages that will not be drained.
  __device__ __forceinline__ void abandon() {
    for (; pending_ != 0; pass_first()) ptx::await_stage(filled_barrier(first_), turn_);
  }
  /// Tells the shifting warps that there are no more stages: each waits for one of the next.
  /// Nothing is pending, and all stores are complete.
  __device__ __forceinline__ void end(uint32_t shifting_warps) {
    static_assert(kIsShifted);
    for (uint32_t i = 0; i < shifting_warps; ++i) {
      Stage& next = stage(place_of(first_ + i));
      next.bytes = kNoTile;
      ptx::arrive(&next.barrier);
    }
  }

  // ---- by the warps that shift (stage_shift.cuh), a stage each

  /// Waits, by all threads of a warp, until stage s is full, in its turn of this parity.
  __device__ __forceinline__ void await_loaded(uint32_t s, uint32_t turn) const {
    await_stage_together(&stage(s).barrier, turn);
  }
  __device__ __forceinline__ bool is_end(uint32_t s) const { return stage(s).bytes == kNoTile; }
  __device__ __forceinline__ uint32_t bytes_in(uint32_t s) const {
    return stage(s).bytes & ~kLastTile;
  }
  __device__ __forceinline__ std::byte* memory_of(uint32_t s) const {
    return memory_ + s * operands_ * area_.stage_bytes;
  }
  /// Gives a shifted stage to the bulk copies that read it. Called by all threads of a warp after
  /// their last store to it.
  __device__ __forceinline__ void leave_shifted(uint32_t s) const {
    ptx::fence_bulk_of_shared();
    ptx::barrier_warp();
    if (Crew<true>::leads()) ptx::arrive(shifted_barrier(s));
  }

 private:
  // Where warps shift, stages that wait for them are worth more than stores under way (0074); else
  // fewer stores than three do not fill a link, and more leave too little to loads (copies within
  // the GPU beside sends: a tenth slower by five).
  static constexpr uint32_t kBeingStored = kIsShifted ? 1 : 3;
  static constexpr uint32_t kLag = 4;
  static constexpr uint32_t kLastTile = 1;  // of Stage::bytes
  static constexpr uint32_t kNoTile = 2;    // the same
  static_assert(kByWarp || kStages > kBeingStored);
  static_assert((kStages & (kStages - 1)) == 0, "remainders by it cost one instruction");
  static_assert(kLag < 32, "bits of ended_");

  /// Returns the place of a stage that comes `behind` the ring's begin, less than two rounds.
  __device__ __forceinline__ uint32_t place_of(uint32_t behind) const {
    if constexpr (kStages != 0) return behind % kStages;
    return behind < stages() ? behind : behind - stages();
  }
  __device__ __forceinline__ Stage& stage(uint32_t s) const { return states_[s]; }
  /// Returns the barrier behind the content of a stage that is to be shifted, which ends a line
  /// earlier (CopyWorker).
  __device__ __forceinline__ uint64_t* shifted_barrier(uint32_t s) const {
    return reinterpret_cast<uint64_t*>(memory_of(s) + bytes()) - 1;
  }
  /// Returns the barrier whose phase is over when a stage may be drained.
  __device__ __forceinline__ uint64_t* filled_barrier(uint32_t s) const {
    if constexpr (kIsShifted) return shifted_barrier(s);
    return &stage(s).barrier;
  }
  __device__ __forceinline__ void pass_first() {
    --pending_;
    if (++first_ != stages()) return;
    first_ = 0;
    turn_ ^= 1;
  }

  const StageArea& area_;
  const uint32_t operands_;
  Stage* const states_;
  std::byte* const memory_;
  uint32_t first_ = 0;    // the stage to be drained next
  uint32_t turn_ = 0;     // parity of how often the ring has gone round
  uint32_t pending_ = 0;  // stages
  uint32_t ended_ = 0;    // bit i: the last tile but i was the last of something
};

}  // namespace niccolite::executor::cuda
