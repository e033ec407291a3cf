// What the interpreters of both protocols share: the start of a CTA, where an instruction's data
// lies, access to user memory of any alignment, and the ways out of a wait.
#pragma once

#include "executor/cuda/fold.cuh"
#include "executor/cuda/launch_args.h"
#include "executor/cuda/ptx.cuh"

namespace niccolite::executor::cuda {

/// The CTA's view of the launch: the tables in shared memory.
struct Cta {
  const LaunchHeader& header;
  const CompactInstruction* instructions;
  const PortUse* uses;
  PortState* ports;
  std::byte** pointers;
  uint32_t replica;
};

/// The threads of the CTA that run one lane. Named in every cooperative call.
struct LaneThreads {
  uint32_t rank;  // of the calling thread
  uint32_t size;
  uint32_t barrier_id;

  /// All threads of the lane must arrive.
  __device__ __forceinline__ void barrier() const {
    if (size == kWarp) {
      ptx::barrier_warp();
    } else {
      ptx::barrier(barrier_id, size);
    }
  }
};

/// The first granule of the input that the thread will need, on its way while the CTA starts. The
/// input keeps its value until it has been read (schedule/check.h), also in place.
struct Prefetched {
  const std::byte* address;
  uint64_t granule;
};

/// A wait that looks at the abort word now and then: it lies in host memory, a microsecond away.
class Wait {
 public:
  __device__ __forceinline__ explicit Wait(const Cta& cta) : abort_(cta.header.abort) {}
  /// False when the operation was aborted.
  __device__ __forceinline__ bool keep_going() {
    if (++spins_ % kSpinsPerLook != 0) return true;
    // Relaxed: nothing is read on account of it; the kernel just ends.
    return ptx::load_relaxed_system(abort_) == 0;
  }

 private:
  static constexpr uint32_t kSpinsPerLook = 4096;
  const uint32_t* abort_;
  uint32_t spins_ = 0;
};

// ---- user memory: aligned to the element, and whatever more LaunchHeader::width says

template <typename Piece>
__device__ __forceinline__ uint64_t load_pieces(const std::byte* address, uint32_t bytes) {
  uint64_t granule = 0;
#pragma unroll
  for (uint32_t at = 0; at < 8; at += sizeof(Piece)) {
    if (at < bytes) {
      granule |= static_cast<uint64_t>(ptx::load<Piece>(address + at)) << (8 * at);
    }
  }
  return granule;
}
template <typename Piece>
__device__ __forceinline__ void store_pieces(std::byte* address, uint64_t granule, uint32_t bytes) {
#pragma unroll
  for (uint32_t at = 0; at < 8; at += sizeof(Piece)) {
    if (at < bytes) ptx::store<Piece>(address + at, static_cast<Piece>(granule >> (8 * at)));
  }
}

template <uint32_t kBytes>
struct PieceOf;
template <>
struct PieceOf<1> {
  using Type = uint8_t;
};
template <>
struct PieceOf<2> {
  using Type = uint16_t;
};
template <>
struct PieceOf<4> {
  using Type = uint32_t;
};
template <>
struct PieceOf<8> {
  using Type = uint64_t;
};

/// Calls function(Piece()) with the widest piece for `bytes` bytes at an address aligned to
/// `width`: a whole granule goes by the alignment, the end of a buffer element by element.
template <typename Element, typename Function>
__device__ __forceinline__ void with_piece(uint32_t width, uint32_t bytes, Function&& function) {
  constexpr uint32_t kElement = sizeof(Element);
  if (bytes >= 8 && width >= 8) return function(uint64_t());
  if constexpr (kElement <= 4) {
    if (bytes >= 8 && width == 4) return function(uint32_t());
  }
  if constexpr (kElement <= 2) {
    if (bytes >= 8 && width == 2) return function(uint16_t());
  }
  return function(typename PieceOf<kElement>::Type());
}

/// `bytes` (at most 8, a multiple of the element) bytes of user memory; the rest of the granule is
/// zero.
template <typename Element>
__device__ __forceinline__ uint64_t load_granule(const std::byte* address, uint32_t bytes,
                                                 uint32_t width) {
  uint64_t granule = 0;
  with_piece<Element>(width, bytes,
                      [&](auto piece) { granule = load_pieces<decltype(piece)>(address, bytes); });
  return granule;
}
template <typename Element>
__device__ __forceinline__ void store_granule(std::byte* address, uint64_t granule, uint32_t bytes,
                                              uint32_t width) {
  with_piece<Element>(width, bytes,
                      [&](auto piece) { store_pieces<decltype(piece)>(address, granule, bytes); });
}

// ---- instructions

/// The bytes that an instruction moves in a round.
struct Chunk {
  uint64_t in_block;  // bytes from the start of a block
  uint32_t bytes;     // 0: empty
};

template <typename Operation>
__device__ __forceinline__ Chunk chunk_of(const Cta& cta, const CompactInstruction& instruction,
                                          uint32_t round) {
  const Partition& partition = cta.header.partition;
  const uint32_t element_bytes = Operation::element_bytes(cta.header);
  const Range range = partition.range(instruction.chunk_block, cta.replica, round);
  const uint64_t block_start = instruction.chunk_block * partition.block_stride;
  return {(range.offset - block_start) * element_bytes,
          static_cast<uint32_t>(range.count) * element_bytes};
}

/// Where `chunk` of block `block` of a local buffer lies. The chunk is not empty.
template <typename Operation>
__device__ __forceinline__ std::byte* address_of(const Cta& cta, Place place, uint32_t block,
                                                 const Chunk& chunk) {
  const LaunchHeader& header = cta.header;
  std::byte* buffer = place == Place::Input    ? const_cast<std::byte*>(header.input)
                      : place == Place::Output ? header.output
                                               : header.scratch;
  return buffer + block * header.partition.block_stride * Operation::element_bytes(header) +
         chunk.in_block;
}

/// The step of one use of a port.
__device__ __forceinline__ uint64_t step_of(const PortState& port, const PortUse& use,
                                            uint32_t round) {
  return port.base + static_cast<uint64_t>(round) * port.steps + use.use;
}

/// Receiver: can the sender need the credit of `step` in this operation (fifo.h: lazy credit)?
/// Never, unless the instruction is marked kGivesCredit.
__device__ __forceinline__ bool needs_credit(const Cta& cta, const PortState& port, uint64_t step) {
  const uint64_t steps = static_cast<uint64_t>(cta.header.partition.rounds) * port.steps;
  return step - port.base + cta.header.shape.depth < steps;
}

// ---- start

/// Takes up the CTA's ports where the last operation left them, and the tables.
__device__ __forceinline__ void start_port(const LaunchHeader& header, const PortTask& task,
                                           PortState& state) {
  const uint32_t replica = ptx::replica();
  ControlBlock* control = task.control + replica;
  // Written by this rank's last kernel; ordered by the stream.
  const uint64_t base = ptx::load<uint64_t>(reinterpret_cast<const std::byte*>(&control->step));
  // A sender: [credit], pairs with the [consume] and [resume] of the receiver. A receiver:
  // [arrival], pairs with [publish].
  const uint64_t seen = ptx::load_acquire_system(&control->remote);
  state.slots = task.slots + header.shape.slot_offset(replica, 0);
  state.base = base;
  state.seen = seen;
  state.control = control;
  state.remote_control = task.remote_control + replica;
  state.steps = task.steps;
  // Nobody reads the step before the next kernel, so that it may be advanced at once rather than at
  // the end, where it would be waited for. (An aborted operation leaves it wrong: its communicator
  // moves no more data.)
  ptx::store<uint64_t>(reinterpret_cast<std::byte*>(&control->step),
                       base + static_cast<uint64_t>(header.partition.rounds) * task.steps);
  if (!task.is_send) {
    // [resume] the slots that earlier operations read, whose credit they did not give back.
    // Relaxed: those reads were over when their kernel ended.
    ptx::store_relaxed_system(&state.remote_control->remote, base);
  }
}

/// All threads of the CTA. Ends with a barrier.
__device__ __forceinline__ Cta start_cta(const LaunchArgs& args) {
  const LaunchHeader& header = args.header;
  std::byte* shared = ptx::shared_memory();
  const std::byte* image = header.image == nullptr ? args.image : header.image;
  const uint32_t units = (header.image_bytes - header.staged_at) / sizeof(uint4);
  const auto* source = reinterpret_cast<const uint4*>(image + header.staged_at);
  auto* staged = reinterpret_cast<uint4*>(shared);
  auto* ports = reinterpret_cast<PortState*>(shared + header.ports_at);

  // Two chains of loads that should overlap: the tables, and port -> control block. The last
  // threads copy the tables, the first ones take the ports.
  const uint32_t reversed = ptx::threads() - 1 - ptx::thread();
  uint4 first{};
  if (reversed < units) first = source[reversed];
  for (uint32_t p = ptx::thread(); p < header.nports; p += ptx::threads()) {
    // Two wide loads: read field by field, the address of the control block comes one latency late.
    const uint4 parts[2] = {reinterpret_cast<const uint4*>(image)[2 * p],
                            reinterpret_cast<const uint4*>(image)[2 * p + 1]};
    const auto task = bits_as<PortTask>(parts);
    if (task.channel == ptx::pattern_channel()) start_port(header, task, ports[p]);
  }
  if (reversed < units) staged[reversed] = first;
  for (uint32_t unit = reversed + ptx::threads(); unit < units; unit += ptx::threads()) {
    staged[unit] = source[unit];
  }
  ptx::barrier_cta();
  return {header,
          reinterpret_cast<const CompactInstruction*>(shared + header.instructions_at),
          reinterpret_cast<const PortUse*>(shared + header.uses_at),
          ports,
          reinterpret_cast<std::byte**>(shared + header.pointers_at),
          ptx::replica()};
}

/// The lane of the calling thread; null: none.
__device__ __forceinline__ const LaneTask* lane_of_thread(const LaunchHeader& header) {
  const std::byte* shared = ptx::shared_memory();
  const auto* warps = reinterpret_cast<const uint8_t*>(shared + header.warps_at);
  const uint8_t lane = warps[ptx::pattern_channel() * kMaxWarps + ptx::thread() / kWarp];
  if (lane == kNoLane) return nullptr;
  return reinterpret_cast<const LaneTask*>(shared + header.lanes_at) + lane;
}

}  // namespace niccolite::executor::cuda
