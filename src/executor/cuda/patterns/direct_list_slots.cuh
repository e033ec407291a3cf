// The slots of a direct list (direct_list.cuh): the messages of its ranks in them, and the
// works whose buffers some rank does not see, which go through them, one-shot.
#pragma once

#include "executor/cuda/patterns/direct_data.cuh"
#include "executor/cuda/patterns/direct_list_view.cuh"

namespace niccolite::executor::cuda {

template <typename Operation, uint32_t kMostPeers>
class ListSlots {
 public:
  using Connections = DirectConnections<kMostPeers>;

  /// `live` turns false in a thread that sees an abort.
  __device__ __forceinline__ ListSlots(const LaunchHeader& header,
                                       const DirectListParams<kMostPeers>& list,
                                       const ListView<kMostPeers>& view,
                                       const WorkerThreads& threads, const Connections& connections,
                                       bool& live)
      : header_(header),
        list_(list),
        view_(view),
        threads_(threads),
        connections_(connections),
        live_(live) {}

  __device__ __forceinline__ static uint64_t counter_of(const PortTask& port) {
    return ptx::load<uint64_t>(
        reinterpret_cast<const std::byte*>(&port.control[ptx::replica()].step));
  }

  /// Vec8 g of the slot of `step` that the port's peer sends, of the call with `tag`.
  __device__ __forceinline__ uint64_t await_vec8(const PortTask& port, uint32_t step, uint32_t g,
                                                 const uint16_t& tag) {
    const std::byte* at = connections_.words_at(port, step, connections_.in_slots(g));
    const uint32_t flag = ll::flag_of(step, tag);
    Words words = ptx::load_words(at);
    for (SimpleWait wait(header_, tag); !have_arrived(words, flag, /*both=*/true);) {
      live_ = wait.keep_going([&] {
        return Awaited{Connections::peer_of(port), other_tag_in(words, flag)};
      });
      if (!live_) break;
      words = ptx::load_words(at);
    }
    return unpack_words(words);
  }

  // The words behind a slot's last vec8, once in 2^15 steps.
  __device__ __forceinline__ void clean(const PortTask& port, uint32_t step, uint32_t vec8s,
                                        const uint16_t& tag) const {
    if (!ll::cleans(step, header_.shape.depth)) return;
    ll_clean(header_.shape, threads_, connections_.words_at(port, step, connections_.in_slots(0)),
             vec8s, ll::flag_of(step, tag));
  }

  /// Rounds of the works that some rank does not see. Equal on all ranks.
  __device__ __forceinline__ uint32_t rounds() const {
    uint32_t rounds = 0;
#pragma unroll 1
    for (uint32_t work = view_.first_work(); work < view_.end_of_works(); ++work)
      if (view_.is_hidden(work)) rounds += chunks_of(work);
    return rounds;
  }

  /// Moves the hidden works through slots; called by all threads of the CTA. A rank that has an
  /// input sends it to all ranks that have an output for it. The buffers are only known to be
  /// aligned to the element. `rounds`: the number of all slots, including the slot of the
  /// addresses.
  __device__ __forceinline__ void move(uint32_t rounds) {
    uint32_t round = 1;
#pragma unroll 1
    for (uint32_t work = view_.first_work(); work < view_.end_of_works(); ++work) {
      if (!view_.is_hidden(work)) continue;
      const uint32_t chunk = list_.chunk * Operation::element_bytes(header_);
#pragma unroll 1
      for (uint32_t at = range_start(work); at < range_end(work); at += chunk, ++round) {
        const uint32_t left = range_end(work) - at;
        const uint32_t bytes = left < chunk ? left : chunk;
        live_ = live_ && await_credit(round, rounds, list_.work[work].tag);
        if (live_) send(work, at, bytes, round, rounds);
        if (live_) receive(work, at, bytes, round, rounds);
        threads_.barrier();
        if (live_) connections_.give_credit(round, rounds);
      }
    }
  }

 private:
  using Element = typename Operation::Element;

  __device__ __forceinline__ uint32_t chunks_of(uint32_t work) const {
    const uint32_t bytes = range_end(work) - range_start(work);
    const uint32_t chunk = list_.chunk * Operation::element_bytes(header_);
    return (bytes + chunk - 1) / chunk;
  }
  /// The start of the CTA's part of a block, in bytes.
  __device__ __forceinline__ uint32_t range_start(uint32_t work) const {
    return view_.first_tile_of(work) * kListTileBytes;
  }
  __device__ __forceinline__ uint32_t range_end(uint32_t work) const {
    const uint32_t end = view_.end_tile_of(work) * kListTileBytes;
    return end < view_.block_bytes(work) ? end : view_.block_bytes(work);
  }
  /// The step of a round, once the counters stand behind all of them. Not remembered: what moves
  /// tiles has no registers for it.
  __device__ __forceinline__ static uint32_t step_of(const PortTask& port, uint32_t round,
                                                     uint32_t rounds) {
    return static_cast<uint32_t>(counter_of(port)) - rounds + round;
  }
  __device__ __forceinline__ bool await_credit(uint32_t round, uint32_t rounds,
                                               const uint16_t& tag) const {
#pragma unroll 1
    for (uint32_t p = 0; p < list_.task.sends; ++p) {
      const PortTask& port = list_.task.send[p].port;
      const uint32_t step = step_of(port, round, rounds);
      for (SimpleWait wait(header_, tag);;) {
        // [credit] Relaxed: the stores that depend on it are not made before its value is known.
        const auto credit =
            static_cast<uint32_t>(ptx::load_relaxed_system(&port.control[ptx::replica()].remote));
        if (static_cast<int32_t>(step - credit) < static_cast<int32_t>(header_.shape.depth)) break;
        const bool goes_on = wait.keep_going([&] {
          return Awaited{Connections::peer_of(port), Awaited::kNoTag, ReportKind::WaitingForCredit};
        });
        if (!goes_on) return false;
      }
    }
    return true;
  }

  __device__ __forceinline__ const std::byte* own_input(uint32_t work, uint32_t block) const {
    return list_.work[work].input + (view_.access().form == ListForm::Scatter
                                         ? uint64_t{block} * view_.block_bytes(work)
                                         : 0);
  }
  __device__ __forceinline__ static uint32_t part_of(uint32_t bytes, uint32_t g) {
    const uint32_t left = bytes - g * kVec8;
    return left < kVec8 ? left : kVec8;
  }
  __device__ __forceinline__ uint64_t load_own(uint32_t work, uint32_t block, uint32_t at,
                                               uint32_t bytes, uint32_t g) const {
    return load_vec8<Element>(own_input(work, block) + at + g * kVec8, part_of(bytes, g),
                              sizeof(Element));
  }

  __device__ __forceinline__ void send(uint32_t work, uint32_t at, uint32_t bytes, uint32_t round,
                                       uint32_t rounds) const {
    const uint32_t vec8s = (bytes + kVec8 - 1) / kVec8;
    const uint16_t& tag = list_.work[work].tag;
#pragma unroll 1
    for (uint32_t p = 0; p < list_.task.sends; ++p) {
      const PortTask& port = list_.task.send[p].port;
      const uint32_t peer = Connections::peer_of(port);
      const bool sends = view_.is_used(view_.rank(), /*is_output=*/false) &&
                         view_.is_used(peer, /*is_output=*/true);
      const uint32_t step = step_of(port, round, rounds);
      const uint32_t sent = sends ? vec8s : 0;
      for (uint32_t g = threads_.rank; g < sent; g += threads_.size)
        ptx::store_words(connections_.words_at(port, step, connections_.in_slots(g)),
                         pack_words(load_own(work, peer, at, bytes, g), ll::flag_of(step, tag)));
      clean(port, step, sent, tag);
    }
  }

  __device__ __forceinline__ void receive(uint32_t work, uint32_t at, uint32_t bytes,
                                          uint32_t round, uint32_t rounds) {
    if (!view_.is_used(view_.rank(), /*is_output=*/true)) return;
    const uint32_t vec8s = (bytes + kVec8 - 1) / kVec8;
    const bool gathers = view_.access().form == ListForm::Gather;
    std::byte* output = list_.work[work].output + at;
    for (uint32_t g = threads_.rank; live_ && g < vec8s; g += threads_.size) {
      LlOperands<Operation> operands(/*reductions=*/true);
      const auto store = [&](std::byte* block, uint64_t vec8) {
        store_vec8<Element>(block + g * kVec8, vec8, part_of(bytes, g), sizeof(Element));
      };
#pragma unroll 1
      for (uint32_t of = 0; live_ && of < view_.nranks(); ++of) {
        if (!view_.is_used(of, /*is_output=*/false)) continue;
        uint64_t vec8;
        if (of == view_.rank()) {
          vec8 = load_own(work, view_.rank(), at, bytes, g);
        } else {
          const PortTask& port = list_.task.receive[port_from(of)].port;
          vec8 = await_vec8(port, step_of(port, round, rounds), g, list_.work[work].tag);
        }
        if (!live_) break;
        if (gathers) {
          store(output + uint64_t{of} * view_.block_bytes(work), vec8);
        } else {
          operands.add(vec8);
        }
      }
      if (live_ && !gathers) store(output, operands.result(header_, scales_result(header_)));
    }
  }

  __device__ __forceinline__ uint32_t port_from(uint32_t of) const {
    uint32_t p = 0;
    while (Connections::peer_of(list_.task.receive[p].port) != of) ++p;
    return p;
  }

  const LaunchHeader& header_;
  const DirectListParams<kMostPeers>& list_;
  const ListView<kMostPeers>& view_;
  const WorkerThreads& threads_;
  const Connections& connections_;
  bool& live_;
};

}  // namespace niccolite::executor::cuda
