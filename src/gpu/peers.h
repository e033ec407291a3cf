// Peers: the access of one device's kernels to the memory of another device. Thread safety: any
// thread, as all of Machine (machine.h).
#pragma once

#include <cstddef>

#include "base/status.h"

namespace niccolite::gpu {

class Memory;

class Peers {
 public:
  /// Can kernels of `device` load and store in memory of `peer`?
  virtual bool can_access_peer(int device, int peer) = 0;
  /// May paths between GPUs be broken for which can_access_peer() is true, so that they have to be
  /// tried?
  virtual bool doubts_peer_access() = 0;
  /// Does the link between the two keep a warp's store to one line of 128 bytes together, so
  /// that whoever sees a part of the line sees all of it? Memory of one GPU does, and NVLink; PCIe
  /// may split a line. False, too, when it cannot be known.
  virtual bool keeps_lines_whole(int device, int peer) = 0;
  /// Can kernels of the two do atomic operations in each other's memory? False, too, when it cannot
  /// be known.
  virtual bool shares_atomics(int device, int peer) = 0;
  /// Lets kernels of `device` access memory that users of this process allocate on `peer` by
  /// cudaMalloc, now and later, for as long as the process lives; false when that cannot be, or
  /// when the two cannot do atomic operations in each other's memory. May wait for kernels of
  /// `device`. May be repeated.
  virtual bool open_buffers(int device, int peer) = 0;
  /// Can the devices that open_buffers() has let in use all of this memory of `device`'s users, at
  /// its own addresses? Opens it to them if need be. A fraction of a microsecond.
  virtual bool is_open(int device, const void* pointer, size_t bytes) = 0;
  /// Lets kernels of `device` access `memory` (a shareable allocation of this process).
  virtual Status grant_access(const Memory& memory, int device) = 0;

 protected:
  ~Peers() = default;
};

}  // namespace niccolite::gpu
