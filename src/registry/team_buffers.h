// TeamBuffers: the user's buffers, in no window, that operations by a multicast team load and store
// themselves. The team of a machine reaches a buffer at one address on all its ranks, so all of
// them must pass the same place of memory of their own. A rank cannot know that by itself, so ranks
// compare their buffers, all together:
//
//   captured operations      as they are captured; a graph has the windows that were found then
//   live ones, on buffers    when ranks have buffers that they have not compared yet, before a
//   of ncclCommRegister      collective that they agree on (operations/buffer_comparison.h)
//
//   all ranks                      for each buffer: its allocation, the size of that, and the
//                                  buffer's place in it
//   equal size and place,    -->   the allocations become a window that no other operation knows
//   on each machine
//   else, or not to be bound -->   operations go through slots
//
// Nobody relies on the comparison: where ranks pass different places later, that operation goes
// through slots (executor/protocol/advertisement.h). A graph keeps its windows, and a registration
// does; the next operation on the same allocations takes them again.
//
// Thread safety: comparisons and note() by one thread at a time, since they are collective; all
// else, and the ends of windows, on any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "bootstrap/member.h"
#include "gpu/streams.h"
#include "registry/captured_buffer.h"
#include "registry/housekeeper.h"
#include "registry/windows.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::registry {

class Registrations;

class TeamBuffers final : public Tended, public std::enable_shared_from_this<TeamBuffers> {
 public:
  /// Called before a window is made: collective, false on all ranks: the team reaches none.
  using Reach = std::function<bool()>;
  /// Returns an event after all operations that are queued by now.
  using Mark = std::function<Result<std::shared_ptr<gpu::Event>>()>;
  /// All that is passed is used until close().
  TeamBuffers(gpu::Machine& machine, bootstrap::Member& member, Windows& windows,
              const Registrations& registrations, Mark mark);
  TeamBuffers(const TeamBuffers&) = delete;

  /// Collective: the buffers of a captured call, or of the calls of a group, in an order that all
  /// ranks have alike; null: the call has none on this rank. Returns buffers of this rank that all
  /// pass at the same place. An error is one of the member's.
  Result<std::vector<CapturedBuffer>> compare_captured(std::span<const void* const> buffers,
                                                       const Reach& reach);

  /// Notes a buffer of a live call for compare_noted(), if it is registered and was not compared
  /// before. `key`: the same on all ranks, and of no other buffer.
  void note(uint64_t key, const void* buffer) EXCLUDES(mutex_);
  bool has_noted() const { return !noted_.empty(); }
  /// Collective: the buffers that were noted since.
  Status compare_noted(const Reach& reach) EXCLUDES(mutex_);
  /// For kernels of live operations: see Windows::shifts_of().
  const uint64_t* shifts_of(const void* pointer, size_t bytes) const EXCLUDES(mutex_);
  std::optional<std::chrono::milliseconds> sweep() override EXCLUDES(mutex_);
  /// A registration has ended; its window does so behind operations that are queued. Also after
  /// close().
  void end_unregistered() EXCLUDES(mutex_);
  /// Before the windows end: nothing but end_unregistered() comes after it.
  void close() EXCLUDES(mutex_);

 private:
  struct Offer {
    uint64_t key = 0;
    const void* buffer = nullptr;
  };
  /// A rank tells, about a buffer, the memory that it lies in.
  struct Place {
    uint64_t allocation = 0;  // gpu::Backing::id; 0: it is not to be bound
    uint64_t bytes = 0;       // of the allocation
    uint64_t offset = 0;
    uint64_t window = 0;  // number of the window that the rank has for it, from 1 on; 0: none
    bool fits(const Place& other) const {
      return allocation != 0 && other.allocation != 0 && bytes == other.bytes &&
             offset == other.offset;
    }
  };
  using Places = std::map<uint64_t, Place>;  // by key
  /// A window; its last owner ends it.
  struct Held;
  /// The end of Windows, for windows that end later.
  struct Link;
  /// Allocations that hold one buffer, by rank.
  using Allocations = std::vector<uint64_t>;
  /// A window of live operations.
  struct Live {
    std::shared_ptr<Held> held;
    const uint64_t* shifts;
    std::shared_ptr<gpu::Event> last_use{};  // once its registration has ended
  };

  /// Collective. Returns the windows of the offers that all ranks have alike, by key.
  Result<std::map<uint64_t, std::shared_ptr<Held>>> compare(std::span<const Offer> offers,
                                                            const Reach& reach);
  /// `known_as`: the window that the rank has for it, or null.
  Place place_of(const void* buffer, std::shared_ptr<Held>& known_as);
  Result<std::vector<Places>> exchange(const Places& mine);
  std::shared_ptr<Held> make(const void* buffer);
  /// Ends live windows without a registration, behind operations that are queued.
  void end_live() EXCLUDES(mutex_);

  gpu::Machine& machine_;
  bootstrap::Member& member_;
  Windows& windows_;
  const Registrations& registrations_;
  const Mark mark_;
  const std::shared_ptr<Link> link_;
  std::map<uint64_t, std::weak_ptr<Held>> held_;  // by this rank's allocation
  std::set<Allocations> refused_;                 // equal on all ranks
  std::vector<Offer> noted_;
  mutable std::mutex mutex_;
  std::vector<Live> live_ GUARDED_BY(mutex_);
  std::vector<Live> ending_ GUARDED_BY(mutex_);
  // Allocations of buffers that were noted since a registration ended last.
  std::set<uint64_t> compared_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::registry
