// The stages of a worker that bulk copies serve: a ring of buffers in shared memory that pieces of
// data pass through, first loaded, then stored to one or more places, in order. One thread drives
// it.
//
//   loaded, not stored: at most kAhead | being stored: the other stages
#pragma once

#include "executor/cuda/cta.cuh"

namespace niccolite::executor::cuda {

class BulkStages {
 public:
  static constexpr uint32_t kAhead = 5;  // pieces loaded and not stored
  static_assert(kAhead < kBulkStages);

  /// Those of the worker with this number among the CTA's (WorkerTask::bulk).
  __device__ __forceinline__ BulkStages(const LaunchHeader& header, uint32_t worker)
      : bytes_(header.bulk_stage_bytes),
        memory_(ptx::shared_memory() + header.bulk_stages_at + worker * kBulkStages * bytes_),
        states_(reinterpret_cast<BulkStage*>(ptx::shared_memory() + header.bulk_states_at) +
                worker * kBulkStages) {}

  /// Before anything else, by one thread.
  __device__ __forceinline__ void start() {
    for (uint32_t s = 0; s < kBulkStages; ++s) ptx::init_bulk_barrier(&states_[s].barrier, 1);
    ptx::fence_bulk_barriers();
    is_started_ = true;
  }
  /// Goes on, with nothing pending, where others of this worker have stopped: what their position()
  /// was after drain(). Not 0 if they had started.
  __device__ __forceinline__ uint32_t position() const { return is_started_ ? loaded_ + 1 : 0; }
  __device__ __forceinline__ void resume(uint32_t position) {
    is_started_ = position != 0;
    loaded_ = stored_ = is_started_ ? position - 1 : 0;
  }
  __device__ __forceinline__ bool is_started() const { return is_started_; }

  /// The most that a piece may have, in bytes.
  __device__ __forceinline__ uint32_t bytes() const { return bytes_; }
  /// Pieces loaded and not stored.
  __device__ __forceinline__ uint32_t pending() const { return loaded_ - stored_; }

  /// Starts the load of the next piece, which may be empty. At most kAhead - 1 are pending.
  __device__ __forceinline__ void load(const std::byte* source, uint32_t bytes) {
    const uint32_t stage = loaded_ % kBulkStages;
    // At least kBulkStages - kAhead pieces were stored after the one that had this stage.
    if (loaded_ >= kBulkStages) ptx::await_bulk_reads<kBulkStages - kAhead>();
    ptx::bulk_load(memory_ + stage * bytes_, source, bytes, &states_[stage].barrier);
    ++loaded_;
  }

  /// The same by all threads of a warp, of which one `leads`, and which store pieces by themselves:
  /// the piece that had the stage has been stored, by all of them.
  __device__ __forceinline__ void load_by_warp(const std::byte* source, uint32_t bytes,
                                               bool leads) {
    const uint32_t stage = loaded_ % kBulkStages;
    if (leads) ptx::bulk_load(memory_ + stage * bytes_, source, bytes, &states_[stage].barrier);
    ++loaded_;
  }
  /// The first pending piece is stored, by all threads.
  __device__ __forceinline__ void pass() { ++stored_; }

  /// Waits until the first pending piece is loaded; returns where it is.
  __device__ __forceinline__ const std::byte* await() const {
    const uint32_t stage = stored_ % kBulkStages;
    ptx::await_bulk_load(&states_[stage].barrier, stored_ / kBulkStages % 2);
    return memory_ + stage * bytes_;
  }

  /// After the stores of that piece. What was stored before the last pieces is complete after
  /// await_bulk_stores.
  __device__ __forceinline__ void commit() {
    ptx::commit_bulk_stores();
    ++stored_;
  }
  /// The same of a piece that is, or is not, the last of something that is to be announced. True:
  /// the stores of a last piece are complete that was committed kLag pieces before.
  __device__ __forceinline__ bool commit(bool is_last) {
    commit();
    ended_ = ended_ << 1 | static_cast<uint32_t>(is_last);
    if ((ended_ >> kLag & 1) == 0) return false;
    ptx::await_bulk_stores<kLag>();
    return true;
  }
  /// Waits for all stores: those of every last piece are complete.
  __device__ __forceinline__ void complete() {
    ptx::await_bulk_stores<0>();
    ended_ = 0;
  }

  /// Shared memory must not be written after the CTA's end: waits for the loads of all pieces that
  /// will not be stored.
  __device__ __forceinline__ void drain() {
    for (; pending() != 0; ++stored_) await();
  }

  /// What the piece is that is loaded next, and the first pending one; for the worker's own use.
  __device__ __forceinline__ BulkStage& next() const { return states_[loaded_ % kBulkStages]; }
  __device__ __forceinline__ const BulkStage& first() const {
    return states_[stored_ % kBulkStages];
  }

 private:
  static constexpr uint32_t kLag = 4;
  static_assert(kLag < 32, "bits of ended_");

  const uint32_t bytes_;
  std::byte* const memory_;
  BulkStage* const states_;
  uint32_t loaded_ = 0;
  uint32_t stored_ = 0;
  bool is_started_ = false;
  uint32_t ended_ = 0;  // bit i: the last piece but i was the last of something
};

}  // namespace niccolite::executor::cuda
