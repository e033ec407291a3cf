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
// lane receives may have landed (offers.cuh); it then waits, or passes it on from there. Or it
// reads what a peer lends, and stores it to all who are to have it. What the lane sends from a
// user's buffer, this rank's or the one that lends, and all of which lands for good, the CTAs share
// (claims.cuh).
//
// One thread issues everything, one instruction after the other, so that what it does for a piece
// bounds what the lane moves: a piece costs two waits, its copies and a few additions. All else is
// done once for a round.
//
// For lanes of one instruction with one operand that is not scaled (lane_forms.cc), whose buffers
// are aligned to 16 bytes. Simple's slots, steps and counters are the same: the other end may be
// served by either code. Reading ahead is allowed: a lane waits for others through connections
// alone, so that nothing but the arrival of a slot makes a source valid.
//
// Order: bulk copies are accesses by another proxy than the thread's. [seen] -> fence -> loads;
// stores -> wait for their group -> fence -> [done]; loads -> wait at the barrier -> [done].
#pragma once

#include "executor/cuda/claims.cuh"
#include "executor/cuda/simple_step.cuh"

namespace niccolite::executor::cuda {

template <typename Operation>
class BulkLane {
 public:
  /// One thread of the lane; the others have nothing to do. `pointers`: the lane's, shared
  /// (LaneTask::pointers).
  __device__ __forceinline__ BulkLane(const Cta& cta, const LaneTask& task, std::byte** pointers)
      : cta_(cta),
        instruction_(cta.instructions[task.first]),
        receives_(cta.uses + instruction_.receive),
        sends_(cta.uses + instruction_.send),
        destinations_(pointers),
        stages_(cta.header, task.bulk) {}

  __device__ __forceinline__ void run() {
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
    if (receives() && !find_received()) return leave_offers(cta_);
    ndestinations_ = instruction_.send_count + (target_ != nullptr);
    if (ndestinations_ == 0 && !receives()) return;  // a copy onto itself
    stages_.start();
    load_.enter(0, whole_bytes(0));
    store_.enter(0, whole_bytes(0));
    // Reductions send what they fold, or to be folded: nothing that they could share. (And their
    // kernels have no registers to spare.)
    if constexpr (Operation::kReduces) {
      run_rounds();
    } else {
      run_shared();
    }
    publish_all();
    // A lender may go once it is told that nothing of its memory is read any more.
    stages_.drain();
    if (published_ != rounds_) leave_offers(cta_);
  }

 private:
  using Element = typename Operation::Element;

  /// The next piece to load, or to store. A round has at least one, which may be empty.
  struct Cursor {
    uint32_t round;
    uint32_t at;    // of the piece in the round's chunk, bytes
    uint32_t left;  // whole packs from there on, bytes

    __device__ __forceinline__ void enter(uint32_t next, uint32_t bytes) {
      round = next;
      at = 0;
      left = bytes;
    }
    __device__ __forceinline__ void pass(uint32_t bytes) {
      at += bytes;
      left -= bytes;
    }
  };

  __device__ __forceinline__ uint32_t chunk_bytes(uint32_t round) const {
    const uint64_t start = uint64_t{round} * chunk_bytes_;
    const uint64_t left = start < total_bytes_ ? total_bytes_ - start : 0;
    return left < chunk_bytes_ ? static_cast<uint32_t>(left) : chunk_bytes_;
  }
  __device__ __forceinline__ uint32_t whole_bytes(uint32_t round) const {
    return chunk_bytes(round) & ~(kPack - 1);
  }
  __device__ __forceinline__ uint32_t piece_of(uint32_t left) const {
    return left < stages_.bytes() ? left : stages_.bytes();
  }

  /// The same, but for the last piece to where a line of 128 bytes ends: stores that lie across
  /// lines cost a link twice as many packets.
  __device__ __forceinline__ uint32_t piece_to_line(const std::byte* at, uint32_t left) const {
    const uint32_t bytes = piece_of(left);
    if (bytes == left) return bytes;
    return bytes - bytes_into_line(at + bytes);
  }

  __device__ __forceinline__ bool receives() const { return instruction_.receive_count != 0; }
  __device__ __forceinline__ bool sends() const { return instruction_.send_count != 0; }
  __device__ __forceinline__ PortState& port_of(const PortUse& use) const {
    return cta_.ports[use.port];
  }
  /// Of the round's chunk.
  __device__ __forceinline__ const std::byte* source_of(uint32_t round) const {
    if (source_ != nullptr || !receives()) return source_ + uint64_t{round} * chunk_bytes_;
    const PortState& port = port_of(receives_[0]);
    return port.slots + cta_.header.shape.slot_offset(0, step_of(port, receives_[0], round));
  }

  /// Where what the lane receives is, if not in slots. False: aborted.
  __device__ __forceinline__ bool find_received() {
    const PortState& port = port_of(receives_[0]);
    if (!makes_offer(port)) {
      if (!wait_until_open(cta_, port, port.base)) return false;
      if (has_agreed(port)) {
        source_ = port.slots;
        ptx::fence_bulk();
      }
    } else if (has_agreed(port)) {
      source_ = target_;  // it lands
      target_ = nullptr;
    }
    return true;
  }
  /// Does what the lane receives come straight from a peer's buffer?
  __device__ __forceinline__ bool is_lent() const {
    return !makes_offer(port_of(receives_[0])) && source_ != nullptr;
  }

  // ---- what is sent in rounds, through slots or to where it lands

  __device__ __forceinline__ void run_rounds() {
    while (load_ahead() && stages_.pending() != 0 && store_next()) {
    }
  }

  /// Starts the loads of pieces whose data are there; waits for data only when there is nothing
  /// else to do. False: aborted.
  __device__ __forceinline__ bool load_ahead() {
    while (stages_.pending() < BulkStages::kAhead && load_.round != rounds_) {
      if (load_.at == 0) {
        if (receives()) {
          const PortState& port = port_of(receives_[0]);
          const uint64_t step = step_of(port, receives_[0], load_.round);
          if (!is_open(cta_, port, step)) {
            if (stages_.pending() != 0) return true;
            publish_all();
            if (!wait_until_open(cta_, port, step)) return false;
          }
          ptx::fence_bulk();
        }
        load_from_ = source_of(load_.round);
      }
      load_piece();
    }
    return true;
  }
  __device__ __forceinline__ void load_piece() {
    const uint32_t bytes = piece_of(load_.left);
    stages_.load(load_from_, bytes);
    load_from_ += bytes;
    load_.pass(bytes);
    if (load_.left == 0) load_.enter(load_.round + 1, whole_bytes(load_.round + 1));
  }

  /// Stores the piece that was loaded first. False: aborted.
  __device__ __forceinline__ bool store_next() {
    if (store_.at == 0 && !open_destinations()) return false;
    const std::byte* stage = stages_.await();
    const uint32_t bytes = piece_of(store_.left);
    store_piece(stage, store_.at, bytes);
    store_.pass(bytes);
    const bool is_last = store_.left == 0;
    if (is_last) end_round();
    if (stages_.commit(is_last)) publish_next();
    return true;
  }

  __device__ __forceinline__ void store_piece(const std::byte* stage, uint64_t at,
                                              uint32_t bytes) const {
    if (bytes == 0) return;
    ptx::bulk_store(destination_ + at, stage, bytes);
    for (uint32_t d = 1; d < ndestinations_; ++d) {
      ptx::bulk_store(destinations_[d] + at, stage, bytes);
    }
  }

  /// Waits until the round's chunk may be stored. False: aborted.
  __device__ __forceinline__ bool open_destinations() {
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      const PortState& port = port_of(sends_[s]);
      const uint64_t step = step_of(port, sends_[s], store_.round);
      if (!is_open(cta_, port, step)) {
        // The peer may be waiting for what has been stored.
        publish_all();
        if (!wait_until_open(cta_, port, step)) return false;
      }
      destinations_[s] = chunk_at<Operation>(cta_, port, sends_[s], store_.round);
    }
    if (target_ != nullptr) {
      destinations_[instruction_.send_count] = target_ + uint64_t{store_.round} * chunk_bytes_;
    }
    destination_ = destinations_[0];
    return true;
  }

  /// The round's last piece is being stored.
  __device__ __forceinline__ void end_round() {
    const uint32_t rest = chunk_bytes(store_.round) % kPack;
    if (rest != 0) store_rest(source_of(store_.round), store_.at, rest);
    if (receives()) {
      PortState& port = port_of(receives_[0]);
      set_done(port, step_of(port, receives_[0], store_.round));
    }
    store_.enter(store_.round + 1, whole_bytes(store_.round + 1));
  }

  /// What is not a whole pack: by the thread itself.
  __device__ __forceinline__ void store_rest(const std::byte* source, uint64_t at,
                                             uint32_t rest) const {
    for (uint32_t d = 0; d < ndestinations_; ++d) {
      for (uint32_t done = 0; done < rest; done += 8) {
        const uint32_t bytes = rest - done < 8 ? rest - done : 8;
        const uint64_t granule = load_granule<Element>(source + at + done, bytes, cta_.work->width);
        store_granule<Element>(destinations_[d] + at + done, granule, bytes, cta_.work->width);
      }
    }
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
    stages_.complete();
    while (published_ != store_.round) publish_next();
  }

  // ---- what the CTAs share

  __device__ __forceinline__ void run_shared() {
    if (!may_claim()) return run_rounds();
    load_first_unit();
    // The offers come with the first credit.
    if (!open_destinations()) return;
    if (!all_land()) return run_rounds();
    run_claims();
  }

  // Of one round: the first unit is that round's beginning, too.
  __device__ __forceinline__ uint32_t unit_packs() const {
    const uint32_t pieces = kPiecesOfUnit * stages_.bytes();
    return (pieces < chunk_bytes_ ? pieces : chunk_bytes_) / kPack;
  }
  __device__ __forceinline__ uint64_t block_bytes() const {
    return cta_.work->partition.count_from(instruction_.chunk_block, 0) *
           Operation::element_bytes(cta_.header);
  }
  __device__ __forceinline__ uint64_t stride_bytes() const {
    return cta_.work->partition.channel_stride * Operation::element_bytes(cta_.header);
  }

  /// As far as can be said before there are offers; the same in all CTAs.
  __device__ __forceinline__ bool may_claim() const {
    if ((receives() && !is_lent()) || cta_.work->pattern_channels != 1 ||
        !Claims::are_worth_it(cta_.work->partition.channels, block_bytes() / kPack,
                              stride_bytes() / kPack, unit_packs())) {
      return false;
    }
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      if (port_of(sends_[s]).stays == 0) return false;
    }
    return true;
  }
  // A lane that sends has its first connection's counter; the one that only copies (lane_forms.cc),
  // the program's first.
  __device__ __forceinline__ uint64_t* counter() const {
    const PortState& port = sends() ? port_of(sends_[0]) : cta_.ports[0];
    return (port.control - cta_.channel())->claims + (sends() ? 0 : 1);
  }
  __device__ __forceinline__ bool all_land() const {
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      if (!has_agreed(port_of(sends_[s]))) return false;
    }
    return true;
  }

  /// It is the beginning of the first round, too.
  __device__ __forceinline__ void load_first_unit() {
    const auto start = static_cast<uint32_t>(cta_.channel() * stride_bytes() / kPack);
    load_from_ = source_;
    while (load_.round == 0 && stages_.pending() < kPiecesOfUnit) {
      stages_.next().at = start + load_.at / kPack;
      stages_.next().bytes = piece_of(load_.left);
      load_piece();
    }
  }

  /// Nothing is waited for any more but loads and stores. The first unit is loaded, and the
  /// destinations are those of the first round.
  __device__ __forceinline__ void run_claims() {
    const uint64_t own_start = cta_.channel() * stride_bytes();
    source_ -= own_start;
    for (uint32_t d = 0; d < ndestinations_; ++d) destinations_[d] -= own_start;
    destination_ = destinations_[0];

    Claims claims(counter(), cta_.work->partition.channels, cta_.channel(),
                  static_cast<uint32_t>(block_bytes() / kPack),
                  static_cast<uint32_t>(stride_bytes() / kPack), unit_packs());
    Span left;  // of the unit that is being loaded
    bool has_unit = claims.take(left);
    left.packs = 0;
    for (;;) {
      while (has_unit && stages_.pending() < BulkStages::kAhead) {
        if (left.packs == 0) {
          has_unit = claims.take(left);
          continue;
        }
        const uint32_t bytes =
            piece_to_line(destination_ + uint64_t{left.at} * kPack, left.packs * kPack);
        stages_.next().at = left.at;
        stages_.next().bytes = bytes;
        stages_.load(source_ + uint64_t{left.at} * kPack, bytes);
        left.at += bytes / kPack;
        left.packs -= bytes / kPack;
      }
      if (stages_.pending() == 0) break;
      const std::byte* stage = stages_.await();
      store_piece(stage, uint64_t{stages_.first().at} * kPack, stages_.first().bytes);
      stages_.commit();
    }
    const uint64_t block = block_bytes();
    const auto rest = static_cast<uint32_t>(block % kPack);
    if (cta_.channel() == 0 && rest != 0) store_rest(source_, block - rest, rest);
    // All rounds of the channel are done, as far as this CTA has to do with them.
    if (receives()) {
      PortState& lender = port_of(receives_[0]);
      set_done(lender, lender.end - 1);
    }
    store_.round = rounds_;
    published_ = rounds_ - 1;
  }

  const Cta& cta_;
  const CompactInstruction& instruction_;
  const PortUse* const receives_;
  const PortUse* const sends_;
  std::byte** const destinations_;  // of the round that is being stored: sends, then the target
  BulkStages stages_;
  uint32_t rounds_;
  uint32_t chunk_bytes_;     // of a round, but for the last
  uint64_t total_bytes_;     // from the first chunk to the end of the block
  const std::byte* source_;  // of the first round's chunk, in a user's buffer; null: the slots
  std::byte* target_;        // the same; or null
  uint32_t ndestinations_;
  Cursor load_;
  Cursor store_;
  const std::byte* load_from_;  // the next piece
  std::byte* destination_;      // the first of destinations_
  uint32_t published_ = 0;      // rounds
};

}  // namespace niccolite::executor::cuda
