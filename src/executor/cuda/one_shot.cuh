// One-shot by LL, by hand: the pattern "send my chunk to every peer; receive every peer's, fold,
// store" that the interpreter also runs (all_reduce_one_shot.cc), for at most kMostPeers
// peers. What it saves is latency: every address is a parameter, nothing is staged in shared
// memory, and all that must be loaded before the first store is asked for at once. tests/device
// holds it against the interpreter.
//
//   parameters -> { steps, credits, first input } -> store to peers -> barrier -> poll own slots ->
//   fold -> store
//
// Launch shape: grid (replicas, 1), up to kMaxThreads threads, no shared memory.
#pragma once

#include "executor/cuda/ll_step.cuh"

namespace niccolite::executor::cuda {

/// Granules of a thread whose words are polled together, as many as there are registers for.
template <uint32_t kMostPeers>
inline constexpr uint32_t kGranulesInFlight = kMostPeers > kFewOneShotPeers ? 1 : 2;

/// Where the connections with all peers stand, in the low halves of the 64-bit counters: slots,
/// flags and differences need no more, and a thread has registers for these.
template <uint32_t kMostPeers>
struct OneShotSteps {
  uint32_t send[kMostPeers];
  uint32_t receive[kMostPeers];
  uint32_t credit[kMostPeers];
};

template <uint32_t kMostPeers>
__device__ __forceinline__ OneShotSteps<kMostPeers> load_steps(const OneShotImage& image) {
  const uint32_t replica = ptx::replica();
  OneShotSteps<kMostPeers> steps;
#pragma unroll
  for (uint32_t p = 0; p < kMostPeers; ++p) {
    if (p >= image.peers) continue;
    const ControlBlock* send = image.send[p].control + replica;
    const ControlBlock* receive = image.receive[p].control + replica;
    steps.send[p] = ptx::load<uint32_t>(reinterpret_cast<const std::byte*>(&send->step));
    steps.receive[p] = ptx::load<uint32_t>(reinterpret_cast<const std::byte*>(&receive->step));
    // [credit] pairs with the receiver's [resume] and [consume]. Relaxed: the stores that depend on
    // it are not made before its value is known.
    steps.credit[p] = static_cast<uint32_t>(ptx::load_relaxed_system(&send->remote));
  }
  return steps;
}

/// Gives back the slots that earlier operations read. One thread per peer, before anything waits
/// for the credit that the peers give in the same way.
__device__ __forceinline__ void resume(const OneShotImage& image) {
  if (ptx::thread() >= image.peers) return;
  const PortTask& receive = image.receive[ptx::thread()];
  const uint64_t received = ptx::load<uint64_t>(
      reinterpret_cast<const std::byte*>(&receive.control[ptx::replica()].step));
  // [resume] Relaxed: those reads were over when their kernel ended.
  ptx::store_relaxed_system(&receive.remote_control[ptx::replica()].remote, received);
}

/// All threads of the CTA, which have met since they loaded the steps. One thread per peer.
__device__ __forceinline__ void advance_steps(uint32_t rounds, const OneShotImage& image) {
  if (ptx::thread() >= image.peers) return;
  const auto advance = [&](const PortTask& port) {
    auto* step = reinterpret_cast<std::byte*>(&port.control[ptx::replica()].step);
    ptx::store<uint64_t>(step, ptx::load<uint64_t>(step) + rounds);
  };
  advance(image.send[ptx::thread()]);
  advance(image.receive[ptx::thread()]);
}

template <typename Operation, uint32_t kMostPeers>
class OneShot {
 public:
  __device__ __forceinline__ OneShot(const LaunchArgs& args)
      : header_(args.header),
        work_(*work_tasks(args)),
        image_(*reinterpret_cast<const OneShotImage*>(args.tables + sizeof(WorkTask))),
        threads_{ptx::thread(), ptx::threads(), static_cast<uint32_t>(Barrier::Cta)},
        cta_{args.header, work_tasks(args), nullptr, nullptr, nullptr, nullptr, ptx::replica()} {}

  __device__ __forceinline__ void run() {
    const uint32_t rounds = work_.partition.rounds;
    Chunk chunk = chunk_of_round(0);
    uint64_t first = 0;
    if (ptx::thread() * kGranule < chunk.bytes) first = load_input(chunk, ptx::thread());
    steps_ = load_steps<kMostPeers>(image_);
    resume(image_);
    for (uint32_t round = 0; round < rounds; ++round) {
      if (round != 0) {
        chunk = chunk_of_round(round);
        if (ptx::thread() * kGranule < chunk.bytes) first = load_input(chunk, ptx::thread());
      }
      wait_for_credit(round);
      send(chunk, round, first);
      if (round == 0) {
        threads_.barrier();
        advance_steps(rounds, image_);
      }
      receive(chunk, round, first);
      if (rounds > header_.shape.depth) give_credit(round);
    }
  }

 private:
  using Element = typename Operation::Element;

  __device__ __forceinline__ Chunk chunk_of_round(uint32_t round) const {
    const Range range = work_.partition.range(0, ptx::replica(), round);
    const uint32_t element_bytes = Operation::element_bytes(header_);
    return {range.offset * element_bytes, static_cast<uint32_t>(range.count) * element_bytes};
  }
  __device__ __forceinline__ static uint32_t bytes_of(const Chunk& chunk, uint32_t g) {
    const uint32_t left = chunk.bytes - g * kGranule;
    return left < kGranule ? left : kGranule;
  }
  __device__ __forceinline__ uint64_t load_input(const Chunk& chunk, uint32_t g) const {
    uint64_t granule = load_granule<Element>(work_.input + chunk.in_block + g * kGranule,
                                             bytes_of(chunk, g), work_.width);
    if (header_.flags & kScalesInput) {
      const auto scale = header_.device_scale == nullptr
                             ? Operation::input_scale(header_)
                             : Operation::input_scale(load_element<Element>(header_.device_scale));
      granule = Operation::scale_input(scale, granule);
    }
    return granule;
  }
  __device__ __forceinline__ static uint32_t peer_of(const PortTask& port) {
    return port.end & PortTask::kPeerMask;
  }
  __device__ __forceinline__ std::byte* slot_at(const PortTask& port, uint32_t step) const {
    return port.slots + header_.shape.slot_offset(ptx::replica(), step);
  }

  // The credit that was loaded at the start is that of depth slots ago at least, and nearly always
  // enough.
  __device__ __forceinline__ void wait_for_credit(uint32_t round) {
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= image_.peers) continue;
      const uint32_t step = steps_.send[p] + round;
      for (Wait wait(header_, work_); live_ && static_cast<int32_t>(step - steps_.credit[p]) >=
                                                   static_cast<int32_t>(header_.shape.depth);) {
        live_ = wait.keep_going([&] { return Awaited{peer_of(image_.send[p])}; });
        // [credit], as in load_steps().
        steps_.credit[p] = static_cast<uint32_t>(
            ptx::load_relaxed_system(&image_.send[p].control[ptx::replica()].remote));
      }
    }
  }

  __device__ __forceinline__ void send(const Chunk& chunk, uint32_t round, uint64_t first) const {
    const uint32_t granules = (chunk.bytes + kGranule - 1) / kGranule;
    for (uint32_t g = ptx::thread(); live_ && g < granules; g += ptx::threads()) {
      const uint64_t granule = g == ptx::thread() ? first : load_input(chunk, g);
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p >= image_.peers) continue;
        const uint32_t step = steps_.send[p] + round;
        ptx::store_words(slot_at(image_.send[p], step) + g * kGranuleInSlot,
                         pack_words(granule, ll::flag_of(step, work_.tag)));
      }
    }
    for (uint32_t p = 0; live_ && p < image_.peers; ++p) {
      const uint32_t step = send_step(p, round);
      if (!ll::cleans(step, header_.shape.depth)) continue;
      ll_clean(cta_, threads_, slot_at(image_.send[p], step), granules,
               ll::flag_of(step, work_.tag));
    }
  }

  // steps_.send[peer] for a peer that is not known when this is compiled: an index would put the
  // array into memory.
  __device__ __forceinline__ uint32_t send_step(uint32_t peer, uint32_t round) const {
    uint32_t base = 0;
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p == peer) base = steps_.send[p];
    }
    return base + round;
  }

  __device__ __forceinline__ void receive(const Chunk& chunk, uint32_t round, uint64_t first) {
    const uint32_t granules = (chunk.bytes + kGranule - 1) / kGranule;
    constexpr uint32_t kInFlight = kGranulesInFlight<kMostPeers>;
    const uint32_t stride = ptx::threads();
    uint32_t g = ptx::thread();
    for (; live_ && g + (kInFlight - 1) * stride < granules; g += kInFlight * stride) {
      receive_granules<kInFlight>(chunk, round, first, g);
    }
    for (; live_ && g < granules; g += stride) receive_granules<1>(chunk, round, first, g);
  }

  template <uint32_t kCount>
  __device__ __forceinline__ void receive_granules(const Chunk& chunk, uint32_t round,
                                                   uint64_t first, uint32_t g) {
    const uint32_t stride = ptx::threads();
    Words words[kCount][kMostPeers];
    uint64_t local[kCount];
#pragma unroll
    for (uint32_t k = 0; k < kCount; ++k) {
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p >= image_.peers) continue;
        words[k][p] = ptx::load_words(slot_at(image_.receive[p], steps_.receive[p] + round) +
                                      (g + k * stride) * kGranuleInSlot);
      }
      local[k] = k == 0 && g == ptx::thread() ? first : load_input(chunk, g + k * stride);
    }
#pragma unroll
    for (uint32_t k = 0; k < kCount; ++k) {
      const uint32_t at = g + k * stride;
      const uint32_t bytes = bytes_of(chunk, at);
      LlOperands<Operation> operands(/*folds=*/true);
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p == image_.source_position) operands.add(local[k]);
        if (p >= image_.peers) continue;
        const uint32_t step = steps_.receive[p] + round;
        for (Wait wait(header_, work_);
             live_ &&
             !have_arrived(words[k][p], ll::flag_of(step, work_.tag), bytes > ll::kDataBytes);) {
          live_ = wait.keep_going([&] {
            return Awaited{peer_of(image_.receive[p]),
                           other_tag_in(words[k][p], ll::flag_of(step, work_.tag))};
          });
          words[k][p] = ptx::load_words(slot_at(image_.receive[p], step) + at * kGranuleInSlot);
        }
        operands.add(unpack_words(words[k][p]));
      }
      if (image_.source_position >= kMostPeers) operands.add(local[k]);
      if (!live_) return;
      const bool scales = (header_.flags & kScalesResult) != 0;
      store_granule<Element>(work_.output + chunk.in_block + at * kGranule,
                             operands.result(header_, scales), bytes, work_.width);
    }
  }

  // Only in operations of more rounds than a FIFO has slots.
  __device__ __forceinline__ void give_credit(uint32_t round) const {
    threads_.barrier();
    if (!live_ || round + header_.shape.depth >= work_.partition.rounds) return;
    if (ptx::thread() >= image_.peers) return;
    const PortTask& receive = image_.receive[ptx::thread()];
    // The counter of the operation's end, which advance_steps() has stored by now.
    const uint64_t end = ptx::load<uint64_t>(
        reinterpret_cast<const std::byte*>(&receive.control[ptx::replica()].step));
    // [consume] all threads have used the words they read before they came to the barrier. Relaxed:
    // a store cannot pass a load whose value has been used.
    ptx::store_relaxed_system(&receive.remote_control[ptx::replica()].remote,
                              end - work_.partition.rounds + round + 1);
  }

  const LaunchHeader& header_;
  const WorkTask& work_;
  const OneShotImage& image_;
  const LaneThreads threads_;
  const Cta cta_;  // for ll_clean
  OneShotSteps<kMostPeers> steps_;
  bool live_ = true;  // false in a thread that saw an abort: it only meets the others at barriers
};

}  // namespace niccolite::executor::cuda

/// Defines the kernel niccolite_<name>; see NICCOLITE_KERNEL.
#define NICCOLITE_ONE_SHOT_KERNEL(name, Operation, kMostPeers)                               \
  extern "C" __global__ void __launch_bounds__(niccolite::executor::cuda::kMaxThreads, 1)    \
      niccolite_##name(const __grid_constant__ niccolite::executor::cuda::LaunchArgs args) { \
    niccolite::executor::cuda::OneShot<Operation, kMostPeers>(args).run();                   \
  }
