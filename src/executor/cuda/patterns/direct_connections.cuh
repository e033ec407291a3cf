// The connections of a task of direct.cuh: their counters, credit, and the addresses of a vec8's
// words. The interpreter uses the same counters (protocol/fifo.h), so that the two may follow each
// other on the same connections.
//
// Every thread loads the counters in its GPU's memory itself, which takes no barrier. The task's
// first warp loads counters in the host's memory for all others, through shared memory: a
// multiprocessor loads one word of the host's memory for one warp after the other, 16 of them in 17
// us, one in 1.2.
#pragma once

#include <type_traits>

#include "executor/cuda/interpreter/ll_step.cuh"
#include "executor/cuda/patterns/direct_args.h"

namespace niccolite::executor::cuda {

template <uint32_t kMostPeers, Counters kCounters = Counters::InGpu>
class DirectConnections {
  static constexpr bool kInHost = kCounters != Counters::InGpu;
  // The whole counters, from start() to advance(), where there are registers for them.
  static constexpr bool kKeepsCounters = kMostPeers <= kFewDirectPeers;
  using Counter = std::conditional_t<kKeepsCounters, uint64_t, uint32_t>;

 public:
  using Task = DirectTask<kMostPeers>;

  __device__ __forceinline__ DirectConnections(const LaunchHeader& header, const Task& task,
                                               const WorkerThreads& threads, uint32_t channel)
      : header_(header), task_(task), threads_(threads), channel_(channel) {}

  /// The counters of all connections when the operation begins.
  struct Loaded {
    Counter sent[kMostPeers];
    Counter received[kMostPeers];
    uint32_t credit[kMostPeers];
  };

  /// Loads the counters, all at once: nothing waits for one before the last is on its way. Whoever
  /// calls it has other loads to issue before start(). Every address is read from the parameters
  /// before the first is used: a warp that reads them one by one waits for each.
  __device__ __forceinline__ Loaded load() {
    Loaded loaded{};
    if constexpr (kInHost) return loaded;
    uint64_t sending[kMostPeers];
    uint64_t receiving[kMostPeers];
    const uint32_t sends = ptx::opaque(task_.sends);
    const uint32_t receives = ptx::opaque(task_.receives);
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      sending[p] = ptx::opaque(reinterpret_cast<uint64_t>(task_.send[p].port.control));
      receiving[p] = ptx::opaque(reinterpret_cast<uint64_t>(task_.receive[p].port.control));
    }
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      const auto* control = reinterpret_cast<const ControlBlock*>(sending[p]) + channel_;
      if (p >= sends) continue;
      loaded.sent[p] = ptx::load<Counter>(reinterpret_cast<const std::byte*>(&control->step));
      // [credit] pairs with the receiver's [resume] and [consume]. Relaxed: the stores that depend
      // on it are not made before its value is known.
      loaded.credit[p] = static_cast<uint32_t>(ptx::load_relaxed_system(&control->remote));
    }
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      const auto* control = reinterpret_cast<const ControlBlock*>(receiving[p]) + channel_;
      if (p >= receives) continue;
      loaded.received[p] = ptx::load<Counter>(reinterpret_cast<const std::byte*>(&control->step));
    }
    if (!kKeepsCounters && threads_.rank < receives) {
      received_ = ptx::load<uint64_t>(step_at(own_receive()));
    }
    return loaded;
  }

  /// Takes the counters up that load() has returned, and gives back the slots that earlier
  /// operations read. `first_step`: Turn's.
  __device__ __forceinline__ void start(Loaded loaded, uint32_t first_step = 0) {
    static_assert(kKeepsCounters || !kInHost, "all threads have whole counters");
    if constexpr (kInHost) load_shared(loaded);
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      send_step_[p] = static_cast<uint32_t>(loaded.sent[p]) + first_step;
      receive_step_[p] = static_cast<uint32_t>(loaded.received[p]) + first_step;
      // Opaque: the compiler would make an index of it, and memory of the arrays.
      if (kKeepsCounters && p == ptx::opaque(threads_.rank)) {
        sent_ = loaded.sent[p];
        received_ = loaded.received[p];
      }
    }
    if (threads_.rank < task_.receives) {
      // [resume] before anything waits for the credit that the peers give in the same way. Relaxed:
      // those reads were over when their kernel ended.
      ptx::store_relaxed_system(&own_receive().remote_control[channel_].remote, received_);
    }
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p < task_.sends) add_credit(send_step_[p], loaded.credit[p]);
    }
  }

  /// Does the task take turns on its connection? Those that do start together: before any of them
  /// advances, all have started.
  __device__ __forceinline__ bool takes_turns() const {
    return kMayTakeTurns && (header_.flags & kTakesTurns) != 0;
  }

  /// Advances the counters by `rounds`; called by all threads of the task, which have met since
  /// start(). The steps of this operation do not change.
  __device__ __forceinline__ void advance(uint32_t rounds) const {
    const auto store = [&](const PortTask& port, uint64_t kept) {
      if (kMayTakeTurns && (port.end & PortTask::kFollowed) != 0) return;
      std::byte* step = step_at(port);
      ptx::store<uint64_t>(step, (kKeepsCounters ? kept : ptx::load<uint64_t>(step)) + rounds);
    };
    if (threads_.rank < task_.sends) store(own_send(), sent_);
    if (threads_.rank < task_.receives) store(own_receive(), received_);
  }

  /// Waits until all peers have room for the slots of `round`, of the call with `tag`; false:
  /// aborted. The counters loaded at the start hold the credit of depth slots ago at least, which
  /// is nearly always enough.
  __device__ __forceinline__ bool wait_for_credit(uint32_t round, const uint16_t& tag) {
    if (static_cast<int32_t>(round) < rounds_with_credit_) [[likely]]
      return true;
    return wait_for_more_credit(round, tag);
  }

  /// OfProxies: gives proxies the notes of the sent words. Called by all threads of the task after
  /// each has seen the credit for `round`. One thread serves each peer.
  __device__ __forceinline__ void note(uint32_t round, uint32_t bytes, uint16_t tag) const {
    static_assert(kCounters == Counters::OfProxies);
    if (threads_.rank >= task_.sends || (own_send().end & PortTask::kRelay) == 0) return;
    note_words(header_.shape, own_send().remote_control + channel_,
               find_send_step(threads_.rank) + round, bytes, tag);
  }

  /// Gives back the slots of `round`, which the calling thread and all others of the task have
  /// read: they have met since. Only where there are more rounds than a FIFO has slots.
  __device__ __forceinline__ void give_credit(uint32_t round, uint32_t rounds) const {
    if (round + header_.shape.depth >= rounds || threads_.rank >= task_.receives) return;
    // The counter of the operation's end, which advance() has stored by now.
    const uint64_t end = ptx::load<uint64_t>(step_at(own_receive()));
    // [consume] all threads have used the words they read before they came to the barrier. Relaxed:
    // a store cannot pass a load whose value has been used.
    ptx::store_relaxed_system(&own_receive().remote_control[channel_].remote,
                              end - rounds + round + 1);
  }

  /// OfProxies, all threads of the task, after the last round: gives proxies back all slots, which
  /// peers a round trip away would wait for (protocol/relay.h).
  __device__ __forceinline__ void give_all_credit(uint32_t rounds, bool live) const {
    static_assert(kCounters == Counters::OfProxies);
    bool is_any_relayed = false;
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p < task_.receives) {
        is_any_relayed |= (task_.receive[p].port.end & PortTask::kRelay) != 0;
      }
    }
    // Equal for all threads. Messages that take turns are read in any order.
    if (!is_any_relayed || takes_turns()) return;
    threads_.barrier();
    if (!live || threads_.rank >= task_.receives) return;
    if ((own_receive().end & PortTask::kRelay) == 0) return;
    // [consume], as in give_credit().
    ptx::store_relaxed_system(&own_receive().remote_control[channel_].remote, received_ + rounds);
  }

  // ---- steps of round 0, their low halves. The peer is known when this is compiled, or else is
  // looked for: an index would put the steps into memory.
  __device__ __forceinline__ uint32_t send_step(uint32_t peer) const { return send_step_[peer]; }
  __device__ __forceinline__ uint32_t receive_step(uint32_t peer) const {
    return receive_step_[peer];
  }
  __device__ __forceinline__ uint32_t find_send_step(uint32_t peer) const {
    return find(send_step_, peer);
  }
  __device__ __forceinline__ uint32_t find_receive_step(uint32_t peer) const {
    return find(receive_step_, peer);
  }

  // ---- addresses

  /// Returns the offset of vec8 g in the slot of step 0, from the start of the slots. Opaque: the
  /// addresses of all peers, computed ahead of a loop, take more registers than there are.
  __device__ __forceinline__ uint64_t in_slots(uint32_t g) const {
    return ptx::opaque(header_.shape.slot_offset(channel_, 0) + g * kVec8InSlot);
  }
  __device__ __forceinline__ std::byte* words_at(const PortTask& port, uint32_t step,
                                                 uint64_t in_slots) const {
    const uint32_t slot = step & (header_.shape.depth - 1);
    return port.slots + (in_slots + uint64_t{slot} * header_.shape.slot_bytes);
  }

  __device__ __forceinline__ static uint32_t peer_of(const PortTask& port) {
    return port.end & PortTask::kPeerMask;
  }

 private:
  static constexpr int32_t kAllRounds = 0x7fffffff;
  static constexpr bool kMayTakeTurns = kMostPeers == 1;  // messages
  __device__ __forceinline__ ControlBlock* control_of(const PortTask& port) const {
    return port.control + channel_;
  }
  __device__ __forceinline__ std::byte* step_at(const PortTask& port) const {
    return reinterpret_cast<std::byte*>(&control_of(port)->step);
  }
  // The port of the calling thread: the first threads do the work that is due once for each peer.
  __device__ __forceinline__ const PortTask& own_send() const {
    return task_.send[threads_.rank].port;
  }
  __device__ __forceinline__ const PortTask& own_receive() const {
    return task_.receive[threads_.rank].port;
  }
  __device__ __forceinline__ static uint32_t find(const uint32_t (&steps)[kMostPeers],
                                                  uint32_t peer) {
    uint32_t step = 0;
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p == peer) step = steps[p];
    }
    return step;
  }

  __device__ __forceinline__ void add_credit(uint32_t first_step, uint32_t credit) {
    const auto rounds = static_cast<int32_t>(credit + header_.shape.depth - first_step);
    if (rounds < rounds_with_credit_) rounds_with_credit_ = rounds;
  }
  __device__ __forceinline__ bool wait_for_more_credit(uint32_t round, const uint16_t& tag) {
    rounds_with_credit_ = kAllRounds;
#pragma unroll 1
    for (uint32_t p = 0; p < task_.sends; ++p) {
      const uint32_t step = find_send_step(p);
      const PortTask& port = task_.send[p].port;
      for (Wait wait(header_, tag);;) {
        const uint32_t credit = look_at_credit(p);
        if (static_cast<int32_t>(step + round - credit) <
            static_cast<int32_t>(header_.shape.depth)) {
          add_credit(step, credit);
          break;
        }
        if (!wait.keep_going([&] { return Awaited{peer_of(port)}; })) return false;
      }
    }
    return true;
  }

  __device__ __forceinline__ uint32_t look_at_credit(uint32_t peer) const {
    if constexpr (kInHost) {
      uint64_t& copy = in_shared().credit[peer];
      if (threads_.rank >= kWarp) {
        uint64_t credit = 0;
        for (uint32_t look = 0; look < ptx::kSharedLooksPerSpin; ++look) {
          credit = ptx::load_acquire_shared(&copy);
        }
        return static_cast<uint32_t>(credit);
      }
      // [credit], as in start().
      const uint64_t credit = ptx::load_relaxed_system(&control_of(task_.send[peer].port)->remote);
      if (threads_.rank == 0) ptx::store_release_shared(&copy, credit);
      return static_cast<uint32_t>(credit);
    }
    // [credit], as in start().
    return static_cast<uint32_t>(
        ptx::load_relaxed_system(&control_of(task_.send[peer].port)->remote));
  }

  // ---- kInHost

  /// The task's shared memory: messages have an entry for each warp that may be the first of one.
  __device__ __forceinline__ HostCounters<kMostPeers>& in_shared() const {
    const uint32_t first_warp = (ptx::thread() - threads_.rank) / kWarp;
    return reinterpret_cast<HostCounters<kMostPeers>*>(ptx::shared_memory())[first_warp];
  }
  /// Called by all threads of the task. All loads are issued before the first value is stored: a
  /// store holds up later instructions until its value is there, which takes 1.2 us.
  __device__ __forceinline__ void share_counters() const {
    const uint32_t peer = threads_.rank;
    const bool sends = peer < task_.sends;
    const bool receives = peer < task_.receives;
    uint64_t sent = 0, credit = 0, received = 0;
    if (sends) {
      const PortTask& port = task_.send[peer].port;
      sent = ptx::load<uint64_t>(step_at(port));
      // [credit], as in start().
      credit = ptx::load_relaxed_system(&control_of(port)->remote);
    }
    if (receives) received = ptx::load<uint64_t>(step_at(task_.receive[peer].port));
    if (sends) {
      in_shared().sent[peer] = sent;
      in_shared().credit[peer] = credit;
    }
    if (receives) in_shared().received[peer] = received;
    threads_.barrier();
  }
  __device__ __forceinline__ void load_shared(Loaded& loaded) const {
    share_counters();
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      const bool sends = p < task_.sends;
      loaded.sent[p] = sends ? in_shared().sent[p] : 0;
      loaded.credit[p] = sends ? static_cast<uint32_t>(in_shared().credit[p]) : 0;
      loaded.received[p] = p < task_.receives ? in_shared().received[p] : 0;
    }
  }

  const LaunchHeader& header_;
  const Task& task_;
  const WorkerThreads threads_;
  const uint32_t channel_;
  // The low halves of the 64-bit counters: slots, flags and differences need no more, and a thread
  // has registers for these.
  uint32_t send_step_[kMostPeers];
  uint32_t receive_step_[kMostPeers];
  uint64_t sent_ = 0;  // whole, of the peers that the thread does things for once
  uint64_t received_ = 0;
  int32_t rounds_with_credit_ = kAllRounds;
};

/// The slots of few peers, from the 16 bytes of number `unit` on. Found best while loads are on
/// their way.
template <uint32_t kMostPeers>
class DirectSlots {
 public:
  static_assert(kMostPeers <= kFewDirectPeers, "they would take too many registers");

  __device__ __forceinline__ DirectSlots(const LaunchHeader& header,
                                         const DirectTask<kMostPeers>& task, uint32_t channel,
                                         uint32_t unit)
      : shape_(header.shape) {
    const uint64_t at = shape_.slot_offset(channel, 0) + unit * kVec8InSlot;
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      send_[p] = ptx::opaque(reinterpret_cast<uint64_t>(task.send[p].port.slots)) + at;
      receive_[p] = ptx::opaque(reinterpret_cast<uint64_t>(task.receive[p].port.slots)) + at;
    }
  }
  __device__ __forceinline__ std::byte* send(uint32_t peer, uint64_t step) const {
    return reinterpret_cast<std::byte*>(send_[peer] + of_step(step));
  }
  __device__ __forceinline__ const std::byte* receive(uint32_t peer, uint64_t step) const {
    return reinterpret_cast<const std::byte*>(receive_[peer] + of_step(step));
  }

 private:
  __device__ __forceinline__ uint32_t of_step(uint64_t step) const {
    return (static_cast<uint32_t>(step) & (shape_.depth - 1)) * shape_.slot_bytes;
  }

  const FifoShape& shape_;
  uint64_t send_[kMostPeers];
  uint64_t receive_[kMostPeers];
};

}  // namespace niccolite::executor::cuda
