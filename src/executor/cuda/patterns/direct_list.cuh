// A list over buffers that all ranks reach (executor/list_access.h): many collectives of a group in
// one launch, without a slot between input and output.
//
//   parameters -> { steps, credits, where the own buffers are }
//              -> tell peers where the own buffers are, and learn where theirs are
//              -> tiles: load from inputs, reduce, store to outputs -> fence
//              -> tell peers that it is done with their buffers
//              -> wait until they are done with the own ones
//
// Addresses are the first slot of the CTA's connections, by LL words: all of them at once, and one
// wait for a whole list. An address of 0 says that some rank does not see the buffer. Its operation
// then follows in slots of its own, one-shot.
//
// A rank that has told its addresses has advertised its buffers, and keeps to
// protocol/advertisement.h: an advertisement is taken by an exchange, and the credit of the first
// slot says that the taker is done. A rank that is aborted withdraws advertisements that nobody has
// taken, and otherwise waits for this credit, or for ControlBlock::detached. Between taking an
// advertisement and being done, a rank waits for advertisements only.
//
// Launch shape: grid (channels, 1), up to kMaxThreads threads, LaunchHeader::shared_bytes for
// ListView. The last threads of the last warp serve the peers, one thread each: the first threads
// have addresses to handle.
#pragma once

#include "executor/cuda/patterns/direct_list_slots.cuh"
#include "executor/cuda/patterns/direct_list_tiles.cuh"
#include "executor/protocol/advertisement.h"

namespace niccolite::executor::cuda {

template <typename Operation, uint32_t kMostPeers>
class DirectList {
 public:
  using ListParams = DirectListParams<kMostPeers>;

  __device__ __forceinline__ DirectList(const LaunchHeader& header, const ListParams& list)
      : header_(header),
        list_(list),
        threads_{ptx::thread(), ptx::threads(), static_cast<uint32_t>(Barrier::Cta)},
        view_(list, Operation::element_bytes(header)),
        connections_(header, list.task, threads_, ptx::replica()) {}

  /// Runs the list, by all threads of the CTA.
  __device__ __forceinline__ void run() {
    tell_addresses();
    if (live_) learn_addresses();
    uint32_t rounds = 1;
    if (ptx::any_of_cta(!live_ || sees_hidden_)) [[unlikely]] {
      if (ptx::any_of_cta(!live_)) return leave();
      rounds += slots().rounds();
    }
    connections_.advance(rounds);
    ListTiles<Operation, kMostPeers>(header_, view_).move();
    threads_.barrier();
    let_peers_go();
    if (rounds > 1) slots().move(rounds);
    await_peers();
    if (ptx::any_of_cta(!live_)) leave();
  }

 private:
  using View = ListView<kMostPeers>;

  // Made anew for each use: an object that refers to itself would lie in memory.
  __device__ __forceinline__ ListSlots<Operation, kMostPeers> slots() {
    return {header_, list_, view_, threads_, connections_, live_};
  }

  // ---- the work of one thread for each peer

  __device__ __forceinline__ uint32_t peer_slot() const {
    return threads_.size - 1 - threads_.rank;
  }
  __device__ __forceinline__ bool has_peer() const { return peer_slot() < list_.task.sends; }
  __device__ __forceinline__ const PortTask& send_port() const {
    return list_.task.send[peer_slot()].port;
  }
  __device__ __forceinline__ const PortTask& receive_port() const {
    return list_.task.receive[peer_slot()].port;
  }

  // ---- addresses

  __device__ __forceinline__ uint32_t addresses() const {
    return 2 * (view_.end_of_works() - view_.first_work());
  }

  // Finds what can be told while the counters are on their way.
  __device__ __forceinline__ void tell_addresses() {
    const auto loaded = connections_.load();
    if (has_peer()) {
      send_base_ = slots().counter_of(send_port());
      receive_base_ = slots().counter_of(receive_port());
    }
    const uint32_t vec8s = addresses();
    uint32_t g = threads_.rank;
#pragma unroll 1
    do {
      Told told{};
      if (g < vec8s) told = find_told(g);
      if (g == threads_.rank) {
        connections_.start(loaded);
        live_ = connections_.wait_for_credit(0, list_.work[view_.first_work()].tag);
        if (!live_) return;
      }
      if (g < vec8s) tell_address(g, told);
      g += threads_.size;
    } while (g < vec8s);
    if (has_peer()) {
      // [advertisement] pairs with [take] of the other end. Relaxed, and not ordered with the
      // addresses: whoever takes it has waited for those, too.
      ptx::store_relaxed_system(&send_port().remote_control[ptx::replica()].advertisement,
                                advertisement::of(0, list_.work[view_.first_work()].tag));
      has_advertised_ = true;
    }
  }

  __device__ __forceinline__ void learn_addresses() {
    const uint32_t vec8s = addresses();
#pragma unroll 1
    for (uint32_t p = 0; p < list_.task.sends; ++p)
      slots().clean(list_.task.send[p].port, connections_.find_send_step(p), vec8s,
                    list_.work[view_.first_work()].tag);
    for (uint32_t g = threads_.rank; live_ && g < vec8s; g += threads_.size) learn_address(g);
    if (live_ && has_peer()) take_advertisement();
  }

  /// An address as each peer is told it.
  struct Told {
    uint64_t seen[kMostPeers];
  };
  /// Vec8 g of the slot of addresses. Stores the own one, as this rank sees it.
  __device__ __forceinline__ Told find_told(uint32_t g) {
    const uint32_t work = view_.first_work() + g / 2;
    const bool is_output = g % 2 != 0;
    const DirectListWork& listed = list_.work[work];
    const uint64_t own = is_output ? reinterpret_cast<uint64_t>(listed.output)
                                   : reinterpret_cast<uint64_t>(listed.input);
    const uint64_t* shifts = is_output ? listed.output_shifts : listed.input_shifts;
    const bool is_open = (is_output ? listed.output_is_open : listed.input_is_open) != 0;
    const bool is_needed = view_.is_used(view_.rank(), is_output);
    Told told;
    bool is_hidden = false;
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      told.seen[p] = View::kUnneeded;
      if (p >= list_.task.sends || !is_needed) continue;
      const PortTask& port = list_.task.send[p].port;
      if (shifts == nullptr) {
        told.seen[p] = is_open && (port.end & PortTask::kOpens) != 0 ? own : 0;
      } else {
        // Written by the host before this kernel was queued.
        const uint32_t peer = DirectConnections<kMostPeers>::peer_of(port);
        told.seen[p] = advertisement::seen_by(
            ptx::load<uint64_t>(reinterpret_cast<const std::byte*>(shifts + peer)), own);
      }
      is_hidden |= told.seen[p] == 0;
    }
    sees_hidden_ |= is_hidden;
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p)
      if (is_hidden) told.seen[p] = 0;
    ptx::store_relaxed_shared(view_.address(view_.rank(), work, is_output),
                              !is_needed  ? uint64_t{View::kUnneeded}
                              : is_hidden ? 0
                                          : own);
    return told;
  }
  __device__ __forceinline__ void tell_address(uint32_t g, const Told& told) const {
    const uint16_t& tag = list_.work[view_.first_work() + g / 2].tag;
    const uint64_t in_slot = connections_.in_slots(g);
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= list_.task.sends) continue;
      const uint32_t step = connections_.send_step(p);
      ptx::store_words(connections_.words_at(list_.task.send[p].port, step, in_slot),
                       pack_words(told.seen[p], ll::flag_of(step, tag)));
    }
  }

  __device__ __forceinline__ void learn_address(uint32_t g) {
    const uint32_t work = view_.first_work() + g / 2;
#pragma unroll 1
    for (uint32_t p = 0; live_ && p < list_.task.receives; ++p) {
      const PortTask& port = list_.task.receive[p].port;
      const uint64_t seen =
          slots().await_vec8(port, connections_.find_receive_step(p), g, list_.work[work].tag);
      ptx::store_relaxed_shared(
          view_.address(DirectConnections<kMostPeers>::peer_of(port), work, g % 2 != 0), seen);
      sees_hidden_ |= seen == 0;
    }
  }

  __device__ __forceinline__ void take_advertisement() {
    const PortTask& port = receive_port();
    const uint16_t& tag = list_.work[view_.first_work()].tag;
    for (SimpleWait wait(header_, tag); live_;) {
      // [take] pairs with the [advertisement] of the other end, and makes this CTA's later loads
      // see everything that the other rank's stream has written before.
      const uint64_t word = ptx::exchange_acquire_system(
          &port.control[ptx::replica()].advertisement, advertisement::kNone);
      has_taken_ = word != advertisement::kNone && advertisement::tag_in(word) == tag;
      if (has_taken_) return;
      const uint32_t other =
          word == advertisement::kNone ? Awaited::kNoTag : advertisement::tag_in(word);
      live_ = wait.keep_going([&] {
        return Awaited{DirectConnections<kMostPeers>::peer_of(port), other};
      });
    }
  }

  // ---- the end

  /// Called behind a barrier of all threads, which are done with peers' buffers.
  __device__ __forceinline__ void let_peers_go() const {
    if (!has_peer()) return;
    ptx::fence_system();
    // [consume] The fence has come before. Pairs with await_peers() of the other end.
    ptx::store_relaxed_system(&receive_port().remote_control[ptx::replica()].remote,
                              receive_base_ + 1);
  }
  __device__ __forceinline__ bool is_let_go() const {
    // [credit] acquire: the peer's stores to this rank's outputs are there.
    const uint64_t credit = ptx::load_acquire_system(&send_port().control[ptx::replica()].remote);
    return static_cast<int64_t>(credit - send_base_) > 0;
  }
  __device__ __forceinline__ void await_peers() {
    if (!has_peer()) return;
    for (SimpleWait wait(header_, list_.work[view_.first_work()].tag); live_ && !is_let_go();) {
      live_ = wait.keep_going([&] {
        return Awaited{DirectConnections<kMostPeers>::peer_of(send_port()), Awaited::kNoTag,
                       ReportKind::WaitingForCredit};
      });
    }
  }

  // Called by all threads, which have met. It leaves as a taker first: other ranks wait for it.
  __device__ __forceinline__ void leave() const {
    if (threads_.rank / kWarp != threads_.size / kWarp - 1) return;
    if (has_peer() && has_taken_) {
      ptx::fence_system();
      // [detached] The fence has come before.
      ptx::store_relaxed_system(&receive_port().remote_control[ptx::replica()].detached,
                                receive_base_ + 1);
    }
    wait_for_end(header_);
    // Only now: this rank's own user frees nothing before.
    if (!has_peer() || !has_advertised_) return;
    if (ptx::exchange_acquire_system(&send_port().remote_control[ptx::replica()].advertisement,
                                     advertisement::kNone) != advertisement::kNone) {
      return;  // nobody has taken it, and nobody will
    }
    // Some seconds at most, and less than the host waits for its kernels: a peer that answers
    // neither way is no more.
    for (uint32_t looks = 0; looks < ptx::kSpinsPerReport && !is_let_go(); ++looks) {
      // Acquire, pairs with [detached].
      if (ptx::load_acquire_system(&send_port().control[ptx::replica()].detached) == send_base_ + 1)
        return;
    }
  }

  const LaunchHeader& header_;
  const ListParams& list_;
  const WorkerThreads threads_;
  const View view_;
  DirectConnections<kMostPeers> connections_;
  bool live_ = true;  // false in a thread that saw an abort: it only meets the others at barriers
  bool sees_hidden_ = false;  // an address of 0
  // State of a thread that has a peer.
  bool has_advertised_ = false;
  bool has_taken_ = false;
  uint64_t send_base_ = 0;  // the steps of the addresses
  uint64_t receive_base_ = 0;
};

}  // namespace niccolite::executor::cuda
