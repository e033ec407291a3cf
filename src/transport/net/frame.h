// Frame: a message on the streams between two proxies. Every frame has a header of one length; a
// frame of kind Part is followed by `length` bytes of a chunk.
//
//   sender                                    receiver
//   Begin                             ---->              first on each connection: names the stream
//                                     <----   Credit     "slots before `step` may be sent"
//   Part, bytes of a chunk            ---->              in any order, on any of the pair's streams
//   Want                              ---->              "my data need credit": the receiver gives
//                                                        the credit that it has kept back. Only to
//                                                        receivers whose credit has kMoreLater
//   Ask                               ---->              "tell me everything again": answered by
//                                                        Acknowledge, and all credit
//                                     <----   Acknowledge   "`step` parts of this stream are here"
//                                     <----   Slots, Place, Withdraw   see messenger.h
//   Withdrawn                         ---->
//   End                               <--->   End        last: a peer that breaks off without it is
//                                                        expected to connect again
//
// Where one thread of each rank carries both directions, a receiver's credit and acknowledgements
// may travel behind a part of its own, on a stream that it sends on. That saves a system call:
//
//                                     <----   Part, Acknowledge (kBehindPart; names the stream),
//                                             Credit
//
// A receiver that loses the connection of such a stream tells all of it again. An acknowledgement
// gives the number of parts that are there, which only grows, so it is true however late it comes.
// It is never the answer to a Begin, because the receiver may not have read the Begin yet.
//
// A stream outlives its connections. When a connection breaks, the sender connects again, with a
// Begin of the next number. The receiver then reads nothing more of the old connection, and answers
// how many parts of the stream are whole. The sender sends the following parts once more, from
// slots that nobody has written since: a slot is free when its parts are acknowledged. So no part
// comes twice and none is missing.
//
// A part is only sent when the receiver has said that there is a slot for its step. So bytes that
// are read from a stream always have a place, and no connection waits behind another one. Both ends
// are of one build (ranks of other builds are refused when they meet), so the header's memory is
// its encoding.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "executor/protocol/fifo.h"

namespace niccolite::transport::net {

enum class FrameKind : uint8_t {
  Begin = 1,
  Credit,
  Part,
  Acknowledge,
  End,
  Ask,
  Want,
  Slots,
  Place,
  Withdraw,
  Withdrawn
};

struct Frame {
  FrameKind kind = FrameKind::Begin;
  uint8_t protocol = 0;  // these two name the connection among all of the pair and direction
  uint16_t tag = 0;
  uint32_t channel = 0;  // of a Begin, and an Acknowledge behind a part: the stream, from 0
  uint64_t step = 0;   // of the chunk; of a credit: the first that may not be sent; of a Begin: the
                       // connection's number in its stream; of an Acknowledge: parts of the stream
  uint32_t bytes = 0;  // of the whole chunk
  uint32_t offset = 0;  // of this part in it
  uint32_t length = 0;  // of this part
  uint16_t call = 0;    // the call's tag (executor/protocol/call_tag.h); of a credit: kMoreLater
  uint16_t flags = 0;   // of a part: kAtOnce, kIsThere, kInPlace; of an Acknowledge: kBehindPart
};
/// In a credit: the receiver keeps more credit back until it is due, or wanted.
inline constexpr uint16_t kMoreLater = 1;
/// In a part: the sender's kernel waits for the part's acknowledgement.
inline constexpr uint16_t kAtOnce = 1;
/// In a part: its bytes are in the slot already (network.h: DirectWrite).
inline constexpr uint16_t kIsThere = 4;
/// In a part, besides: not in the slot, but in the place that the receiver has offered for the
/// step.
inline constexpr uint16_t kInPlace = 8;
/// In an Acknowledge: `channel` names a stream of the other direction.
inline constexpr uint16_t kBehindPart = 2;
static_assert(sizeof(Frame) == 32 && std::has_unique_object_representations_v<Frame>);

/// Names a connection among all connections of one pair of ranks and one direction.
struct Key {
  int tag = 0;
  executor::Protocol protocol = executor::Protocol::Simple;
  friend auto operator<=>(const Key&, const Key&) = default;
};
inline Key key_of(const Frame& frame) {
  return {.tag = frame.tag, .protocol = static_cast<executor::Protocol>(frame.protocol)};
}

}  // namespace niccolite::transport::net
