// Landing (Simple): data that the receiver would only copy from a slot to its user's buffer are
// stored to that buffer by the sender. The receiver *offers* a place in every operation, since each
// may have other buffers, and since its user may use them until then:
//
//   receiver                                sender
//   kernel starts  --- offer: address ----> takes it (leaves 0), stores the data to the address
//   waits          <-- tail, as ever ------ publishes
//
// An offer without an address says that the data shall come through slots: the buffer is not
// aligned, or of a kind that other GPUs cannot reach. A connection takes part when both ends know
// that it may (Port::lands, PortAddress::can_land); the sender then begins with the offer.
//
// When an operation is aborted, its user may free the buffer as soon as the receiver's kernel has
// ended. So the receiver takes back what has not been taken; else it waits until the data are
// complete, or until the sender's kernel, aborted too, says in `left` that it stores no more.
//
// An offer is one word, so that it is whole, and carries the call's tag (tag.h): who finds the
// offer of another call has stored nothing yet.
#pragma once

#include <cstdint>

namespace niccolite::executor::landing {

inline constexpr uint64_t kNone = 0;  // not made yet, or taken
inline constexpr uint32_t kAlignment = 16;

/// Can an offer name the address? Those of GPUs have at most 49 bits.
constexpr bool fits(uint64_t address) { return address % kAlignment == 0 && address >> 52 == 0; }

/// `address` 0: through slots.
constexpr uint64_t offer_of(uint64_t address, uint16_t tag) {
  constexpr uint64_t kSlots = 1;  // no address: the first page is nobody's
  const uint64_t place = address == 0 ? kSlots : address / kAlignment;
  return place << 16 | tag;
}
constexpr uint64_t address_in(uint64_t offer) {
  const uint64_t place = offer >> 16;
  return place == 1 ? 0 : place * kAlignment;
}
constexpr uint16_t tag_in(uint64_t offer) { return static_cast<uint16_t>(offer); }

}  // namespace niccolite::executor::landing
