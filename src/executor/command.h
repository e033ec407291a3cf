// Command: the communicator's order to its kernels, in ControlWords::abort. They look at it now and
// then while they wait. Host and device include it.
//
//   GoOn --> End                   the program has ended the communicator
//   GoOn --> Leave --> End         a rank of this process has ended its own: its user may free
//                                  buffers that kernels here are using (protocol/advertisement.h)
//
// A kernel that cannot finish ends by End alone. A failure of the communicator is no command: its
// kernels go on waiting, so that undone work never looks done (docs/design/failures.md).
#pragma once

#include <cstdint>

namespace niccolite::executor {

enum class Command : uint32_t {
  GoOn = 0,
  End = 1,    // every wait ends, and every kernel with it, leaving data undefined
  Leave = 2,  // kernels let go of the memory of other ranks' users, and then wait for End
};

}  // namespace niccolite::executor
