// A shared fold (shared_fold.cuh) that requests what its peers lend, and folds it from slots
// (protocol/request.h). One warp of the lane makes the requests, the others fold:
//
//   requests   t = 0: u      | t = 1: u'     | ...   to all peers; units are claimed from the
//   pieces     0 1 2 3 4 5   | 0 1 2 3 4 5   | ...   counter that the CTAs of this GPU share
//   warps      a b c a b c     a b c a b c
//
// A warp passes from one request to the next by itself, and reads ahead as far as its ring goes.
// The place of a request in the slots is free when every warp has read its pieces of it.
//
// Order: [delivered] -> warp barrier -> fence -> loads; loads -> wait at the group's barrier ->
// [read] -> warp barrier -> the next request.
#pragma once

#include "executor/cuda/claims.cuh"
#include "executor/cuda/fold_ring.cuh"
#include "executor/protocol/request.h"

namespace niccolite::executor::cuda {

template <typename Operation>
class RequestedFold {
 public:
  using Ring = FoldRing<Operation>;

  /// `block`: packs. `counter`: of claims. Both in all threads alike.
  __device__ __forceinline__ RequestedFold(const Cta& cta, const LaneThreads& lane,
                                           const PortsOfInstruction& ports,
                                           const typename Ring::Blocks& blocks, uint32_t block,
                                           uint64_t* counter)
      : cta_(cta), lane_(lane), ports_(ports), blocks_(blocks), block_(block), counter_(counter) {}

  /// Is there at least a unit for every CTA, of `block` packs, and a warp that can make requests?
  __device__ __forceinline__ static bool is_possible(const Cta& cta, const LaneThreads& lane,
                                                     const PortsOfInstruction& ports,
                                                     uint32_t block) {
    const uint32_t unit = cta.header.request_bytes / kPack;
    if (unit == 0 || lane.size < 2 * kWarp || ports.receive_count >= kMaxFoldOperands ||
        block <= (cta.work->partition.channels - 1) * unit) {
      return false;
    }
    bool serve = true;
    for (uint32_t r = 0; r < ports.receive_count; ++r) {
      serve &= cta.ports[ports.receives[r].port].requests != static_cast<uint32_t>(Requests::None);
    }
    return serve;
  }

  /// By all threads of the lane, before a barrier of theirs: no request is made or read yet.
  __device__ __forceinline__ static void prepare(const Cta& cta, const LaneThreads& lane) {
    auto* words = reinterpret_cast<uint64_t*>(&units(cta.header));
    for (uint32_t i = lane.rank; i < sizeof(RequestedUnits) / sizeof *words; i += lane.size) {
      words[i] = 0;
    }
  }

  /// All threads of the lane. False, in some of them: aborted.
  __device__ __forceinline__ bool run() const {
    for (uint32_t k = lane_.rank; k < blocks_.operands(); k += lane_.size) {
      const uint32_t r = k - (blocks_.source() < k);
      units(cta_.header).operands[k] =
          k == blocks_.source() ? blocks_.addresses[k] : port(r).own_slots;
    }
    lane_.barrier();
    return warp() == folding_warps() ? make_requests() : fold_pieces();
  }

  /// When all threads have run: nothing of the requests is left.
  __device__ __forceinline__ void finish() const {
    for (uint32_t r = lane_.rank; r < ports_.receive_count; r += lane_.size) {
      ptx::store_relaxed_system(&port(r).control->delivered, 0u);
    }
  }

 private:
  __device__ __forceinline__ static RequestedUnits& units(const LaunchHeader& header) {
    return *reinterpret_cast<RequestedUnits*>(ptx::shared_memory() + header.requested_at);
  }
  __device__ __forceinline__ uint32_t warp() const { return lane_.rank / kWarp; }
  __device__ __forceinline__ uint32_t thread() const { return lane_.rank % kWarp; }
  __device__ __forceinline__ uint32_t folding_warps() const { return lane_.size / kWarp - 1; }
  __device__ __forceinline__ PortState& port(uint32_t r) const {
    return cta_.ports[ports_.receives[r].port];
  }
  __device__ __forceinline__ uint32_t unit_packs() const {
    return cta_.header.request_bytes / kPack;
  }
  __device__ __forceinline__ uint32_t most() const { return cta_.header.most_requests; }
  /// Of the request with this number.
  __device__ __forceinline__ uint32_t place_of(uint32_t request) const {
    return request & (most() - 1);
  }
  /// By all threads, after ptx::kSharedLooksPerSpin looks at shared memory.
  __device__ __forceinline__ bool keep_going(SimpleWait& wait) const {
    return !ptx::any_of_warp(!wait.keep_going([&] {
      // Who is behind: the others may have delivered all that was requested.
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

  // ---- the warp that makes requests

  __device__ __forceinline__ bool make_requests() const {
    for (uint32_t r = thread(); r < ports_.receive_count; r += kWarp) {
      ptx::store_relaxed_shared(&port(r).requests, static_cast<uint32_t>(Requests::Made));
    }
    const uint32_t all = block_ / unit_packs() + (block_ % unit_packs() != 0);
    const uint32_t channels = cta_.work->partition.channels;
    uint32_t unit = cta_.channel();
    for (uint32_t t = 0;; ++t) {
      if (unit >= all) {
        if (thread() == 0) ptx::store_relaxed_shared(&units(cta_.header).end, uint64_t{t + 1});
        return true;
      }
      if (t >= most() && !await_read(t - most() + 1)) return false;
      if (thread() == 0) {
        for (uint32_t r = 0; r < ports_.receive_count; ++r) {
          // [request] pairs with that of the lender. Relaxed: the loads from its place are over,
          // since their warps have waited for them before [read].
          ptx::store_relaxed_system(&port(r).remote_control->requests[place_of(t)],
                                    request::of(unit));
        }
        // [unit] pairs with that of the folding warps.
        ptx::store_release_shared(&units(cta_.header).unit[place_of(t)],
                                  uint64_t{t + 1} << 32 | unit);
      }
      // Nobody waits for it yet. Every unit is followed by a claim.
      const uint32_t claimed = thread() == 0 ? draw_claim(counter_, all) : 0;
      unit = channels + ptx::first_of_warp(claimed);
    }
  }

  /// Until all pieces of the first `requests` are read.
  __device__ __forceinline__ bool await_read(uint32_t requests) const {
    for (SimpleWait wait(cta_.header, *cta_.work);;) {
      for (uint32_t look = 0; look < ptx::kSharedLooksPerSpin; ++look) {
        // [read] pairs with that of the folding warps.
        const bool is_read =
            thread() >= folding_warps() ||
            ptx::load_acquire_shared(&units(cta_.header).read[thread()]) >= requests;
        if (ptx::any_of_warp(!is_read)) continue;
        ptx::barrier_warp();
        return true;
      }
      if (!keep_going(wait)) return false;
    }
  }

  // ---- the others

  /// A piece of a request.
  struct Position {
    uint32_t request;
    uint32_t piece;

    __device__ __forceinline__ void pass(uint32_t by, uint32_t pieces) {
      for (piece += by; piece >= pieces; piece -= pieces) ++request;
    }
  };
  enum class Found : uint8_t { Later, Unit, End };

  __device__ __forceinline__ bool fold_pieces() const {
    Ring ring(blocks_, warp());
    const uint32_t piece = ring.piece_bytes() / kPack;
    const uint32_t pieces = (unit_packs() + piece - 1) / piece;
    Position loading{0, 0};
    loading.pass(warp(), pieces);
    Position folding = loading;
    tell_read(folding);
    SimpleWait wait(cta_.header, *cta_.work);
    bool has_unit = false;  // that of loading.request
    for (bool is_end = false;;) {
      while (!is_end && !ring.is_full()) {
        if (!has_unit) {
          Found found = find(loading.request);
          if (found == Found::Later && !ring.is_empty()) break;
          for (uint32_t look = 1; found == Found::Later && look < ptx::kSharedLooksPerSpin;
               ++look) {
            found = find(loading.request);
          }
          if (found == Found::Later && !keep_going(wait)) return false;
          is_end = found == Found::End;
          has_unit = found == Found::Unit;
          if (!has_unit) continue;
        }
        load(ring, loading.request, loading.piece * piece, piece);
        const uint32_t request = loading.request;
        loading.pass(folding_warps(), pieces);
        has_unit = loading.request == request;
      }
      if (ring.is_empty()) return true;
      ring.await();
      const uint32_t request = folding.request;
      folding.pass(folding_warps(), pieces);
      if (folding.request != request) tell_read(folding);
      ring.fold();
    }
  }

  /// What comes before `next` is no longer needed where it was.
  __device__ __forceinline__ void tell_read(const Position& next) const {
    // [read] pairs with that of the warp that makes requests.
    if (thread() == 0) {
      ptx::store_release_shared(&units(cta_.header).read[warp()], uint64_t{next.request});
    }
  }

  /// By all threads: is the unit there?
  __device__ __forceinline__ Found find(uint32_t request) const {
    // [unit] pairs with that of the warp that makes requests.
    const uint64_t word = ptx::load_acquire_shared(&units(cta_.header).unit[place_of(request)]);
    bool is_there = word >> 32 == uint64_t{request} + 1;
    if (is_there && thread() < ports_.receive_count) {
      // [delivered] pairs with the service warp's.
      is_there = ptx::load_acquire_shared(&port(thread()).delivered) > request;
    }
    if (ptx::any_of_warp(!is_there)) {
      const uint64_t end = ptx::load_relaxed_shared(&units(cta_.header).end);
      return ptx::any_of_warp(end != 0 && request + 1 >= end) ? Found::End : Found::Later;
    }
    ptx::barrier_warp();
    return Found::Unit;
  }

  /// `at`, `most_packs`: of the unit.
  __device__ __forceinline__ void load(Ring& ring, uint32_t request, uint32_t at,
                                       uint32_t most_packs) const {
    // It stays there until this warp has told that it has read its pieces.
    const auto unit = static_cast<uint32_t>(
        ptx::load_relaxed_shared(&units(cta_.header).unit[place_of(request)]));
    const uint32_t start = unit * unit_packs();
    const uint32_t length = block_ - start < unit_packs() ? block_ - start : unit_packs();
    const uint32_t left = at < length ? length - at : 0;
    const uint32_t packs = left < most_packs ? left : most_packs;
    const uint32_t in_slots = place_of(request) * cta_.header.request_bytes + at * kPack;
    const uint64_t in_block = uint64_t{start + at} * kPack;
    const uint32_t source = blocks_.source();
    if (thread() == 0) ptx::fence_bulk();
    ring.load(start + at, packs * kPack, [&](uint32_t k) -> const std::byte* {
      const std::byte* start_of_operand = units(cta_.header).operands[k];
      return start_of_operand + (k == source ? in_block : in_slots);
    });
  }

  const Cta& cta_;
  const LaneThreads& lane_;
  const PortsOfInstruction& ports_;
  const typename Ring::Blocks& blocks_;
  const uint32_t block_;
  uint64_t* const counter_;
};

}  // namespace niccolite::executor::cuda
