// Loads, scaling and stores of the kernels for programs of one step (direct.cuh). direct_list.cuh
// uses the scaling, too.
#pragma once

#include <type_traits>

#include "executor/cuda/interpreter/ll_step.cuh"
#include "executor/cuda/patterns/direct_args.h"

namespace niccolite::executor::cuda {

template <typename Operation>
__device__ __forceinline__ bool scales_input(const LaunchHeader& header) {
  return Operation::kReduces && (header.flags & kScalesInput) != 0;
}
__device__ __forceinline__ bool scales_result(const LaunchHeader& header) {
  return (header.flags & kScalesResult) != 0;
}

/// A vec8 of the input as it is sent and reduced.
template <typename Operation>
__device__ __forceinline__ uint64_t scaled_input(const LaunchHeader& header, uint64_t vec8) {
  if constexpr (Operation::kReduces) {
    using Element = typename Operation::Element;
    if (!scales_input<Operation>(header)) return vec8;
    const auto scale = header.device_scale == nullptr
                           ? Operation::input_scale(header)
                           : Operation::input_scale(load_element<Element>(header.device_scale));
    vec8 = Operation::scale_input(scale, vec8);
  }
  return vec8;
}

/// Reduces a vec8 in reduction order: the own one, which stands at source_position, and half(words)
/// of each peer's. The own one is selected and not branched to: this code lies between the last
/// word's arrival and the result.
template <typename Operation, uint32_t kMostPeers, typename Half>
__device__ __forceinline__ uint64_t reduce_with_own(const LaunchHeader& header,
                                                    const DirectTask<kMostPeers>& task,
                                                    uint64_t own, const Words (&words)[kMostPeers],
                                                    Half&& half) {
  const uint32_t receives = task.receives;
  const uint32_t own_at = task.source_position < receives ? task.source_position : receives;
  LlOperands<Operation> operands(/*reductions=*/true);
#pragma unroll
  for (uint32_t i = 0; i <= kMostPeers; ++i) {
    if (i > receives) continue;
    uint64_t operand = own;
    if (i < kMostPeers && i < own_at) operand = half(words[i < kMostPeers ? i : 0]);
    if (i > 0 && i > own_at) operand = half(words[i > 0 ? i - 1 : 0]);
    operands.add(operand);
  }
  return operands.result(header, scales_result(header));
}

/// The user's data of a task (direct.cuh).
template <typename Operation, uint32_t kMostPeers, bool kSendsEach, bool kIsList>
class DirectData {
 public:
  using Element = typename Operation::Element;
  using Task = DirectTask<kMostPeers>;
  static_assert(!kIsList || kMostPeers > 1);

  /// The description of the task's user data: a WorkTask, or the ListParams of all its works.
  using Works = std::conditional_t<kIsList, ListParams<kMostPeers>, WorkTask>;

  /// The vec8s of the input that a thread sends and reduces.
  struct Vec8s {
    uint64_t own;
    uint64_t sent[kSendsEach ? kMostPeers : 1];
  };

  __device__ __forceinline__ DirectData(const LaunchHeader& header, const Works& works,
                                        const Task& task, uint32_t channel)
      : header_(header), works_(works), task_(task), channel_(channel) {}

  // ---- the current work

  __device__ __forceinline__ const auto& work() const {
    if constexpr (kIsList) {
      return works_.work[current_];
    } else {
      return works_;
    }
  }
  __device__ __forceinline__ uint32_t first_step() const {
    if constexpr (kMostPeers == 1) {  // messages alone take turns
      return works_.first_step;
    } else {
      return 0;
    }
  }

  /// Is `round` the first of the calling thread's work?
  __device__ __forceinline__ bool is_first(uint32_t round) const {
    if constexpr (kIsList) {
      return round < works_.teams;
    } else {
      return round == 0;
    }
  }

  // ---- works of a list

  struct Cursor {
    uint32_t work;
    uint32_t chunk;
  };
  /// Returns the place of `round` on a channel of `rounds` rounds. Any value if it has no such
  /// round.
  __device__ __forceinline__ Cursor cursor_of_round(uint32_t round, uint32_t rounds) const {
    Cursor place{channel_ / works_.parts, channel_ % works_.parts};
    if (round < rounds) place = at_chunk(place);
    go_on(place, round, round, rounds);
    return place;
  }
  /// Advances `place` by so many rounds, to `round`, if there is one.
  __device__ __forceinline__ void go_on(Cursor& place, uint32_t by, uint32_t round,
                                        uint32_t rounds) const {
    if (round >= rounds) return;
#pragma unroll 1
    for (; by > 0; --by) place = at_chunk({place.work, place.chunk + works_.parts});
  }
  /// Makes the work at `place` the current one; returns its chunk.
  __device__ __forceinline__ Chunk open(const Cursor& place) {
    current_ = place.work;
    const uint32_t element_bytes = Operation::element_bytes(header_);
    const uint32_t start = place.chunk * works_.chunk;
    const uint32_t left = work().count - start;
    return {uint64_t{start} * element_bytes,
            (left < works_.chunk ? left : works_.chunk) * element_bytes};
  }

  // ---- data

  /// Bytes from the start of a buffer to a block of the task.
  __device__ __forceinline__ uint64_t at(uint64_t block) const {
    if constexpr (kIsList) {
      return block * work().count * Operation::element_bytes(header_);
    } else {
      return block;
    }
  }
  // All blocks of the task have the length of block 0.
  __device__ __forceinline__ Chunk chunk_of_round(uint32_t round) const {
    const Range range = works_.partition.range(0, channel_, round);
    const uint32_t element_bytes = Operation::element_bytes(header_);
    return {range.offset * element_bytes, static_cast<uint32_t>(range.count) * element_bytes};
  }
  /// Returns the channel's only chunk, where there is one round.
  __device__ __forceinline__ Chunk only_chunk(const BlockCut& cut) const {
    const uint64_t start = channel_ * cut.channel;
    const uint64_t left = start < cut.block ? cut.block - start : 0;
    return {start, left < cut.chunk ? static_cast<uint32_t>(left) : cut.chunk};
  }
  __device__ __forceinline__ static uint32_t vec8s_of(const Chunk& chunk) {
    return (chunk.bytes + kVec8 - 1) / kVec8;
  }
  __device__ __forceinline__ static uint32_t bytes_of(const Chunk& chunk, uint32_t g) {
    const uint32_t left = chunk.bytes - g * kVec8;
    return left < kVec8 ? left : kVec8;
  }
  /// Returns the address of vec8 g in the block at the start of the input, and of the output.
  __device__ __forceinline__ const std::byte* input_at(const Chunk& chunk, uint32_t g) const {
    return work().input + ptx::opaque(chunk.in_block + g * kVec8);
  }
  __device__ __forceinline__ std::byte* output_at(const Chunk& chunk, uint32_t g) const {
    return work().output + ptx::opaque(chunk.in_block + g * kVec8);
  }
  /// Loads from the block that begins so many bytes behind the start of the input.
  __device__ __forceinline__ uint64_t load_input(uint64_t block_at, const Chunk& chunk,
                                                 uint32_t g) const {
    return scaled_input<Operation>(header_, load_vec8<Element>(input_at(chunk, g) + block_at,
                                                               bytes_of(chunk, g), work().width));
  }
  __device__ __forceinline__ Vec8s load_vec8s(const Chunk& chunk, uint32_t g) const {
    Vec8s vec8s{};
    if constexpr (kSendsEach) {
      load_all(vec8s, chunk, g);
    } else if (task_.reads_own != 0) {
      vec8s.own = load_input(at(task_.own_from), chunk, g);
    }
    return vec8s;
  }
  // Loads the own block's vec8 and those for all peers together: between branches each load would
  // wait for its own block's place, and fetch code of its own.
  __device__ __forceinline__ void load_all(Vec8s& vec8s, const Chunk& chunk, uint32_t g) const {
    const std::byte* input = input_at(chunk, g);
    const uint32_t bytes = bytes_of(chunk, g);
    with_load<Element>(work().width, bytes, [&](auto load) {
      if (task_.reads_own != 0) vec8s.own = load(input + at(task_.own_from));
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p >= task_.sends) break;
        vec8s.sent[p] = load(input + at(task_.send[p].block_at));
      }
    });
    if (!scales_input<Operation>(header_)) return;
    vec8s.own = scaled_input<Operation>(header_, vec8s.own);
#pragma unroll 1
    for (uint32_t peer = 0; peer < task_.sends; ++peer) {
      uint64_t vec8 = 0;
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p == peer) vec8 = vec8s.sent[p];
      }
      vec8 = scaled_input<Operation>(header_, vec8);
#pragma unroll
      for (uint32_t p = 0; p < kMostPeers; ++p) {
        if (p == peer) vec8s.sent[p] = vec8;
      }
    }
  }
  __device__ __forceinline__ void store_output(uint64_t block_at, const Chunk& chunk, uint32_t g,
                                               uint64_t vec8) const {
    store_vec8<Element>(output_at(chunk, g) + block_at, vec8, bytes_of(chunk, g), work().width);
  }

 private:
  // Works that are short have none for some channels.
  __device__ __forceinline__ Cursor at_chunk(Cursor place) const {
#pragma unroll 1
    while (place.chunk * works_.chunk >= works_.work[place.work].count)
      place = {place.work + works_.columns, channel_ % works_.parts};
    return place;
  }

  const LaunchHeader& header_;
  const Works& works_;
  const Task& task_;
  const uint32_t channel_;
  uint32_t current_ = 0;  // of a list: its work
};

}  // namespace niccolite::executor::cuda
