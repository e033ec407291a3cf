// The surroundings of a phase kernel (phase_kernel.cuh): the rounds and the CTA's share of blocks
// in them, the ends of its connections, credit. The interpreter has the same counters
// (protocol/fifo.h), so that the two may follow each other on the same connections.
#pragma once

#include "executor/cuda/patterns/line_groups.cuh"
#include "executor/cuda/patterns/phase_args.h"

namespace niccolite::executor::cuda {

/// The connections as the calling thread sees them.
class PhaseConnections : protected LineThread {
 public:
  __device__ __forceinline__ PhaseConnections(const LaunchArgs& args)
      : header_(args.header),
        work_(*work_tasks(args)),
        params_(*reinterpret_cast<const PhaseParams*>(args.tables + sizeof(WorkTask))),
        ports_(*reinterpret_cast<PhasePorts*>(ptx::shared_memory())) {}

 protected:
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
  /// The place of the thread's part of a slot's first group, and the flag of its lines.
  struct Lines {
    std::byte* slot;
    uint64_t flag;
  };

  // ---- where things are

  __device__ __forceinline__ Round round_of(uint32_t number, uint32_t element_bytes) const {
    const Partition& partition = work_.partition;
    return {number, partition.chunk * element_bytes,
            partition.start_of(ptx::replica(), number) * element_bytes};
  }
  __device__ __forceinline__ Share share_of(const PhaseBlock& block, const Round& round) const {
    const uint64_t left = block.bytes > round.at ? block.bytes - round.at : 0;
    return {block.at + round.at + offset(),
            left < round.bytes ? static_cast<uint32_t>(left) : round.bytes};
  }
  __device__ __forceinline__ bool exists(const Share& share, uint32_t group) const {
    return line_exists(share.bytes, group);
  }

  __device__ __forceinline__ uint32_t port_of(PhaseEnd end, uint32_t peer) const {
    return static_cast<uint32_t>(end) * params_.peers + peer;
  }
  __device__ __forceinline__ Lines lines_of(PhaseEnd end, uint32_t peer, uint32_t round) const {
    // Looked up anew each time: kept in registers, the lines of all peers would take too many.
    const PhasePort port = ports_.ports[ptx::opaque(port_of(end, peer))];
    const uint64_t step = port.base + round;
    const uint32_t slot = static_cast<uint32_t>(step) & (header_.shape.depth - 1);
    return {port.slots + (slot * header_.shape.slot_bytes + lane() * kLinePart),
            ll128::flag_of(step, work_.tag)};
  }
  __device__ __forceinline__ static std::byte* at_group(const Lines& lines, uint32_t group) {
    return lines.slot + size_t{group * kGroupBytes};
  }

  /// The warp's i-th peer of `peers`, whose reciprocal is given. Every warp begins with another
  /// peer, so that the warps of a CTA address all peers at once.
  __device__ __forceinline__ uint32_t peer_of_turn(uint32_t i, uint32_t peers,
                                                   uint32_t reciprocal) const {
    const uint32_t peer = i + warp() - (warp() * reciprocal >> 16) * peers;
    return peer < peers ? peer : peer - peers;
  }

  // ---- start

  /// Takes up the ports where the last operation left them, as start_port() of the interpreter
  /// does. Each warp has some of them: their tasks are parameters, which a warp reads one after the
  /// other when its threads ask for different ones. All threads of the CTA; ends with a barrier.
  __device__ __forceinline__ void start() const {
    const uint32_t p = warp() + lane() * warps();
    // Some kinds may have fewer.
    if (p < kPhaseEnds * params_.peers && params_.ports[p].control != nullptr) {
      const PortTask& task = params_.ports[p];
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
  __device__ __forceinline__ bool wait_for_credit(PhaseEnd end, uint32_t peers,
                                                  uint32_t round) const {
    const uint32_t port = port_of(end, lane());
    bool lacks = false;
    uint64_t step = 0;
    if (lane() < peers) {
      step = ports_.ports[port].base + round;
      lacks = lacks_credit(step, ptx::load_relaxed_shared(&ports_.credit[port]));
    }
    for (Wait wait(header_, work_); ptx::any_of_warp(lacks);) {
      bool goes_on = true;
      if (lacks) {
        const PortTask& task = params_.ports[port];
        // [credit], as in start(). The copy saves other threads the look; each thread's copy is
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

  /// Gives back the slots that a stage has read if the sender can need them in this operation. All
  /// threads of the CTA call it, also after they saw an abort.
  __device__ __forceinline__ void give_credit(uint32_t stage) const {
    const uint32_t needed = work_.partition.rounds - header_.shape.depth;  // the first so many
    const uint32_t oldest = stage >= 2 ? stage - 2 : 0;                    // round that was read
    if (stage == 0 || oldest >= needed) return;
    ptx::barrier_cta();
    const uint32_t p = warp() + lane() * warps();
    const uint32_t operands = port_of(PhaseEnd::Operand, 0);
    const uint32_t stores = port_of(PhaseEnd::Store, 0);
    const bool is_operand = p >= operands && p < operands + params_.operands;
    const bool is_store = p >= stores && p < stores + params_.stores && stage >= 2;
    const uint32_t round = is_operand ? stage - 1 : stage - 2;
    if (!live_ || !(is_operand || is_store) || round >= needed) return;
    // [consume] all threads have used the data that they read before they came to the barrier.
    // Relaxed: a store cannot pass a load whose value has been used.
    ptx::store_relaxed_system(&params_.ports[p].remote_control[ptx::replica()].remote,
                              ports_.ports[p].base + round + 1);
  }

  __device__ __forceinline__ uint32_t peer_of(PhaseEnd end, uint32_t peer) const {
    return params_.ports[port_of(end, peer)].end & PortTask::kPeerMask;
  }

  /// Whether groups of a peer are missing still: then it is awaited, and with it another call's
  /// tag if that is what lies there. All threads of the warp.
  __device__ __forceinline__ void look_for(PhaseEnd end, uint32_t peer, uint32_t number,
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
        awaited.other_tag = call_tag::tag_in(words.second);
      }
    }
  }

  const LaunchHeader& header_;
  const WorkTask& work_;
  const PhaseParams& params_;
  PhasePorts& ports_;
  bool live_ = true;  // false in a warp that saw an abort: it only meets the others at barriers
};

}  // namespace niccolite::executor::cuda
