// A worker of the Simple protocol that only moves bytes, by bulk copies: one thread drives it, and
// the data pass through shared memory, not through registers.
//
//   user's buffer or received slot --load--> stage --store--> slots of peers, user's buffer
//
// What SMs move over links is limited by what they have under way. A worker of few warps that
// copies by loads and stores has a few kilobytes; the stages of a bulk worker have a hundred, so
// that 16 CTAs move what took 64 (docs/design/0011). Rounds follow each other without a gap: pieces
// of the next ones are loaded while those of the last are on the way, and a slot is published once
// its stores are complete, a few pieces later.
//
// What a peer receives without more may be put in its user's buffer instead of slots, and what this
// worker receives may have been put (advertisements.cuh); it then waits, or passes it on from
// there. Or it reads what a peer exposes, and stores it to all who are to have it. What the worker
// sends from a user's buffer, this rank's or the one that exposes, and all of which is put for
// good, the CTAs share (dynamic_tiles.cuh).
//
// One thread issues everything, one instruction after the other, so that what it does for a piece
// bounds what the worker moves: a piece costs two waits, its copies and a few additions. All else
// is done once for a round.
//
// Bulk copies move between addresses that are aligned to 16 bytes. Where a buffer is not, this
// rank's or one that a peer advertises, the worker's whole warp runs it (kByWarp): vec16s around a
// piece are loaded as ever, and the threads store it from where it begins in them. The thread finds
// out before it has stored anything.
//
// For workers of one warp, and of one instruction with one operand that is not scaled
// (worker_movers.cc). Simple's slots, steps and counters are the same: the other end may be served
// by either code. Reading ahead is allowed: a worker waits for others through connections alone, so
// that nothing but the arrival of a slot makes a source valid.
//
// Order: bulk copies are accesses by another proxy than the thread's. [cached] -> fence -> loads;
// stores -> wait for their group -> fence -> [completed]; loads -> wait at the barrier ->
// [completed].
#pragma once

#include "executor/cuda/dynamic_tiles.cuh"
#include "executor/cuda/simple_step.cuh"

namespace niccolite::executor::cuda {

template <typename Operation, bool kByWarp>
class BulkWorker {
 public:
  /// One thread of the worker, or kByWarp: its warp. `pointers`: the worker's, shared
  /// (WorkerTask::pointers). `word`: null, or where the thread says that no warp is needed, as soon
  /// as it knows (word_for_warp()).
  __device__ __forceinline__ BulkWorker(const Cta& cta, const WorkerTask& task,
                                        std::byte** pointers, uint64_t* word = nullptr)
      : cta_(cta),
        instruction_(cta.instructions[task.first]),
        receives_(cta.uses + instruction_.receive),
        sends_(cta.uses + instruction_.send),
        destinations_(pointers),
        word_(word),
        stages_(cta.header, task.bulk) {}

  /// `position`: 0, or what the thread returned that has found a buffer which is not aligned, and
  /// has stored nothing: the warp is to run the worker. Returns 0 when the worker is done.
  __device__ __forceinline__ uint32_t run(uint32_t position) {
    if constexpr (kByWarp) stages_.resume(position >> 1);
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
    if (receives() && !find_received()) {
      if (leads()) leave_advertisements(cta_);
      return 0;
    }
    ndestinations_ = instruction_.send_count + (target_ != nullptr);
    if (ndestinations_ == 0 && !receives()) return 0;  // a copy onto itself
    if (!kByWarp && may_pass_head()) pass_head();
    is_loose_ = !is_aligned(source_) || !is_aligned(target_);
    if (!kByWarp && is_loose_) return kToBeRunByWarp;
    shift_ = kByWarp ? into_vec16(source_) : 0;
    if (!stages_.is_started()) {
      if (leads()) {
        stages_.start();
      }
      if constexpr (kByWarp) ptx::barrier_warp();
    }
    load_.enter(0, whole_bytes(0));
    store_.enter(0, whole_bytes(0));
    // Reductions send what they reduce, or to be reduced: nothing that they could share. (And their
    // kernels have no registers to spare.)
    if constexpr (Operation::kReduces) {
      run_rounds();
    } else {
      run_shared();
    }
    if (!kByWarp && is_loose_) {
      stages_.drain();
      return kToBeRunByWarp | stages_.position() << 1;
    }
    publish_all();
    // An exposing sender may go once it is told that nothing of its memory is read any more.
    stages_.drain();
    if (published_ != rounds_ && leads()) leave_advertisements(cta_);
    return 0;
  }

 private:
  using Element = typename Operation::Element;
  static constexpr uint32_t kToBeRunByWarp = 1;
  static constexpr int kRowsByWarp = 8;

  // ---- one thread, or a warp whose threads go the same way: the first one does what is to be done
  // once, and decides

  __device__ __forceinline__ static bool leads() { return !kByWarp || ptx::thread() % kWarp == 0; }
  /// What decide() says, in all threads, behind a barrier.
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
  __device__ __forceinline__ static uint32_t into_vec16(const std::byte* address) {
    return bytes_into_line(address) % kVec16;
  }
  __device__ __forceinline__ static bool is_aligned(const std::byte* address) {
    return into_vec16(address) == 0;
  }

  /// The next piece to load, or to store. A round has at least one, which may be empty.
  struct Cursor {
    uint32_t round;
    uint32_t at;    // of the piece in the round's chunk, bytes
    uint32_t left;  // whole vec16s from there on, bytes

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
    return chunk_bytes(round) & ~(kVec16 - 1);
  }
  /// A warp loads whole vec16s around a piece.
  __device__ __forceinline__ uint32_t most_of_piece() const {
    return stages_.bytes() - (kByWarp ? kVec16 : 0);
  }
  __device__ __forceinline__ uint32_t piece_of(uint32_t left) const {
    const uint32_t most = most_of_piece();
    return left < most ? left : most;
  }

  /// The same, but for the last piece to where a line of 128 bytes ends: stores that lie across
  /// lines cost a link twice as many packets.
  __device__ __forceinline__ uint32_t piece_to_line(const std::byte* at, uint32_t left) const {
    const uint32_t bytes = piece_of(left);
    if (kByWarp || bytes == left) return bytes;
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

  /// Where what the worker receives is, if not in slots. False: aborted.
  __device__ __forceinline__ bool find_received() {
    const PortState& port = port_of(receives_[0]);
    if (!makes_advertisement(port)) {
      if (!agree([&] { return wait_until_open(cta_, port, port.base); })) return false;
      if (has_agreed(port)) {
        source_ = port.slots;
        if (leads()) ptx::fence_bulk();
      }
    } else if (has_agreed(port)) {
      source_ = target_;  // it is put
      target_ = nullptr;
    }
    return true;
  }
  /// Does what the worker receives come straight from a peer's buffer?
  __device__ __forceinline__ bool is_direct_get() const {
    return !makes_advertisement(port_of(receives_[0])) && source_ != nullptr;
  }

  // ---- what is sent in rounds, through slots or to where it is put

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
          if (!agree([&] { return is_open(cta_, port, step); })) {
            if (stages_.pending() != 0) return true;
            publish_all();
            if (!agree([&] { return wait_until_open(cta_, port, step); })) return false;
          }
          if (leads()) ptx::fence_bulk();
        }
        load_from_ = source_of(load_.round);
      }
      load_piece();
    }
    return true;
  }
  __device__ __forceinline__ void load_piece() {
    const uint32_t bytes = piece_of(load_.left);
    start_load(load_from_, bytes);
    load_from_ += bytes;
    load_.pass(bytes);
    if (load_.left == 0) load_.enter(load_.round + 1, whole_bytes(load_.round + 1));
  }

  __device__ __forceinline__ void start_load(const std::byte* from, uint32_t bytes) {
    if constexpr (kByWarp) {
      const uint32_t whole = bytes == 0 ? 0 : (shift_ + bytes + kVec16 - 1) & ~(kVec16 - 1);
      stages_.load_by_warp(from - shift_, whole, leads());
    } else {
      stages_.load(from, bytes);
    }
  }

  /// Stores the piece that was loaded first. False: aborted, or to be run by the warp.
  __device__ __forceinline__ bool store_next() {
    if (store_.at == 0 && !open_destinations()) return false;
    const std::byte* stage = stages_.await();
    const uint32_t bytes = piece_of(store_.left);
    store_piece(stage, store_.at, bytes);
    store_.pass(bytes);
    const bool is_last = store_.left == 0;
    if (is_last) end_round();
    if constexpr (kByWarp) {
      stages_.pass();
      ptx::barrier_warp();  // the stage is free, and what was stored is the first thread's to tell
      if (is_last) publish_next();
    } else {
      if (stages_.commit(is_last)) publish_next();
    }
    return true;
  }

  __device__ __forceinline__ void store_piece(const std::byte* stage, uint64_t at,
                                              uint32_t bytes) const {
    if (bytes == 0) return;
    if constexpr (kByWarp) {
      for (uint32_t d = 0; d < ndestinations_; ++d) {
        store_by_warp(destinations_[d] + at, stage + shift_, bytes);
      }
    } else {
      ptx::bulk_store(destination_ + at, stage, bytes);
      for (uint32_t d = 1; d < ndestinations_; ++d) {
        ptx::bulk_store(destinations_[d] + at, stage, bytes);
      }
    }
  }

  /// Vec8s, from where they are aligned in the target, most of them in rows that begin at a
  /// line; what is left at both ends by a thread each.
  __device__ __forceinline__ static void store_by_warp(std::byte* target, const std::byte* shared,
                                                       uint32_t bytes) {
    using Piece = typename PieceOf<sizeof(Element)>::Type;
    constexpr uint32_t kRow = kWarp * kVec8;
    const uint32_t thread = ptx::thread() % kWarp;
    const uint32_t into_line = bytes_into_line(target);
    const uint32_t before = (kLine - into_line) % kVec8;
    const uint32_t head = before < bytes ? before : bytes;
    const uint32_t end = head + (bytes - head) / kVec8 * kVec8;
    const auto put = [&](uint32_t at) {
      ptx::store<uint64_t>(target + at, load_around_shared(shared + at, kVec8));
    };
    if (thread == 0 && head != 0)
      store_pieces<Piece>(target, load_around_shared(shared, head), head);
    if (thread == 1 && end != bytes)
      store_pieces<Piece>(target + end, load_around_shared(shared + end, bytes - end), bytes - end);
    const uint32_t before_line = (kLine - into_line) % kLine;
    const uint32_t first = before_line < end ? before_line : end;
    if (head + thread * kVec8 < first) put(head + thread * kVec8);
    uint32_t at = first + thread * kVec8;
    for (; at + (kRowsByWarp - 1) * kRow < end; at += kRowsByWarp * kRow) {
      uint64_t vec8s[kRowsByWarp];
#pragma unroll
      for (int i = 0; i < kRowsByWarp; ++i)
        vec8s[i] = load_around_shared(shared + at + i * kRow, kVec8);
#pragma unroll
      for (int i = 0; i < kRowsByWarp; ++i) ptx::store<uint64_t>(target + at + i * kRow, vec8s[i]);
    }
    for (; at < end; at += kRow) put(at);
  }

  /// Waits until the round's chunk may be stored. False: aborted, or to be run by the warp.
  __device__ __forceinline__ bool open_destinations() {
    if (!agree([&] { return find_destinations(); })) return false;
    destination_ = destinations_[0];
    return true;
  }
  __device__ __forceinline__ bool find_destinations() {
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      const PortState& port = port_of(sends_[s]);
      const uint64_t step = step_of(port, sends_[s], store_.round);
      if (!is_open(cta_, port, step)) {
        // The peer may be waiting for what has been stored.
        publish_all();
        if (!wait_until_open(cta_, port, step)) return false;
      }
      destinations_[s] = chunk_at<Operation>(cta_, port, sends_[s], store_.round) + head_;
      // Of all rounds alike.
      is_loose_ |= !is_aligned(destinations_[s]);
    }
    if (target_ != nullptr) {
      destinations_[instruction_.send_count] = target_ + uint64_t{store_.round} * chunk_bytes_;
    }
    if (!kByWarp && is_loose_) return false;
    if (store_.round == 0) {
      // Relaxed: nothing is read on account of it.
      if (!kByWarp && word_ != nullptr) ptx::store_relaxed_shared(word_, uint64_t{0});
      store_head();
    }
    return true;
  }

  // ---- where nothing is aligned, but all alike: the block begins where it is aligned, and what
  // lies before that is stored byte by byte

  /// Not where others read round by round what is stored.
  __device__ __forceinline__ bool may_pass_head() const {
    if (is_aligned(source_) || (receives() && !is_direct_get())) return false;
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      if (port_of(sends_[s]).stays == 0) return false;
    }
    return true;
  }
  __device__ __forceinline__ void pass_head() {
    head_ = kVec16 - into_vec16(source_);
    source_ += head_;
    if (target_ != nullptr) target_ += head_;
    total_bytes_ = total_bytes_ > head_ ? total_bytes_ - head_ : 0;
  }
  __device__ __forceinline__ void store_head() const {
    if (head_ == 0 || cta_.channel() != 0) return;
    const uint64_t block = whole_block_bytes();
    const uint32_t bytes = head_ < block ? head_ : static_cast<uint32_t>(block);
    for (uint32_t d = 0; d < ndestinations_; ++d) {
      move_bytes(source_ - head_, destinations_[d] - head_, bytes);
    }
  }

  /// The round's last piece is being stored.
  __device__ __forceinline__ void end_round() {
    const uint32_t rest = chunk_bytes(store_.round) % kVec16;
    if (rest != 0 && leads()) store_rest(source_of(store_.round), store_.at, rest);
    if (receives() && leads()) {
      PortState& port = port_of(receives_[0]);
      set_done(port, step_of(port, receives_[0], store_.round));
    }
    store_.enter(store_.round + 1, whole_bytes(store_.round + 1));
  }

  /// What is not a whole vec16: by the thread itself.
  __device__ __forceinline__ void store_rest(const std::byte* source, uint64_t at,
                                             uint32_t rest) const {
    for (uint32_t d = 0; d < ndestinations_; ++d) {
      move_bytes(source + at, destinations_[d] + at, rest);
    }
  }
  /// Less than a vec16, which lies anywhere.
  __device__ __forceinline__ static void move_bytes(const std::byte* from, std::byte* to,
                                                    uint32_t bytes) {
    for (uint32_t done = 0; done < bytes; done += kVec8) {
      const uint32_t part = bytes - done < kVec8 ? bytes - done : kVec8;
      const uint64_t vec8 = load_vec8<Element>(from + done, part, sizeof(Element));
      store_vec8<Element>(to + done, vec8, part, sizeof(Element));
    }
  }

  /// The first round that is stored and not published. Its stores are complete.
  __device__ __forceinline__ void publish_next() {
    if constexpr (!kByWarp) ptx::fence_bulk();
    for (uint32_t s = 0; leads() && s < instruction_.send_count; ++s) {
      PortState& port = port_of(sends_[s]);
      set_sent(cta_, sends_[s], port, step_of(port, sends_[s], published_),
               chunk_bytes(published_));
    }
    ++published_;
  }
  __device__ __forceinline__ void publish_all() {
    if constexpr (!kByWarp) stages_.complete();
    while (published_ != store_.round) publish_next();
  }

  // ---- what the CTAs share

  __device__ __forceinline__ void run_shared() {
    if (!may_take()) return run_rounds();
    load_first_tile();
    // The advertisements come with the first credit.
    if (!open_destinations()) return;
    if (!all_are_direct_puts()) return run_rounds();
    run_tiles();
  }

  // Of one round: the first tile is that round's beginning, too.
  __device__ __forceinline__ uint32_t tile_vec16s() const {
    const uint32_t pieces = kPiecesOfTile * most_of_piece();
    return (pieces < chunk_bytes_ ? pieces : chunk_bytes_) / kVec16;
  }
  __device__ __forceinline__ uint64_t whole_block_bytes() const {
    return cta_.work->partition.count_from(instruction_.chunk_block, 0) *
           Operation::element_bytes(cta_.header);
  }
  __device__ __forceinline__ uint64_t block_bytes() const {
    const uint64_t whole = whole_block_bytes();
    return whole > head_ ? whole - head_ : 0;
  }
  __device__ __forceinline__ uint64_t stride_bytes() const {
    return cta_.work->partition.channel_stride * Operation::element_bytes(cta_.header);
  }

  /// As far as can be said before there are advertisements; the same in all CTAs.
  __device__ __forceinline__ bool may_take() const {
    if ((receives() && !is_direct_get()) || cta_.work->pattern_channels != 1 ||
        !DynamicTiles::are_worth_it(cta_.work->partition.channels, block_bytes() / kVec16,
                                    stride_bytes() / kVec16, tile_vec16s())) {
      return false;
    }
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      if (port_of(sends_[s]).stays == 0) return false;
    }
    return true;
  }
  // A worker that sends has its first connection's counter; the one that only copies
  // (worker_movers.cc), the program's first.
  __device__ __forceinline__ uint64_t* counter() const {
    const PortState& port = sends() ? port_of(sends_[0]) : cta_.ports[0];
    return (port.control - cta_.channel())->tile_counters + (sends() ? 0 : 1);
  }
  __device__ __forceinline__ bool all_are_direct_puts() const {
    for (uint32_t s = 0; s < instruction_.send_count; ++s) {
      if (!has_agreed(port_of(sends_[s]))) return false;
    }
    return true;
  }

  __device__ __forceinline__ void note_piece(uint32_t at, uint32_t bytes) const {
    if (!leads()) return;
    stages_.next().at = at;
    stages_.next().bytes = bytes;
  }
  __device__ __forceinline__ bool take_tile(DynamicTiles& tiles, Span& tile) const {
    if constexpr (!kByWarp) return tiles.take(tile);
    const bool has_tile = agree([&] { return tiles.take(tile); });
    tile.at = ptx::first_of_warp(tile.at);
    tile.vec16s = ptx::first_of_warp(tile.vec16s);
    return has_tile;
  }

  /// It is the beginning of the first round, too.
  __device__ __forceinline__ void load_first_tile() {
    const auto start = static_cast<uint32_t>(cta_.channel() * stride_bytes() / kVec16);
    load_from_ = source_;
    while (load_.round == 0 && stages_.pending() < kPiecesOfTile) {
      note_piece(start + load_.at / kVec16, piece_of(load_.left));
      load_piece();
    }
  }

  /// Nothing is waited for any more but loads and stores. The first tile is loaded, and the
  /// destinations are those of the first round.
  __device__ __forceinline__ void run_tiles() {
    const uint64_t own_start = cta_.channel() * stride_bytes();
    source_ -= own_start;
    if constexpr (kByWarp) ptx::barrier_warp();
    for (uint32_t d = 0; leads() && d < ndestinations_; ++d) destinations_[d] -= own_start;
    if constexpr (kByWarp) ptx::barrier_warp();
    destination_ = destinations_[0];

    DynamicTiles tiles(counter(), cta_.work->partition.channels, cta_.channel(),
                       static_cast<uint32_t>(block_bytes() / kVec16),
                       static_cast<uint32_t>(stride_bytes() / kVec16), tile_vec16s());
    Span left{0, 0};  // of the tile that is being loaded
    bool has_tile = take_tile(tiles, left);
    left.vec16s = 0;
    for (;;) {
      while (has_tile && stages_.pending() < BulkStages::kAhead) {
        if (left.vec16s == 0) {
          has_tile = take_tile(tiles, left);
          continue;
        }
        const uint32_t bytes =
            piece_to_line(destination_ + uint64_t{left.at} * kVec16, left.vec16s * kVec16);
        note_piece(left.at, bytes);
        start_load(source_ + uint64_t{left.at} * kVec16, bytes);
        left.at += bytes / kVec16;
        left.vec16s -= bytes / kVec16;
      }
      if (stages_.pending() == 0) break;
      const std::byte* stage = stages_.await();
      store_piece(stage, uint64_t{stages_.first().at} * kVec16, stages_.first().bytes);
      if constexpr (kByWarp) {
        stages_.pass();
        ptx::barrier_warp();
      } else {
        stages_.commit();
      }
    }
    const uint64_t block = block_bytes();
    const auto rest = static_cast<uint32_t>(block % kVec16);
    if (cta_.channel() == 0 && rest != 0 && leads()) store_rest(source_, block - rest, rest);
    if constexpr (kByWarp) ptx::barrier_warp();
    // All rounds of the channel are done, as far as this CTA has to do with them.
    if (receives() && leads()) {
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
  uint64_t* const word_;
  BulkStages stages_;
  uint32_t rounds_;
  uint32_t chunk_bytes_;     // of a round, but for the last
  uint64_t total_bytes_;     // from the first chunk to the end of the block
  const std::byte* source_;  // of the first round's chunk, in a user's buffer; null: the slots
  std::byte* target_;        // the same; or null
  bool is_loose_ = false;    // a buffer is not aligned: found before anything is stored
  uint32_t head_ = 0;        // bytes that were passed
  uint32_t shift_ = 0;       // of a warp: bytes from a vec16 to where the source begins in it
  uint32_t ndestinations_;
  Cursor load_;
  Cursor store_;
  const std::byte* load_from_;  // the next piece
  std::byte* destination_;      // the first of destinations_
  uint32_t published_ = 0;      // rounds
};

}  // namespace niccolite::executor::cuda
