// CapturedBuffers: buffers of captured operations, in no window, that operations by a multicast
// team load and store themselves. The team reaches a buffer at one address on all ranks, so all
// must pass the same place of memory of their own. A rank cannot know that by itself, and ranks
// compare what they pass as an operation is captured:
//
//   all ranks                      of each buffer: which allocation it lies in, of which size, and
//                                  where in it
//   equal size and place     -->   the allocations become a window that no other operation knows
//   else, or not to be bound -->   the operation goes through slots
//
// A graph keeps such windows, and the next operation on the same allocations takes them again. They
// end with the last graph, or with the communicator.
//
// Thread safety: compare() by one thread at a time, since it is collective; windows end on any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "bootstrap/member.h"
#include "registry/captured_buffer.h"
#include "registry/windows.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::registry {

class CapturedBuffers {
 public:
  /// All that is passed outlives this object.
  CapturedBuffers(gpu::Machine& machine, bootstrap::Member& member, Windows& windows);
  ~CapturedBuffers();
  CapturedBuffers(const CapturedBuffers&) = delete;

  /// Collective: the buffers of a call, or of the calls of a group, in an order that all ranks have
  /// alike; null: the call has none on this rank. Before a window is made, `reach` is called:
  /// collective, false on all ranks: the team reaches none. Returns those of this rank's buffers
  /// that all pass at the same place. An error is one of the member's.
  Result<std::vector<CapturedBuffer>> compare(std::span<const void* const> buffers,
                                              const std::function<bool()>& reach);

 private:
  /// Of one rank, about a buffer: the memory that it lies in.
  struct Place {
    uint64_t allocation = 0;  // gpu::Backing::id; 0: it is not to be bound
    uint64_t bytes = 0;       // of the allocation
    uint64_t offset = 0;
    uint64_t window = 0;  // number of the one that the rank has for it, from 1 on; 0: none
  };
  /// A window; its last owner ends it.
  struct Held;
  /// The end of Windows, for windows that end later.
  struct Link;
  /// The same allocation on each rank, by rank.
  using Allocations = std::vector<uint64_t>;

  /// `known_as`: the window that the rank has for it, or null.
  Place place_of(const void* buffer, std::shared_ptr<Held>& known_as);
  Result<std::vector<std::vector<Place>>> exchange(std::span<const Place> mine);
  std::shared_ptr<Held> make(const void* buffer);

  gpu::Machine& machine_;
  bootstrap::Member& member_;
  Windows& windows_;
  const std::shared_ptr<Link> link_;
  std::map<uint64_t, std::weak_ptr<Held>> held_;  // by this rank's allocation
  std::set<Allocations> refused_;                 // equal on all ranks
};

}  // namespace niccolite::registry
