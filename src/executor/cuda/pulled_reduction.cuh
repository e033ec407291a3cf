// A shared reduction (shared_reduction.cuh) that pulls what its peers expose, and reduces it from
// slots (protocol/pull.h). One warp of the worker makes the pulls, the others reduce:
//
//   pulls      t = 0: u      | t = 1: u'     | ...   to all peers; tiles are taken from the
//   pieces     0 1 2 3 4 5   | 0 1 2 3 4 5   | ...   counter that the CTAs of this GPU share
//   warps      a b c a b c   | a b c a b c   | ...
//
// A warp passes from one pull to the next by itself, and reads ahead as far as its ring goes.
// The place of a pull in the slots is free when every warp has read its pieces of it.
//
// Order: [delivered] -> warp barrier -> fence -> loads; loads -> wait at the group's barrier ->
// [read] -> warp barrier -> the next pull.
#pragma once

#include "executor/cuda/dynamic_tiles.cuh"
#include "executor/cuda/reduction_ring.cuh"
#include "executor/protocol/pull.h"

namespace niccolite::executor::cuda {

template <typename Operation>
class PulledReduction {
 public:
  using Ring = ReductionRing<Operation>;

  /// `block`: vec16s. `counter`: of draws. Both in all threads alike.
  __device__ __forceinline__ PulledReduction(const Cta& cta, const WorkerThreads& worker,
                                             const PortsOfInstruction& ports,
                                             const typename Ring::Blocks& blocks, uint32_t block,
                                             uint64_t* counter)
      : cta_(cta),
        worker_(worker),
        ports_(ports),
        blocks_(blocks),
        block_(block),
        counter_(counter) {}

  /// Is there at least a tile for every CTA, of `block` vec16s, and a warp that can make pulls?
  __device__ __forceinline__ static bool is_possible(const Cta& cta, const WorkerThreads& worker,
                                                     const PortsOfInstruction& ports,
                                                     uint32_t block) {
    const uint32_t tile = cta.header.pull_bytes / kVec16;
    if (tile == 0 || worker.size < 2 * kWarp || ports.receive_count >= kMaxReductionOperands ||
        block <= (cta.work->partition.channels - 1) * tile) {
      return false;
    }
    bool serve = true;
    for (uint32_t r = 0; r < ports.receive_count; ++r) {
      serve &= cta.ports[ports.receives[r].port].pulls != static_cast<uint32_t>(Pulls::None);
    }
    return serve;
  }

  /// By all threads of the worker, before a barrier of theirs: no pull is made or read yet.
  __device__ __forceinline__ static void prepare(const Cta& cta, const WorkerThreads& worker) {
    auto* words = reinterpret_cast<uint64_t*>(&tiles(cta.header));
    for (uint32_t i = worker.rank; i < sizeof(PulledTiles) / sizeof *words; i += worker.size) {
      words[i] = 0;
    }
  }

  /// All threads of the worker. False, in some of them: aborted.
  __device__ __forceinline__ bool run() const {
    for (uint32_t k = worker_.rank; k < blocks_.operands(); k += worker_.size) {
      const uint32_t r = k - (blocks_.source() < k);
      tiles(cta_.header).operands[k] =
          k == blocks_.source() ? blocks_.addresses[k] : port(r).own_slots;
    }
    worker_.barrier();
    return warp() == reducing_warps() ? make_pulls() : reduce_pieces();
  }

  /// When all threads have run: nothing of the pulls is left.
  __device__ __forceinline__ void finish() const {
    for (uint32_t r = worker_.rank; r < ports_.receive_count; r += worker_.size) {
      ptx::store_relaxed_system(&port(r).control->delivered, 0u);
    }
  }

 private:
  __device__ __forceinline__ static PulledTiles& tiles(const LaunchHeader& header) {
    return *reinterpret_cast<PulledTiles*>(ptx::shared_memory() + header.pulled_at);
  }
  __device__ __forceinline__ uint32_t warp() const { return worker_.rank / kWarp; }
  __device__ __forceinline__ uint32_t thread() const { return worker_.rank % kWarp; }
  __device__ __forceinline__ uint32_t reducing_warps() const { return worker_.size / kWarp - 1; }
  __device__ __forceinline__ PortState& port(uint32_t r) const {
    return cta_.ports[ports_.receives[r].port];
  }
  __device__ __forceinline__ uint32_t tile_vec16s() const {
    return cta_.header.pull_bytes / kVec16;
  }
  __device__ __forceinline__ uint32_t most() const { return cta_.header.most_pulls; }
  /// Of the pull with this number.
  __device__ __forceinline__ uint32_t place_of(uint32_t pull) const { return pull & (most() - 1); }
  /// By all threads, after ptx::kSharedLooksPerSpin looks at shared memory.
  __device__ __forceinline__ bool keep_going(SimpleWait& wait) const {
    return !ptx::any_of_warp(!wait.keep_going([&] {
      // Who is behind: the others may have delivered all that was pulled.
      uint32_t last = 0;
      for (uint32_t r = 1; r < ports_.receive_count; ++r) {
        if (ptx::load_relaxed_shared(&port(r).delivered) <
            ptx::load_relaxed_shared(&port(last).delivered)) {
          last = r;
        }
      }
      return Awaited{port(last).peer};
    }));
  }

  // ---- the warp that makes pulls

  __device__ __forceinline__ bool make_pulls() const {
    for (uint32_t r = thread(); r < ports_.receive_count; r += kWarp) {
      ptx::store_relaxed_shared(&port(r).pulls, static_cast<uint32_t>(Pulls::Made));
    }
    const uint32_t all = block_ / tile_vec16s() + (block_ % tile_vec16s() != 0);
    const uint32_t channels = cta_.work->partition.channels;
    uint32_t tile = cta_.channel();
    for (uint32_t t = 0;; ++t) {
      if (tile >= all) {
        if (thread() == 0) ptx::store_relaxed_shared(&tiles(cta_.header).end, uint64_t{t + 1});
        return true;
      }
      if (t >= most() && !await_read(t - most() + 1)) return false;
      if (thread() == 0) {
        for (uint32_t r = 0; r < ports_.receive_count; ++r) {
          // [pull] pairs with that of the exposing sender. Relaxed: the loads from its place are
          // over, since their warps have waited for them before [read].
          ptx::store_relaxed_system(&port(r).remote_control->pulls[place_of(t)], pull::of(tile));
        }
        // [tile] pairs with that of the reducing warps.
        ptx::store_release_shared(&tiles(cta_.header).tile[place_of(t)],
                                  uint64_t{t + 1} << 32 | tile);
      }
      // Nobody waits for it yet. Every tile is followed by a draw.
      const uint32_t taken = thread() == 0 ? draw_tile(counter_, all) : 0;
      tile = channels + ptx::first_of_warp(taken);
    }
  }

  /// Until all pieces of the first `pulls` are read.
  __device__ __forceinline__ bool await_read(uint32_t pulls) const {
    for (SimpleWait wait(cta_.header, *cta_.work);;) {
      for (uint32_t look = 0; look < ptx::kSharedLooksPerSpin; ++look) {
        // [read] pairs with that of the reducing warps.
        const bool is_read = thread() >= reducing_warps() ||
                             ptx::load_acquire_shared(&tiles(cta_.header).read[thread()]) >= pulls;
        if (ptx::any_of_warp(!is_read)) continue;
        ptx::barrier_warp();
        return true;
      }
      if (!keep_going(wait)) return false;
    }
  }

  // ---- the others

  /// A piece of a pull.
  struct Position {
    uint32_t pull;
    uint32_t piece;

    __device__ __forceinline__ void pass(uint32_t by, uint32_t pieces) {
      for (piece += by; piece >= pieces; piece -= pieces) ++pull;
    }
  };
  enum class Found : uint8_t { Later, Tile, End };

  __device__ __forceinline__ bool reduce_pieces() const {
    Ring ring(blocks_, warp());
    const uint32_t piece = ring.piece_bytes() / kVec16;
    const uint32_t pieces = (tile_vec16s() + piece - 1) / piece;
    Position loading{0, 0};
    loading.pass(warp(), pieces);
    Position reducing = loading;
    tell_read(reducing);
    SimpleWait wait(cta_.header, *cta_.work);
    bool has_tile = false;  // that of loading.pull
    for (bool is_end = false;;) {
      while (!is_end && !ring.is_full()) {
        if (!has_tile) {
          Found found = find(loading.pull);
          if (found == Found::Later && !ring.is_empty()) break;
          for (uint32_t look = 1; found == Found::Later && look < ptx::kSharedLooksPerSpin;
               ++look) {
            found = find(loading.pull);
          }
          if (found == Found::Later && !keep_going(wait)) return false;
          is_end = found == Found::End;
          has_tile = found == Found::Tile;
          if (!has_tile) continue;
        }
        load(ring, loading.pull, loading.piece * piece, piece);
        const uint32_t pull = loading.pull;
        loading.pass(reducing_warps(), pieces);
        has_tile = loading.pull == pull;
      }
      if (ring.is_empty()) return true;
      ring.await();
      const uint32_t pull = reducing.pull;
      reducing.pass(reducing_warps(), pieces);
      if (reducing.pull != pull) tell_read(reducing);
      ring.reduce();
    }
  }

  /// What comes before `next` is no longer needed where it was.
  __device__ __forceinline__ void tell_read(const Position& next) const {
    // [read] pairs with that of the warp that makes pulls.
    if (thread() == 0) {
      ptx::store_release_shared(&tiles(cta_.header).read[warp()], uint64_t{next.pull});
    }
  }

  /// By all threads: is the tile there?
  __device__ __forceinline__ Found find(uint32_t pull) const {
    // [tile] pairs with that of the warp that makes pulls.
    const uint64_t word = ptx::load_acquire_shared(&tiles(cta_.header).tile[place_of(pull)]);
    bool is_there = word >> 32 == uint64_t{pull} + 1;
    if (is_there && thread() < ports_.receive_count) {
      // [delivered] pairs with the service warp's.
      is_there = ptx::load_acquire_shared(&port(thread()).delivered) > pull;
    }
    if (ptx::any_of_warp(!is_there)) {
      const uint64_t end = ptx::load_relaxed_shared(&tiles(cta_.header).end);
      return ptx::any_of_warp(end != 0 && pull + 1 >= end) ? Found::End : Found::Later;
    }
    ptx::barrier_warp();
    return Found::Tile;
  }

  /// `at`, `most_vec16s`: of the tile.
  __device__ __forceinline__ void load(Ring& ring, uint32_t pull, uint32_t at,
                                       uint32_t most_vec16s) const {
    // It stays there until this warp has told that it has read its pieces.
    const auto tile =
        static_cast<uint32_t>(ptx::load_relaxed_shared(&tiles(cta_.header).tile[place_of(pull)]));
    const uint32_t start = tile * tile_vec16s();
    const uint32_t length = block_ - start < tile_vec16s() ? block_ - start : tile_vec16s();
    const uint32_t left = at < length ? length - at : 0;
    const uint32_t vec16s = left < most_vec16s ? left : most_vec16s;
    const uint32_t in_slots = place_of(pull) * cta_.header.pull_bytes + at * kVec16;
    const uint64_t in_block = uint64_t{start + at} * kVec16;
    const uint32_t source = blocks_.source();
    if (thread() == 0) ptx::fence_bulk();
    ring.load(start + at, vec16s * kVec16, [&](uint32_t k) -> const std::byte* {
      const std::byte* start_of_operand = tiles(cta_.header).operands[k];
      return start_of_operand + (k == source ? in_block : in_slots);
    });
  }

  const Cta& cta_;
  const WorkerThreads& worker_;
  const PortsOfInstruction& ports_;
  const typename Ring::Blocks& blocks_;
  const uint32_t block_;
  uint64_t* const counter_;
};

}  // namespace niccolite::executor::cuda
