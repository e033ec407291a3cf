// A list over buffers that all ranks reach (executor/list_access.h): many collectives of a group in
// one launch, without a slot between input and output.
//
//   parameters -> { steps, credits } -> tell peers where the own buffers are, and learn where
//   theirs are -> tiles: load from inputs, fold, store to outputs -> fence -> tell peers that it is
//   done with their buffers -> wait until they are done with the own ones
//
// Addresses are the first slot of the CTA's connections, by LL words: all of them at once, and one
// wait for a whole list. An address of 0 says that some rank does not see the buffer. Its operation
// then follows in slots of its own, one-shot.
//
// Whoever has told its addresses has offered its buffers, and keeps to protocol/offer.h: an offer
// is taken by an exchange, and the credit of the first slot says that whoever took it is done. A
// rank that is aborted takes back what has not been taken, and else waits for that credit, or for
// ControlBlock::left. Between taking an offer and being done no rank waits for anything but offers.
//
// Launch shape: grid (channels, 1), up to kMaxThreads threads, LaunchHeader::shared_bytes. Shared
// memory: an address for each rank, work and buffer, then a word that says that a thread saw an
// abort. Peers' things are done by the last threads of the last warp, a thread for each: the first
// ones have addresses to see to.
#pragma once

#include "executor/cuda/direct_connections.cuh"
#include "executor/cuda/progress.cuh"
#include "executor/protocol/offer.h"

namespace niccolite::executor::cuda {

/// Packs of an operand that a thread has on the way, as many as there are registers for.
template <typename Operation>
constexpr uint32_t packs_in_flight() {
  if constexpr (Operation::kReduces) return Operation::kAccumulatorRegisters > 8 ? 1 : 2;
  return 4;
}

template <typename Operation, uint32_t kMostPeers>
class DirectList {
 public:
  using ListImage = DirectListImage<kMostPeers>;

  __device__ __forceinline__ DirectList(const LaunchHeader& header, const ListImage& list)
      : header_(header),
        list_(list),
        threads_{ptx::thread(), ptx::threads(), static_cast<uint32_t>(Barrier::Cta)},
        first_(list.starts[ptx::replica()]),
        end_(list.starts[ptx::replica() + 1]),
        connections_(header, list.task, threads_, ptx::replica()) {}

  /// All threads of the CTA.
  __device__ __forceinline__ void run() {
    start();
    if (live_) exchange_addresses();
    note_abort();
    threads_.barrier();
    if (!is_aborted()) {
      const uint32_t rounds = 1 + hidden_rounds();
      connections_.advance(rounds);
      move_tiles();
      threads_.barrier();
      let_peers_go();
      if (rounds > 1) move_hidden(rounds);
      await_peers();
      note_abort();
      threads_.barrier();
    }
    if (is_aborted()) leave();
  }

 private:
  using Element = typename Operation::Element;
  static constexpr uint32_t kPack = sizeof(Pack);
  static constexpr uint32_t kUnneeded = 1;  // the address of a buffer that nobody uses
  static constexpr uint32_t kOperands = 2;  // whose packs are on the way together
  static constexpr uint32_t kPacks = packs_in_flight<Operation>();

  // ---- the list

  __device__ __forceinline__ uint32_t end_of_works() const {
    return uint32_t{end_.work} + (end_.tile > 0 ? 1 : 0);
  }
  __device__ __forceinline__ uint32_t first_tile_of(uint32_t work) const {
    return work == first_.work ? first_.tile : 0;
  }
  __device__ __forceinline__ uint32_t tiles_of(uint32_t bytes) const {
    return (bytes + kListTileBytes - 1) / kListTileBytes;
  }
  __device__ __forceinline__ uint32_t end_tile_of(uint32_t work) const {
    return work == end_.work ? end_.tile : tiles_of(block_bytes(work));
  }
  __device__ __forceinline__ uint32_t block_bytes(uint32_t work) const {
    return list_.work[work].count * Operation::element_bytes(header_);
  }
  __device__ __forceinline__ uint32_t rank() const { return list_.rank; }
  __device__ __forceinline__ const ListAccess& access() const { return list_.access; }
  __device__ __forceinline__ bool is_used(uint32_t of, bool is_output) const {
    return has_rank(is_output ? access().outputs : access().inputs, of);
  }
  /// Whose inputs and outputs this rank uses, as bits, and where in them.
  __device__ __forceinline__ uint32_t sources() const {
    return access().form == ListForm::Gather ? 1u << rank() : access().inputs;
  }
  __device__ __forceinline__ uint32_t targets() const {
    return access().form == ListForm::Scatter ? 1u << rank() : access().outputs;
  }
  __device__ __forceinline__ uint64_t own_block_at(ListForm form, uint32_t work) const {
    return access().form == form ? uint64_t{rank()} * block_bytes(work) : 0;
  }

  // ---- shared memory

  /// Of `work`'s input or output, of rank `of`, as this rank sees it.
  __device__ __forceinline__ uint64_t* address(uint32_t of, uint32_t work, bool is_output) const {
    return reinterpret_cast<uint64_t*>(ptx::shared_memory()) +
           2 * (of * list_.most_works + work - first_.work) + (is_output ? 1 : 0);
  }
  __device__ __forceinline__ std::byte* memory(uint32_t of, uint32_t work, bool is_output) const {
    return reinterpret_cast<std::byte*>(ptx::load_relaxed_shared(address(of, work, is_output)));
  }
  __device__ __forceinline__ uint64_t* abort_word() const {
    return reinterpret_cast<uint64_t*>(ptx::shared_memory()) + 2 * list_.nranks * list_.most_works;
  }
  // [abort] a barrier is between the two.
  __device__ __forceinline__ void note_abort() const {
    if (!live_) ptx::store_relaxed_shared(abort_word(), 1);
  }
  __device__ __forceinline__ bool is_aborted() const {
    return ptx::load_relaxed_shared(abort_word()) != 0;
  }

  // ---- what one thread does for each peer

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
  __device__ __forceinline__ static uint64_t counter_of(const PortTask& port) {
    return ptx::load<uint64_t>(
        reinterpret_cast<const std::byte*>(&port.control[ptx::replica()].step));
  }

  __device__ __forceinline__ void start() {
    connections_.start();
    if (has_peer()) {
      send_base_ = counter_of(send_port());
      receive_base_ = counter_of(receive_port());
    }
    if (threads_.rank == 0) ptx::store_relaxed_shared(abort_word(), 0);
    threads_.barrier();
    live_ = connections_.wait_for_credit(0, list_.work[first_.work].tag);
  }

  // ---- addresses

  __device__ __forceinline__ void exchange_addresses() {
    const uint32_t granules = 2 * (end_of_works() - first_.work);
    for (uint32_t g = threads_.rank; g < granules; g += threads_.size) tell_address(g);
    if (has_peer()) {
      // [offer] pairs with [take] of the other end. Relaxed, and not ordered with the addresses:
      // whoever takes it has waited for those, too.
      ptx::store_relaxed_system(&send_port().remote_control[ptx::replica()].offer,
                                offer::of(0, list_.work[first_.work].tag));
      has_offered_ = true;
    }
#pragma unroll 1
    for (uint32_t p = 0; p < list_.task.sends; ++p)
      clean(list_.task.send[p].port, connections_.find_send_step(p), granules,
            list_.work[first_.work].tag);
    for (uint32_t g = threads_.rank; live_ && g < granules; g += threads_.size) learn_address(g);
    if (live_ && has_peer()) take_offer();
  }

  __device__ __forceinline__ void tell_address(uint32_t g) const {
    const uint32_t work = first_.work + g / 2;
    const bool is_output = g % 2 != 0;
    const DirectListWork& listed = list_.work[work];
    const uint64_t own = is_output ? reinterpret_cast<uint64_t>(listed.output)
                                   : reinterpret_cast<uint64_t>(listed.input);
    const uint64_t* shifts = is_output ? listed.output_shifts : listed.input_shifts;
    const bool is_open = (is_output ? listed.output_is_open : listed.input_is_open) != 0;
    const bool is_needed = is_used(rank(), is_output);
    uint64_t seen[kMostPeers];
    bool is_hidden = false;
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      seen[p] = kUnneeded;
      if (p >= list_.task.sends || !is_needed) continue;
      const PortTask& port = list_.task.send[p].port;
      if (shifts == nullptr) {
        seen[p] = is_open && (port.end & PortTask::kOpens) != 0 ? own : 0;
      } else {
        // Written by the host before this kernel was queued.
        const uint32_t peer = DirectConnections<kMostPeers>::peer_of(port);
        seen[p] = offer::seen_by(
            ptx::load<uint64_t>(reinterpret_cast<const std::byte*>(shifts + peer)), own);
      }
      is_hidden |= seen[p] == 0;
    }
    ptx::store_relaxed_shared(address(rank(), work, is_output), !is_needed  ? uint64_t{kUnneeded}
                                                                : is_hidden ? 0
                                                                            : own);
    const uint64_t in_slot = connections_.in_slots(g);
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= list_.task.sends) continue;
      const uint32_t step = connections_.send_step(p);
      ptx::store_words(connections_.words_at(list_.task.send[p].port, step, in_slot),
                       pack_words(is_hidden ? 0 : seen[p], ll::flag_of(step, listed.tag)));
    }
  }

  __device__ __forceinline__ void learn_address(uint32_t g) {
    const uint32_t work = first_.work + g / 2;
#pragma unroll 1
    for (uint32_t p = 0; live_ && p < list_.task.receives; ++p) {
      const PortTask& port = list_.task.receive[p].port;
      const uint64_t seen =
          await_granule(port, connections_.find_receive_step(p), g, list_.work[work].tag);
      ptx::store_relaxed_shared(
          address(DirectConnections<kMostPeers>::peer_of(port), work, g % 2 != 0), seen);
    }
  }

  /// Granule g of the slot of `step` that the port's peer sends, of the call with `tag`.
  __device__ __forceinline__ uint64_t await_granule(const PortTask& port, uint32_t step, uint32_t g,
                                                    const uint16_t& tag) {
    const std::byte* at = connections_.words_at(port, step, connections_.in_slots(g));
    const uint32_t flag = ll::flag_of(step, tag);
    Words words = ptx::load_words(at);
    for (SimpleWait wait(header_, tag); !have_arrived(words, flag, /*both=*/true);) {
      live_ = wait.keep_going([&] {
        return Awaited{DirectConnections<kMostPeers>::peer_of(port), other_tag_in(words, flag)};
      });
      if (!live_) break;
      words = ptx::load_words(at);
    }
    return unpack_words(words);
  }

  __device__ __forceinline__ void take_offer() {
    const PortTask& port = receive_port();
    const uint16_t& tag = list_.work[first_.work].tag;
    for (SimpleWait wait(header_, tag); live_;) {
      // [take] pairs with the [offer] of the other end, and orders what that rank's stream has
      // written before all loads of this CTA from now on.
      const uint64_t word =
          ptx::exchange_acquire_system(&port.control[ptx::replica()].offer, offer::kNone);
      has_taken_ = word != offer::kNone && offer::tag_in(word) == tag;
      if (has_taken_) return;
      const uint32_t other = word == offer::kNone ? Awaited::kNoTag : offer::tag_in(word);
      live_ = wait.keep_going([&] {
        return Awaited{DirectConnections<kMostPeers>::peer_of(port), other};
      });
    }
  }

  // The words behind a slot's last granule, once in 2^15 steps.
  __device__ __forceinline__ void clean(const PortTask& port, uint32_t step, uint32_t granules,
                                        const uint16_t& tag) const {
    if (!ll::cleans(step, header_.shape.depth)) return;
    ll_clean(header_.shape, threads_, connections_.words_at(port, step, connections_.in_slots(0)),
             granules, ll::flag_of(step, tag));
  }

  // ---- tiles

  /// All threads of a warp: is it true of a buffer that the work uses?
  template <typename Function>
  __device__ __forceinline__ bool is_true_of_any(uint32_t work, Function&& function) const {
    const uint32_t of = ptx::thread() % kWarp / 2;
    const bool is_output = ptx::thread() % 2 != 0;
    bool is_true = false;
    if (of < list_.nranks && is_used(of, is_output))
      is_true = function(ptx::load_relaxed_shared(address(of, work, is_output)), is_output);
    return ptx::any_of_warp(is_true);
  }
  __device__ __forceinline__ bool is_hidden(uint32_t work) const {
    return is_true_of_any(work, [](uint64_t seen, bool) { return seen == 0; });
  }

  // The tiles that are this rank's: warp by warp, whichever works they are of.
  __device__ __forceinline__ void move_tiles() const {
    const uint32_t warps = threads_.size / kWarp;
    const uint32_t warp = threads_.rank / kWarp;
    const bool is_whole = access().form == ListForm::Whole;
    const uint32_t stride = is_whole ? list_.nranks : 1;
    uint32_t next = warp;  // of the tiles that follow, which is this warp's
#pragma unroll 1
    for (uint32_t work = first_.work; work < end_of_works(); ++work) {
      uint32_t tile = first_tile_of(work);
      const uint32_t end = end_tile_of(work);
      if (is_whole)
        tile += (rank() + list_.nranks - owner_of_tile(work, tile, list_.nranks)) % list_.nranks;
      const uint32_t tiles = tile < end ? (end - tile + stride - 1) / stride : 0;
      if (is_hidden(work)) continue;
      for (; next < tiles; next += warps) move_tile(work, tile + next * stride);
      next -= tiles;
    }
  }

  __device__ __forceinline__ void move_tile(uint32_t work, uint32_t tile) const {
    const uint64_t source_at =
        uint64_t{tile} * kListTileBytes + own_block_at(ListForm::Scatter, work);
    const uint64_t target_at =
        uint64_t{tile} * kListTileBytes + own_block_at(ListForm::Gather, work);
    const uint32_t left = block_bytes(work) - tile * kListTileBytes;
    const uint32_t bytes = left < kListTileBytes ? left : kListTileBytes;
    const auto is_misaligned = [&](uint32_t alignment) {
      return is_true_of_any(work, [&](uint64_t seen, bool is_output) {
        return ((seen + (is_output ? target_at : source_at)) & (alignment - 1)) != 0;
      });
    };
    uint32_t moved = 0;
    if (!is_misaligned(kPack)) {
      moved = bytes / kPack * kPack;
      move_packs(work, source_at, target_at, moved / kPack);
      if (moved == bytes) return;
    }
    const uint32_t width = is_misaligned(kGranule) ? sizeof(Element) : kGranule;
    move_granules(work, source_at + moved, target_at + moved, bytes - moved, width);
  }

  __device__ __forceinline__ void move_packs(uint32_t work, uint64_t source_at, uint64_t target_at,
                                             uint32_t packs) const {
    const uint32_t thread = ptx::thread() % kWarp;
#pragma unroll 1
    for (uint32_t first = 0; first < packs; first += kPacks * kWarp) {
      Pack result[kPacks];
      if constexpr (Operation::kReduces) {
        fold_packs(work, source_at, first + thread, packs, result);
      } else {
        load_packs(source_of_copy(work) + source_at, first + thread, packs, result);
      }
      store_packs(work, source_at, target_at, first + thread, packs, result);
    }
  }

  __device__ __forceinline__ static void load_packs(const std::byte* block, uint32_t first,
                                                    uint32_t packs, Pack (&result)[kPacks]) {
#pragma unroll
    for (uint32_t k = 0; k < kPacks; ++k) {
      const uint32_t pack = first + k * kWarp;
      if (pack < packs) result[k] = ptx::load_pack(block + pack * kPack);
    }
  }

  __device__ __forceinline__ const std::byte* source_of_copy(uint32_t work) const {
    uint32_t of = 0;
    while (!has_rank(static_cast<uint8_t>(sources()), of)) ++of;
    return memory(of, work, /*is_output=*/false);
  }

  // In the order of ranks, so that results do not depend on who owns a tile.
  __device__ __forceinline__ void fold_packs(uint32_t work, uint64_t source_at, uint32_t first,
                                             uint32_t packs, Pack (&result)[kPacks]) const {
    using Values = typename Operation::Values;
    Values values[kPacks][2];
#pragma unroll 1
    for (uint32_t base = 0; base < list_.nranks; base += kOperands) {
      Pack loaded[kOperands][kPacks];
#pragma unroll
      for (uint32_t i = 0; i < kOperands; ++i) {
        if (base + i >= list_.nranks) break;
        load_packs(memory(base + i, work, /*is_output=*/false) + source_at, first, packs,
                   loaded[i]);
      }
#pragma unroll
      for (uint32_t i = 0; i < kOperands; ++i) {
        if (base + i >= list_.nranks) break;
#pragma unroll
        for (uint32_t k = 0; k < kPacks; ++k) {
          if (first + k * kWarp >= packs) break;
#pragma unroll
          for (uint32_t half = 0; half < 2; ++half) {
            const Values operand = Operation::widen(scaled(loaded[i][k].half[half]));
            if (base + i == 0) {
              values[k][half] = operand;
            } else {
              Operation::accumulate(values[k][half], operand);
            }
          }
        }
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < kPacks; ++k) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        if (first + k * kWarp < packs)
          result[k].half[half] = Operation::finish(header_, values[k][half], scales_result());
      }
    }
  }

  __device__ __forceinline__ void store_packs(uint32_t work, uint64_t source_at, uint64_t target_at,
                                              uint32_t first, uint32_t packs,
                                              const Pack (&result)[kPacks]) const {
#pragma unroll 1
    for (uint32_t of = 0; of < list_.nranks; ++of) {
      std::byte* target = target_in(of, work, source_at, target_at);
      if (target == nullptr) continue;
#pragma unroll
      for (uint32_t k = 0; k < kPacks; ++k) {
        const uint32_t pack = first + k * kWarp;
        if (pack < packs) ptx::store_pack(target + pack * kPack, result[k]);
      }
    }
  }

  /// Where the result goes in rank `of`'s output; null: nowhere, or it is what lies there.
  __device__ __forceinline__ std::byte* target_in(uint32_t of, uint32_t work, uint64_t source_at,
                                                  uint64_t target_at) const {
    if (!has_rank(static_cast<uint8_t>(targets()), of)) return nullptr;
    std::byte* target = memory(of, work, /*is_output=*/true) + target_at;
    if (!Operation::kReduces && target == source_of_copy(work) + source_at) return nullptr;
    return target;
  }

  /// Less than a tile, by granules whose parts are aligned to `width`.
  __device__ __forceinline__ void move_granules(uint32_t work, uint64_t source_at,
                                                uint64_t target_at, uint32_t bytes,
                                                uint32_t width) const {
#pragma unroll 1
    for (uint32_t at = ptx::thread() % kWarp * kGranule; at < bytes; at += kWarp * kGranule) {
      const uint32_t part = bytes - at < kGranule ? bytes - at : kGranule;
      LlOperands<Operation> operands(/*folds=*/true);
#pragma unroll 1
      for (uint32_t of = 0; of < list_.nranks; ++of) {
        if (!has_rank(static_cast<uint8_t>(sources()), of)) continue;
        operands.add(scaled(load_granule<Element>(
            memory(of, work, /*is_output=*/false) + source_at + at, part, width)));
      }
      const uint64_t result = operands.result(header_, scales_result());
#pragma unroll 1
      for (uint32_t of = 0; of < list_.nranks; ++of) {
        std::byte* target = target_in(of, work, source_at, target_at);
        if (target != nullptr) store_granule<Element>(target + at, result, part, width);
      }
    }
  }

  __device__ __forceinline__ bool scales_result() const {
    return (header_.flags & kScalesResult) != 0;
  }
  __device__ __forceinline__ uint64_t scaled(uint64_t granule) const {
    if constexpr (Operation::kReduces) {
      if ((header_.flags & kScalesInput) == 0) return granule;
      const auto scale = header_.device_scale == nullptr
                             ? Operation::input_scale(header_)
                             : Operation::input_scale(load_element<Element>(header_.device_scale));
      granule = Operation::scale_input(scale, granule);
    }
    return granule;
  }

  // ---- what some rank does not see

  __device__ __forceinline__ uint32_t chunks_of(uint32_t work) const {
    const uint32_t bytes = range_end(work) - range_start(work);
    const uint32_t chunk = list_.chunk * Operation::element_bytes(header_);
    return (bytes + chunk - 1) / chunk;
  }
  /// Of the CTA's part of a block, in bytes.
  __device__ __forceinline__ uint32_t range_start(uint32_t work) const {
    return first_tile_of(work) * kListTileBytes;
  }
  __device__ __forceinline__ uint32_t range_end(uint32_t work) const {
    const uint32_t end = end_tile_of(work) * kListTileBytes;
    return end < block_bytes(work) ? end : block_bytes(work);
  }
  // Equal on all ranks.
  __device__ __forceinline__ uint32_t hidden_rounds() const {
    uint32_t rounds = 0;
#pragma unroll 1
    for (uint32_t work = first_.work; work < end_of_works(); ++work)
      if (is_hidden(work)) rounds += chunks_of(work);
    return rounds;
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
          return Awaited{DirectConnections<kMostPeers>::peer_of(port), Awaited::kNoTag,
                         ReportKind::WaitingForCredit};
        });
        if (!goes_on) return false;
      }
    }
    return true;
  }

  // One-shot: whoever has an input sends it to all that have an output for it. The buffers are
  // aligned to the element, and no more is known.
  __device__ __forceinline__ void move_hidden(uint32_t rounds) {
    uint32_t round = 1;
#pragma unroll 1
    for (uint32_t work = first_.work; work < end_of_works(); ++work) {
      if (!is_hidden(work)) continue;
      const uint32_t chunk = list_.chunk * Operation::element_bytes(header_);
#pragma unroll 1
      for (uint32_t at = range_start(work); at < range_end(work); at += chunk, ++round) {
        const uint32_t left = range_end(work) - at;
        const uint32_t bytes = left < chunk ? left : chunk;
        live_ = live_ && await_credit(round, rounds, list_.work[work].tag);
        if (live_) send_hidden(work, at, bytes, round, rounds);
        if (live_) receive_hidden(work, at, bytes, round, rounds);
        threads_.barrier();
        if (live_) connections_.give_credit(round, rounds);
      }
    }
  }

  __device__ __forceinline__ const std::byte* own_input(uint32_t work, uint32_t block) const {
    return list_.work[work].input +
           (access().form == ListForm::Scatter ? uint64_t{block} * block_bytes(work) : 0);
  }
  __device__ __forceinline__ static uint32_t part_of(uint32_t bytes, uint32_t g) {
    const uint32_t left = bytes - g * kGranule;
    return left < kGranule ? left : kGranule;
  }
  __device__ __forceinline__ uint64_t load_own(uint32_t work, uint32_t block, uint32_t at,
                                               uint32_t bytes, uint32_t g) const {
    return scaled(load_granule<Element>(own_input(work, block) + at + g * kGranule,
                                        part_of(bytes, g), sizeof(Element)));
  }

  __device__ __forceinline__ void send_hidden(uint32_t work, uint32_t at, uint32_t bytes,
                                              uint32_t round, uint32_t rounds) const {
    const uint32_t granules = (bytes + kGranule - 1) / kGranule;
    const uint16_t& tag = list_.work[work].tag;
#pragma unroll 1
    for (uint32_t p = 0; p < list_.task.sends; ++p) {
      const PortTask& port = list_.task.send[p].port;
      const uint32_t peer = DirectConnections<kMostPeers>::peer_of(port);
      const bool sends = is_used(rank(), /*is_output=*/false) && is_used(peer, /*is_output=*/true);
      const uint32_t step = step_of(port, round, rounds);
      const uint32_t sent = sends ? granules : 0;
      for (uint32_t g = threads_.rank; g < sent; g += threads_.size)
        ptx::store_words(connections_.words_at(port, step, connections_.in_slots(g)),
                         pack_words(load_own(work, peer, at, bytes, g), ll::flag_of(step, tag)));
      clean(port, step, sent, tag);
    }
  }

  __device__ __forceinline__ void receive_hidden(uint32_t work, uint32_t at, uint32_t bytes,
                                                 uint32_t round, uint32_t rounds) {
    if (!is_used(rank(), /*is_output=*/true)) return;
    const uint32_t granules = (bytes + kGranule - 1) / kGranule;
    const bool gathers = access().form == ListForm::Gather;
    std::byte* output = list_.work[work].output + at;
    for (uint32_t g = threads_.rank; live_ && g < granules; g += threads_.size) {
      LlOperands<Operation> operands(/*folds=*/true);
      const auto store = [&](std::byte* block, uint64_t granule) {
        store_granule<Element>(block + g * kGranule, granule, part_of(bytes, g), sizeof(Element));
      };
#pragma unroll 1
      for (uint32_t of = 0; live_ && of < list_.nranks; ++of) {
        if (!is_used(of, /*is_output=*/false)) continue;
        uint64_t granule;
        if (of == rank()) {
          granule = load_own(work, rank(), at, bytes, g);
        } else {
          const PortTask& port = list_.task.receive[port_from(of)].port;
          granule = await_granule(port, step_of(port, round, rounds), g, list_.work[work].tag);
        }
        if (!live_) break;
        if (gathers) {
          store(output + uint64_t{of} * block_bytes(work), granule);
        } else {
          operands.add(granule);
        }
      }
      if (live_ && !gathers) store(output, operands.result(header_, scales_result()));
    }
  }

  __device__ __forceinline__ uint32_t port_from(uint32_t of) const {
    uint32_t p = 0;
    while (DirectConnections<kMostPeers>::peer_of(list_.task.receive[p].port) != of) ++p;
    return p;
  }

  // ---- the end

  /// Behind a barrier of all threads, which are done with peers' buffers.
  __device__ __forceinline__ void let_peers_go() const {
    if (!has_peer()) return;
    ptx::fence_system();
    // [consume] The fence has come before. Pairs with await_peers() of the other end.
    ptx::store_relaxed_system(&receive_port().remote_control[ptx::replica()].remote,
                              receive_base_ + 1);
  }
  __device__ __forceinline__ bool is_let_go() const {
    // [credit] acquire: what the peer has stored to this rank's outputs is there.
    const uint64_t credit = ptx::load_acquire_system(&send_port().control[ptx::replica()].remote);
    return static_cast<int64_t>(credit - send_base_) > 0;
  }
  __device__ __forceinline__ void await_peers() {
    if (!has_peer()) return;
    for (SimpleWait wait(header_, list_.work[first_.work].tag); live_ && !is_let_go();) {
      live_ = wait.keep_going([&] {
        return Awaited{DirectConnections<kMostPeers>::peer_of(send_port()), Awaited::kNoTag,
                       ReportKind::WaitingForCredit};
      });
    }
  }

  // All threads, which have met. As taker first: other ranks wait for it.
  __device__ __forceinline__ void leave() const {
    if (threads_.rank / kWarp != threads_.size / kWarp - 1) return;
    if (has_peer() && has_taken_) {
      ptx::fence_system();
      // [left] The fence has come before.
      ptx::store_relaxed_system(&receive_port().remote_control[ptx::replica()].left,
                                receive_base_ + 1);
    }
    wait_for_end(header_);
    // Only now: this rank's own user frees nothing before.
    if (!has_peer() || !has_offered_) return;
    if (ptx::exchange_acquire_system(&send_port().remote_control[ptx::replica()].offer,
                                     offer::kNone) != offer::kNone) {
      return;  // nobody has taken it, and nobody will
    }
    // Some seconds at most, and less than the host waits for its kernels: a peer that answers
    // neither way is no more.
    for (uint32_t looks = 0; looks < ptx::kSpinsPerReport && !is_let_go(); ++looks) {
      // Acquire, pairs with [left].
      if (ptx::load_acquire_system(&send_port().control[ptx::replica()].left) == send_base_ + 1)
        return;
    }
  }

  const LaunchHeader& header_;
  const ListImage& list_;
  const LaneThreads threads_;
  const ListPosition first_;
  const ListPosition end_;
  DirectConnections<kMostPeers> connections_;
  bool live_ = true;  // false in a thread that saw an abort: it only meets the others at barriers
  // Of a thread that has a peer.
  bool has_offered_ = false;
  bool has_taken_ = false;
  uint64_t send_base_ = 0;  // the steps of the addresses
  uint64_t receive_base_ = 0;
};

template <typename Operation, uint32_t kMostPeers>
__device__ __forceinline__ void run_direct_list(const ListArgs& args) {
  DirectList<Operation, kMostPeers>(
      args.header, *reinterpret_cast<const DirectListImage<kMostPeers>*>(args.tables))
      .run();
}

}  // namespace niccolite::executor::cuda

/// Defines the kernel niccolite_<name>; see NICCOLITE_KERNEL.
#define NICCOLITE_DIRECT_LIST_KERNEL(name, Operation, kMostPeers)                          \
  extern "C" __global__ void __launch_bounds__(niccolite::executor::cuda::kMaxThreads, 1)  \
      niccolite_##name(const __grid_constant__ niccolite::executor::cuda::ListArgs args) { \
    niccolite::executor::cuda::mark_begin(args.header);                                    \
    niccolite::executor::cuda::run_direct_list<Operation, kMostPeers>(args);               \
    niccolite::executor::cuda::mark_end(args.header);                                      \
  }
