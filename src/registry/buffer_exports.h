// BufferExports: memory of one rank's user that ranks of other processes map, so that kernels use
// its buffers there as threads of one process do (docs/design/memory.md).
//
//   owner                                       peers' processes, on service threads
//   find(buffer): unknown --- MapRequest -----> BufferImports::map()
//   note_mapped(): table  <-- MapAnswer ------- where it lies there
//   freed, deregistered   --- number ---------> BufferImports::unmap()
//
// An export has the whole allocation in which a buffer lies (for virtual memory management: all
// mappings that the buffer touches, so that exports may overlap). It is looked up at every use,
// because memory may be freed and its addresses may come back as other memory. Plain memory is
// exported at its second use: peers take a millisecond to map it, which would only delay a program
// that allocates memory anew for each call. It is kept mapped as long as the device has room for it
// (kept_memory.h). Thread safety: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/thread_annotations.h"
#include "base/wait.h"
#include "gpu/streams.h"
#include "registry/housekeeper.h"
#include "registry/kept_memory.h"
#include "registry/registrations.h"
#include "registry/shared_piece.h"
#include "registry/shared_pool.h"
#include "registry/shift_tables.h"
#include "transport/descriptor_server.h"

namespace niccolite::registry {

class BufferExports;

/// Memory that peers have mapped, for as long as somebody holds it.
class BufferExport {
 public:
  ~BufferExport();
  /// For kernels: where the ranks see the memory (executor::Buffers::input_shifts).
  const uint64_t* shifts() const { return shifts_; }
  /// Has `rank`, of another process, mapped it?
  bool is_mapped_by(int rank) const { return bases_[static_cast<size_t>(rank)] != 0; }
  /// True if all ranks of other processes have mapped it, except for ranks that have left.
  bool is_mapped_by_all() const { return !lacks_some_; }
  /// Is the range in one allocation, which is there as a whole or not at all, that is exported?
  bool is_allocation_of(const void* pointer, size_t bytes) const {
    return pieces_.empty() && holds(pointer, bytes);
  }

 private:
  friend class BufferExports;
  enum class State : uint8_t { Asked, Visible, Invisible };

  bool holds(const void* pointer, size_t bytes) const;

  std::weak_ptr<BufferExports> owner_;
  uint64_t number_ = 0;
  const std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  uint64_t id_ = 0;  // gpu::PointerInfo::id, of cudaMalloc's and of a memory pool's
  std::vector<std::shared_ptr<SharedPiece>> pieces_;  // of virtual memory management's
  std::shared_ptr<SharedPool> pool_;                  // of a memory pool's
  bool is_kept_ = false;                              // counts as kept memory
  uint64_t last_use_ = 0;                             // Housekeeper::round()
  bool is_used_live_ = false;                         // by operations outside of graphs
  bool is_freed_ = false;                             // all of the memory, by its user
  // The rest under the owner's mutex, until it is visible.
  State state_ = State::Asked;
  std::set<int> awaited_;        // ranks that have not answered
  std::vector<uint64_t> bases_;  // by rank, in its process; 0: not there
  bool lacks_some_ = false;      // ranks that are there could not map it
  const uint64_t* shifts_ = nullptr;
};

class BufferExports final : public Tended, public std::enable_shared_from_this<BufferExports> {
 public:
  /// How a peer comes to a buffer.
  enum class Reach : uint8_t { None, SameAddress, Mapping };
  /// Kinds of messages to peers.
  enum class Message : uint8_t { Map, Unmap };
  struct Options {
    int device = 0;
    std::vector<Reach> reach;  // by rank; SameAddress for the own
    /// Queues a message for the peer. False: the peer cannot be told.
    std::function<bool(int peer, Message message, std::span<const std::byte> bytes)> tell;
    /// The peer will answer nothing more.
    std::function<bool(int peer)> has_left;
    /// An event for all operations so far, since they may use an export that ends.
    std::function<Result<std::shared_ptr<gpu::Event>>()> mark;
    const Registrations* registrations = nullptr;
    bool captures = true;    // buffers of captured operations are exported
    size_t most_kept = 0;    // bytes of the device's memory that nobody has asked to export
    Abort* abort = nullptr;  // ends waits
  };
  BufferExports(gpu::Machine& machine, Options options);

  /// Why a buffer is looked for. Plain: is used again, perhaps: is exported while operations go on.
  /// Captured: by a graph, which holds the export.
  enum class Use : uint8_t { Plain, Captured };
  /// Returns the export that holds the range, and waits for it if the memory is registered or
  /// captured. Null: there is none (yet).
  std::shared_ptr<const BufferExport> find(const void* pointer, size_t bytes, Use use,
                                           const Deadline& deadline) EXCLUDES(mutex_);
  /// For a range for which find() returned nothing: the number of the export that peers have been
  /// asked to map, or have since mapped; 0: there is none.
  uint64_t number_of(const void* pointer, size_t bytes) const EXCLUDES(mutex_);
  /// A peer's answer; after close() nothing.
  Status note_mapped(int peer, std::span<const std::byte> answer) EXCLUDES(mutex_);
  /// A registration has ended: exports that were made for it, and are in no other, end.
  void end_unregistered() EXCLUDES(mutex_);
  /// Nobody is told anything any more.
  void close() EXCLUDES(mutex_);

  /// Device memory of tables.
  size_t table_bytes() const EXCLUDES(mutex_);
  std::optional<std::chrono::milliseconds> sweep() override EXCLUDES(mutex_);

 private:
  friend class BufferExport;
  using Pointer = std::shared_ptr<BufferExport>;

  Pointer find_known(const void* pointer, size_t bytes) const REQUIRES(mutex_);
  bool is_there(const BufferExport& of, const void* pointer, size_t bytes) const;
  bool is_there(const BufferExport& of) const { return is_there(of, of.base_, of.bytes_); }
  Result<Pointer> begin(const void* pointer, size_t bytes, bool must, bool is_registered)
      REQUIRES(mutex_);
  Status collect(const gpu::PointerInfo& info, const void* pointer, size_t bytes,
                 BufferExport& into) REQUIRES(mutex_);
  /// The mappings that the range reaches over, in order; none: it is not of virtual memory
  /// management, but of cudaMalloc or of a pool, or cannot be shared at all.
  Result<std::vector<gpu::Backing>> mappings_of(const void* pointer, size_t bytes) const;
  /// Null: memory that is of no pool.
  Result<std::shared_ptr<SharedPool>> pool_of(const void* pointer) REQUIRES(mutex_);
  Status ask(const Pointer& of) REQUIRES(mutex_);
  /// Nobody's answer is awaited any more.
  void settle(const Pointer& of) REQUIRES(mutex_);
  Status publish(BufferExport& of) REQUIRES(mutex_);
  /// Stops waiting for answers of ranks that have left.
  void pass_over_left() REQUIRES(mutex_);
  void forget(const Pointer& of) REQUIRES(mutex_);
  /// Is it not to be asked for again yet?
  bool is_paused(uint64_t memory) const REQUIRES(mutex_);
  enum class By : bool { Some, All };
  void refuse(uint64_t memory, By who) REQUIRES(mutex_);
  bool is_freed(const BufferExport& of) const;
  bool is_used_again(const gpu::PointerInfo& info, const void* pointer, size_t bytes)
      REQUIRES(mutex_);
  bool keep(BufferExport& of) REQUIRES(mutex_);
  void keep_no_more(BufferExport& of) REQUIRES(mutex_);
  bool has_to_go(const BufferExport& of) const REQUIRES(mutex_);
  void forget_covered(const BufferExport& by) REQUIRES(mutex_);
  void ended(const BufferExport& of) EXCLUDES(mutex_);
  void end_unused() REQUIRES(mutex_);
  int nranks() const { return static_cast<int>(options_.reach.size()); }

  /// An export that find() no longer returns, but that operations may still use.
  struct Ending {
    uint64_t number = 0;
    const uint64_t* shifts = nullptr;
    std::shared_ptr<gpu::Event> last_use;
  };

  gpu::Machine& machine_;
  Options options_;
  KeptMemory& kept_;
  mutable std::mutex mutex_;
  std::condition_variable answered_;
  bool is_closed_ GUARDED_BY(mutex_) = false;
  ShiftTables tables_ GUARDED_BY(mutex_);
  std::shared_ptr<transport::DescriptorServer> server_ GUARDED_BY(mutex_);  // once it is needed
  uint64_t next_ GUARDED_BY(mutex_) = 1;
  std::multimap<uintptr_t, Pointer> by_begin_ GUARDED_BY(mutex_);
  std::map<uint64_t, Pointer> asked_ GUARDED_BY(mutex_);  // by number
  std::set<const BufferExport*> registered_ GUARDED_BY(mutex_);
  std::vector<Ending> ending_ GUARDED_BY(mutex_);
  /// Memory that peers do not see. The reason may pass, as a lack of descriptors does, so they are
  /// asked again, less and less often. If only some peers refuse it, the mappings of the others are
  /// used meanwhile.
  struct Refusal {
    By who = By::All;
    std::chrono::steady_clock::time_point until{};
    std::chrono::steady_clock::duration pause{};
  };
  std::map<uint64_t, Refusal> refused_ GUARDED_BY(mutex_);  // by the memory's id
  std::set<uint64_t> used_once_ GUARDED_BY(mutex_);         // the same: plain memory, not exported
  /// Pools by gpu::Sharing::pool_of(). Peers know a pool by its token, and import it once.
  std::map<const void*, std::weak_ptr<SharedPool>> pools_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::registry
