// Hand-written kernels for operations of one step by LL: every rank sends blocks of its input
// straight to others and reduces, or stores, the blocks that it receives. The interpreter runs the
// same programs; these kernels save latency. Every address is a parameter, nothing is staged in
// shared memory, and all loads that the first store needs are issued at once. tests/device compares
// them with the interpreter; direct_params.cc recognizes the programs by their form.
//
//   parameters -> { steps, credits, first input } -> store to peers -> barrier
//              -> poll own slots -> reduce -> store
//
// All threads of a task do all of this, for all peers: thread t handles the vec8s g of every block
// with g % size == t. Words of all peers are thus on their way together, however few threads there
// are.
//
// Launch shape: grid (replicas, 1), up to kMaxThreads threads, no shared memory except
// HostCounters. The CTA has one task (a collective), or one for each message, each with its own
// warps. Or each CTA has a list of collectives, which its connections see as the rounds of one long
// operation.
#pragma once

#include "executor/cuda/patterns/direct_connections.cuh"
#include "executor/cuda/patterns/direct_data.cuh"

namespace niccolite::executor::cuda {

/// Vec8s of a thread that are on their way together, as many as there are registers for.
template <typename Operation, uint32_t kMostPeers, bool kSendsEach>
constexpr uint32_t vec8s_in_flight() {
  if (kMostPeers == 1) return 4;
  if constexpr (Operation::kReduces && kSendsEach) {
    if (Operation::kAccumulatorRegisters > 8) return 1;
  }
  return kMostPeers <= kFewDirectPeers ? 2 : 1;
}

/// One task: sends to, and receives from, at most kMostPeers peers each. kSendsEach: every peer is
/// sent a block of its own; otherwise all are sent the task's own block. kIsList: the task is done
/// for work after work, and counts blocks. kCounters: the place of the connections' counters.
template <typename Operation, uint32_t kMostPeers, bool kSendsEach, Counters kCounters,
          bool kIsList = false>
class Direct {
 public:
  using Task = DirectTask<kMostPeers>;
  using Data = DirectData<Operation, kMostPeers, kSendsEach, kIsList>;
  using Works = typename Data::Works;

  __device__ __forceinline__ Direct(const LaunchHeader& header, const Works& works,
                                    const Task& task, const WorkerThreads& threads,
                                    uint32_t channel)
      : header_(header),
        works_(works),
        task_(task),
        data_(header, works, task, channel),
        threads_(threads),
        channel_(channel),
        connections_(header, task, threads, channel) {}

  /// Called by all threads of the task.
  __device__ __forceinline__ void run() {
    loaded_ = connections_.load();
    run_rounds();
  }
  /// Runs a CTA's only task, whose blocks are cut like `cut`.
  __device__ __forceinline__ void run(const BlockCut& cut) {
    loaded_ = connections_.load();
    if (kRunsAtOnce && works_.partition.rounds == 1 && cut.chunk <= threads_.size * kVec8) {
      run_at_once(data_.only_chunk(cut));
    } else {
      run_rounds();
    }
  }

  /// Called by all threads of the task. Counters are being loaded.
  __device__ __forceinline__ void run_rounds() {
    const uint32_t rounds = works_.partition.rounds;
    for (uint32_t round = 0; round < rounds; ++round) {
      const Chunk chunk = data_.chunk_of_round(round);
      uint64_t own[kInFlight];  // the thread's first vec8s
      send(chunk, round, own);
      if (round == 0) {
        threads_.barrier();
        if (!connections_.takes_turns()) connections_.advance(rounds + data_.first_step());
      }
      receive(chunk, round, own);
      if (rounds > header_.shape.depth) {
        threads_.barrier();
        if (live_) connections_.give_credit(round, rounds);
      }
    }
    if constexpr (kCounters == Counters::OfProxies) connections_.give_all_credit(rounds, live_);
  }

  /// Runs one round of a chunk, where every thread has a vec8 at most. It has no loops: every
  /// instruction before the first store and behind the last word's arrival counts.
  __device__ __forceinline__ void run_at_once(const Chunk& chunk) {
    const uint32_t g = threads_.rank;
    const bool has_data = g * kVec8 < chunk.bytes;
    typename Data::Vec8s vec8s{};
    if (has_data) vec8s = data_.load_vec8s(chunk, g);
    const auto slots = slots_at(g);
    connections_.start(loaded_);
    live_ = connections_.wait_for_credit(0, data_.work().tag);
    if (live_ && has_data) {
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p >= task_.sends) continue;
        const uint32_t step = connections_.send_step(p);
        ptx::store_words(slots.send(p, step),
                         pack_words(kSendsEach ? vec8s.sent[kSendsEach ? p : 0] : vec8s.own,
                                    ll::flag_of(step, data_.work().tag)));
      }
      if (!Operation::kReduces && task_.copies_own != 0)
        data_.store_output(data_.at(task_.own_to), chunk, g, vec8s.own);
    }
    bool cleans = false;
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      cleans |= p < task_.sends && ll::cleans(connections_.send_step(p), header_.shape.depth);
    }
    if (cleans && live_) [[unlikely]]
      clean(0, data_.vec8s_of(chunk));
    threads_.barrier();
    connections_.advance(1);
    if (!live_ || !has_data || task_.receives == 0) return;
    Words words[kMostPeers] = {};
    for (Wait wait(header_, data_.work().tag);
         !poll_at_once(slots, data_.bytes_of(chunk, g), words);) {
      if (!wait.look(first_missing(chunk, 0, g))) return;
    }
    if constexpr (Operation::kReduces) {
      data_.store_output(data_.at(task_.own_to), chunk, g, reduce(vec8s.own, words));
    } else {
      store_received(words, chunk, g);
    }
  }

  /// Runs, by all threads of the CTA, the works of its channel, in batches of as many rounds as
  /// there are teams of threads, one each. Batches to come are sent before one is received, as many
  /// as leave the peers slots to give back: their words travel meanwhile.
  __device__ __forceinline__ void run_list() {
    const uint32_t rounds = works_.rounds[channel_];
    const uint32_t teams = works_.teams;
    const uint32_t team = ptx::thread() / threads_.size;
    loaded_ = connections_.load();
    const uint32_t ahead = header_.shape.depth - teams;
    typename Data::Cursor sending = data_.cursor_of_round(team, rounds);
    typename Data::Cursor receiving = sending;
    // The team's next round; `rounds` or more if it has none in the batch.
    uint32_t round = team, next = team;
#pragma unroll 1
    while (round - team < rounds) {
      if (next - team < rounds && next <= round + ahead) {
        if (next < rounds) send_at(sending, next);
        if (next == team) {
          ptx::barrier_cta();
          if (team == 0) connections_.advance(rounds);
        }
        next += teams;
        data_.go_on(sending, teams, next, rounds);
        continue;
      }
      const uint64_t own[kInFlight] = {};  // of a list they are read again
      if (round < rounds) receive(data_.open(receiving), round, own);
      if (rounds > header_.shape.depth) {
        ptx::barrier_cta();
        // The batch's last round for which credit can be needed.
        const uint32_t awaited = rounds - header_.shape.depth;
        const uint32_t last = (round + teams < awaited ? round + teams : awaited) - 1;
        if (team == 0 && round <= last && live_) connections_.give_credit(last, rounds);
      }
      round += teams;
      data_.go_on(receiving, teams, round, rounds);
    }
  }

 private:
  using Element = typename Operation::Element;
  static constexpr uint32_t kInFlight = vec8s_in_flight<Operation, kMostPeers, kSendsEach>();
  // (Connections of the host's memory wait for its counters anyway.)
  static constexpr bool kRunsAtOnce = kCounters == Counters::InGpu;

  __device__ __forceinline__ void send_at(const typename Data::Cursor& place, uint32_t round) {
    uint64_t own[kInFlight];
    send(data_.open(place), round, own);
  }

  // ---- at once

  /// DirectSlots of many peers.
  struct ManySlots {
    const Direct& direct;
    uint64_t in_slots;
    __device__ __forceinline__ std::byte* send(uint32_t p, uint32_t step) const {
      return direct.connections_.words_at(direct.task_.send[p].port, step, in_slots);
    }
    __device__ __forceinline__ const std::byte* receive(uint32_t p, uint32_t step) const {
      return direct.connections_.words_at(direct.task_.receive[p].port, step, in_slots);
    }
  };
  __device__ __forceinline__ auto slots_at(uint32_t g) const {
    if constexpr (kMostPeers <= kFewDirectPeers) {
      return DirectSlots<kMostPeers>(header_, task_, channel_, g);
    } else {
      return ManySlots{*this, connections_.in_slots(g)};
    }
  }
  /// The words of a vec8 of so many bytes from all peers. False after kSpinsPerLook looks.
  template <typename Slots>
  __device__ __forceinline__ bool poll_at_once(const Slots& slots, uint32_t bytes,
                                               Words (&words)[kMostPeers]) const {
    const std::byte* at[kMostPeers] = {};
    uint32_t flags[kMostPeers] = {};
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= task_.receives) continue;
      const uint32_t step = connections_.receive_step(p);
      at[p] = slots.receive(p, step);
      flags[p] = ll::flag_of(step, data_.work().tag);
    }
    const uint32_t receives = ptx::opaque(task_.receives);
    bool is_missing = false;
    uint32_t spins = 0;
#pragma unroll 1
    do {
      is_missing = false;
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p < receives) words[p] = ptx::load_words(at[p]);
      }
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        is_missing |= p < receives && !have_arrived(words[p], flags[p], bytes > ll::kDataBytes);
      }
    } while (is_missing && ++spins < Wait::kSpinsPerLook);
    return !is_missing;
  }

  // ---- sending

  // The loads of the first vec8s are on their way before anything else is waited for; they stand
  // here once, in the loop, for the sake of the code's size.
  __device__ __forceinline__ void send(const Chunk& chunk, uint32_t round,
                                       uint64_t (&own)[kInFlight]) {
    // In place the own block is where it belongs.
    const bool copies_own = !Operation::kReduces && task_.copies_own != 0 &&
                            data_.work().input + data_.at(task_.own_from) !=
                                data_.work().output + data_.at(task_.own_to);
    const uint32_t vec8s = data_.vec8s_of(chunk);
    const uint32_t end = task_.sends != 0 || copies_own ? vec8s : 0;
    uint32_t g = threads_.rank;
#pragma unroll 1
    do {
      typename Data::Vec8s loaded[kInFlight];
#pragma unroll
      for (uint32_t k = 0; k < kInFlight; ++k) {
        if (g + k * threads_.size >= vec8s) break;
        loaded[k] = data_.load_vec8s(chunk, g + k * threads_.size);
      }
      if (g == threads_.rank) {
        if (data_.is_first(round)) {
          connections_.start(loaded_, data_.first_step());
          // Before any wait: the rounds of other messages have started by then.
          if constexpr (kMostPeers == 1) {
            if (connections_.takes_turns()) {
              ptx::barrier_cta();
              connections_.advance(works_.partition.rounds + data_.first_step());
            }
          }
        }
        // Not before: it waits for the loads.
#pragma unroll
        for (uint32_t k = 0; k < kInFlight; ++k) own[k] = loaded[k].own;
        live_ = live_ && connections_.wait_for_credit(round, data_.work().tag);
        if (!live_) return;
        if constexpr (kCounters == Counters::OfProxies)
          connections_.note(round, chunk.bytes, data_.work().tag);
      }
#pragma unroll
      for (uint32_t k = 0; k < kInFlight; ++k) {
        const uint32_t vec8 = g + k * threads_.size;
        if (vec8 >= end) break;
        store_words(round, vec8, loaded[k]);
        if (copies_own) data_.store_output(data_.at(task_.own_to), chunk, vec8, loaded[k].own);
      }
      g += kInFlight * threads_.size;
    } while (g < end);
    clean(round, vec8s);
  }
  __device__ __forceinline__ void store_words(uint32_t round, uint32_t g,
                                              const typename Data::Vec8s& vec8s) const {
    const uint64_t in_slot = connections_.in_slots(g);
    const uint32_t ahead = ptx::opaque(round);
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      if (p >= task_.sends) continue;
      const uint32_t step = connections_.send_step(p) + ahead;
      ptx::store_words(connections_.words_at(task_.send[p].port, step, in_slot),
                       pack_words(kSendsEach ? vec8s.sent[kSendsEach ? p : 0] : vec8s.own,
                                  ll::flag_of(step, data_.work().tag)));
    }
  }
  // The words behind the chunk, once in 2^15 steps.
  __device__ __forceinline__ void clean(uint32_t round, uint32_t vec8s) const {
#pragma unroll 1
    for (uint32_t p = 0; p < task_.sends; ++p) {
      const uint32_t step = connections_.find_send_step(p) + round;
      if (!ll::cleans(step, header_.shape.depth)) continue;
      const uint64_t slot = connections_.in_slots(0);
      ll_clean(header_.shape, threads_, connections_.words_at(task_.send[p].port, step, slot),
               vec8s, ll::flag_of(step, data_.work().tag));
    }
  }

  // ---- receiving

  // Tries again and again. The code for long waits stands here and not in the loop that waits: code
  // that is fetched in vain makes a small operation slower.
  __device__ __forceinline__ void receive(const Chunk& chunk, uint32_t round,
                                          const uint64_t (&own)[kInFlight]) {
    if (task_.receives == 0) return;
    const uint32_t vec8s = data_.vec8s_of(chunk);
    for (uint32_t g = threads_.rank; live_ && g < vec8s; g += kInFlight * threads_.size) {
      for (Wait wait(header_, data_.work().tag); live_ && !try_receive(chunk, round, own, g);) {
        live_ = wait.look(first_missing(chunk, round, g));
      }
    }
  }

  // Vec8s g, g + size, ... of the chunk, kInFlight of them. False when words were missing after
  // kSpinsPerLook looks; nothing is stored then: in place, the next try reads the input anew.
  __device__ __forceinline__ bool try_receive(const Chunk& chunk, uint32_t round,
                                              const uint64_t (&own)[kInFlight], uint32_t g) const {
    const uint32_t vec8s = data_.vec8s_of(chunk);
    uint64_t reduced[kInFlight];
    if constexpr (Operation::kReduces) {
#pragma unroll
      for (uint32_t k = 0; k < kInFlight; ++k) {
        const uint32_t vec8 = g + k * threads_.size;
        if (vec8 >= vec8s) break;
        reduced[k] = !kIsList && g == threads_.rank
                         ? own[k]
                         : data_.load_input(data_.at(task_.own_from), chunk, vec8);
      }
    }
    Words words[kInFlight][kMostPeers] = {};
    if (!poll(chunk, round, g, words)) return false;
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t vec8 = g + k * threads_.size;
      if (vec8 >= vec8s) break;
      if constexpr (Operation::kReduces) {
        data_.store_output(data_.at(task_.own_to), chunk, vec8, reduce(reduced[k], words[k]));
      } else {
        store_received(words[k], chunk, vec8);
      }
    }
    return true;
  }

  // All words that are missing are looked at together: one that was looked at long before the
  // others came costs no look of its own. False after kSpinsPerLook looks.
  __device__ __forceinline__ bool poll(const Chunk& chunk, uint32_t round, uint32_t g,
                                       Words (&words)[kInFlight][kMostPeers]) const {
    const uint32_t vec8s = data_.vec8s_of(chunk);
    const uint64_t in_slot = connections_.in_slots(g);
    const uint32_t ahead = ptx::opaque(round);
    uint64_t first[kMostPeers] = {};  // where vec8 g of the peer lies
    uint32_t flags[kMostPeers];
#pragma unroll
    for (uint32_t p = 0; p < kMostPeers; ++p) {
      const uint32_t step = connections_.receive_step(p) + ahead;
      if (p < task_.receives) {
        first[p] =
            reinterpret_cast<uint64_t>(connections_.words_at(task_.receive[p].port, step, in_slot));
      }
      // Kept in registers, where there are enough, instead of computed anew in every look.
      if (kMostPeers <= kFewDirectPeers) {
        first[p] = ptx::opaque(first[p]);
      }
      flags[p] = ll::flag_of(step, data_.work().tag);
    }
    uint32_t missing = 0;  // a bit for each of words[][]
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      if (g + k * threads_.size < vec8s) {
        missing |= ((1u << task_.receives) - 1) << (k * kMostPeers);
      }
    }
    uint32_t spins = 0;
    do {
#pragma unroll
      for (uint32_t k = 0; k < kInFlight; ++k) {
#pragma unroll
        for (uint32_t p = 0; p < kMostPeers; ++p) {
          if ((missing & bit_of(k, p)) == 0) continue;
          words[k][p] = ptx::load_words(
              reinterpret_cast<const std::byte*>(first[p] + k * threads_.size * kVec8InSlot));
        }
      }
#pragma unroll
      for (uint32_t k = 0; k < kInFlight; ++k) {
        const bool both = data_.bytes_of(chunk, g + k * threads_.size) > ll::kDataBytes;
        const uint32_t matters = both ? ~uint32_t{0} : 0;
#pragma unroll
        for (uint32_t p = 0; p < kMostPeers; ++p) {
          // The same test as have_arrived(), without a branch for each word.
          const uint32_t wrong = (ll::flag_in(words[k][p].first) ^ flags[p]) |
                                 ((ll::flag_in(words[k][p].second) ^ flags[p]) & matters);
          if (wrong == 0) missing &= ~bit_of(k, p);
        }
      }
    } while (missing != 0 && ++spins < Wait::kSpinsPerLook);
    return missing == 0;
  }
  __device__ __forceinline__ static constexpr uint32_t bit_of(uint32_t k, uint32_t p) {
    return 1u << (k * kMostPeers + p);
  }

  __device__ __forceinline__ uint64_t reduce(uint64_t own, const Words (&words)[kMostPeers]) const {
    return reduce_with_own<Operation>(header_, task_, own, words,
                                      [](const Words& operand) { return unpack_words(operand); });
  }

  // Stores in the same way as data_.load_sent() loads.
  __device__ __forceinline__ void store_received(const Words (&words)[kMostPeers],
                                                 const Chunk& chunk, uint32_t g) const {
    std::byte* output = data_.output_at(chunk, g);
    const uint32_t bytes = data_.bytes_of(chunk, g);
    with_store<Element>(data_.work().width, bytes, [&](auto store) {
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p >= task_.receives) break;
        store(output + data_.at(task_.receive[p].block_at), unpack_words(words[p]));
      }
    });
  }

  // Whom the thread waits for; when all has arrived by now, its first peer.
  __device__ __forceinline__ Awaited first_missing(const Chunk& chunk, uint32_t round,
                                                   uint32_t g) const {
    const uint32_t vec8s = data_.vec8s_of(chunk);
#pragma unroll 1
    for (uint32_t k = 0; k < kInFlight && g < vec8s; ++k, g += threads_.size) {
#pragma unroll 1
      for (uint32_t p = 0; p < task_.receives; ++p) {
        const PortTask& port = task_.receive[p].port;
        const uint32_t step = connections_.find_receive_step(p) + round;
        const uint32_t flag = ll::flag_of(step, data_.work().tag);
        const Words words =
            ptx::load_words(connections_.words_at(port, step, connections_.in_slots(g)));
        if (!have_arrived(words, flag, data_.bytes_of(chunk, g) > ll::kDataBytes)) {
          return {connections_.peer_of(port), other_tag_in(words, flag)};
        }
      }
    }
    return {connections_.peer_of(task_.receive[0].port)};
  }

  const LaunchHeader& header_;
  const Works& works_;
  const Task& task_;
  Data data_;
  const WorkerThreads threads_;
  const uint32_t channel_;
  using Connections = DirectConnections<kMostPeers, kCounters>;
  Connections connections_;
  typename Connections::Loaded loaded_;  // until the first round starts
  bool live_ = true;  // false in a thread that saw an abort: it only meets the others at barriers
};

}  // namespace niccolite::executor::cuda
