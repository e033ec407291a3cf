// Frame: what travels on the streams between two proxies. Every frame has a header of one length;
// those of kind Part are followed by `length` bytes of a chunk.
//
//   sender                                    receiver
//   Begin                             ---->              first on each connection: of which stream
//                                     <----   Credit     "slots before `step` may be sent"
//   Part, bytes of a chunk            ---->              in any order, on any of the pair's streams
//   Want                              ---->              "what I have to send needs credit": what was
//                                                        kept back for later is given now. Only to
//                                                        those whose credit says that they do
//   Ask                               ---->              "say again what you have said": answered
//                                                        by Acknowledge, and all credit
//                                     <----   Acknowledge   "`step` parts of this stream are here"
//   End                               <--->   End        last: who breaks off without it is
//                                                        expected to connect again
//
// Where one thread of each rank carries both directions, what a receiver has to say may travel
// behind a part of its own, on a stream that it sends on, and needs no system call:
//
//                                     <----   Part, Acknowledge (kBehindPart; of which stream),
//                                             Credit
//
// Whoever loses such a stream's connection says all of it again. Since an acknowledgement says how
// much of a stream is there, and that only grows, it is true however late it comes, but never the
// answer to a Begin: the receiver may not have read that yet.
//
// A stream outlives its connections. When one breaks, the sender connects again, with a Begin of
// the next number; the receiver then reads nothing more of the one before, and answers how many
// parts of the stream are whole. Those that follow are sent once more, from slots that nobody has
// written since: a slot is free when its parts are acknowledged. So no part comes twice, none is
// missing.
//
// A part is only sent when the receiver has said that there is a slot for its step: what is read
// from a stream always has a place, and no connection waits behind another. Both ends are of one
// build (ranks of others are refused when they meet), so the header's memory is its encoding.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "executor/protocol/fifo.h"

namespace niccolite::transport::net {

enum class FrameKind : uint8_t { Begin = 1, Credit, Part, Acknowledge, End, Ask, Want };

struct Frame {
  FrameKind kind = FrameKind::Begin;
  uint8_t protocol = 0;  // these two name the connection among those of the pair and direction
  uint16_t tag = 0;
  uint32_t channel = 0;  // of a Begin, and an Acknowledge behind a part: the stream, from 0
  uint64_t step = 0;   // of the chunk; of a credit: the first that may not be sent; of a Begin: the
                       // connection's number in its stream; of an Acknowledge: parts of the stream
  uint32_t bytes = 0;  // of the whole chunk
  uint32_t offset = 0;  // of this part in it
  uint32_t length = 0;  // of this part
  uint16_t call = 0;    // the call's tag (executor/protocol/call_tag.h); of a credit: kMoreLater
  uint16_t flags = 0;   // of a part: kAtOnce; of an Acknowledge: kBehindPart
};
/// Of a credit: there may be more, which is kept back until it is due, or wanted.
inline constexpr uint16_t kMoreLater = 1;
/// Of a part: the sender's kernel waits for it to be acknowledged.
inline constexpr uint16_t kAtOnce = 1;
/// Of an Acknowledge: of the stream `channel` of the other direction.
inline constexpr uint16_t kBehindPart = 2;
static_assert(sizeof(Frame) == 32 && std::has_unique_object_representations_v<Frame>);

/// A connection, among those of one pair of ranks and direction.
struct Key {
  int tag = 0;
  executor::Protocol protocol = executor::Protocol::Simple;
  friend auto operator<=>(const Key&, const Key&) = default;
};
inline Key key_of(const Frame& frame) {
  return {.tag = frame.tag, .protocol = static_cast<executor::Protocol>(frame.protocol)};
}

}  // namespace niccolite::transport::net
