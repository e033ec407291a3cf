// A lane of the Simple protocol that only moves bytes, by bulk copies: one thread drives it, and
// the data pass through shared memory, not through registers.
//
//   user's buffer or received slot --load--> stage --store--> slots of peers, user's buffer
//
// What SMs move over links is limited by what they have under way. A lane of few warps that copies
// by loads and stores has a few kilobytes; the stages of a bulk lane have a hundred, so that 16
// CTAs move what took 64 (docs/design/0011). Rounds follow each other without a gap: pieces of the
// next ones are loaded while those of the last are on the way, and a slot is published once its
// stores are complete, a few pieces later.
//
// What a peer receives without more may land in its user's buffer instead of slots, and what this
// lane receives may have landed (landing.cuh); it then waits, or passes it on from there.
//
// For lanes of one instruction with one operand that is not scaled (tables.cc), whose buffers are
// aligned to 16 bytes. Simple's slots, steps and counters are the same: the other end may be served
// by either code. Reading ahead is allowed: a lane waits for others through connections alone, so
// that nothing but the arrival of a slot makes a source valid.
//
// Order: bulk copies are accesses by another proxy than the thread's. [seen] -> fence -> loads;
// stores -> wait for their group -> fence -> [done]; loads -> wait at the barrier -> [done].
#pragma once

#include "executor/cuda/simple_step.cuh"

namespace niccolite::executor::cuda {

template <typename Operation>
class BulkLane {
 public:
  /// One thread of the lane; the others have nothing to do.
  __device__ __forceinline__ BulkLane(const Cta& cta, const LaneTask& task)
      : cta_(cta),
        task_(task),
        instruction_(cta.instructions[task.first]),
        receives_(cta.uses + instruction_.receive),
        sends_(cta.uses + instruction_.send),
        stage_bytes_(cta.header.bulk_stage_bytes),
        stages_(ptx::shared_memory() + cta.header.bulk_stages_at +
                task.bulk * kBulkStages * stage_bytes_),
        barriers_(reinterpret_cast<uint64_t*>(ptx::shared_memory() + cta.header.bulk_barriers_at) +
                  task.bulk * kBulkStages) {}

  __device__ __forceinline__ void run() {
    const Partition& partition = cta_.work->partition;
    const uint32_t element_bytes = Operation::element_bytes(cta_.header);
    const Transfer first = transfer_of<Operation>(cta_, instruction_, 0);
    rounds_ = partition.rounds;
    chunk_bytes_ = partition.chunk * element_bytes;
    total_bytes_ = first.bytes == 0 ? 0
                                    : partition.count_from(instruction_.chunk_block, cta_.channel) *
                                          element_bytes;
    source_ = first.source;
    target_ = first.target;
    if (receives() && has_agreed(port_of(receives_[0]))) {
      source_ = target_;
      target_ = nullptr;
    }
    for (uint32_t s = 0; s < kBulkStages; ++s) ptx::init_bulk_barrier(barriers_ + s);
    ptx::fence_bulk();
    enter(load_, 0);
    enter(store_, 0);
    while (load_ahead() && stored_ != loaded_ && store_next()) {
    }
    publish_all();
    if (published_ != rounds_) leave_landings(cta_, task_);
    // Shared memory must not be written after the CTA's end.
    for (; stored_ != loaded_; ++stored_) await_load(stored_);
  }

 private:
  using Element = typename Operation::Element;
  static constexpr uint32_t kAhead = kBulkStages - 1;  // pieces being loaded
  static constexpr uint32_t kLag = kBulkStages;        // pieces stored before one is published

  /// The next piece to load, or to store. A round has at least one, which may be empty.
  struct Cursor {
    uint32_t round;
    uint32_t bytes;  // of the round's chunk
    uint32_t at;     // of the piece in it
  };

  __device__ __forceinline__ void enter(Cursor& cursor, uint32_t round) const {
    const uint64_t start = uint64_t{round} * chunk_bytes_;
    const uint64_t left = start < total_bytes_ ? total_bytes_ - start : 0;
    cursor.round = round;
    cursor.bytes = left < chunk_bytes_ ? static_cast<uint32_t>(left) : chunk_bytes_;
    cursor.at = 0;
  }
  __device__ __forceinline__ static uint32_t whole_bytes(const Cursor& cursor) {
    return cursor.bytes & ~(kPack - 1);
  }
  __device__ __forceinline__ uint32_t piece_bytes(const Cursor& cursor) const {
    const uint32_t left = whole_bytes(cursor) - cursor.at;
    return left < stage_bytes_ ? left : stage_bytes_;
  }
  __device__ __forceinline__ bool ends_round(const Cursor& cursor) const {
    return cursor.at + stage_bytes_ >= whole_bytes(cursor);
  }
  __device__ __forceinline__ void advance(Cursor& cursor) const {
    if (ends_round(cursor)) {
      enter(cursor, cursor.round + 1);
    } else {
      cursor.at += stage_bytes_;
    }
  }

  __device__ __forceinline__ bool receives() const { return instruction_.receive_count != 0; }
  __device__ __forceinline__ bool reads_slots() const { return receives() && source_ == nullptr; }
  __device__ __forceinline__ PortState& port_of(const PortUse& use) const {
    return cta_.ports[use.port];
  }
  __device__ __forceinline__ std::byte* slot_of(const PortUse& use, uint32_t round) const {
    const PortState& port = port_of(use);
    return port.slots + cta_.header.shape.slot_offset(0, step_of(port, use, round));
  }
  __device__ __forceinline__ uint64_t start_of(const Cursor& cursor) const {
    return uint64_t{cursor.round} * chunk_bytes_;
  }
  __device__ __forceinline__ const std::byte* source_of(const Cursor& cursor) const {
    return reads_slots() ? slot_of(receives_[0], cursor.round) : source_ + start_of(cursor);
  }
  __device__ __forceinline__ std::byte* stage_of(uint32_t piece) const {
    return stages_ + piece % kBulkStages * stage_bytes_;
  }
  __device__ __forceinline__ void await_load(uint32_t piece) const {
    ptx::await_bulk_load(barriers_ + piece % kBulkStages, piece / kBulkStages % 2);
  }

  /// Starts the loads of up to kAhead pieces whose data are there; waits for data only when there
  /// is nothing else to do. False: aborted.
  __device__ __forceinline__ bool load_ahead() {
    while (loaded_ - stored_ < kAhead && load_.round < rounds_) {
      if (load_.at == 0 && receives()) {
        const PortState& port = port_of(receives_[0]);
        const uint64_t step = step_of(port, receives_[0], load_.round);
        if (!is_open(cta_, port, step)) {
          if (stored_ != loaded_) return true;
          publish_all();
          if (!wait_until_open(cta_, port, step)) return false;
        }
        ptx::fence_bulk();
      }
      // At least kBulkStages - kAhead pieces were stored after the one that had this stage.
      if (loaded_ >= kBulkStages) ptx::await_bulk_reads<kBulkStages - kAhead>();
      ptx::bulk_load(stage_of(loaded_), source_of(load_) + load_.at, piece_bytes(load_),
                     barriers_ + loaded_ % kBulkStages);
      ++loaded_;
      advance(load_);
    }
    return true;
  }

  /// Stores the piece that was loaded first. False: aborted.
  __device__ __forceinline__ bool store_next() {
    if (store_.at == 0 && !await_credit()) return false;
    await_load(stored_);
    const uint32_t bytes = piece_bytes(store_);
    const bool is_last = ends_round(store_);
    const auto store_to = [&](std::byte* target) {
      if (bytes != 0) ptx::bulk_store(target + store_.at, stage_of(stored_), bytes);
      if (is_last && store_.bytes % kPack != 0) store_rest(target);
    };
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      store_to(destination_of<Operation>(cta_, port_of(sends_[s]), sends_[s], store_.round));
    }
    if (target_ != nullptr) store_to(target_ + start_of(store_));
    ptx::commit_bulk_stores();
    ++stored_;
    if (is_last && receives()) {
      PortState& port = port_of(receives_[0]);
      set_done(port, step_of(port, receives_[0], store_.round));
    }
    advance(store_);

    ended_ = ended_ << 1 | static_cast<uint32_t>(is_last);
    if (ended_ >> kLag & 1) {
      ptx::await_bulk_stores<kLag>();
      publish_next();
    }
    return true;
  }

  /// The end of a chunk that is not a whole pack: by the thread itself.
  __device__ __forceinline__ void store_rest(std::byte* target) const {
    const uint32_t at = whole_bytes(store_);
    for (uint32_t done = 0; at + done < store_.bytes; done += 8) {
      const uint32_t left = store_.bytes - at - done;
      const uint32_t bytes = left < 8 ? left : 8;
      const uint64_t granule =
          load_granule<Element>(source_of(store_) + at + done, bytes, cta_.work->width);
      store_granule<Element>(target + at + done, granule, bytes, cta_.work->width);
    }
  }

  __device__ __forceinline__ bool await_credit() {
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      const PortState& port = port_of(sends_[s]);
      const uint64_t step = step_of(port, sends_[s], store_.round);
      if (is_open(cta_, port, step)) continue;
      // The peer may be waiting for what has been stored.
      publish_all();
      if (!wait_until_open(cta_, port, step)) return false;
    }
    return true;
  }

  /// The first round that is stored and not published. Its stores are complete.
  __device__ __forceinline__ void publish_next() {
    ptx::fence_bulk();
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      PortState& port = port_of(sends_[s]);
      set_done(port, step_of(port, sends_[s], published_));
    }
    ++published_;
  }
  __device__ __forceinline__ void publish_all() {
    ptx::await_bulk_stores<0>();
    while (published_ != store_.round) publish_next();
    ended_ = 0;
  }

  const Cta& cta_;
  const LaneTask& task_;
  const CompactInstruction& instruction_;
  const PortUse* const receives_;
  const PortUse* const sends_;
  const uint32_t stage_bytes_;
  std::byte* const stages_;
  uint64_t* const barriers_;
  uint32_t rounds_;
  uint32_t chunk_bytes_;     // of a round, but for the last
  uint64_t total_bytes_;     // from the first chunk to the end of the block
  const std::byte* source_;  // of the first round's chunk, in a user's buffer; null: the slots
  std::byte* target_;        // the same; or null
  Cursor load_;
  Cursor store_;
  uint32_t loaded_ = 0;     // pieces
  uint32_t stored_ = 0;     // pieces
  uint32_t published_ = 0;  // rounds
  uint32_t ended_ = 0;      // bit i: the last piece but i ended a round that was not published
};

}  // namespace niccolite::executor::cuda
