// Two-shot by LL128, by hand: the pattern "push every block to its owner; fold the own one and send
// it to all; gather the others" that the interpreter also runs (all_reduce_two_shot.cc), for at
// most kMostPeers peers. tests/device holds it against the interpreter, docs/design/0010 says what
// it saves.
//
//   stage      0        1        2        3         of three rounds; every warp goes through all
//   push     round 0  round 1  round 2              stages by itself: the lines that it pushes are
//   fold              round 0  round 1  round 2     on their way while it folds those of the round
//   gather                     round 0  round 1 ..  before
//
// Unit of work: a *group*, the four lines that a warp moves by one access (ll128_step.cuh); a warp
// takes every so-many-th. Pushing and gathering it has groups of several peers in flight, folding
// those of all peers. Few instructions matter as much as many bytes in flight: what differs between
// peers is looked up once a round, and groups that need care (buffers that are not aligned to
// granules, or whose end is not) go their own, slower way.
//
// In place, gathering overwrites what was pushed, perhaps by another warp: a line of a folded block
// contains that of every rank, and does not arrive before this rank's was read. The fold's own
// operand is read by the thread that overwrites it.
//
// Launch shape: grid (replicas, 1), up to kMaxThreads threads, shared memory for a TwoShotPorts.
#pragma once

#include "executor/cuda/ll128_step.cuh"
#include "executor/cuda/progress.cuh"
#include "executor/cuda/two_shot_args.h"

namespace niccolite::executor::cuda {

/// Peers, and groups for each of them, that a warp has in flight while it pushes or gathers.
inline constexpr uint32_t kPeersInFlight = 3;
template <uint32_t kMostPeers>
inline constexpr uint32_t kRowsInFlight = kMostPeers > kFewTwoShotPeers ? 1 : 2;

template <typename Operation, uint32_t kMostPeers>
class TwoShot {
 public:
  __device__ __forceinline__ TwoShot(const LaunchArgs& args)
      : header_(args.header),
        work_(*work_tasks(args)),
        image_(*reinterpret_cast<const TwoShotImage*>(args.tables + sizeof(WorkTask))),
        ports_(*reinterpret_cast<TwoShotPorts*>(ptx::shared_memory())) {}

  __device__ __forceinline__ void run() {
    const uint32_t rounds = work_.partition.rounds;
#pragma unroll 1
    for (uint32_t stage = 0; stage < rounds + 2; ++stage) {
      if (stage < rounds) push(stage);
      if (stage - 1 < rounds) fold(stage - 1);  // not in stage 0: unsigned
      if (stage >= 2) gather(stage - 2);
      if (rounds > header_.shape.depth) give_credit(stage);
    }
  }

 private:
  using Element = typename Operation::Element;
  static constexpr uint32_t kRows = kRowsInFlight<kMostPeers>;
  static constexpr uint32_t kGroupBytes = kWarpLines * ll128::kLineBytes;
  static constexpr uint32_t kGroupData = kWarpLines * ll128::kDataBytes;

  /// Looks at all groups in flight before a wait is a long one. Each takes longer than one at a
  /// single word.
  static constexpr uint32_t kPasses = Wait::kSpinsPerLook / 4;

  /// The CTA's share of every block in a round.
  struct Round {
    uint32_t number;
    uint32_t bytes;  // at most
    uint64_t at;     // from the start of a block
  };
  /// The CTA's share of one block in a round.
  struct Share {
    uint64_t at;  // the thread's part of the first group, from the start of the buffer
    uint32_t bytes;
  };
  /// Where the thread's part of a slot's first group lies, and the flag that its lines have.
  struct Lines {
    std::byte* slot;
    uint64_t flag;
  };

  // ---- where things are

  __device__ __forceinline__ uint32_t lane() const { return lane_; }
  __device__ __forceinline__ uint32_t warp() const { return warp_; }
  __device__ __forceinline__ uint32_t warps() const { return ptx::threads() / kWarp; }
  __device__ __forceinline__ bool has_flag() const {
    return lane() % kLineThreads == kLineThreads - 1;
  }
  /// Of the thread's line and part in a group's data.
  __device__ __forceinline__ uint32_t line_offset() const {
    return lane() / kLineThreads * ll128::kDataBytes;
  }
  __device__ __forceinline__ uint32_t offset() const {
    return line_offset() + lane() % kLineThreads * kLinePart;
  }

  __device__ __forceinline__ Round round_of(uint32_t number) const {
    const Partition& partition = work_.partition;
    const uint32_t element_bytes = Operation::element_bytes(header_);
    return {number, partition.chunk * element_bytes,
            partition.start_of(ptx::replica(), number) * element_bytes};
  }
  __device__ __forceinline__ Share share_of(const TwoShotBlock& block, const Round& round) const {
    const uint64_t left = block.bytes > round.at ? block.bytes - round.at : 0;
    return {block.at + round.at + offset(),
            left < round.bytes ? static_cast<uint32_t>(left) : round.bytes};
  }
  __device__ __forceinline__ static uint32_t groups_of(uint32_t bytes) {
    return (bytes + kGroupData - 1) / kGroupData;
  }
  /// Does the thread's line of a group exist? The same for all threads of the line.
  __device__ __forceinline__ bool exists(const Share& share, uint32_t group) const {
    return group * kGroupData + line_offset() < share.bytes;
  }

  __device__ __forceinline__ uint32_t port_of(TwoShotEnd end, uint32_t peer) const {
    return static_cast<uint32_t>(end) * image_.peers + peer;
  }
  __device__ __forceinline__ Lines lines_of(TwoShotEnd end, uint32_t peer, uint32_t round) const {
    // Looked up anew each time: kept in registers, the lines of all peers would take too many.
    const TwoShotPort port = ports_.ports[ptx::opaque(port_of(end, peer))];
    const uint64_t step = port.base + round;
    const uint32_t slot = static_cast<uint32_t>(step) & (header_.shape.depth - 1);
    return {port.slots + (slot * header_.shape.slot_bytes + lane() * kLinePart),
            ll128::flag_of(step, work_.tag)};
  }
  __device__ __forceinline__ static std::byte* at_group(const Lines& lines, uint32_t group) {
    return lines.slot + size_t{group * kGroupBytes};
  }

  /// The warp's i-th peer. Every warp begins with another, so that those of a CTA address all
  /// peers at once.
  __device__ __forceinline__ uint32_t peer_of_turn(uint32_t i) const {
    const uint32_t peer = i + warp() - (warp() * image_.reciprocal >> 16) * image_.peers;
    return peer < image_.peers ? peer : peer - image_.peers;
  }

  // ---- the user's memory

  /// Are there groups up to `last` that are not aligned to granules, or whose end is not? The same
  /// for all threads of a warp.
  __device__ __forceinline__ bool needs_pieces(const Share& share, uint32_t last) const {
    if constexpr (sizeof(Element) >= kGranule) return false;
    return work_.width < kGranule ||
           (share.bytes % kGranule != 0 && share.bytes < (last + 1) * kGroupData);
  }
  /// Bytes of a share that lie behind `at` bytes of it.
  __device__ __forceinline__ static uint32_t left_of(const Share& share, uint32_t at) {
    return at < share.bytes ? share.bytes - at : 0;
  }

  /// The thread's part of a group; with care, wherever the group begins and ends.
  __device__ __forceinline__ Words load_input(const Share& share, uint32_t group) const {
    const std::byte* part = work_.input + share.at + size_t{group * kGroupData};
    const uint32_t at = group * kGroupData + offset();
    Words words{0, 0};
    if (at < share.bytes) words.first = ptx::load<uint64_t>(part);
    if (at + kGranule < share.bytes && !has_flag()) {
      words.second = ptx::load<uint64_t>(part + kGranule);
    }
    return words;
  }
  __device__ __forceinline__ Words load_input_with_care(const Share& share, uint32_t group) const {
    const uint32_t at = group * kGroupData + offset();
    const uint32_t most = has_flag() ? kGranule : 2 * kGranule;
    const uint32_t left = left_of(share, at);
    return load_pair<Element>(work_.input + share.at + size_t{group * kGroupData},
                              left < most ? left : most);
  }
  __device__ __forceinline__ void store_output(const Share& share, uint32_t group,
                                               const Words& words, bool needs_care) const {
    std::byte* part = work_.output + share.at + size_t{group * kGroupData};
    const uint32_t at = group * kGroupData + offset();
    if constexpr (sizeof(Element) < kGranule) {
      if (needs_care) {
        return store_row_part<Element>(part, words, has_flag() ? 1 : 2, left_of(share, at));
      }
    }
    if (at < share.bytes) ptx::store<uint64_t>(part, words.first);
    if (at + kGranule < share.bytes && !has_flag()) {
      ptx::store<uint64_t>(part + kGranule, words.second);
    }
  }

  // ---- start

  /// Takes up the ports where the last operation left them, as start_port() of the interpreter
  /// does. Each warp has some of them: their tasks are parameters, which a warp reads one after the
  /// other when its threads ask for different ones. All threads of the CTA; ends with a barrier.
  __device__ __forceinline__ void start() const {
    const uint32_t p = warp() + lane() * warps();
    if (p < kTwoShotEnds * image_.peers) {
      const PortTask& task = image_.ports[p];
      ControlBlock* control = task.control + ptx::replica();
      auto* step = reinterpret_cast<std::byte*>(&control->step);
      const uint64_t base = ptx::load<uint64_t>(step);
      // [credit] pairs with the receiver's [resume] and [consume]; a receiver has no use for it.
      // Relaxed: the stores that depend on it are not made before its value is known.
      ports_.credit[p] = ptx::load_relaxed_system(&control->remote);
      ports_.ports[p] = {task.slots + header_.shape.slot_offset(ptx::replica(), 0), base};
      // Nobody reads the step before the next kernel.
      ptx::store<uint64_t>(step, base + work_.partition.rounds);
      if (!(task.end & PortTask::kSendEnd)) {
        // [resume] the slots that earlier operations read. Relaxed: those reads were over when
        // their kernel ended.
        ptx::store_relaxed_system(&task.remote_control[ptx::replica()].remote, base);
      }
    }
    ptx::barrier_cta();
  }

  // ---- credit

  /// Waits until the slots of a round may be written, each thread for one peer's, all threads of
  /// the warp for each other. False: aborted, in all of them alike.
  __device__ __forceinline__ bool wait_for_credit(TwoShotEnd end, uint32_t round) const {
    const uint32_t port = port_of(end, lane());
    bool lacks = false;
    uint64_t step = 0;
    if (lane() < image_.peers) {
      step = ports_.ports[port].base + round;
      lacks = lacks_credit(step, ptx::load_relaxed_shared(&ports_.credit[port]));
    }
    for (Wait wait(header_, work_); ptx::any_of_warp(lacks);) {
      bool goes_on = true;
      if (lacks) {
        const PortTask& task = image_.ports[port];
        // [credit], as in start(). A copy to save others the look; whichever thread's copy stays is
        // true.
        const uint64_t credit = ptx::load_relaxed_system(&task.control[ptx::replica()].remote);
        ptx::store_relaxed_shared(&ports_.credit[port], credit);
        lacks = lacks_credit(step, credit);
        goes_on = wait.keep_going([&] { return Awaited{task.end & PortTask::kPeerMask}; });
      }
      if (ptx::any_of_warp(!goes_on)) return false;
    }
    return true;
  }
  __device__ __forceinline__ bool lacks_credit(uint64_t step, uint64_t credit) const {
    return static_cast<int64_t>(step - credit) >= static_cast<int64_t>(header_.shape.depth);
  }

  /// Gives back what a stage has read, where the sender can need it in this operation. All threads
  /// of the CTA, also those that saw an abort.
  __device__ __forceinline__ void give_credit(uint32_t stage) const {
    const uint32_t needed = work_.partition.rounds - header_.shape.depth;  // the first so many
    const uint32_t oldest = stage >= 2 ? stage - 2 : 0;                    // round that was read
    if (stage == 0 || oldest >= needed) return;
    ptx::barrier_cta();
    const uint32_t p = warp() + lane() * warps();
    const uint32_t operands = port_of(TwoShotEnd::Operand, 0);
    const uint32_t gathers = port_of(TwoShotEnd::Gather, 0);
    const bool is_operand = p >= operands && p < operands + image_.peers;
    const bool is_gather = p >= gathers && p < gathers + image_.peers && stage >= 2;
    const uint32_t round = is_operand ? stage - 1 : stage - 2;
    if (!live_ || !(is_operand || is_gather) || round >= needed) return;
    // [consume] all threads have used what they read before they came to the barrier. Relaxed: a
    // store cannot pass a load whose value has been used.
    ptx::store_relaxed_system(&image_.ports[p].remote_control[ptx::replica()].remote,
                              ports_.ports[p].base + round + 1);
  }

  /// What the phases know of the thread is computed anew in each: kept over all of them, it would
  /// take registers that each wants for itself.
  __device__ __forceinline__ void begin_phase() {
    lane_ = ptx::opaque(lane_);
    warp_ = ptx::opaque(warp_);
  }

  // ---- push

  /// All threads of the CTA. The first loads are on their way while the ports are taken up.
  __device__ __forceinline__ void push(uint32_t number) {
    begin_phase();
    const Round round = round_of(number);
    const uint32_t groups = groups_of(round.bytes);
    bool is_first = true;
#pragma unroll 1
    for (uint32_t turn = 0; turn < image_.peers; turn += kPeersInFlight) {
      Share shares[kPeersInFlight];
      bool needs_care = false;
#pragma unroll
      for (uint32_t i = 0; i < kPeersInFlight; ++i) {
        shares[i] = {0, 0};
        if (turn + i >= image_.peers) continue;
        shares[i] = share_of(image_.pushed[peer_of_turn(turn + i)], round);
        needs_care = needs_care || needs_pieces(shares[i], groups);
      }
      uint32_t group = warp();
#pragma unroll 1
      do {
        Words words[kRows][kPeersInFlight] = {};  // set: see simple_pieces()
        // No branch within: what a branch stands between waits for each other.
        const auto load_rows = [&](auto&& load) {
#pragma unroll
          for (uint32_t k = 0; k < kRows; ++k) {
#pragma unroll
            for (uint32_t i = 0; i < kPeersInFlight; ++i) {
              words[k][i] = load(shares[i], group + k * warps());
            }
          }
        };
        if (sizeof(Element) < kGranule && needs_care) {
          load_rows(
              [&](const Share& share, uint32_t at) { return load_input_with_care(share, at); });
        } else {
          load_rows([&](const Share& share, uint32_t at) { return load_input(share, at); });
        }
        if (is_first) {
          if (number == 0) start();
          live_ = live_ && wait_for_credit(TwoShotEnd::Push, number);
          is_first = false;
        }
        if (!live_) return;
        ptx::barrier_warp();  // together again after local accesses of different widths
#pragma unroll
        for (uint32_t i = 0; i < kPeersInFlight; ++i) {
          if (turn + i >= image_.peers) continue;
          const Lines lines = lines_of(TwoShotEnd::Push, peer_of_turn(turn + i), number);
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

  // ---- fold

  __device__ __forceinline__ void fold(uint32_t number) {
    begin_phase();
    const Share share = share_of(image_.own, round_of(number));
    const uint32_t groups = groups_of(share.bytes);
    live_ = live_ && wait_for_credit(TwoShotEnd::Result, number);
    const bool needs_care = needs_pieces(share, groups);
#pragma unroll 1
    for (uint32_t group = warp(); live_ && group < groups; group += warps()) {
      // What is to be done when it takes long stands here, once, and not in the waits themselves.
      for (Wait wait(header_, work_); live_ && !try_fold(number, share, group, needs_care);) {
        Awaited awaited{peer_of(TwoShotEnd::Operand, 0)};
#pragma unroll 1
        for (uint32_t p = 0; p < image_.peers; ++p) {
          look_for(TwoShotEnd::Operand, p, number, share, group, /*rows=*/1, awaited);
        }
        live_ = !ptx::any_of_warp(!wait.look(awaited, kPasses));
      }
    }
  }

  /// False when lines were missing after kPasses looks. Nothing is stored before all have arrived:
  /// in place, a second try reads the input anew. All threads of the warp alike.
  __device__ __forceinline__ bool try_fold(uint32_t number, const Share& share, uint32_t group,
                                           bool needs_care) const {
    // In fold order: the own operand has a place among the peers'.
    Words words[kMostPeers + 1] = {};
    const uint32_t own = image_.source_position;
    const bool is_there = exists(share, group);
    const auto each_peer = [&](auto&& function) {
#pragma unroll
      for (uint32_t o = 0; o <= kMostPeers; ++o) {
        if (o > image_.peers || o == own) continue;
        function(words[o], lines_of(TwoShotEnd::Operand, o - (o > own), number));
      }
    };

    const Words local = sizeof(Element) < kGranule && needs_care
                            ? load_input_with_care(share, group)
                            : load_input(share, group);
    ptx::barrier_warp();  // as in push()
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

    const Words result{fold_operands(words, [](const Words& operand) { return operand.first; }),
                       fold_operands(words, [](const Words& operand) { return operand.second; })};
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= image_.peers) continue;
      const Lines lines = lines_of(TwoShotEnd::Result, p, number);
      if (!is_there) continue;
      ptx::store_line_part(at_group(lines, group),
                           {result.first, has_flag() ? lines.flag : result.second});
    }
    store_output(share, group, result, needs_care);
    ptx::barrier_warp();
    return true;
  }

  /// A granule of the result.
  template <typename Half>
  __device__ __forceinline__ uint64_t fold_operands(const Words (&operands)[kMostPeers + 1],
                                                    Half&& half) const {
    typename Operation::Values values = Operation::widen(half(operands[0]));
#pragma unroll
    for (uint32_t o = 1; o <= kMostPeers; ++o) {
      if (o <= image_.peers) Operation::accumulate(values, Operation::widen(half(operands[o])));
    }
    return Operation::finish(header_, values, (header_.flags & kScalesResult) != 0);
  }

  // ---- gather

  __device__ __forceinline__ void gather(uint32_t number) {
    begin_phase();
    const Round round = round_of(number);
    const uint32_t groups = groups_of(round.bytes);
#pragma unroll 1
    for (uint32_t turn = 0; turn < image_.peers; turn += kPeersInFlight) {
      Share shares[kPeersInFlight];
      bool needs_care = false;
#pragma unroll
      for (uint32_t i = 0; i < kPeersInFlight; ++i) {
        shares[i] = {0, 0};
        if (turn + i >= image_.peers) continue;
        shares[i] = share_of(image_.gathered[peer_of_turn(turn + i)], round);
        needs_care = needs_care || needs_pieces(shares[i], groups);
      }
#pragma unroll 1
      for (uint32_t group = warp(); live_ && group < groups; group += kRows * warps()) {
        for (Wait wait(header_, work_);
             live_ && !try_gather(number, turn, shares, group, needs_care);) {
          Awaited awaited{peer_of(TwoShotEnd::Gather, peer_of_turn(turn))};
#pragma unroll 1
          for (uint32_t i = turn; i < turn + kPeersInFlight && i < image_.peers; ++i) {
            const uint32_t peer = peer_of_turn(i);
            look_for(TwoShotEnd::Gather, peer, number, share_of(image_.gathered[peer], round),
                     group, kRows, awaited);
          }
          live_ = !ptx::any_of_warp(!wait.look(awaited, kPasses));
        }
      }
    }
  }

  /// As try_fold(), for the peers of kPeersInFlight turns.
  __device__ __forceinline__ bool try_gather(uint32_t number, uint32_t turn,
                                             const Share (&shares)[kPeersInFlight], uint32_t group,
                                             bool needs_care) const {
    Words words[kRows][kPeersInFlight] = {};
    Lines lines[kPeersInFlight];
    const auto is_there = [&](uint32_t k, uint32_t i) {
      return exists(shares[i], group + k * warps());
    };
#pragma unroll
    for (uint32_t i = 0; i < kPeersInFlight; ++i) {
      if (turn + i >= image_.peers) continue;
      lines[i] = lines_of(TwoShotEnd::Gather, peer_of_turn(turn + i), number);
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
        if (turn + i >= image_.peers) continue;
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
      if (turn + i >= image_.peers) continue;
#pragma unroll
      for (uint32_t k = 0; k < kRows; ++k) {
        store_output(shares[i], group + k * warps(), words[k][i], needs_care);
      }
    }
    ptx::barrier_warp();
    return true;
  }

  // ---- long waits

  __device__ __forceinline__ uint32_t peer_of(TwoShotEnd end, uint32_t peer) const {
    return image_.ports[port_of(end, peer)].end & PortTask::kPeerMask;
  }

  /// Whether groups of a peer are missing still: then it is awaited, and with it another call's
  /// tag if that is what lies there. All threads of the warp.
  __device__ __forceinline__ void look_for(TwoShotEnd end, uint32_t peer, uint32_t number,
                                           const Share& share, uint32_t group, uint32_t rows,
                                           Awaited& awaited) const {
    const Lines lines = lines_of(end, peer, number);
#pragma unroll 1
    for (uint32_t k = 0; k < rows; ++k) {
      const uint32_t at = group + k * warps();
      const bool is_there = exists(share, at);
      Words words{};
      if (is_there) words = ptx::load_line_part(at_group(lines, at));
      const bool lacks = is_there && has_flag() && words.second != lines.flag;
      // A mismatch that was seen is told rather than a peer that is merely late.
      if (!ptx::any_of_warp(lacks) || awaited.other_tag != Awaited::kNoTag) continue;
      awaited.peer = peer_of(end, peer);
      if (lacks && ll128::is_mismatch(words.second, lines.flag)) {
        awaited.other_tag = tag::tag_in(words.second);
      }
    }
  }

  const LaunchHeader& header_;
  const WorkTask& work_;
  const TwoShotImage& image_;
  TwoShotPorts& ports_;
  uint32_t lane_ = ptx::thread() % kWarp;
  uint32_t warp_ = ptx::thread() / kWarp;
  bool live_ = true;  // false in a warp that saw an abort: it only meets the others at barriers
};

}  // namespace niccolite::executor::cuda

/// Defines the kernel niccolite_<name>; see NICCOLITE_KERNEL.
#define NICCOLITE_TWO_SHOT_KERNEL(name, Operation, kMostPeers)                               \
  extern "C" __global__ void __launch_bounds__(niccolite::executor::cuda::kMaxThreads, 1)    \
      niccolite_##name(const __grid_constant__ niccolite::executor::cuda::LaunchArgs args) { \
    niccolite::executor::cuda::mark_begin(args.header);                                      \
    niccolite::executor::cuda::TwoShot<Operation, kMostPeers>(args).run();                   \
    niccolite::executor::cuda::mark_end(args.header);                                        \
  }
