// Tiles of a reduction that its peers send on request, instead of exposing them to be read
// (protocol/pull.h). One warp of the worker pulls them, the others reduce the tiles that have come
// to the slots:
//
//   pulls      t = 0: u      | t = 1: u'     | ...   to all peers; the numbers of the tiles are
//   parts      0 1 2 3 4 5   | 0 1 2 3 4 5   | ...   drawn from the counter that the CTAs share
//   warps      a b c a b c   | a b c a b c   | ...
//
// A warp passes from one pull to the next by itself, and reads ahead as far as its ring goes.
// The place of a pull in the slots is free when every warp has read its parts of it.
//
// Order: [delivered] -> warp barrier -> fence -> loads; loads -> the stage is full -> [read] ->
// warp barrier -> the next pull.
#pragma once

#include "executor/cuda/pipeline/stage_reduction.cuh"
#include "executor/cuda/pipeline/tiles.cuh"
#include "executor/protocol/pull.h"

namespace niccolite::executor::cuda {

template <typename Operation>
class PulledTiles {
 public:
  using Reduction = StageReduction<Operation>;

  /// `block`: vec16s. `counter`: of draws. Both in all threads alike.
  __device__ __forceinline__ PulledTiles(const Cta& cta, const WorkerThreads& worker,
                                         const PortsOfInstruction& ports,
                                         const typename Reduction::Blocks& blocks, uint32_t block,
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

  /// Called by all threads of the worker, before a barrier of theirs: no pull is made or read yet.
  __device__ __forceinline__ static void prepare(const Cta& cta, const WorkerThreads& worker) {
    auto* words = reinterpret_cast<uint64_t*>(&state(cta.header));
    for (uint32_t i = worker.rank; i < sizeof(PullState) / sizeof *words; i += worker.size) {
      words[i] = 0;
    }
  }

  /// Called by all threads of the worker. False, in some of them: aborted.
  __device__ __forceinline__ bool run() const {
    for (uint32_t k = worker_.rank; k < blocks_.operands(); k += worker_.size) {
      const uint32_t r = k - (blocks_.source() < k);
      state(cta_.header).operands[k] =
          k == blocks_.source() ? blocks_.addresses[k] : port(r).own_slots;
    }
    worker_.barrier();
    return warp() == reducing_warps() ? make_pulls() : reduce();
  }

  /// When all threads have run: nothing of the pulls is left.
  __device__ __forceinline__ void finish() const {
    for (uint32_t r = worker_.rank; r < ports_.receive_count; r += worker_.size) {
      ptx::store_relaxed_system(&port(r).control->delivered, 0u);
    }
  }

 private:
  __device__ __forceinline__ static PullState& state(const LaunchHeader& header) {
    return *reinterpret_cast<PullState*>(ptx::shared_memory() + header.pulled_at);
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
  /// Returns the place of the pull with this number.
  __device__ __forceinline__ uint32_t place_of(uint32_t pull) const { return pull & (most() - 1); }
  /// Called by all threads after ptx::kSharedLooksPerSpin looks at shared memory.
  __device__ __forceinline__ bool keep_going(SimpleWait& wait) const {
    return !ptx::any_of_warp(!wait.keep_going([&] {
      // Looks for the peer that is behind: the others may have delivered all pulls.
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
    TileCounter numbers(counter_, block_ / tile_vec16s() + (block_ % tile_vec16s() != 0),
                        cta_.work->partition.channels, cta_.channel());
    for (uint32_t t = 0;; ++t) {
      const uint32_t tile = ptx::first_of_warp(numbers.next());
      if (tile >= numbers.tiles()) {
        if (thread() == 0) {
          numbers.finish();
          ptx::store_relaxed_shared(&state(cta_.header).end, uint64_t{t + 1});
        }
        return true;
      }
      if (thread() == 0) numbers.take();
      if (t >= most() && !await_read(t - most() + 1)) return false;
      if (thread() != 0) continue;
      for (uint32_t r = 0; r < ports_.receive_count; ++r) {
        // [pull] pairs with [pull] of the exposing sender. Relaxed: the loads from its place are
        // over, since their warps have waited for them before [read].
        ptx::store_relaxed_system(&port(r).remote_control->pulls[place_of(t)], pull::of(tile));
      }
      // [tile] pairs with [tile] of the warps that reduce.
      ptx::store_release_shared(&state(cta_.header).tile[place_of(t)],
                                uint64_t{t + 1} << 32 | tile);
    }
  }

  /// Waits until all parts of the first `pulls` are read.
  __device__ __forceinline__ bool await_read(uint32_t pulls) const {
    for (SimpleWait wait(cta_.header, *cta_.work);;) {
      for (uint32_t look = 0; look < ptx::kSharedLooksPerSpin; ++look) {
        // [read] pairs with [read] of the warps that reduce.
        const bool is_read = thread() >= reducing_warps() ||
                             ptx::load_acquire_shared(&state(cta_.header).read[thread()]) >= pulls;
        if (ptx::any_of_warp(!is_read)) continue;
        ptx::barrier_warp();
        return true;
      }
      if (!keep_going(wait)) return false;
    }
  }

  // ---- the others

  /// A part of a pull.
  struct Position {
    uint32_t pull;
    uint32_t part;

    __device__ __forceinline__ void pass(uint32_t by, uint32_t parts) {
      for (part += by; part >= parts; part -= parts) ++pull;
    }
  };

  /// The pipeline of one of the warps that reduce.
  struct Flow {
    const PulledTiles& tiles;
    Reduction& reduction;
    SimpleWait wait;
    const uint32_t vec16s;  // of a part
    const uint32_t parts;   // of a pull
    Position loading{0, 0};
    Position reducing{0, 0};
    uint32_t looks = 0;
    bool is_there = false;  // the tile of loading.pull

    __device__ __forceinline__ Next fill_next() {
      if (!is_there) {
        const Next found = tiles.find(loading.pull);
        if (found != Next::Found) return found;
        is_there = true;
      }
      tiles.fill(reduction, loading.pull, loading.part * vec16s, vec16s);
      const uint32_t pull = loading.pull;
      loading.pass(tiles.reducing_warps(), parts);
      is_there = loading.pull == pull;
      return Next::Found;
    }
    __device__ __forceinline__ bool wait_for_next() {
      return ++looks % ptx::kSharedLooksPerSpin != 0 || tiles.keep_going(wait);
    }
    __device__ __forceinline__ bool drain_first() {
      reduction.drain([&] {
        const uint32_t pull = reducing.pull;
        reducing.pass(tiles.reducing_warps(), parts);
        if (reducing.pull != pull) tiles.tell_read(reducing);
      });
      return true;
    }
    __device__ __forceinline__ void announce() const {}
  };

  __device__ __forceinline__ bool reduce() const {
    Reduction reduction(blocks_, warp());
    const uint32_t vec16s = reduction.part_bytes() / kVec16;
    Flow flow{*this, reduction, SimpleWait(cta_.header, *cta_.work), vec16s,
              (tile_vec16s() + vec16s - 1) / vec16s};
    flow.loading.pass(warp(), flow.parts);
    flow.reducing = flow.loading;
    tell_read(flow.reducing);
    return run_pipeline(reduction.ring(), flow);
  }

  /// Tells that the parts before `next` are no longer needed in their slots.
  __device__ __forceinline__ void tell_read(const Position& next) const {
    // [read] pairs with [read] of the warp that makes pulls.
    if (thread() == 0) {
      ptx::store_release_shared(&state(cta_.header).read[warp()], uint64_t{next.pull});
    }
  }

  /// Looks by all threads whether the tile is there.
  __device__ __forceinline__ Next find(uint32_t pull) const {
    // [tile] pairs with [tile] of the warp that makes pulls.
    const uint64_t word = ptx::load_acquire_shared(&state(cta_.header).tile[place_of(pull)]);
    bool is_there = word >> 32 == uint64_t{pull} + 1;
    if (is_there && thread() < ports_.receive_count) {
      // [delivered] pairs with the service warp's.
      is_there = ptx::load_acquire_shared(&port(thread()).delivered) > pull;
    }
    if (ptx::any_of_warp(!is_there)) {
      const uint64_t end = ptx::load_relaxed_shared(&state(cta_.header).end);
      return ptx::any_of_warp(end != 0 && pull + 1 >= end) ? Next::End : Next::Later;
    }
    ptx::barrier_warp();
    return Next::Found;
  }

  /// `at`, `most_vec16s`: of the tile.
  __device__ __forceinline__ void fill(Reduction& reduction, uint32_t pull, uint32_t at,
                                       uint32_t most_vec16s) const {
    // It stays there until this warp has told that it has read its parts.
    const auto tile =
        static_cast<uint32_t>(ptx::load_relaxed_shared(&state(cta_.header).tile[place_of(pull)]));
    const uint32_t start = tile * tile_vec16s();
    const uint32_t length = block_ - start < tile_vec16s() ? block_ - start : tile_vec16s();
    const uint32_t left = at < length ? length - at : 0;
    const uint32_t vec16s = left < most_vec16s ? left : most_vec16s;
    const uint32_t in_slots = place_of(pull) * cta_.header.pull_bytes + at * kVec16;
    const uint64_t in_block = uint64_t{start + at} * kVec16;
    const uint32_t source = blocks_.source();
    if (thread() == 0) ptx::fence_bulk();
    reduction.fill(start + at, vec16s, [&](uint32_t k) -> const std::byte* {
      const std::byte* start_of_operand = state(cta_.header).operands[k];
      return start_of_operand + (k == source ? in_block : in_slots);
    });
  }

  const Cta& cta_;
  const WorkerThreads& worker_;
  const PortsOfInstruction& ports_;
  const typename Reduction::Blocks& blocks_;
  const uint32_t block_;
  uint64_t* const counter_;
};

}  // namespace niccolite::executor::cuda
