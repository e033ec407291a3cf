// Signals: counters by which a rank tells another that its puts have arrived. Host and device
// include it.
//
//   origin's line for the target          target's line for the origin
//   begun, raised                         arrived   <- stored by the origin alone
//                                         claimed   <- by waits; each takes its share
//
// A put stores its data, then raises `arrived` by one. Puts of several streams may run at once:
// each takes a number (`begun`) and stores it when all before it have stored theirs (`raised`), so
// that the counter only grows and needs no atomic operation on the target's memory, which not every
// link has. A wait for n signals takes the next n (`claimed`), and is over when `arrived` has come
// so far. All counters only grow and are compared by difference.
#pragma once

#include <cstddef>
#include <cstdint>

namespace niccolite::executor {

struct alignas(128) SignalLine {
  alignas(64) uint64_t arrived;  // written by the other rank
  alignas(64) uint64_t begun;    // these by this one
  uint64_t raised;
  uint64_t claimed;
};
static_assert(sizeof(SignalLine) == 128 && offsetof(SignalLine, begun) == 64);

/// Has `arrived` come as far as `awaited`?
constexpr bool has_arrived(uint64_t arrived, uint64_t awaited) {
  return static_cast<int64_t>(arrived - awaited) >= 0;
}

}  // namespace niccolite::executor
