// A worker that only moves bytes, through stages: one source, one or more sinks (pipeline.cuh).
//
//   user's buffer, received slot, peer's buffer --> stage --> slots of peers, user's buffer,
//                                                             peers' buffers
//
// The bytes under way limit how much SMs move over links. A worker of few warps that copies by
// loads and stores has a few kilobytes under way; the stages have a hundred, so that 16 CTAs move
// as much as 64 without stages. Rounds follow each other without a gap: tiles of the next rounds
// are loaded while tiles of the last are on the way. A slot is published once its stores are
// complete, a few tiles later. If all ends are direct and need no order, the CTAs share the tiles
// (tiles.cuh). Reading ahead is allowed: workers wait for each other through connections alone, so
// that only the arrival of a slot makes a source valid.
//
// One thread drives bulk copies, one instruction after the other, so its work for a tile limits the
// speed of the worker. A tile costs two waits, its copies and a few additions; all other work is
// done once a round. Bulk copies need addresses aligned to 16 bytes. If a buffer of this rank or of
// a peer is not aligned, the thread finds out before it has stored anything. It begins anew with
// other warps, which shift the contents of a stage (stage_shift.cuh); for this the thread loads
// whole vec16s around a tile. Without such warps, or if the destinations are not aligned alike,
// others take over: threads without stages (kernel.cuh: run_copy()), or a warp that stores a tile
// from its begin within the vec16s.
//
// For workers of one instruction with one operand that is not scaled (lowering/workers.h). Simple's
// slots, steps and counters are the same: the other end may be served by any code.
#pragma once

#include "executor/cuda/pipeline/copy_ends.cuh"
#include "executor/cuda/pipeline/tiles.cuh"

namespace niccolite::executor::cuda {

template <typename Operation, CopyCrew kCrew>
class CopyWorker : private CopyEnds<Operation, kCrew> {
  using Ends = CopyEnds<Operation, kCrew>;
  using Ends::kByWarp;
  using Ends::kIsShifted;
  // (A base that depends on the parameters: its names have to be said to be its.)
  using Ends::chunk_bytes_;
  using Ends::cta_;
  using Ends::destination_;
  using Ends::handover_;
  using Ends::is_loose_;
  using Ends::ndestinations_;
  using Ends::published_;
  using Ends::receives_;
  using Ends::ring_;
  using Ends::rounds_;
  using Ends::sends_;
  using Ends::shift_;
  using Ends::source_;
  using Ends::storing_;

 public:
  using typename Ends::Ring;

  /// Called by the crew. `pointers`: the worker's shared memory (WorkerTask::pointers). `handover`:
  /// null, or the place where the thread tells other warps their task, as soon as it knows.
  __device__ __forceinline__ CopyWorker(const Cta& cta, const WorkerTask& task,
                                        std::byte** pointers, Handover* handover = nullptr)
      : Ends(cta, task, pointers, handover),
        task_(task),
        line_mask_(ring_.bytes() >= 2 * kLine ? kLine - kVec16 : 0),
        // Where whole vec16s are loaded around the moved bytes, the size is still counted in whole
        // lines.
        stage_bytes_(ring_.bytes() - (kCrew == CopyCrew::Thread ? 0
                                      : line_mask_ != 0         ? kLine
                                                                : kVec16)) {}

  /// `position`: 0, or what the thread returned that has found a buffer which is not aligned, and
  /// has stored nothing: the warp is to run the worker. Returns 0 when the worker is done. A
  /// thread's ring has been started (run_simple() of kernel.cuh), a warp starts its own.
  __device__ __forceinline__ uint32_t run(uint32_t position) {
    if (!this->find_source()) {
      if (ring_.leads()) leave_advertisements(cta_);
      return 0;
    }
    if (ndestinations_ == 0 && !this->receives()) return 0;  // a copy onto itself
    if (!kByWarp && is_loose_) return kToBeRunByOthers | ring_.position() << 1;
    if constexpr (kByWarp) {
      if (position != 0) {
        ring_.resume(position >> 1);
      } else {
        ring_.start();
      }
    }
    load_.enter(0, this->whole_bytes(0));
    // Workers of a reduction send data to be reduced, or results: they have no tiles to share. (And
    // their kernels have no registers to spare.)
    if constexpr (Operation::kReduces) {
      run_pipeline(ring_, Flow<Rounds>{*this});
    } else {
      run_dynamic_or_rounds();
    }
    if (!kByWarp && is_loose_) {
      ring_.abandon();
      return kToBeRunByOthers | ring_.position() << 1;
    }
    finish();
    return 0;
  }

  /// After run() has returned to the thread that a buffer is not aligned. By the same thread, of a
  /// worker that receives nothing, with `warps` others that shift, which it tells how
  /// far. False: destinations are not aligned alike; nothing is stored, or said.
  __device__ __forceinline__ bool run_shifted(uint32_t warps) {
    if (line_mask_ == 0 || !this->find_source()) return false;
    if (!this->open_destinations()) {
      leave_advertisements(cta_);
      handover_->leave(Handover::kNothing);
      return true;
    }
    if (!this->find_shift()) return false;
    ring_.invalidate();
    ring_.start();
    handover_->leave(kShifts | shift_);
    load_.enter(0, this->whole_bytes(0));
    run_dynamic_or_rounds();
    finish();
    ring_.end(warps);
    return true;
  }
  /// Flag that run_shifted() hands over together with the shift.
  static constexpr uint64_t kShifts = uint64_t{1} << 32;

 private:
  static constexpr uint32_t kToBeRunByOthers = 1;
  /// Length of a dynamic tile: the stages that are loaded before it is known whether there are
  /// dynamic tiles.
  static constexpr uint32_t kStagesOfTile = 4;

  /// Called behind the pipeline, be it done or aborted.
  __device__ __forceinline__ void finish() {
    this->publish_all();
    // An exposing sender may go once it is told that nothing of its memory is read any more.
    ring_.abandon();
    if (published_ != rounds_ && ring_.leads()) leave_advertisements(cta_);
  }

  /// The next part to load, of tiles that are fixed. A round has at least one stage, which may be
  /// empty.
  struct Cursor {
    uint32_t round;
    uint32_t at;    // in the round's chunk, bytes
    uint32_t left;  // whole vec16s from there on, bytes

    __device__ __forceinline__ void enter(uint32_t next, uint32_t bytes) {
      round = next;
      at = 0;
      left = bytes;
    }
  };

  /// That the next stage gets of `left`, which begin `into_line` bytes into a line: all that it has
  /// room for, or up to where a line ends, since bulk copies of anything but whole lines take a
  /// fifth longer.
  __device__ __forceinline__ uint32_t bytes_of(uint32_t into_line, uint32_t left) const {
    if (left <= stage_bytes_) return left;
    return stage_bytes_ - ((into_line + stage_bytes_) & line_mask_);
  }

  /// Starts the load of `bytes`, which belong `at` vec16s behind the destinations.
  __device__ __forceinline__ void fill(const std::byte* from, uint32_t at, uint32_t bytes,
                                       bool is_last) {
    ring_.fill(at, bytes, is_last, [&](uint32_t) -> typename Ring::Part {
      if constexpr (kCrew == CopyCrew::Thread) return {from, bytes};
      return {from - shift_, bytes == 0 ? 0 : (shift_ + bytes + kVec16 - 1) & ~(kVec16 - 1)};
    });
  }

  // ---- the two flows

  enum Tiles : uint8_t { Rounds, Dynamic };
  template <Tiles kTiles>
  struct Flow {
    CopyWorker& worker;

    __device__ __forceinline__ Next fill_next() const {
      if constexpr (kTiles == Dynamic) return worker.fill_dynamic();
      return worker.fill_round();
    }
    __device__ __forceinline__ bool wait_for_next() const { return worker.wait_for_round(); }
    __device__ __forceinline__ bool drain_first() const {
      return worker.template drain_first<kTiles>();
    }
    __device__ __forceinline__ void announce() const { worker.publish_all(); }
  };

  __device__ __forceinline__ Next fill_round() {
    if (load_.round == rounds_) return Next::End;
    if (load_.at == 0) {
      if (this->receives()) {
        if (!ring_.agree(
                [&] { return is_open(cta_, this->port_of(receives_[0]), received_step()); })) {
          return Next::Later;
        }
        if (ring_.leads()) ptx::fence_bulk();
      }
      load_from_ = this->source_of(load_.round);
    }
    const uint32_t bytes = bytes_of(into_line_ + load_.at, load_.left);
    fill(load_from_, load_.at / kVec16, bytes, bytes == load_.left);
    load_from_ += bytes;
    load_.at += bytes;
    load_.left -= bytes;
    if (load_.left == 0) load_.enter(load_.round + 1, this->whole_bytes(load_.round + 1));
    return Next::Found;
  }
  __device__ __forceinline__ uint64_t received_step() const {
    return step_of(this->port_of(receives_[0]), receives_[0], load_.round);
  }
  __device__ __forceinline__ bool wait_for_round() const {
    return ring_.agree(
        [&] { return wait_until_open(cta_, this->port_of(receives_[0]), received_step()); });
  }

  __device__ __forceinline__ Next fill_dynamic() {
    if (left_.vec16s == 0) return take_tile() ? Next::Found : Next::End;
    // From here to there: both may lie before the own channel's part.
    const int64_t at = this->from_own(left_.at);
    const uint32_t bytes = bytes_of(bytes_into_line(destination_ + at), left_.vec16s * kVec16);
    fill(source_ + at, left_.at, bytes, /*is_last=*/false);
    left_.at += bytes / kVec16;
    left_.vec16s -= bytes / kVec16;
    return Next::Found;
  }
  /// Their places count from the own channel's part on: negative before it.
  __device__ __forceinline__ bool take_tile() {
    const bool has_tile = ring_.agree([&] { return tiles_->take(left_); });
    if constexpr (kByWarp) {
      left_.at = ptx::first_of_warp(left_.at);
      left_.vec16s = ptx::first_of_warp(left_.vec16s);
    }
    left_.at -= own_start_;
    return has_tile;
  }
  /// Stores the first loaded tile. False: aborted, or to be run by the warp.
  template <Tiles kTiles>
  __device__ __forceinline__ bool drain_first() {
    const typename Ring::Tile tile = ring_.await();
    if (kTiles == Rounds && tile.at == 0) {
      if (!this->open_destinations()) return false;
      if (!Operation::kReduces && !this->receives()) into_line_ = bytes_into_line(destination_);
    }
    this->store(tile);
    const bool ends_round = kTiles == Rounds && tile.is_last;
    if (ends_round) this->end_round(tile.at * kVec16 + tile.bytes);
    if (ring_.release(ends_round)) this->publish_next();
    return true;
  }

  // ---- dynamic tiles

  __device__ __forceinline__ void run_dynamic_or_rounds() {
    // A received block comes over a link: the lines of its source count, wherever it goes.
    const uint32_t into_line = this->receives() ? bytes_into_line(source_) : 0;
    if (may_be_dynamic()) {
      // The own first tile is the beginning of the first round, too.
      while (load_.round == 0 && ring_.pending() < kStagesOfTile) fill_round();
      // The advertisements come with the first credit.
      if (!this->open_destinations()) return;
      if (this->all_are_put()) return run_dynamic();
    }
    into_line_ = into_line;
    run_pipeline(ring_, Flow<Rounds>{*this});
  }

  // Length of a tile, at most a round: the first tile is also the begin of the first round.
  __device__ __forceinline__ uint32_t vec16s_of_tile() const {
    const uint32_t most = kStagesOfTile * stage_bytes_;
    return (most < chunk_bytes_ ? most : chunk_bytes_) / kVec16;
  }
  __device__ __forceinline__ uint64_t stride_vec16s() const {
    return cta_.work->partition.channel_stride * Operation::element_bytes(cta_.header) / kVec16;
  }

  /// Whether tiles may be dynamic, as far as it is known before there are advertisements; equal in
  /// all CTAs.
  __device__ __forceinline__ bool may_be_dynamic() const {
    return task_.has(kDynamicTiles) && (!this->receives() || this->is_got()) &&
           ChannelTiles::are_worth_it(cta_.work->partition.channels, this->block_bytes() / kVec16,
                                      stride_vec16s(), vec16s_of_tile());
  }
  // A worker that sends has its first connection's counter. The one that only copies
  // (lowering/workers.h) has the launch's: a CTA need not have a part in any connection.
  __device__ __forceinline__ uint64_t* counter() const {
    if (!this->sends()) return cta_.header.copy_counter;
    return (this->port_of(sends_[0]).control - cta_.channel())->tile_counters;
  }

  /// Moves dynamic tiles; from here on the worker waits only for loads and stores. The first tile
  /// is loaded, and the destinations of the first round are open.
  __device__ __forceinline__ void run_dynamic() {
    own_start_ = static_cast<uint32_t>(cta_.channel() * stride_vec16s());
    const uint32_t tile = vec16s_of_tile();
    ChannelTiles tiles(counter(), cta_.work->partition.channels, cta_.channel(),
                       static_cast<uint32_t>(this->block_bytes() / kVec16),
                       static_cast<uint32_t>(stride_vec16s()), tile,
                       bytes_into_line(destination_ - this->from_own(own_start_)) / kVec16);
    tiles_ = &tiles;
    take_tile();
    // The first tile is loaded already.
    left_.at += tile;
    left_.vec16s = left_.vec16s > tile ? left_.vec16s - tile : 0;
    run_pipeline(ring_, Flow<Dynamic>{*this});
    if (ring_.leads()) tiles.finish();
    const uint64_t block = this->block_bytes();
    const auto rest = static_cast<uint32_t>(block % kVec16);
    if (cta_.channel() == 0 && rest != 0 && ring_.leads())
      this->store_rest(source_, block - rest, rest);
    ring_.barrier();
    // All rounds of the channel are done, as far as this CTA has to do with them.
    if (this->receives() && ring_.leads()) {
      PortState& sender = this->port_of(receives_[0]);
      set_done(sender, sender.end - 1);
    }
    storing_ = rounds_;
    published_ = rounds_ - 1;
  }

  const WorkerTask& task_;
  const uint32_t line_mask_;    // vec16s of a line; 0: stages are too short to count in lines
  const uint32_t stage_bytes_;  // that a stage holds
  Cursor load_;
  const std::byte* load_from_;  // at the cursor
  ChannelTiles* tiles_;
  Span left_{};             // of the dynamic tile that is being loaded
  uint32_t into_line_ = 0;  // bytes from a line to where rounds begin at the far end of a link
  uint32_t own_start_ = 0;  // vec16s from the block to the own channel's part
};

}  // namespace niccolite::executor::cuda
