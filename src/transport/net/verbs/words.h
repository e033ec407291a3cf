// The words by which a Pair (pair.h) tells its work requests and messages apart, and the sizes of
// its queues. Thread safety: values.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/net/verbs/pair.h"

namespace niccolite::transport::net::verbs {

inline constexpr uint32_t kSendQueue = 256;
inline constexpr uint32_t kReceiveQueue = 2 * kMostMessages;
inline constexpr uint32_t kUnknown = UINT32_MAX;  // pieces

// An immediate has the number's low bits, the number of pieces, and the round: how many
// queue pairs had failed when the piece was sent.
inline constexpr uint32_t kNumberBits = 20;
inline constexpr uint32_t kNumberMask = (1u << kNumberBits) - 1;
inline constexpr uint32_t kPiecesMask = 63;
inline uint32_t immediate_of(uint32_t number, uint32_t pieces, uint32_t round) {
  return (number & kNumberMask) | (pieces & kPiecesMask) << kNumberBits | round << 26;
}

// The id of a work request.
enum class Kind : uint8_t { Receive, Piece, Other, Trial };
struct Id {
  Kind kind;
  size_t queue_pair;
  uint32_t round = 0;
  uint32_t posted = 0;  // low bits
  uint32_t number = 0;  // of a message
};
inline constexpr uint32_t kPostedMask = (1u << 18) - 1;
inline uint64_t pack(const Id& id) {
  return uint64_t{static_cast<uint8_t>(id.kind)} << 62 | uint64_t{id.queue_pair} << 56 |
         uint64_t{id.round & 63} << 50 | uint64_t{id.posted & kPostedMask} << 32 | id.number;
}
inline Id unpack(uint64_t word) {
  return {.kind = static_cast<Kind>(word >> 62),
          .queue_pair = (word >> 56) & 63,
          .round = static_cast<uint32_t>(word >> 50) & 63,
          .posted = static_cast<uint32_t>(word >> 32) & kPostedMask,
          .number = static_cast<uint32_t>(word)};
}

// Acquire: what the NIC has written before the number is there. (A NIC writes the bytes of one
// small aligned write in the order of their addresses.)
inline uint32_t number_in(uint32_t& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

inline bool is_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

}  // namespace niccolite::transport::net::verbs
