// Relay: a bad network. It stands between the proxies of this process and those that they connect
// to (it replaces connect(2) of the program, and knows proxies by the name of their thread,
// NCCL_SET_THREAD_NAME=1), passes
// bytes on both ways, and does harm at places that a seed chooses.
#pragma once

#include <cstdint>
#include <string>

namespace niccolite::test::relay {

enum class Harm : unsigned {
  Reset = 1,      // both ends of a connection
  ResetOne = 2,   // one end; the other finds its side closed
  HalfClose = 4,  // one direction ends, the other goes on
  Stall = 8,      // nothing moves for some milliseconds
  Delay = 16,     // everything comes some milliseconds later from now on
};
constexpr unsigned operator|(Harm a, Harm b) {
  return static_cast<unsigned>(a) | static_cast<unsigned>(b);
}

/// From now on, about every `bytes` bytes of a connection one of `harms` happens to it. Until the
/// process ends.
void start(uint64_t seed, unsigned harms, uint64_t bytes);
/// Passes nothing on when it returns, as a network does that has lost a machine: nobody is told.
void hold();
/// Passes everything on from now on.
void behave();
/// Connections that were harmed for good, so far.
int breaks();

}  // namespace niccolite::test::relay
