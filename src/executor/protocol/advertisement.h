// Advertisements (Simple): one end of a connection advertises the memory of its user to the other,
// and data that a worker would only copy between that memory and a slot take the short way.
//
//   direct put   the receiver would only store what comes: it advertises its output, and the sender
//                stores the data there
//   direct get   the sender would only send its input, to be reduced: it advertises its input, and
//                the receiver's reduction reads it there
//
// The memory is advertised in every operation, since each may have other buffers, and since its
// user may use them until then. Who advertises waits until the other, who *takes* the
// advertisement, is done:
//
//   direct put: receiver                    sender
//   kernel starts  --- advertises address --> takes it (leaves 0), stores the data there
//   waits          <-- tail, as ever -------- publishes
//
//   direct get: sender                      receiver
//   kernel starts  --- advertises address --> takes it (leaves 0), reads the data there
//   waits          <-- head, as ever -------- gives credit for all steps, at the end
//
// An advertisement without an address says that the data shall come through slots: the buffer is of
// a kind that other GPUs cannot reach, or its elements are to be scaled before they are sent.
// Memory is advertised wherever it begins: who takes it cannot count on alignment. A connection
// takes part when both ends know that it does (PortAddress::way); who takes then
// begins with the advertisement. Who advertises always waits until the advertisement is taken,
// since the next one takes its place: a receiver for the data, a sender for the credit of all
// steps, also when the data go through slots.
//
// When an operation is aborted, its user may free the buffer as soon as the kernel of the end that
// advertised it has ended. So this end withdraws an advertisement that nobody has taken. If it was
// taken, this end waits until the other is done, or says in `detached` that it reads and stores no
// more. The other end says so if it is aborted too, or if its communicator was told to let go
// (executor/command.h); it then waits for its own end.
//
// The address is one of the process of whoever takes the advertisement. In the process that the
// memory is of, that is its own. Others have mapped it elsewhere, if it is in a window
// (docs/design/memory.md): a table in device memory has, by rank, the
// distance between the two. It is read when the kernel runs, and says "nowhere" once the window has
// ended: so a graph that was captured before goes on with slots.
//
// An advertisement is one word, so that it is whole, and carries the call's tag (call_tag.h): who
// finds the advertisement of another call has touched nothing yet. An exposing sender's says, too,
// whether it sends what the reduction pulls (pull.h).
#pragma once

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
/// Where the rank of `shift` sees `address`; 0: nowhere.
constexpr uint64_t seen_by(uint64_t shift, uint64_t address) {
  return shift == kUnseen ? 0 : address + shift;
}
constexpr uint16_t tag_in(uint64_t advertisement) { return static_cast<uint16_t>(advertisement); }

}  // namespace niccolite::executor::advertisement
