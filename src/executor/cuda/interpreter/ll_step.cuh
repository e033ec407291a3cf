// One instruction by the LL protocol (executor/protocol/ll.h). A thread handles one vec8 at a
// time: 8 bytes of data, two words, 16 bytes of a slot. It waits for its own words and stores its
// own, so that the threads of a worker meet only where credit has to be given back.
//
// Vec8 g of a chunk is always handled by thread g % size of the worker: what an instruction reads
// from a local block that an earlier one of the worker has written, the same thread has written.
#pragma once

#include "executor/cuda/interpreter/credit.cuh"
#include "executor/protocol/ll.h"
#include "executor/protocol/relay.h"

namespace niccolite::executor::cuda {

inline constexpr uint32_t kVec8InSlot = 2 * ll::kWordBytes;
/// Connections whose words are asked for together, before the first is waited for.
inline constexpr uint32_t kWordsInFlight = 8;

__device__ __forceinline__ Words pack_words(uint64_t vec8, uint32_t flag) {
  return {ll::pack(static_cast<uint32_t>(vec8), flag),
          ll::pack(static_cast<uint32_t>(vec8 >> 32), flag)};
}
__device__ __forceinline__ uint64_t unpack_words(const Words& words) {
  return static_cast<uint64_t>(ll::data_of(words.second)) << 32 | ll::data_of(words.first);
}
__device__ __forceinline__ bool have_arrived(const Words& words, uint32_t flag, bool both) {
  return ll::flag_in(words.first) == flag && (!both || ll::flag_in(words.second) == flag);
}

/// Returns the tag of another call whose data of this step lies in `words`, or kNoTag if there is
/// none.
__device__ __forceinline__ uint32_t other_tag_in(const Words& words, uint32_t flag) {
  const uint32_t first = ll::flag_in(words.first);
  const uint32_t there = first == flag ? ll::flag_in(words.second) : first;
  return ll::is_mismatch(there, flag) ? ll::tag_in(there) : Awaited::kNoTag;
}

/// Writes the words behind the chunk too, where ll.h asks for it: once in 2^15 steps. Each word by
/// the thread that writes it in all other steps: the receiver gives credit for the slot when it has
/// the chunk, and another thread that was late would write over a later one. `store`: of two words,
/// to one rank or to a team.
template <typename Store>
__device__ __forceinline__ void ll_clean(const FifoShape& shape, const WorkerThreads& worker,
                                         std::byte* slot, uint32_t vec8s, uint32_t flag,
                                         Store&& store) {
  const uint32_t in_slot = shape.slot_bytes / kVec8InSlot;
  for (uint32_t g = worker.rank; g < in_slot; g += worker.size) {
    if (g >= vec8s) store(slot + g * kVec8InSlot, pack_words(0, flag));
  }
}
__device__ __forceinline__ void ll_clean(const FifoShape& shape, const WorkerThreads& worker,
                                         std::byte* slot, uint32_t vec8s, uint32_t flag) {
  ll_clean(shape, worker, slot, vec8s, flag,
           [](std::byte* at, Words words) { ptx::store_words(at, words); });
}

/// This rank's slot of a connection, whose words a peer has stored to it alone or to a team.
template <typename Operation>
__device__ __forceinline__ std::byte* word_slot(const Cta& cta, const PortState& port,
                                                uint64_t step) {
  if (Operation::kByTeam && port.by_team != 0)
    return port.slots + cta.header.team_shape.slot_offset(0, step);
  return slot_of(cta, port, step);
}
/// The team's address of all members' slots.
__device__ __forceinline__ std::byte* team_slot(const Cta& cta, const PortState& port,
                                                uint64_t step) {
  return port.slots + cta.header.team_shape.slot_offset(0, step) + cta.header.team_offset;
}

/// Tells the proxy whose control block of the channel that is, what the slot of `step` will hold
/// (protocol/relay.h). By one thread that knows of the credit for the slot; before or after the
/// words.
__device__ __forceinline__ void note_words(const FifoShape& shape, ControlBlock* proxy,
                                           uint64_t step, uint32_t bytes, uint16_t tag) {
  const uint32_t slot = static_cast<uint32_t>(step) & (shape.depth - 1);
  std::byte* note =
      reinterpret_cast<std::byte*>(proxy) + relay::ll_note_offset(shape.channels, slot);
  // Relaxed: the note says by itself which step it is for, like the words.
  ptx::store_relaxed_system(reinterpret_cast<uint64_t*>(note),
                            ll::pack(bytes, ll::flag_of(step, tag)));
}

/// The operands of one instruction for one vec8, reduced in order.
template <typename Operation>
class LlOperands {
 public:
  __device__ __forceinline__ LlOperands(bool reduces) : reduces_(reduces) {}

  __device__ __forceinline__ void add(uint64_t vec8) {
    if constexpr (Operation::kReduces) {
      if (reduces_) {
        const auto values = Operation::widen(vec8);
        if (empty_) {
          values_ = values;
        } else {
          Operation::accumulate(values_, values);
        }
        empty_ = false;
        return;
      }
    }
    vec8_ = vec8;
  }
  __device__ __forceinline__ uint64_t result(const LaunchHeader& header, bool scales) {
    if constexpr (Operation::kReduces) {
      if (reduces_) {
        return Operation::finish(header, values_, scales);
      }
    }
    return vec8_;
  }

 private:
  struct Nothing {};
  template <typename T, bool kReduces>
  struct ValuesOf {
    using Type = Nothing;
  };
  template <typename T>
  struct ValuesOf<T, true> {
    using Type = typename T::Values;
  };
  typename ValuesOf<Operation, Operation::kReduces>::Type values_;
  uint64_t vec8_ = 0;
  bool reduces_;
  bool empty_ = true;
};

/// Ports of an instruction's list by which it stores to a team, or loads from one.
__device__ __forceinline__ uint32_t ports_by_team(const Cta& cta, const PortUse* uses,
                                                  uint32_t count) {
  return count != 0 && cta.ports[uses[0].port].team_end != TeamEnd::None ? cta.header.team_peers
                                                                         : 0;
}

/// Runs one instruction; called by all threads of the worker. `live` turns false in a thread that
/// saw an abort: it goes on through the program only to meet the others at barriers. kHasRelays:
/// proxies are the other ends of some connections (protocol/relay.h), and get a note of each
/// message.
template <typename Operation, bool kHasRelays>
__device__ __forceinline__ void ll_step(const Cta& cta, const WorkerThreads& worker,
                                        const CompactInstruction& instruction, uint32_t round,
                                        const Prefetched& prefetched, bool& live) {
  using Element = typename Operation::Element;
  const LaunchHeader& header = cta.header;
  const PortUse* receives = cta.uses + instruction.receive;
  const PortUse* sends = cta.uses + instruction.send;
  const Transfer transfer = transfer_of<Operation>(cta, instruction, round);
  const uint32_t vec8s = (transfer.bytes + kVec8 - 1) / kVec8;
  const uint16_t tag = cta.work->tag;
  const uint32_t width = cta.work->width;
  const bool reduces = transfer.scales_result ||
                       instruction.receive_count + (instruction.source != OperandBuffer::None) > 1;

  // By a team the words are stored once, when all members have given credit: its connections are
  // all at one step, and come first (launch/tables.cc).
  const uint32_t stored =
      Operation::kByTeam ? ports_by_team(cta, sends, instruction.send_count) : 0;

  bool cleans = false;
  for (uint32_t s = 0; live && s < instruction.send_count; ++s) {
    PortState& port = cta.ports[sends[s].port];
    const uint64_t step = step_of(port, sends[s], round);
    cleans |= ll::cleans(step, header.shape.depth);
    live = wait_for_credit(cta, worker, port, step);
  }
  if constexpr (kHasRelays) {
    for (uint32_t s = worker.rank; live && s < instruction.send_count; s += worker.size) {
      const PortState& port = cta.ports[sends[s].port];
      if (port.is_relay == 0) continue;
      note_words(header.shape, port.remote_control, step_of(port, sends[s], round), transfer.bytes,
                 tag);
    }
  }

  for (uint32_t g = worker.rank; live && g < vec8s; g += worker.size) {
    const uint32_t left = transfer.bytes - g * kVec8;
    const uint32_t bytes = left < kVec8 ? left : kVec8;
    uint64_t local = 0;
    if (transfer.source != nullptr) {
      const std::byte* address = transfer.source + g * kVec8;
      local = instruction.source == OperandBuffer::Input && address == prefetched.address
                  ? prefetched.vec8
                  : load_vec8<Element>(address, bytes, width);
      if constexpr (Operation::kReduces) {
        if (transfer.scales_input) local = scale_input<Operation>(cta, local);
      }
    }

    LlOperands<Operation> operands(reduces);
    for (uint32_t first = 0; first < instruction.receive_count; first += kWordsInFlight) {
      const std::byte* address[kWordsInFlight];
      uint32_t flag[kWordsInFlight];
      Words words[kWordsInFlight];
#pragma unroll
      for (uint32_t i = 0; i < kWordsInFlight; ++i) {
        if (first + i >= instruction.receive_count) continue;
        const PortUse use = receives[first + i];
        const PortState& port = cta.ports[use.port];
        const uint64_t step = step_of(port, use, round);
        address[i] = word_slot<Operation>(cta, port, step) + g * kVec8InSlot;
        flag[i] = ll::flag_of(step, tag);
        words[i] = ptx::load_words(address[i]);
      }
#pragma unroll
      for (uint32_t i = 0; i < kWordsInFlight; ++i) {
        if (first + i >= instruction.receive_count) continue;
        for (Wait wait(header, *cta.work);
             live && !have_arrived(words[i], flag[i], bytes > ll::kDataBytes);) {
          live = wait.keep_going([&] {
            return Awaited{cta.ports[receives[first + i].port].peer,
                           other_tag_in(words[i], flag[i]), ReportKind::WaitingForData};
          });
          words[i] = ptx::load_words(address[i]);
        }
        if (transfer.source != nullptr && first + i == instruction.source_position)
          operands.add(local);
        operands.add(unpack_words(words[i]));
      }
    }
    if (transfer.source != nullptr && instruction.source_position >= instruction.receive_count) {
      operands.add(local);
    }
    if (!live) break;

    const uint64_t result = operands.result(header, transfer.scales_result);
    if (stored != 0) {
      const PortState& port = cta.ports[sends[0].port];
      const uint64_t step = step_of(port, sends[0], round);
      ptx::store_words_to_team(team_slot(cta, port, step) + g * kVec8InSlot,
                               pack_words(result, ll::flag_of(step, tag)));
    }
    for (uint32_t s = stored; s < instruction.send_count; ++s) {
      const PortUse use = sends[s];
      const PortState& port = cta.ports[use.port];
      const uint64_t step = step_of(port, use, round);
      ptx::store_words(slot_of(cta, port, step) + g * kVec8InSlot,
                       pack_words(result, ll::flag_of(step, tag)));
    }
    if (transfer.target != nullptr) {
      store_vec8<Element>(transfer.target + g * kVec8, result, bytes, width);
    }
  }

  for (uint32_t s = 0; cleans && live && s < instruction.send_count; ++s) {
    const PortState& port = cta.ports[sends[s].port];
    const uint64_t step = step_of(port, sends[s], round);
    if (!ll::cleans(step, header.shape.depth)) continue;
    if (s < stored) {
      ll_clean(header.team_shape, worker, team_slot(cta, port, step), vec8s, ll::flag_of(step, tag),
               [](std::byte* at, Words words) { ptx::store_words_to_team(at, words); });
      s = stored - 1;  // all of them at once
    } else {
      ll_clean(header.shape, worker, slot_of(cta, port, step), vec8s, ll::flag_of(step, tag));
    }
  }

  give_credit<kHasRelays>(cta, worker, instruction, round, live);
}

}  // namespace niccolite::executor::cuda
