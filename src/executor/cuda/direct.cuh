// Operations of one step by LL, by hand: every rank sends blocks of its input straight to others
// and folds, or stores, what others send it. The interpreter runs them too; what is saved here is
// latency: every address is a parameter, nothing is staged in shared memory, and all that must be
// loaded before the first store is asked for at once. tests/device holds it against the
// interpreter; direct_image.cc knows the programs by their form.
//
//   parameters -> { steps, credits, first input } -> store to peers -> barrier -> poll own slots ->
//   fold -> store
//
// All threads of a task do all of this, for all peers: granule g of every block is that of thread
// g % size. Words of all peers are thus on their way together, however few threads there are.
//
// Launch shape: grid (replicas, 1), up to kMaxThreads threads, no shared memory. One task for the
// CTA (a collective), or one for each message, each with warps of its own.
#pragma once

#include "executor/cuda/ll_step.cuh"

namespace niccolite::executor::cuda {

/// Granules of a thread whose words are polled together, as many as there are registers for.
template <uint32_t kMostPeers>
inline constexpr uint32_t kGranulesInFlight = kMostPeers == 1                 ? 4
                                              : kMostPeers <= kFewDirectPeers ? 2
                                                                              : 1;

/// One task: sends to, and receives from, at most kMostPeers peers each. kSendsEach: every peer is
/// sent a block of its own; otherwise all are sent the task's own block.
template <typename Operation, uint32_t kMostPeers, bool kSendsEach>
class Direct {
 public:
  using Task = DirectTask<kMostPeers>;

  __device__ __forceinline__ Direct(const LaunchHeader& header, const WorkTask& work,
                                    const Task& task, const LaneThreads& threads, uint32_t channel)
      : header_(header), work_(work), task_(task), threads_(threads), channel_(channel) {}

  /// All threads of the task.
  __device__ __forceinline__ void run() {
    const uint32_t rounds = work_.partition.rounds;
    for (uint32_t round = 0; round < rounds; ++round) {
      const Chunk chunk = chunk_of_round(round);
      const Granules first = load_granules(chunk, threads_.rank);
      if (round == 0) {
        load_steps();
        resume();
      }
      wait_for_credit(round);
      send(chunk, round, first);
      if (round == 0) {
        threads_.barrier();
        advance_steps();
      }
      receive(chunk, round, first.own);
      if (rounds > header_.shape.depth) give_credit(round);
    }
  }

 private:
  using Element = typename Operation::Element;
  static constexpr uint32_t kInFlight = kGranulesInFlight<kMostPeers>;

  /// What a thread reads of the input, to be sent and folded.
  struct Granules {
    uint64_t own;
    uint64_t sent[kSendsEach ? kMostPeers : 1];
  };

  // ---- data

  // All blocks of the task have the length of block 0.
  __device__ __forceinline__ Chunk chunk_of_round(uint32_t round) const {
    const Range range = work_.partition.range(0, channel_, round);
    const uint32_t element_bytes = Operation::element_bytes(header_);
    return {range.offset * element_bytes, static_cast<uint32_t>(range.count) * element_bytes};
  }
  __device__ __forceinline__ static uint32_t granules_of(const Chunk& chunk) {
    return (chunk.bytes + kGranule - 1) / kGranule;
  }
  __device__ __forceinline__ static uint32_t bytes_of(const Chunk& chunk, uint32_t g) {
    const uint32_t left = chunk.bytes - g * kGranule;
    return left < kGranule ? left : kGranule;
  }
  __device__ __forceinline__ bool scales_input() const {
    return Operation::kReduces && (header_.flags & kScalesInput) != 0;
  }
  /// Where granule g of the block at the start of the input lies, and of the output.
  __device__ __forceinline__ const std::byte* input_at(const Chunk& chunk, uint32_t g) const {
    return work_.input + ptx::opaque(chunk.in_block + g * kGranule);
  }
  __device__ __forceinline__ std::byte* output_at(const Chunk& chunk, uint32_t g) const {
    return work_.output + ptx::opaque(chunk.in_block + g * kGranule);
  }
  /// Of the block that begins so many bytes behind the start of the input.
  __device__ __forceinline__ uint64_t load_input(uint64_t block_at, const Chunk& chunk,
                                                 uint32_t g) const {
    uint64_t granule =
        load_granule<Element>(input_at(chunk, g) + block_at, bytes_of(chunk, g), work_.width);
    if constexpr (Operation::kReduces) {
      if (scales_input()) {
        const auto scale =
            header_.device_scale == nullptr
                ? Operation::input_scale(header_)
                : Operation::input_scale(load_element<Element>(header_.device_scale));
        granule = Operation::scale_input(scale, granule);
      }
    }
    return granule;
  }
  __device__ __forceinline__ Granules load_granules(const Chunk& chunk, uint32_t g) const {
    Granules granules{};
    if (g * kGranule >= chunk.bytes) return granules;
    if constexpr (kSendsEach) load_sent(granules, chunk, g);
    if (task_.reads_own != 0) granules.own = load_input(task_.own_from, chunk, g);
    return granules;
  }
  // Together where that is one load each; what is narrow or scaled takes so much code that it
  // stands here once.
  __device__ __forceinline__ void load_sent(Granules& granules, const Chunk& chunk,
                                            uint32_t g) const {
    if (is_wide(chunk, g) && !scales_input()) {
      const std::byte* input = input_at(chunk, g);
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p >= task_.sends) break;
        granules.sent[p] = ptx::load<uint64_t>(input + task_.send[p].block_at);
      }
      return;
    }
#pragma unroll 1
    for (uint32_t peer = 0; peer < task_.sends; ++peer) {
      const uint64_t granule = load_input(task_.send[peer].block_at, chunk, g);
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p == peer) granules.sent[p] = granule;
      }
    }
  }
  __device__ __forceinline__ bool is_wide(const Chunk& chunk, uint32_t g) const {
    return work_.width >= kGranule && bytes_of(chunk, g) == kGranule;
  }
  __device__ __forceinline__ void store_output(uint64_t block_at, const Chunk& chunk, uint32_t g,
                                               uint64_t granule) const {
    store_granule<Element>(output_at(chunk, g) + block_at, granule, bytes_of(chunk, g),
                           work_.width);
  }

  // ---- connections

  __device__ __forceinline__ static uint32_t peer_of(const PortTask& port) {
    return port.end & PortTask::kPeerMask;
  }
  /// Where granule g lies in the slot of step 0, from the start of the slots.
  __device__ __forceinline__ uint64_t in_slots(uint32_t g) const {
    return ptx::opaque(header_.shape.slot_offset(channel_, 0) + g * kGranuleInSlot);
  }
  __device__ __forceinline__ std::byte* words_at(const PortTask& port, uint32_t step,
                                                 uint64_t in_slots) const {
    const uint32_t slot = step & (header_.shape.depth - 1);
    return port.slots + (in_slots + uint64_t{slot} * header_.shape.slot_bytes);
  }
  // steps[peer] for a peer that is not known when this is compiled: an index would put the array
  // into memory.
  __device__ __forceinline__ static uint32_t step_of_peer(const uint32_t (&steps)[kMostPeers],
                                                          uint32_t peer) {
    uint32_t step = 0;
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p == peer) step = steps[p];
    }
    return step;
  }

  __device__ __forceinline__ void load_steps() {
    uint32_t credit[kMostPeers];
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= task_.sends) break;
      const ControlBlock* control = task_.send[p].port.control + channel_;
      send_step_[p] = ptx::load<uint32_t>(reinterpret_cast<const std::byte*>(&control->step));
      // [credit] pairs with the receiver's [resume] and [consume]. Relaxed: the stores that depend
      // on it are not made before its value is known.
      credit[p] = static_cast<uint32_t>(ptx::load_relaxed_system(&control->remote));
    }
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= task_.receives) break;
      const ControlBlock* control = task_.receive[p].port.control + channel_;
      receive_step_[p] = ptx::load<uint32_t>(reinterpret_cast<const std::byte*>(&control->step));
    }
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= task_.sends) break;
      add_credit(send_step_[p], credit[p]);
    }
  }
  __device__ __forceinline__ void add_credit(uint32_t first_step, uint32_t credit) {
    const auto rounds = static_cast<int32_t>(credit + header_.shape.depth - first_step);
    if (rounds < rounds_with_credit_) rounds_with_credit_ = rounds;
  }

  // Gives back the slots that earlier operations read. One thread per peer, before anything waits
  // for the credit that the peers give in the same way.
  __device__ __forceinline__ void resume() const {
    if (threads_.rank >= task_.receives) return;
    const PortTask& port = task_.receive[threads_.rank].port;
    const uint64_t received =
        ptx::load<uint64_t>(reinterpret_cast<const std::byte*>(&port.control[channel_].step));
    // [resume] Relaxed: those reads were over when their kernel ended.
    ptx::store_relaxed_system(&port.remote_control[channel_].remote, received);
  }

  // All threads of the task, which have met since they loaded the steps. One thread per peer.
  __device__ __forceinline__ void advance_steps() const {
    const auto advance = [&](const PortTask& port) {
      auto* step = reinterpret_cast<std::byte*>(&port.control[channel_].step);
      ptx::store<uint64_t>(step, ptx::load<uint64_t>(step) + work_.partition.rounds);
    };
    if (threads_.rank < task_.sends) advance(task_.send[threads_.rank].port);
    if (threads_.rank < task_.receives) advance(task_.receive[threads_.rank].port);
  }

  // What was loaded at the start is the credit of depth slots ago at least, and nearly always
  // enough.
  __device__ __forceinline__ void wait_for_credit(uint32_t round) {
    if (static_cast<int32_t>(round) < rounds_with_credit_) return;
    rounds_with_credit_ = kAllRounds;
#pragma unroll 1
    for (uint32_t p = 0; live_ && p < task_.sends; ++p) {
      const uint32_t step = step_of_peer(send_step_, p);
      const uint64_t* remote = &task_.send[p].port.control[channel_].remote;
      for (Wait wait(header_, work_); live_;) {
        // [credit], as in load_steps().
        const auto credit = static_cast<uint32_t>(ptx::load_relaxed_system(remote));
        if (static_cast<int32_t>(step + round - credit) <
            static_cast<int32_t>(header_.shape.depth)) {
          add_credit(step, credit);
          break;
        }
        live_ = wait.keep_going([&] { return Awaited{peer_of(task_.send[p].port)}; });
      }
    }
  }

  // Only in operations of more rounds than a FIFO has slots.
  __device__ __forceinline__ void give_credit(uint32_t round) const {
    threads_.barrier();
    if (!live_ || round + header_.shape.depth >= work_.partition.rounds) return;
    if (threads_.rank >= task_.receives) return;
    const PortTask& port = task_.receive[threads_.rank].port;
    // The counter of the operation's end, which advance_steps() has stored by now.
    const uint64_t end =
        ptx::load<uint64_t>(reinterpret_cast<const std::byte*>(&port.control[channel_].step));
    // [consume] all threads have used the words they read before they came to the barrier. Relaxed:
    // a store cannot pass a load whose value has been used.
    ptx::store_relaxed_system(&port.remote_control[channel_].remote,
                              end - work_.partition.rounds + round + 1);
  }

  // ---- sending

  __device__ __forceinline__ void send(const Chunk& chunk, uint32_t round,
                                       const Granules& first) const {
    // In place the own block is where it belongs.
    const bool copies_own = !Operation::kReduces && task_.copies_own != 0 &&
                            work_.input + task_.own_from != work_.output + task_.own_to;
    if (task_.sends == 0 && !copies_own) return;
    const uint32_t granules = granules_of(chunk);
    for (uint32_t g = threads_.rank; live_ && g < granules; g += threads_.size) {
      const Granules loaded = g == threads_.rank ? first : load_granules(chunk, g);
      const uint64_t in_slot = in_slots(g);
      const uint32_t ahead = ptx::opaque(round);
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p >= task_.sends) break;
        const uint32_t step = send_step_[p] + ahead;
        ptx::store_words(words_at(task_.send[p].port, step, in_slot),
                         pack_words(kSendsEach ? loaded.sent[kSendsEach ? p : 0] : loaded.own,
                                    ll::flag_of(step, work_.tag)));
      }
      if (copies_own) store_output(task_.own_to, chunk, g, loaded.own);
    }
#pragma unroll 1
    for (uint32_t p = 0; live_ && p < task_.sends; ++p) {
      const uint32_t step = step_of_peer(send_step_, p) + round;
      if (!ll::cleans(step, header_.shape.depth)) continue;
      ll_clean(header_.shape, threads_, words_at(task_.send[p].port, step, in_slots(0)), granules,
               ll::flag_of(step, work_.tag));
    }
  }

  // ---- receiving

  // Tries again and again. What is to be done when it takes long stands here, once, and not in the
  // waits themselves: they are many, and code that is fetched in vain makes a small operation
  // slower.
  __device__ __forceinline__ void receive(const Chunk& chunk, uint32_t round, uint64_t own) {
    if (task_.receives == 0) return;
    const uint32_t granules = granules_of(chunk);
    for (uint32_t g = threads_.rank; live_ && g < granules; g += kInFlight * threads_.size) {
      for (Wait wait(header_, work_); live_ && !try_receive(chunk, round, own, g);) {
        live_ = wait.look(first_missing(chunk, round, g));
      }
    }
  }

  // Granules g, g + size, ... of the chunk, kInFlight of them. False when words were missing after
  // kSpinsPerLook looks; nothing is stored then: in place, the next try reads the input anew.
  __device__ __forceinline__ bool try_receive(const Chunk& chunk, uint32_t round, uint64_t own,
                                              uint32_t g) const {
    const uint32_t granules = granules_of(chunk);
    Words words[kInFlight][kMostPeers];
    uint64_t results[kInFlight];
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t at = g + k * threads_.size;
      if (at >= granules) break;
      const uint64_t in_slot = in_slots(at);
      const uint32_t ahead = ptx::opaque(round);
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p >= task_.receives) break;
        words[k][p] =
            ptx::load_words(words_at(task_.receive[p].port, receive_step_[p] + ahead, in_slot));
      }
      if constexpr (Operation::kReduces) {
        results[k] = at == threads_.rank ? own : load_input(task_.own_from, chunk, at);
      }
    }
    uint32_t spins = 0;
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t at = g + k * threads_.size;
      if (at >= granules) break;
      const bool both = bytes_of(chunk, at) > ll::kDataBytes;
      const uint64_t in_slot = in_slots(at);
      const uint32_t ahead = ptx::opaque(round);
      // Each operand is folded as soon as it is here: its words then need no registers any more.
      LlOperands<Operation> operands(/*folds=*/true);
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p >= task_.receives) break;
        if constexpr (Operation::kReduces) {
          if (p == task_.source_position) operands.add(results[k]);
        }
        const uint32_t step = receive_step_[p] + ahead;
        while (!have_arrived(words[k][p], ll::flag_of(step, work_.tag), both) &&
               spins < Wait::kSpinsPerLook) {
          ++spins;
          words[k][p] = ptx::load_words(words_at(task_.receive[p].port, step, in_slot));
        }
        if constexpr (Operation::kReduces) operands.add(unpack_words(words[k][p]));
      }
      if constexpr (Operation::kReduces) {
        if (task_.source_position >= task_.receives) operands.add(results[k]);
        results[k] = operands.result(header_, (header_.flags & kScalesResult) != 0);
      }
    }
    if (spins >= Wait::kSpinsPerLook) return false;
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t at = g + k * threads_.size;
      if (at >= granules) break;
      if constexpr (Operation::kReduces) {
        store_output(task_.own_to, chunk, at, results[k]);
      } else {
        store_received(words[k], chunk, at);
      }
    }
    return true;
  }

  // As load_sent().
  __device__ __forceinline__ void store_received(const Words (&words)[kMostPeers],
                                                 const Chunk& chunk, uint32_t g) const {
    if (is_wide(chunk, g)) {
      std::byte* output = output_at(chunk, g);
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p >= task_.receives) break;
        ptx::store<uint64_t>(output + task_.receive[p].block_at, unpack_words(words[p]));
      }
      return;
    }
#pragma unroll 1
    for (uint32_t peer = 0; peer < task_.receives; ++peer) {
      uint64_t granule = 0;
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p == peer) granule = unpack_words(words[p]);
      }
      store_output(task_.receive[peer].block_at, chunk, g, granule);
    }
  }

  // Whom the thread waits for; when all has arrived by now, its first peer.
  __device__ __forceinline__ Awaited first_missing(const Chunk& chunk, uint32_t round,
                                                   uint32_t g) const {
    const uint32_t granules = granules_of(chunk);
#pragma unroll 1
    for (uint32_t k = 0; k < kInFlight && g < granules; ++k, g += threads_.size) {
#pragma unroll 1
      for (uint32_t p = 0; p < task_.receives; ++p) {
        const PortTask& port = task_.receive[p].port;
        const uint32_t step = step_of_peer(receive_step_, p) + round;
        const uint32_t flag = ll::flag_of(step, work_.tag);
        const Words words = ptx::load_words(words_at(port, step, in_slots(g)));
        if (!have_arrived(words, flag, bytes_of(chunk, g) > ll::kDataBytes)) {
          return {peer_of(port), other_tag_in(words, flag)};
        }
      }
    }
    return {peer_of(task_.receive[0].port)};
  }

  const LaunchHeader& header_;
  const WorkTask& work_;
  const Task& task_;
  const LaneThreads threads_;
  const uint32_t channel_;
  // Where the connections stand, in the low halves of the 64-bit counters: slots, flags and
  // differences need no more, and a thread has registers for these.
  uint32_t send_step_[kMostPeers];
  uint32_t receive_step_[kMostPeers];
  static constexpr int32_t kAllRounds = 0x7fffffff;
  int32_t rounds_with_credit_ = kAllRounds;  // with all peers
  bool live_ = true;  // false in a thread that saw an abort: it only meets the others at barriers
};

/// A collective: one work, one task.
template <typename Operation, uint32_t kMostPeers, bool kSendsEach>
__device__ __forceinline__ void run_direct(const LaunchArgs& args) {
  using Kernel = Direct<Operation, kMostPeers, kSendsEach>;
  const auto& task =
      *reinterpret_cast<const typename Kernel::Task*>(args.tables + sizeof(WorkTask));
  Kernel(args.header, *work_tasks(args), task,
         {ptx::thread(), ptx::threads(), static_cast<uint32_t>(Barrier::Cta)}, ptx::replica())
      .run();
}

/// Messages, which must not wait for each other: each has warps of its own.
__device__ __forceinline__ void run_messages(const LaunchArgs& args) {
  const auto& image = *reinterpret_cast<const MessagesImage*>(args.tables + args.header.image_at);
  const MessageTask& message = image.messages[image.message_of_warp(ptx::thread() / kWarp)];
  const WorkTask& work = work_tasks(args)[message.work];
  if (ptx::replica() >= work.partition.channels) return;
  Direct<CopyOperation, 1, /*kSendsEach=*/false>(
      args.header, work, message.task,
      {ptx::thread() - message.first_thread, message.threads, message.barrier}, ptx::replica())
      .run();
}

}  // namespace niccolite::executor::cuda

/// Define the kernel niccolite_<name>; see NICCOLITE_KERNEL.
#define NICCOLITE_DIRECT_KERNEL(name, Operation, kMostPeers, kSendsEach)                     \
  extern "C" __global__ void __launch_bounds__(niccolite::executor::cuda::kMaxThreads, 1)    \
      niccolite_##name(const __grid_constant__ niccolite::executor::cuda::LaunchArgs args) { \
    niccolite::executor::cuda::run_direct<Operation, kMostPeers, kSendsEach>(args);          \
  }
#define NICCOLITE_MESSAGES_KERNEL(name)                                                      \
  extern "C" __global__ void __launch_bounds__(niccolite::executor::cuda::kMaxThreads, 1)    \
      niccolite_##name(const __grid_constant__ niccolite::executor::cuda::LaunchArgs args) { \
    niccolite::executor::cuda::run_messages(args);                                           \
  }
