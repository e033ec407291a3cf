// Advertisements (Simple): one end of a connection advertises the memory of its user to the other,
// and data that a worker would only copy between that memory and a slot take the short way.
//
//   direct put   the receiver would only store what comes: it advertises its output, and the sender
//                stores the data there
//   direct get   the sender would only send its input, to be reduced: it advertises its input, and
//                the receiver's reduction reads it there
//
// The memory is advertised in every operation, since each may have other buffers, and since its
// user may use them until then. The end that advertises waits until the other end, which *takes*
// the advertisement, is done:
//
//   direct put: receiver                    sender
//   kernel starts  --- advertises address --> takes it (leaves 0), stores the data there
//   waits          <-- tail, as ever -------- publishes
//
//   direct get: sender                      receiver
//   kernel starts  --- advertises address --> takes it (leaves 0), reads the data there
//   waits          <-- head, as ever -------- gives credit for all steps, at the end
//
// An advertisement without an address says that the data shall come through slots: other GPUs
// cannot reach the buffer, or its elements are to be scaled before they are sent. Memory is
// advertised wherever it begins: the taker cannot count on alignment. A connection takes part when
// both ends know that it does (PortAddress::way); the taker then begins with the advertisement. The
// advertiser always waits until the advertisement is taken, since the next one takes its place: a
// receiver for the data, a sender for the credit of all steps, also when the data go through slots.
//
// When an operation is aborted, its user may free the buffer as soon as the kernel of the end that
// advertised it has ended. So this end withdraws an advertisement that nobody has taken. If it was
// taken, this end waits until the other is done, or says in `detached` that it reads and stores no
// more. The other end says so if it is aborted too, or if its communicator was told to let go
// (executor/command.h); it then waits for its own end.
//
// The address is valid in the taker's process. In the process that owns the memory it is the
// memory's own address. Other processes have mapped the memory elsewhere, if it is in a window
// (docs/design/memory.md): a table in device memory has the distance between the two by rank. The
// kernel reads the table when it runs, and the table says "nowhere" once the window has ended: so a
// graph that was captured before goes on with slots.
//
// Over a connection by a team (lowering/plan.h) memory is advertised, too, if the team reaches it:
// not by an address, but by its place in the windows that the team reaches, which is the same on
// all ranks. The table of distances has the distance to it behind the distances to ranks. The taker
// takes the advertisements of all members, and reads or stores only if all are of its own place. If
// not, it *refuses* each: it stores the operation's end to `detached`, before the first credit or
// data, and data go through slots as if nothing had been advertised. So an advertiser waits for
// that word, too, before its first step.
//
// An advertisement is one word, so that it is whole, and carries the call's tag (call_tag.h): a
// taker that finds another call's advertisement has touched nothing yet. An exposing sender's
// advertisement also says whether it serves pulls (pull.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace niccolite::executor::advertisement {

inline constexpr uint64_t kNone = 0;  // not made yet, or taken
inline constexpr uint32_t kAlignment = 16;

inline constexpr uint64_t kServes = uint64_t{1} << 63;

/// Can an advertisement name the address? Addresses of processes on x86-64 have 47 bits; where they
/// have 48, addresses of GPUs lie low. Others go through slots.
constexpr bool fits(uint64_t address) { return address >> 47 == 0; }

/// `address` 0: through slots. `serves`: of an exposing sender, whether it serves pulls.
constexpr uint64_t of(uint64_t address, uint16_t tag, bool serves = false) {
  constexpr uint64_t kSlots = 1;  // no address: the first page is nobody's
  return (address == 0 ? kSlots : address) << 16 | tag | (serves ? kServes : 0);
}
constexpr uint64_t address_in(uint64_t advertisement) {
  const uint64_t address = (advertisement & ~kServes) >> 16;
  return address == 1 ? 0 : address;
}
constexpr bool serves(uint64_t advertisement) { return (advertisement & kServes) != 0; }
/// In a table of distances: the rank does not see the memory. (Distances are multiples of 4096.)
inline constexpr uint64_t kUnseen = 1;
/// Returns the address at which the rank of `shift` sees `address`; 0: nowhere.
constexpr uint64_t seen_by(uint64_t shift, uint64_t address) {
  return shift == kUnseen ? 0 : address + shift;
}
/// A place in windows: bytes from the beginning of the team's range, where kFirstPlace is, so that
/// no place is 0.
inline constexpr uint64_t kFirstPlace = 4096;
/// Returns the place of memory in windows; 0: it has none. `shift`: from a table. The instructions
/// of a team move whole units.
constexpr uint64_t place_of(uint64_t shift, uint64_t address) {
  const uint64_t place = seen_by(shift, address);
  return place % kAlignment == 0 ? place : 0;
}
/// `range`: the team's addresses.
constexpr std::byte* address_of(std::byte* range, uint64_t place) {
  return range + (place - kFirstPlace);
}
constexpr uint16_t tag_in(uint64_t advertisement) { return static_cast<uint16_t>(advertisement); }

}  // namespace niccolite::executor::advertisement
