// A worker that reduces the exposed buffers of its peers (direct gets, protocol/advertisement.h).
// The warps of all CTAs take dynamic tiles (tiles.cuh), and each warp is a pipeline
// (stage_reduction.cuh).
//
// With fixed parts for each channel, the operation would be as slow as its slowest multiprocessor,
// and with rounds, all warps of a worker would wait for the slowest warp. Exposed data is there
// from the start, and results that are put and final need no order: between the advertisements and
// the end, warps wait for loads only.
//
//   block   | t0 | t1 | t2 | t3 | t4 | t5 | t6 | t7 | ...     the first tiles by number of the warp
//   warps     00   10   01   11   free ones take the others   (warp, CTA), here two of two
//
// Or the reduction asks the peers to send their operands (pulled_tiles.cuh), if this launch is for
// it and all peers can.
//
// Tiles are counted from the first multiple of 16 bytes in the first sent block, or else in the own
// output. One thread reduces the bytes before it, and the bytes left at the end. Operands, and
// other destinations, may lie anywhere.
//
// A part is read, reduced and stored by one warp, and stored after it has been read, so that the
// result may take the place of an operand (in place), here or at a peer.
//
// Order, besides the orders of simple_step.cuh and of the pipeline: [cached] -> worker barrier ->
// fence -> loads.
#pragma once

#include "executor/cuda/pipeline/pulled_tiles.cuh"
#include "executor/cuda/pipeline/stage_reduction.cuh"
#include "executor/cuda/pipeline/tiles.cuh"

namespace niccolite::executor::cuda {

template <typename Operation>
class ReduceWorker {
 public:
  /// Called by all threads of a worker that has kReducesStaged. `pointers`: the worker's shared
  /// memory.
  __device__ __forceinline__ ReduceWorker(const Cta& cta, const WorkerThreads& worker,
                                          const CompactInstruction& instruction,
                                          std::byte** pointers)
      : cta_(cta),
        worker_(worker),
        instruction_(instruction),
        ports_(cta, instruction),
        pointers_(pointers) {}

  /// Whether the staged reduction is possible, as far as it is known before there are
  /// advertisements; equal in all CTAs.
  __device__ __forceinline__ bool is_possible() const {
    const uint64_t block = block_bytes();
    return cta_.header.reduce_stages.stage_bytes != 0 && block / kVec16 < kMostVec16s &&
           block > (cta_.work->partition.channels - 1) * stride_bytes();
  }

  /// Waits for the advertisements. True: everything is done, or aborted.
  __device__ __forceinline__ bool run() {
    SimplePlan& plan = plan_at(pointers_);
    if (cta_.header.pull_bytes != 0) PulledTiles<Operation>::prepare(cta_, worker_);
    const Answer answer = await_advertisements(plan);
    if (answer != Answer::Agreed) return answer == Answer::Aborted;

    const bool reduces_ends = cta_.channel() == 0 && worker_.rank == 0;
    const uint32_t head = find_head(plan);
    if (head != 0) {
      if (reduces_ends) reduce_end(plan.target, 0, head);
      worker_.barrier();
      pass_head(plan, head);
    }
    const uint64_t bytes = block_bytes() - head;
    const auto block = static_cast<uint32_t>(bytes / kVec16);
    // (Pulled tiles are tiles of the exposing sender's block.)
    const bool pulls =
        head == 0 && PulledTiles<Operation>::is_possible(cta_, worker_, ports_, block);
    const typename Reduction::Blocks blocks{cta_, instruction_, addresses(), plan.target, pulls};
    if (reduces_ends) reduce_end(plan.target, bytes / kVec16 * kVec16, bytes % kVec16);
    if (pulls) {
      const PulledTiles<Operation> tiles(cta_, worker_, ports_, blocks, block, counter());
      if (!tiles.run()) plan.live = nullptr;
      worker_.barrier();
      if (plan.live == nullptr) return true;
      tiles.finish();
    } else {
      reduce_tiles(blocks, block);
      worker_.barrier();
    }
    // All steps of the channel are done, as far as this CTA has to do with them.
    for (uint32_t i = worker_.rank; i < ports_.count; i += worker_.size) {
      PortState& port = cta_.ports[ports_.use(i).port];
      set_done(port, port.end - 1);
    }
    return true;
  }

 private:
  using Element = typename Operation::Element;
  using Values = typename Operation::Values;
  using Reduction = StageReduction<Operation>;
  static constexpr uint64_t kMostVec16s = uint64_t{1} << 32;  // of a block: offsets have 32 bits
  static constexpr uint64_t kRefused = ~uint64_t{0};          // SimplePlan::bytes
  static constexpr uint32_t kPartsOfTile = 8;  // at most: longer ones make the end uneven
  static constexpr uint64_t kTilesOfWarp = 8;  // at least, where parts are short enough

  __device__ __forceinline__ bool has_source() const {
    return instruction_.source != OperandBuffer::None;
  }
  /// The begins of the blocks: of the operands in reduction order, then of the sent blocks.
  __device__ __forceinline__ std::byte** addresses() const { return pointers_ + kPlanPointers; }
  __device__ __forceinline__ uint64_t block_bytes() const {
    return cta_.work->partition.count_from(instruction_.chunk_block, 0) *
           Operation::element_bytes(cta_.header);
  }
  __device__ __forceinline__ uint64_t stride_bytes() const {
    return cta_.work->partition.channel_stride * Operation::element_bytes(cta_.header);
  }
  __device__ __forceinline__ std::byte* block_at(OperandBuffer place, uint32_t block) const {
    return place == OperandBuffer::None ? nullptr
                                        : address_of<Operation>(cta_, place, block, Chunk{});
  }

  enum class Answer : uint8_t { Agreed, Refused, Aborted };

  /// Notes where the blocks begin. In all threads alike; Refused: not all of them are advertised.
  __device__ __forceinline__ Answer await_advertisements(SimplePlan& plan) {
    if (worker_.rank == 0) {
      plan.target = block_at(instruction_.target, instruction_.target_block);
      if (has_source()) {
        addresses()[instruction_.source_position] =
            block_at(instruction_.source, instruction_.source_block);
      }
    }
    bool live = true;
    for (uint32_t i = worker_.rank; i < ports_.count; i += worker_.size) {
      const PortState& port = cta_.ports[ports_.use(i).port];
      live = live && wait_until_open(cta_, port, port.base);
      if (!live) plan.live = nullptr;
      if (!has_agreed(port)) plan.bytes = kRefused;
      const bool is_behind_source = has_source() && i >= instruction_.source_position;
      addresses()[i + is_behind_source] = port.slots - cta_.channel() * stride_bytes();
    }
    worker_.barrier();
    const Answer answer = plan.live == nullptr     ? Answer::Aborted
                          : plan.bytes == kRefused ? Answer::Refused
                                                   : Answer::Agreed;
    // Before the plan is used for something else, also by the next step.
    if (answer != Answer::Agreed) worker_.barrier();
    return answer;
  }

  // ---- tiles

  __device__ __forceinline__ uint32_t warp() const { return worker_.rank / kWarp; }
  __device__ __forceinline__ uint32_t thread() const { return worker_.rank % kWarp; }
  __device__ __forceinline__ uint64_t* counter() const {
    return (cta_.ports[ports_.receives[0].port].control - cta_.channel())->tile_counters;
  }

  /// The tiles of one warp. All lengths in vec16s.
  struct GotTiles {
    Reduction& reduction;
    std::byte* const* addresses;
    TileCounter numbers;
    const uint32_t block;
    const uint32_t part;  // the most that a stage has
    const uint32_t tile;
    uint32_t at = 0;
    uint32_t left = 0;  // of the tile that is being loaded, from `at` on

    __device__ __forceinline__ Next fill_next() {
      if (left == 0) {
        const uint32_t number = ptx::first_of_warp(numbers.next());
        if (number >= numbers.tiles()) return Next::End;
        if (reduction.ring().leads()) numbers.take();
        at = number * tile;
        left = block - at < tile ? block - at : tile;
      }
      const uint32_t vec16s = left < part ? left : part;
      reduction.fill(at, vec16s, [&](uint32_t k) -> const std::byte* {
        return addresses[k] + uint64_t{at} * kVec16;
      });
      at += vec16s;
      left -= vec16s;
      return Next::Found;
    }
    __device__ __forceinline__ bool drain_first() const {
      reduction.drain([] {});
      return true;
    }
    __device__ __forceinline__ bool wait_for_next() const { return true; }
    __device__ __forceinline__ void announce() const {}
  };

  /// `block`: vec16s.
  __device__ __forceinline__ void reduce_tiles(const typename Reduction::Blocks& blocks,
                                               uint32_t block) const {
    Reduction reduction(blocks, warp());
    const uint32_t channels = cta_.work->partition.channels;
    const uint32_t warps = worker_.size / kWarp * channels;
    const uint32_t part = reduction.part_bytes() / kVec16;
    const auto share = static_cast<uint32_t>(block / (kTilesOfWarp * part * warps));
    const uint32_t tile = part * (share < 1 ? 1 : share > kPartsOfTile ? kPartsOfTile : share);
    const uint32_t tiles = block / tile + (block % tile != 0);
    const uint32_t taker = warp() * channels + cta_.channel();
    GotTiles flow{reduction, addresses(), TileCounter(counter(), tiles, warps, taker),
                  block,     part,        tile};
    run_pipeline(reduction.ring(), flow);
    if (thread() == 0) flow.numbers.finish();
  }

  // ---- ends

  __device__ __forceinline__ uint32_t operands() const {
    return uint32_t{instruction_.receive_count} + has_source();
  }
  /// Bytes before the tiles begin.
  __device__ __forceinline__ uint32_t find_head(const SimplePlan& plan) const {
    const std::byte* first = instruction_.send_count != 0 ? addresses()[operands()] : plan.target;
    const uint32_t head = (kVec16 - bytes_into_line(first) % kVec16) % kVec16;
    return head < block_bytes() ? head : static_cast<uint32_t>(block_bytes());
  }
  /// Called by all threads of the worker: the blocks begin behind it now.
  __device__ __forceinline__ void pass_head(SimplePlan& plan, uint32_t head) const {
    if (worker_.rank == 0 && plan.target != nullptr) plan.target += head;
    for (uint32_t k = worker_.rank; k < operands() + instruction_.send_count; k += worker_.size) {
      addresses()[k] += head;
    }
    worker_.barrier();
  }

  /// `bytes` bytes from `from` on, less than a vec16: by one thread.
  __device__ __forceinline__ void reduce_end(std::byte* target, uint64_t from,
                                             uint32_t bytes) const {
    constexpr uint32_t kElement = sizeof(Element);
    const bool scales_result =
        (cta_.header.flags & kScalesResult) && (instruction_.flags & kFinish);
    for (uint32_t done = 0; done < bytes; done += kVec8) {
      const uint32_t part = bytes - done < kVec8 ? bytes - done : kVec8;
      const uint64_t at = from + done;
      const auto load = [&](uint32_t k) {
        return Operation::widen(load_vec8<Element>(addresses()[k] + at, part, kElement));
      };
      Values values = load(0);
#pragma unroll 1
      for (uint32_t k = 1; k < operands(); ++k) Operation::accumulate(values, load(k));
      const uint64_t result = Operation::finish(cta_.header, values, scales_result);
#pragma unroll 1
      for (uint32_t s = 0; s < instruction_.send_count; ++s) {
        store_vec8<Element>(addresses()[operands() + s] + at, result, part, kElement);
      }
      if (target != nullptr) store_vec8<Element>(target + at, result, part, kElement);
    }
  }

  const Cta& cta_;
  const WorkerThreads& worker_;
  const CompactInstruction& instruction_;
  const PortsOfInstruction ports_;
  std::byte** const pointers_;
};

/// Runs, by all threads, a worker that has kReducesStaged. False: it is to be run round by round.
template <typename Operation>
__device__ __forceinline__ bool run_reduce_worker(const Cta& cta,
                                                  const CompactInstruction& instruction,
                                                  const WorkerThreads& worker,
                                                  std::byte** pointers) {
  ReduceWorker<Operation> reduction(cta, worker, instruction, pointers);
  if (!reduction.is_possible() || !reduction.run()) return false;
  if (worker.rank == 0 && plan_at(pointers).live == nullptr) leave_advertisements(cta);
  return true;
}

}  // namespace niccolite::executor::cuda
