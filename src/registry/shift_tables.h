// ShiftTables: tables of peer offsets for kernels. A peer offset is added to an address of this
// rank's user to get the address at which another rank sees this memory, by rank
// (executor::advertisement::seen_by()). Behind the ranks a table has the distance to the memory's
// place in the windows that a team reaches (place_of()). Tables lie in device memory, and a launch
// or a graph gets the table's address. A table does not change while a kernel may read it, because
// all CTAs of a launch must find equal values. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "transport/pool.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::registry {

class ShiftTables {
 public:
  ShiftTables(gpu::Machine& machine, int device, int nranks)
      : machine_(machine),
        device_(device),
        nranks_(static_cast<size_t>(nranks)),
        memory_(transport::Pool::of(machine, device, transport::Pool::Purpose::Persistent)) {}

  /// `shifts`: one for each rank. The memory has no place yet.
  Result<const uint64_t*> add(std::span<const uint64_t> shifts);
  /// The distance to the memory's place. No kernel that goes by the team reads the table yet.
  Status set_place(const uint64_t* table, uint64_t shift);
  /// Nobody sees the memory any more; no kernel runs that reads the table. Graphs may go on to.
  Status end(const uint64_t* table);
  /// No kernel and no graph reads the table any more: its place is another's next.
  void give_back(const uint64_t* table);

  /// Device memory.
  size_t bytes() const { return memory_.bytes(); }

 private:
  size_t table_bytes() const { return (nranks_ + 1) * sizeof(uint64_t); }
  Status grow();

  gpu::Machine& machine_;
  const int device_;
  const size_t nranks_;
  transport::Share memory_;
  std::vector<transport::Span> pages_;
  // the first is the next to be used; a returned table goes to the end
  std::deque<std::byte*> free_;
};

}  // namespace niccolite::registry
