// A hand-written kernel for operations in phases (lowering/phases.h) by LL128. A rank sends blocks
// of its input to peers; reduces a block with the peers' blocks, and stores the result, or sends
// it, or both; and stores the blocks that peers send. The interpreter runs the same programs.
// tests/device compares the two, docs/design/kernels.md says why this kernel exists.
//
//   stage      0        1        2        3         of three rounds (lowering::Pace::staggered());
//   send     round 0  round 1  round 2              every warp goes through all stages by itself:
//   reduce            round 0  round 1  round 2     the lines that it sends are on their way while
//   store                      round 0  round 1 ..  it reduces the lines of the round before
//
// Unit of work: a *group*, the four lines that a warp moves by one access (ll128_step.cuh). Group g
// of every block belongs to warp g % warps, in all phases: so a warp handles a group in the order
// of the phases, in place too. When it sends and stores, a warp has groups of several peers in
// flight; when it reduces, groups of all peers. Few instructions matter as much as many bytes in
// flight: values that differ between peers are looked up once a round, and groups that need care
// (buffers that are not aligned to vec8s, or whose end is not) go their own, slower way.
//
// Launch shape: grid (replicas, 1), up to kMaxThreads threads, shared memory for PhasePorts.
#pragma once

#include "executor/cuda/interpreter/dependent_launch.cuh"
#include "executor/cuda/patterns/phase_connections.cuh"

namespace niccolite::executor::cuda {

/// Peers, and groups for each of them, that a warp has in flight while it sends or stores.
inline constexpr uint32_t kPeersInFlight = 3;
template <uint32_t kMostPeers>
inline constexpr uint32_t kRowsInFlight = kMostPeers > kFewPhasePeers ? 1 : 2;

/// At most kMostPeers peers in each phase.
template <typename Operation, uint32_t kMostPeers>
class PhaseKernel : private PhaseConnections {
 public:
  __device__ __forceinline__ PhaseKernel(const LaunchArgs& args) : PhaseConnections(args) {}

  __device__ __forceinline__ void run() {
    begin_short();
    const uint32_t rounds = work_.partition.rounds;
    const uint32_t stages = rounds + (params_.stores != 0 ? 2 : 1);
    if (params_.sends == 0) start();
#pragma unroll 1
    for (uint32_t stage = 0; stage < stages; ++stage) {
      if (stage < rounds) send(stage);
      if (stage - 1 < rounds) reduce(stage - 1);  // not in stage 0: unsigned
      if (stage >= 2) store(stage - 2);
      if (rounds > header_.shape.depth) give_credit(stage);
    }
  }

 private:
  using Element = typename Operation::Element;
  static constexpr uint32_t kRows = kRowsInFlight<kMostPeers>;

  /// Looks at all groups in flight before a wait is a long one. Each takes longer than one at a
  /// single word.
  static constexpr uint32_t kPasses = Wait::kSpinsPerLook / 4;

  __device__ __forceinline__ Round round_of(uint32_t number) const {
    return PhaseConnections::round_of(number, sizeof(Element));
  }
  __device__ __forceinline__ uint32_t send_of_turn(uint32_t i) const {
    return peer_of_turn(i, params_.sends, params_.send_reciprocal);
  }
  __device__ __forceinline__ uint32_t store_of_turn(uint32_t i) const {
    return peer_of_turn(i, params_.stores, params_.store_reciprocal);
  }

  // ---- the user's memory

  using Memory = LineMemory<Element>;
  using Around = typename Memory::Around;

  __device__ __forceinline__ bool needs_pieces(const Share& share, uint32_t last) const {
    return Memory::needs_pieces(work_.width, share.bytes, last);
  }
  __device__ __forceinline__ Words load_input(const Share& share, uint32_t group) const {
    return Memory::load(*this, work_.input + share.at, share.bytes, group);
  }
  __device__ __forceinline__ Around load_around_input(const Share& share, uint32_t group) const {
    return Memory::load_around(*this, work_.input + share.at, share.bytes, group);
  }
  __device__ __forceinline__ Words put_together(const Share& share, const Around& around) const {
    return around.pair(work_.input + share.at);
  }
  __device__ __forceinline__ void store_output(const Share& share, uint32_t group,
                                               const Words& words, bool needs_care) const {
    Memory::store(*this, work_.output + share.at, share.bytes, group, words, needs_care);
  }

  // ---- send

  /// Sends a round, by all threads of the CTA. The first loads are on their way while the ports
  /// are taken up.
  __device__ __forceinline__ void send(uint32_t number) {
    find_place_anew();
    const Round round = round_of(number);
    const uint32_t groups = groups_of(round.bytes);
    bool is_first = true;
#pragma unroll 1
    for (uint32_t turn = 0; turn < params_.sends; turn += kPeersInFlight) {
      Share shares[kPeersInFlight];
      bool needs_care = false;
#pragma unroll
      for (uint32_t i = 0; i < kPeersInFlight; ++i) {
        shares[i] = {0, 0};
        if (turn + i >= params_.sends) continue;
        shares[i] = share_of(params_.sent[send_of_turn(turn + i)], round);
        needs_care = needs_care || needs_pieces(shares[i], groups);
      }
      uint32_t group = warp();
#pragma unroll 1
      do {
        Words words[kRows][kPeersInFlight] = {};  // set: see move_pieces()
        const auto each_row = [&](auto&& function) {
#pragma unroll
          for (uint32_t k = 0; k < kRows; ++k) {
#pragma unroll
            for (uint32_t i = 0; i < kPeersInFlight; ++i) {
              function(k, i, shares[i], group + k * warps());
            }
          }
        };
        // Only branches that are uniform in a warp are allowed within: loads on both sides of
        // another branch would wait for each other.
        if (sizeof(Element) < kVec8 && needs_care) {
          Around around[kRows][kPeersInFlight];
          each_row([&](uint32_t k, uint32_t i, const Share& share, uint32_t at) {
            around[k][i] = load_around_input(share, at);
          });
          each_row([&](uint32_t k, uint32_t i, const Share& share, uint32_t at) {
            if (has_group(share.bytes, at)) words[k][i] = put_together(share, around[k][i]);
          });
        } else {
          each_row([&](uint32_t k, uint32_t i, const Share& share, uint32_t at) {
            words[k][i] = load_input(share, at);
          });
        }
        if (is_first) {
          if (number == 0) start();
          live_ = live_ && wait_for_credit(PhaseEnd::Send, params_.sends, number);
          is_first = false;
        }
        if (!live_) return;
        ptx::barrier_warp();  // together again after local accesses of different widths
#pragma unroll
        for (uint32_t i = 0; i < kPeersInFlight; ++i) {
          if (turn + i >= params_.sends) continue;
          const Lines lines = lines_of(PhaseEnd::Send, send_of_turn(turn + i), number);
#pragma unroll
          for (uint32_t k = 0; k < kRows; ++k) {
            const uint32_t at = group + k * warps();
            if (!exists(shares[i], at)) continue;
            ptx::store_line_part(at_group(lines, at),
                                 {words[k][i].first, has_flag() ? lines.flag : words[k][i].second});
          }
        }
        group += kRows * warps();
      } while (group < groups);
    }
  }

  // ---- reduce

  __device__ __forceinline__ void reduce(uint32_t number) {
    find_place_anew();
    const Share share = share_of(params_.source, round_of(number));
    const uint32_t groups = groups_of(share.bytes);
    live_ = live_ && wait_for_credit(PhaseEnd::Result, params_.results, number);
    const bool needs_care = needs_pieces(share, groups);
#pragma unroll 1
    for (uint32_t group = warp(); live_ && group < groups; group += warps()) {
      // The code for long waits stands here, once, and not in the waits themselves.
      for (Wait wait(header_, work_); live_ && !try_reduce(number, share, group, needs_care);) {
        Awaited awaited{peer_of(PhaseEnd::Operand, 0)};
#pragma unroll 1
        for (uint32_t p = 0; p < params_.operands; ++p) {
          look_for(PhaseEnd::Operand, p, number, share, group, /*rows=*/1, awaited);
        }
        live_ = !ptx::any_of_warp(!wait.look(awaited, kPasses));
      }
    }
  }

  /// False when lines were missing after kPasses looks. Nothing is stored before all have arrived:
  /// in place, a second try reads the input anew. All threads of the warp alike.
  __device__ __forceinline__ bool try_reduce(uint32_t number, const Share& share, uint32_t group,
                                             bool needs_care) const {
    // In the order of operands: the own operand has a place among the peers'.
    Words words[kMostPeers + 1] = {};
    const uint32_t own = params_.source_position;
    const bool is_there = exists(share, group);
    const auto each_peer = [&](auto&& function) {
#pragma unroll
      for (uint32_t o = 0; o <= kMostPeers; ++o) {
        if (o > params_.operands || o == own) continue;
        function(words[o], lines_of(PhaseEnd::Operand, o - (o > own), number));
      }
    };

    const Words local = sizeof(Element) < kVec8 && needs_care
                            ? put_together(share, load_around_input(share, group))
                            : load_input(share, group);
    ptx::barrier_warp();  // as in send()
    each_peer([&](Words& operand, const Lines& lines) {
      if (is_there) operand = ptx::load_line_part(at_group(lines, group));
    });
#pragma unroll
    for (uint32_t o = 0; o <= kMostPeers; ++o) {
      if (o == own) words[o] = local;
    }

    bool is_missing = true;
#pragma unroll 1
    for (uint32_t passes = 0; is_missing; ++passes) {
      if (passes == kPasses) return false;
      is_missing = false;
      group = ptx::opaque(group);  // addresses are computed when they are wanted again
      each_peer([&](Words& operand, const Lines& lines) {
        if (!ptx::any_of_warp(is_there && has_flag() && operand.second != lines.flag)) return;
        is_missing = true;
        // On its way while the others are looked at.
        if (is_there) operand = ptx::load_line_part(at_group(lines, group));
      });
    }

    const Words result{reduce_operands(words, [](const Words& operand) { return operand.first; }),
                       reduce_operands(words, [](const Words& operand) { return operand.second; })};
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= params_.results) continue;
      const Lines lines = lines_of(PhaseEnd::Result, p, number);
      if (!is_there) continue;
      ptx::store_line_part(at_group(lines, group),
                           {result.first, has_flag() ? lines.flag : result.second});
    }
    if (params_.stores_result != 0) {
      // As long as the source, elsewhere; not kept, for want of registers.
      const Share target{share.at + (params_.target.at - params_.source.at), share.bytes};
      store_output(target, group, result, needs_care);
    }
    ptx::barrier_warp();
    return true;
  }

  /// A vec8 of the result.
  template <typename Half>
  __device__ __forceinline__ uint64_t reduce_operands(const Words (&operands)[kMostPeers + 1],
                                                      Half&& half) const {
    typename Operation::Values values = Operation::widen(half(operands[0]));
#pragma unroll
    for (uint32_t o = 1; o <= kMostPeers; ++o) {
      if (o <= params_.operands) Operation::accumulate(values, Operation::widen(half(operands[o])));
    }
    return Operation::finish(header_, values, (header_.flags & kScalesResult) != 0);
  }

  // ---- store

  __device__ __forceinline__ void store(uint32_t number) {
    find_place_anew();
    const Round round = round_of(number);
    const uint32_t groups = groups_of(round.bytes);
#pragma unroll 1
    for (uint32_t turn = 0; turn < params_.stores; turn += kPeersInFlight) {
      Share shares[kPeersInFlight];
      bool needs_care = false;
#pragma unroll
      for (uint32_t i = 0; i < kPeersInFlight; ++i) {
        shares[i] = {0, 0};
        if (turn + i >= params_.stores) continue;
        shares[i] = share_of(params_.stored[store_of_turn(turn + i)], round);
        needs_care = needs_care || needs_pieces(shares[i], groups);
      }
#pragma unroll 1
      for (uint32_t group = warp(); live_ && group < groups; group += kRows * warps()) {
        for (Wait wait(header_, work_);
             live_ && !try_store(number, turn, shares, group, needs_care);) {
          Awaited awaited{peer_of(PhaseEnd::Store, store_of_turn(turn))};
#pragma unroll 1
          for (uint32_t i = turn; i < turn + kPeersInFlight && i < params_.stores; ++i) {
            const uint32_t peer = store_of_turn(i);
            look_for(PhaseEnd::Store, peer, number, share_of(params_.stored[peer], round), group,
                     kRows, awaited);
          }
          live_ = !ptx::any_of_warp(!wait.look(awaited, kPasses));
        }
      }
    }
  }

  /// Works like try_reduce(), for the peers of kPeersInFlight turns.
  __device__ __forceinline__ bool try_store(uint32_t number, uint32_t turn,
                                            const Share (&shares)[kPeersInFlight], uint32_t group,
                                            bool needs_care) const {
    Words words[kRows][kPeersInFlight] = {};
    Lines lines[kPeersInFlight];
    const auto is_there = [&](uint32_t k, uint32_t i) {
      return exists(shares[i], group + k * warps());
    };
#pragma unroll
    for (uint32_t i = 0; i < kPeersInFlight; ++i) {
      if (turn + i >= params_.stores) continue;
      lines[i] = lines_of(PhaseEnd::Store, store_of_turn(turn + i), number);
#pragma unroll
      for (uint32_t k = 0; k < kRows; ++k) {
        if (is_there(k, i)) {
          words[k][i] = ptx::load_line_part(at_group(lines[i], group + k * warps()));
        }
      }
    }
    bool is_missing = true;
#pragma unroll 1
    for (uint32_t passes = 0; is_missing; ++passes) {
      group = ptx::opaque(group);  // addresses are computed when they are wanted again
      if (passes == kPasses) return false;
      is_missing = false;
#pragma unroll
      for (uint32_t i = 0; i < kPeersInFlight; ++i) {
        if (turn + i >= params_.stores) continue;
#pragma unroll
        for (uint32_t k = 0; k < kRows; ++k) {
          const bool lacks = is_there(k, i) && has_flag() && words[k][i].second != lines[i].flag;
          if (!ptx::any_of_warp(lacks)) continue;
          is_missing = true;
          if (is_there(k, i)) {
            words[k][i] = ptx::load_line_part(at_group(lines[i], group + k * warps()));
          }
        }
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kPeersInFlight; ++i) {
      if (turn + i >= params_.stores) continue;
#pragma unroll
      for (uint32_t k = 0; k < kRows; ++k) {
        store_output(shares[i], group + k * warps(), words[k][i], needs_care);
      }
    }
    ptx::barrier_warp();
    return true;
  }
};

}  // namespace niccolite::executor::cuda
