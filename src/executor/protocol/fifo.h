// The memory of a connection: a one-way FIFO between two ranks, for all channels at once. Host and
// device include it.
//
//   receiver's memory                                sender's memory
//   slots    [channel][depth] of slot_bytes          control  [channel]  ControlBlock
//   control  [channel]  ControlBlock
//
// Every counter has one writer (but see advertisement.h for `advertisement`, pull.h for `pulls` and
// `delivered`, cuda/pipeline/tiles.cuh for `tile_counters`).
// `step` is private to its end: slots sent or received so far. `remote` is advanced by the other
// end: at the receiver it is the *tail* (slots produced; Simple only; with the call's tag in its
// high bits, protocol/call_tag.h), at the sender the *head* (slots consumed: credit). All only
// grow, are compared by difference, and persist between operations.
//
// Invariant: the sender may write the slot of step s when remote + depth > s; the slot of step s is
// s % depth.
//
// Credit is lazy: within one operation the receiver advances the head only for slots whose credit
// the sender can need in that operation (all but the last `depth`). The rest is published when the
// connection is next used, before anything else: the end of an operation is thus never delayed by a
// store that nobody waits for. Puts (advertisement.h) take no slots; their credit comes with the
// next operation, too. Exposed data has no tail. For connections of direct gets, all credit comes
// in the operation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "lowering/way.h"

namespace niccolite::executor {

namespace relay {
class Bell;
class UserMemory;
}  // namespace relay

enum class Protocol : uint8_t { LL, LL128, Simple };
inline constexpr int kProtocols = 3;
constexpr const char* name_of(Protocol protocol) {
  return protocol == Protocol::LL ? "LL" : protocol == Protocol::LL128 ? "LL128" : "Simple";
}

/// The value of `step` after an aborted Simple operation: no credit reaches it, nor does any tail,
/// whose low 48 bits a receiver sees (call_tag.h). Work that was queued behind the operation moves
/// nothing, and neither makes nor takes an advertisement (advertisement.h).
inline constexpr uint64_t kAbortedStep = uint64_t{1} << 62 | uint64_t{1} << 47;

/// Tiles that a reduction may have pulled of an exposing sender and not read yet (pull.h).
inline constexpr uint32_t kMostPulls = 8;

struct alignas(128) ControlBlock {
  alignas(64) uint64_t remote;  // written by the other end
  uint64_t advertisement;       // of the peer's user's memory to this end (advertisement.h)
  uint64_t detached;            // by the peer, which uses this end's memory no more, or not at all
                                // (advertisement.h)
  uint32_t pulls[kMostPulls];   // of the peer, which reduces, for tiles that this end exposes
  uint32_t delivered;           // of the tiles that this end has pulled (pull.h)
  alignas(64) uint64_t step;    // written by this end
  uint64_t tile_counters[2];  // of the first channel of an operation: numbers of dynamic tiles that
                              // the CTAs of this end have drawn (cuda/pipeline/tiles.cuh): [0] for
                              // data that is sent or reduced over the connection; [1], at the
                              // program's first port, for copies
};
static_assert(sizeof(ControlBlock) == 128 && offsetof(ControlBlock, step) == 64);

/// Shape of a connection's memory; equal at both ends.
struct FifoShape {
  uint32_t channels = 0;
  uint32_t depth = 0;       // slots; a power of two
  uint32_t slot_bytes = 0;  // bytes of memory (not of data) of a slot; a multiple of 128
  friend bool operator==(const FifoShape&, const FifoShape&) = default;

  constexpr size_t slots_bytes() const { return size_t{channels} * depth * slot_bytes; }
  constexpr size_t control_bytes() const { return size_t{channels} * sizeof(ControlBlock); }
  constexpr size_t slot_offset(uint32_t channel, uint64_t step) const {
    return (size_t{channel} * depth + static_cast<size_t>(step & (depth - 1))) * slot_bytes;
  }
};

/// Proxies of a rank that may share the channels of a connection: 1, 2 or 4 do.
inline constexpr uint32_t kMostProxies = 4;

/// One end of a connection as an executor sees it. Addresses are valid on the device (or in the
/// process) of this end.
struct PortAddress {
  std::byte* slots =
      nullptr;  // first slot of channel 0: own memory at the receiver, the peer's at the sender
  // The address of all ranks' slots, where the connection goes by a team (lowering/routes.h).
  // `slots` are this rank's own then, at either end.
  std::byte* team = nullptr;
  ControlBlock* control = nullptr;  // own control blocks, by channel
  ControlBlock* remote_control =
      nullptr;  // the peer's control blocks, by channel: this end advances `remote` there
  // As both ends know (advertisement.h):
  bool can_put = false;  // the sender can store to buffers of the receiver's user
  bool can_get = false;  // the receiver can read buffers of the sender's user
  // Virtual GPUs: through slots goes what fits in them, so that a sender may end before its peer
  // begins, as it could if it reached no buffer.
  bool fills_slots_first = false;
  // How bytes go over the connection in the launch: set_ports() (executor/launch.h) says.
  lowering::Way way = lowering::Way::Slot;
  // As this end knows: those are all buffers of this rank's user that are open to other GPUs of the
  // process, by their own addresses; else only those in windows (Buffers::input_shifts).
  bool opens_buffers = false;
  // For a connection to another machine, whose other end is the proxy's (relay.h), with LL and
  // Simple: the bells of the proxies. bells[c % kMostProxies] belongs to the proxy that has channel
  // c.
  std::array<relay::Bell*, kMostProxies> bells{};
  uint64_t* notes = nullptr;  // at the sender, Simple: [channel][depth], the content of each slot
  uint64_t elements = 0;      // part of the notes: set_ports() says (relay::elements_of())
  relay::UserMemory* user_memory =
      nullptr;  // the proxy reaches it (user_memory.h); null: it does not
  // All of it lies in host memory: kernels of GPUs do no atomic operations there.
  bool in_host = false;

  bool is_relayed() const { return bells[0] != nullptr; }
};

/// Bytes of data that one slot carries.
constexpr size_t data_bytes(Protocol protocol, size_t slot_bytes) {
  return protocol == Protocol::LL      ? slot_bytes / 2
         : protocol == Protocol::LL128 ? slot_bytes / 128 * 120 / 16 * 16
                                       : slot_bytes;
}

}  // namespace niccolite::executor
