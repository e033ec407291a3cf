// Chunks that need no slot at connections to other machines (protocol/user_memory.h), in a launch
// with places: the part of workers. The part of the service warp stands in service_warp.cuh.
//
//   sends      go from the block that the instruction stores to, or copies; the kernel ends when
//              they have been acknowledged
//   receives   that are only stored have a place ahead, and are found there, or in the slot
//
// Which ones is known when the launch is queued (UserMemorySteps, launch/places.h).
#pragma once

#include "executor/cuda/interpreter/service_warp.cuh"
#include "executor/protocol/user_memory.h"

namespace niccolite::executor::cuda {

/// An operation of a launch with places.
template <typename Operation>
struct WithPlaces : Operation {
  static constexpr bool kHasPlaces = true;
};

/// One of the tables of PlacesArea.
template <typename T>
__device__ __forceinline__ const T* table_at(uint32_t at) {
  return reinterpret_cast<const T*>(ptx::shared_memory() + at);
}

/// The chunk that an instruction moves in a round, and the ends of connections where it needs no
/// slot.
template <typename Operation>
class ChunkInPlace {
 public:
  __device__ __forceinline__ ChunkInPlace(const Cta& cta, const CompactInstruction& instruction,
                                          uint32_t round)
      : cta_(cta),
        instruction_(instruction),
        round_(round),
        chunk_(chunk_of<Operation>(cta, instruction, round)) {}

  /// Is the chunk sent from its place over that port, which the instruction names?
  __device__ __forceinline__ bool is_sent_from_place(const PortUse& use) const {
    const PortState& port = cta_.ports[use.port];
    return port.has_places != 0 && chunk_.bytes != 0 &&
           of_instruction().source != OperandBuffer::None &&
           relay::may_send_from_place(chunk_.bytes, step_of(port, use, round_) + 1 == port.end,
                                      of_port(use.port).least_bytes);
  }
  /// Returns the number of the first `count` sends that go through slots.
  __device__ __forceinline__ uint32_t sends_by_slots(uint32_t count) const {
    const PortUse* sends = cta_.uses + instruction_.send;
    uint32_t result = 0;
    for (uint32_t s = 0; s < count; ++s) result += is_sent_from_place(sends[s]) ? 0 : 1;
    return result;
  }
  /// Marks that the chunk is at its place, in the order of set_sent().
  __device__ __forceinline__ void set_sent_from_place(const PortUse& use) const {
    PortState& port = cta_.ports[use.port];
    const uint64_t step = step_of(port, use, round_);
    const InstructionPlaces& what = of_instruction();
    // Relaxed, all: [publish] releases them, and [completed] the last.
    ptx::store_relaxed_system(&place_of(use.port, step).address,
                              reinterpret_cast<uint64_t>(address_of<Operation>(
                                  cta_, what.source, what.source_block, chunk_)));
    ptx::store_relaxed_shared(&port.in_places, step + 1);
    set_sent(cta_, use, port, step, relay::note_of_place(chunk_.bytes, step, port.end));
  }

  /// May the received chunk have come to its place?
  __device__ __forceinline__ bool is_placed(uint16_t port) const {
    return cta_.ports[port].has_places != 0 && of_instruction().is_placed != 0 &&
           chunk_.bytes != 0 && chunk_.bytes >= of_port(port).least_bytes;
  }
  /// Asks whether such a chunk, which has arrived, is there.
  __device__ __forceinline__ bool has_landed(const PortUse& use) const {
    // Relaxed: [arrival] has acquired it.
    const uint64_t step = step_of(cta_.ports[use.port], use, round_);
    return is_placed(use.port) &&
           ptx::load_relaxed_system(&place_of(use.port, step).is_landed) != 0;
  }
  __device__ __forceinline__ std::byte* target() const {
    return address_of<Operation>(cta_, instruction_.target, instruction_.target_block, chunk_);
  }
  /// Takes back the place of the received chunk before credit is given for it: the proxy looks
  /// there no more.
  __device__ __forceinline__ void take_back_place(const PortUse& use) const {
    if (!is_placed(use.port)) return;
    relay::Place& place = place_of(use.port, step_of(cta_.ports[use.port], use, round_));
    // Relaxed, both: the service warp's fence before [consume] orders them.
    ptx::store_relaxed_system(&place.address, 0);
    ptx::store_relaxed_system(&place.is_landed, 0);
  }
  /// Makes a place for the chunk's step. The note comes first, and a fence is between them.
  __device__ __forceinline__ void place_note(uint16_t port, uint64_t step) const {
    ptx::store_relaxed_system(&place_of(port, step).note,
                              relay::note_of(chunk_.bytes, cta_.ports[port].tag));
  }
  __device__ __forceinline__ void place_address(uint16_t port, uint64_t step) const {
    // [place] The fence has come before. Pairs with the proxy's exchange.
    ptx::store_relaxed_system(&place_of(port, step).address, reinterpret_cast<uint64_t>(target()));
  }

  __device__ __forceinline__ const InstructionPlaces& of_instruction() const {
    return table_at<InstructionPlaces>(
        cta_.header.places.instructions_at)[&instruction_ - cta_.instructions];
  }

 private:
  __device__ __forceinline__ const PortPlaces& of_port(uint16_t port) const {
    return table_at<PortPlaces>(cta_.header.places.ports_at)[port];
  }
  __device__ __forceinline__ relay::Place& place_of(uint16_t port, uint64_t step) const {
    const uint32_t depth = cta_.header.shape.depth;
    return of_port(port).places[cta_.channel() * depth + (step & (depth - 1))];
  }

  const Cta& cta_;
  const CompactInstruction& instruction_;
  const uint32_t round_;
  const Chunk chunk_;
};

/// Calls function(number of a port) for each port with places of the calling thread's worker.
template <typename Function>
__device__ __forceinline__ void for_each_port_with_places(const Cta& cta, bool is_send,
                                                          Function&& function) {
  const PlacesArea& area = cta.header.places;
  const WorkerPlaces& own = table_at<WorkerPlaces>(area.workers_at)[role_of_warp(cta.header)];
  const uint16_t* ports = table_at<uint16_t>(area.lists_at) + own.first;
  const uint32_t first = is_send ? own.receives : 0;
  const uint32_t end = own.receives + (is_send ? own.sends : 0);
  for (uint32_t p = first; p < end; ++p) function(ports[p]);
}

/// Makes places for the next chunks of a worker, as far as their memory is nobody else's. By the
/// thread that takes them back, behind a barrier of the worker, which is about to run instruction
/// `next` of the program in `round`.
template <typename Operation>
__device__ __forceinline__ void make_places(const Cta& cta, uint32_t next, uint32_t round) {
  const PlacesArea& area = cta.header.places;
  // Calls function(chunk, number of the port, step) for all; returns whether there are any.
  const auto for_each_place = [&](bool is_last, auto&& function) {
    bool any = false;
    for_each_port_with_places(cta, /*is_send=*/false, [&](uint16_t number) {
      PortState& port = cta.ports[number];
      const uint16_t* receives = table_at<uint16_t>(area.receives_at) +
                                 table_at<PortPlaces>(area.ports_at)[number].receives;
      const uint64_t done = ptx::load_relaxed_shared(&port.completed);
      uint64_t step = static_cast<int64_t>(port.in_places - done) < 0 ? done : port.in_places;
      bool any_here = false;
      for (; static_cast<int64_t>(step - port.end) < 0 && step - done < cta.header.shape.depth;
           ++step) {
        const auto at = static_cast<uint32_t>(step - port.base);
        const uint32_t of_round = at / port.steps;
        const ChunkInPlace<Operation> chunk(cta, cta.instructions[receives[at % port.steps]],
                                            of_round);
        if (!chunk.is_placed(number)) continue;
        const uint32_t from = chunk.of_instruction().placed_from;
        const bool is_free = from == InstructionPlaces::kAnyTime || round > of_round ||
                             (round == of_round && next >= from);
        if (!is_free) break;
        function(chunk, number, step);
        any_here = true;
      }
      if (is_last || !any_here) port.in_places = step;
      any |= any_here;
    });
    return any;
  };
  const bool any = for_each_place(false, [](const ChunkInPlace<Operation>& chunk, uint16_t port,
                                            uint64_t step) { chunk.place_note(port, step); });
  if (!any) return;
  // Also behind all accesses to the memory that came before, whoever made them.
  ptx::fence_system();
  for_each_place(true, [](const ChunkInPlace<Operation>& chunk, uint16_t port, uint64_t step) {
    chunk.place_address(port, step);
  });
}

/// Waits by one thread of a worker that has done all, behind a barrier, until its chunks have left
/// their places. False: aborted.
__device__ __forceinline__ bool await_acknowledgements(const Cta& cta) {
  bool live = true;
  for_each_port_with_places(cta, /*is_send=*/true, [&](uint16_t number) {
    const PortState& port = cta.ports[number];
    for (SimpleWait wait(cta.header, *cta.work); live;) {
      // [cached] pairs with the service warp's.
      if (static_cast<int64_t>(ptx::load_acquire_shared(&port.cached) - port.in_places) >= 0)
        return;
      live = wait.keep_going([&] {
        return Awaited{port.peer, Awaited::kNoTag, ReportKind::WaitingForAcknowledgement};
      });
    }
  });
  return live;
}

}  // namespace niccolite::executor::cuda
