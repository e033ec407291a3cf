// A hand-written kernel for reductions of one step and one round by LL128, among a few ranks: every
// rank sends blocks of its input straight to others and reduces the blocks that it receives. It is
// direct.cuh for more data: lines instead of words. The interpreter runs the same programs, and
// tests/device compares the two.
//
//   parameters -> { counters, first groups of the input } -> store to peers -> barrier
//              -> poll own slots -> reduce -> store
//
// Instructions bound this kernel: a warp has one group (line_groups.cuh) of each peer under way,
// and what does not depend on the group is found before the loops. Group g of every block belongs
// to warp g % warps, for sending and for receiving: in place, a warp reads its input before it
// stores the result. Longer operations, of several rounds, are the interpreter's, which has more
// groups of a warp under way.
//
// Launch shape: grid (replicas, 1), up to kMaxThreads threads, no shared memory.
#pragma once

#include "executor/cuda/patterns/direct_connections.cuh"
#include "executor/cuda/patterns/direct_data.cuh"
#include "executor/cuda/patterns/line_groups.cuh"

namespace niccolite::executor::cuda {

template <typename Operation, uint32_t kMostPeers>
class DirectLines : private LineThread {
 public:
  __device__ __forceinline__ DirectLines(const LaunchHeader& header, const WorkTask& work,
                                         const OneStepParams<kMostPeers>& params,
                                         const WorkerThreads& threads, uint32_t channel)
      : header_(header),
        work_(work),
        task_(params.task),
        cut_(params.cut),
        threads_(threads),
        channel_(channel),
        connections_(header, params.task, threads, channel),
        loaded_(connections_.load()),
        slots_(header, params.task, channel, lane()) {}

  /// Called by all threads of the CTA.
  __device__ __forceinline__ void run() {
    const uint64_t start = channel_ * cut_.channel;
    const uint64_t left = start < cut_.block ? cut_.block - start : 0;
    const Share share{start + offset(),
                      left < cut_.chunk ? static_cast<uint32_t>(left) : cut_.chunk};
    if (Memory::needs_pieces(work_.width, share.bytes, groups_of(share.bytes))) {
      run<true>(share);
    } else {
      run<false>(share);
    }
  }

 private:
  using Element = typename Operation::Element;
  using Memory = LineMemory<Element>;

  /// Looks at all lines of a group before a wait is a long one.
  static constexpr uint32_t kPasses = Wait::kSpinsPerLook / 4;

  /// The place of the thread's part of a slot's first group, and the flag of its lines.
  struct Lines {
    const std::byte* slot;
    uint64_t flag;
  };
  /// The CTA's share of every block: all have one length.
  struct Share {
    uint64_t at;  // the thread's part of the first group, from the start of a block
    uint32_t bytes;
  };

  /// kWithCare: LineMemory::needs_pieces().
  template <bool kWithCare>
  __device__ __forceinline__ void run(const Share& share) {
    send<kWithCare>(share);
    threads_.barrier();
    connections_.advance(/*rounds=*/1);
    receive<kWithCare>(share);
  }

  /// Loads the thread's part of a group, of a block that lies there. All threads of the warp.
  template <bool kWithCare>
  __device__ __forceinline__ Words load(const std::byte* block, const Share& share,
                                        uint32_t group) const {
    if constexpr (kWithCare)
      return Memory::load_around(*this, block, share.bytes, group).pair(block);
    return Memory::load(*this, block, share.bytes, group);
  }
  // ---- send

  /// The first loads are on their way before the counters are waited for.
  template <bool kWithCare>
  __device__ __forceinline__ void send(const Share& share) {
    const uint32_t sends = task_.sends;
    const uint32_t groups = groups_of(share.bytes);
    const std::byte* blocks[kMostPeers];
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p)
      blocks[p] = work_.input + task_.send[p].block_at + share.at;
    const auto load_all = [&](uint32_t group, Words(&words)[kMostPeers]) {
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p >= sends) continue;
        if (p > 0 && blocks[p] == blocks[0]) {
          words[p] = words[0];
        } else {
          words[p] = load<kWithCare>(blocks[p], share, group);
        }
      }
    };
    uint32_t group = warp();
    Words words[kMostPeers] = {};
    load_all(group, words);
    connections_.start(loaded_);
    live_ = !ptx::any_of_warp(!connections_.wait_for_credit(0, work_.tag));
    if (!live_) return;
    std::byte* slots[kMostPeers] = {};
    uint64_t flags[kMostPeers] = {};
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= sends) continue;
      const uint64_t step = loaded_.sent[p];
      slots[p] = slots_.send(p, step);
      flags[p] = ll128::flag_of(step, work_.tag);
    }
#pragma unroll 1
    while (group < groups) {
      ptx::barrier_warp();  // together again after local accesses of different widths
      if (line_exists(share.bytes, group)) {
#pragma unroll
        for (uint32_t p = 0; p < kMostPeers; ++p) {
          if (p >= sends) continue;
          ptx::store_line_part(slots[p] + group * kGroupBytes,
                               {words[p].first, has_flag() ? flags[p] : words[p].second});
        }
      }
      group += warps();
      if (group < groups) load_all(group, words);
    }
  }

  // ---- receive

  template <bool kWithCare>
  __device__ __forceinline__ void receive(const Share& share) {
    if (task_.receives == 0) return;
    const uint32_t groups = groups_of(share.bytes);
    Lines lines[kMostPeers] = {};
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= task_.receives) continue;
      const uint64_t step = loaded_.received[p];
      lines[p] = {slots_.receive(p, step), ll128::flag_of(step, work_.tag)};
    }
#pragma unroll 1
    for (uint32_t group = warp(); live_ && group < groups; group += warps()) {
      // The code for long waits stands here and not in the loop that waits.
      for (Wait wait(header_, work_); live_ && !try_receive<kWithCare>(lines, share, group);)
        live_ = !ptx::any_of_warp(!wait.look(first_missing(lines, share, group), kPasses));
    }
  }

  /// False when lines were missing after kPasses looks. Nothing is stored then: in place, the next
  /// try reads the input anew. All threads of the warp alike.
  template <bool kWithCare>
  __device__ __forceinline__ bool try_receive(const Lines (&lines)[kMostPeers], const Share& share,
                                              uint32_t group) const {
    const uint32_t receives = task_.receives;
    const bool is_there = line_exists(share.bytes, group);
    const Words own = load<kWithCare>(work_.input + task_.own_from + share.at, share, group);
    ptx::barrier_warp();  // as in send()
    Words words[kMostPeers] = {};
    bool is_missing = true;
#pragma unroll 1
    for (uint32_t passes = 0; is_missing; ++passes) {
      if (passes == kPasses) return false;
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p < receives && is_there)
          words[p] = ptx::load_line_part(lines[p].slot + group * kGroupBytes);
      }
      bool lacks = false;
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p)
        lacks |= p < receives && words[p].second != lines[p].flag;
      is_missing = ptx::any_of_warp(lacks && is_there && has_flag());
    }
    const Words result{reduce(own, words, [](const Words& operand) { return operand.first; }),
                       reduce(own, words, [](const Words& operand) { return operand.second; })};
    Memory::store(*this, work_.output + task_.own_to + share.at, share.bytes, group, result,
                  kWithCare);
    ptx::barrier_warp();
    return true;
  }

  template <typename Half>
  __device__ __forceinline__ uint64_t reduce(const Words& own, const Words (&words)[kMostPeers],
                                             Half&& half) const {
    return reduce_with_own<Operation>(header_, task_, half(own), words, half);
  }

  /// Whom the warp waits for, and another call's tag if that is what lies there; when all has
  /// arrived by now, the first peer. All threads of the warp.
  __device__ __forceinline__ Awaited first_missing(const Lines (&lines)[kMostPeers],
                                                   const Share& share, uint32_t group) const {
    Awaited awaited{connections_.peer_of(task_.receive[0].port)};
    const bool is_there = line_exists(share.bytes, group);
    bool is_found = false;
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= task_.receives) continue;
      Words words{};
      if (is_there) words = ptx::load_line_part(lines[p].slot + group * kGroupBytes);
      const bool lacks = is_there && has_flag() && words.second != lines[p].flag;
      if (!ptx::any_of_warp(lacks) || is_found) continue;
      is_found = true;
      awaited.peer = connections_.peer_of(task_.receive[p].port);
      if (lacks && ll128::is_mismatch(words.second, lines[p].flag))
        awaited.other_tag = call_tag::tag_in(words.second);
    }
    return awaited;
  }

  const LaunchHeader& header_;
  const WorkTask& work_;
  const DirectTask<kMostPeers>& task_;
  const BlockCut& cut_;
  const WorkerThreads threads_;
  const uint32_t channel_;
  static_assert(kVec8InSlot == kLinePart, "units of slots are those of words");
  DirectConnections<kMostPeers> connections_;
  const typename DirectConnections<kMostPeers>::Loaded loaded_;
  const DirectSlots<kMostPeers> slots_;
  bool live_ = true;  // false in a warp that saw an abort: it only meets the others at barriers
};

}  // namespace niccolite::executor::cuda
