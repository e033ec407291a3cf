// Windows: memory that all ranks of a communicator can address (ncclCommWindowRegister). Every rank
// contributes a range of shareable memory; each process maps the ranges of its machine's ranks in
// one range of addresses, its own a second time (docs/design/memory.md). Puts reach the copies on
// other machines by the window's number.
//
// Thread safety: add() by one thread at a time, since it is collective; all else by any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/wait.h"
#include "bootstrap/member.h"
#include "gpu/mappings.h"
#include "registry/flat_range.h"
#include "registry/shared_piece.h"
#include "registry/shift_tables.h"
#include "registry/window_multicast.h"
#include "registry/window_record.h"
#include "transport/descriptor_server.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::registry {

/// How windows are registered: ncclCommWindowRegister's flags.
inline constexpr int kSymmetricWindow = 1;
inline constexpr int kOrderedWindow = 2;

/// One rank's view of a window. Immutable.
class Window {
 public:
  int rank() const { return rank_; }
  int nranks() const { return static_cast<int>(bytes_.size()); }
  int flags() const { return flags_; }
  bool is_symmetric() const { return (flags_ & kSymmetricWindow) != 0; }
  void* user() const { return user_; }
  size_t bytes() const { return bytes_of(rank_); }
  size_t bytes_of(int peer) const { return bytes_[static_cast<size_t>(peer)]; }
  /// The load-store team: ranks that follow each other, whose copies kernels of this rank reach by
  /// the record.
  int team_first() const { return team_first_; }
  int team_ranks() const { return team_ranks_; }
  bool is_in_team(int peer) const {
    return team_first_ <= peer && peer < team_first_ + team_ranks_;
  }
  /// The distance of two copies that follow each other, in units of 4 GiB.
  uint32_t stride_4g() const { return stride_4g_; }
  /// All ranks know the window by this number.
  uint64_t number() const { return number_; }
  /// Returns where `peer`'s copy begins in this process; for the own rank, too, whose memory is
  /// also at user(). Null: it is on another machine.
  std::byte* copy_of(int peer) const { return copies_[static_cast<size_t>(peer)]; }
  /// Do `bytes` at `pointer` lie in the user's range?
  bool holds(const void* pointer, size_t bytes) const;
  /// Returns the offset of a user's pointer in the window.
  size_t offset_of(const void* pointer) const {
    return static_cast<size_t>(static_cast<const std::byte*>(pointer) - user_);
  }

  /// Are these bytes of the user's range still the memory that was registered? Its owner may have
  /// freed it and have other memory at the same addresses now.
  bool is_there(gpu::Mappings& mappings, const void* pointer, size_t bytes) const;

  /// The address of its first byte in all copies of the team at once; null: it has none.
  std::byte* multicast_address() const { return multicast_->address(); }

 private:
  friend class Windows;
  int rank_ = 0;
  int flags_ = 0;
  uint64_t number_ = 0;
  bool is_of_user_ = true;
  int team_first_ = 0;
  int team_ranks_ = 1;
  uint32_t stride_4g_ = 0;
  std::byte* user_ = nullptr;
  std::vector<size_t> bytes_;       // by rank
  std::vector<std::byte*> copies_;  // by rank
  const uint64_t* shifts_ = nullptr;
  mutable bool is_in_graphs_ = false;  // the shifts; of Windows, with its mutex
  std::vector<std::shared_ptr<SharedPiece>> pieces_;
  std::shared_ptr<FlatRange> range_;
  std::shared_ptr<MulticastPlace> multicast_;
};

class Windows {
 public:
  /// The name of a window for users: the device address of its record.
  using Handle = const void*;

  struct Options {
    int team_ranks = 1;        // size of the load-store teams, which divides the number of ranks
    bool are_possible = true;  // if not, which all ranks know, add() makes null windows
    std::vector<int>
        neighbours{};  // ranks of this machine, this one included, ascending; none: all
  };
  /// `member` is null for one rank; it and `machine` outlive the windows.
  Windows(gpu::Machine& machine, int device, bootstrap::Member* member, Options options);
  ~Windows();
  Windows(const Windows&) = delete;

  /// Collective. Null when a rank has switched windows off (NCCL_WIN_ENABLE=0). A failure of one
  /// rank is a failure of all, which names it.
  Result<Handle> add(void* user, size_t bytes, int flags);
  /// Registers memory that the library made for kernels of the user: such a window changes no
  /// plan, is in no table(), and is made whatever NCCL_WIN_ENABLE says.
  Result<Handle> add_resources(void* memory, size_t bytes);
  /// Registers memory of the user's for captured operations, as add_resources() does: no pointer is
  /// looked for in it.
  Result<Handle> add_captured(void* memory, size_t bytes);
  /// Local; no work may use the window any more. InvalidArgument: not one of these.
  Status remove(Handle handle);
  /// Null when `handle` is none of these.
  std::shared_ptr<const Window> find(Handle handle) const;
  /// Null when no live window of the user's has that number (Window::number()).
  std::shared_ptr<const Window> find_numbered(uint64_t number) const;
  /// A window of these whose user's range holds the bytes, symmetric if there is one; or null.
  std::shared_ptr<const Window> containing(const void* pointer, size_t bytes) const;

  /// For kernels: where the ranks see the bytes at `pointer`, if they lie in a window of these, and
  /// the place of symmetric ones in the team's range (executor::Buffers::input_shifts); else null.
  /// `is_captured`: for a graph, whose replays read them also when the window has ended.
  const uint64_t* shifts_of(const void* pointer, size_t bytes, bool is_captured) const;
  /// Returns the shifts of a window, for graphs.
  const uint64_t* shifts_in_graphs(const Window& window) const;
  /// Have all ranks ever had one, and a symmetric one? The same on all of them after each add().
  bool had_any() const { return had_any_; }
  bool had_symmetric() const { return had_symmetric_; }

  /// How this rank takes part in multicast: see WindowMulticast::Options. Before the first add().
  struct MulticastTerms {
    std::string refusal;
    std::function<Status(gpu::Machine&, int, const executor::TeamTrial&)> try_step;
  };
  void set_multicast_terms(MulticastTerms terms) { multicast_terms_ = std::move(terms); }
  /// Can windows have multicast addresses, as far as this rank knows?
  bool may_have_multicast() const;
  /// Collective: gives windows of now and of later multicast addresses (WindowMulticast).
  /// InvalidArgument, on all ranks: the reason why they cannot have any.
  Status begin_multicast();
  /// The base of the offsets in records; null before begin_multicast().
  std::byte* multicast_base() const { return multicast_ == nullptr ? nullptr : multicast_->base(); }
  /// As in its record; only of addresses that a window of these has.
  uint32_t multicast_offset_4k(const std::byte* address) const {
    return multicast_->offset_4k(address);
  }
  /// Why the latest window without addresses has none.
  std::string multicast_obstacle() const {
    return multicast_ == nullptr ? std::string() : multicast_->obstacle();
  }

  int team_ranks() const { return options_.team_ranks; }
  /// For kernels: a list in device memory of the windows that the user registered, the same as long
  /// as this object lives (WindowTablePage). Made by the first call.
  Result<Handle> table();

  /// Device memory of records and tables, and of the multicast team.
  size_t record_bytes() const;

  /// A live window of any communicator of this process, or null.
  static std::shared_ptr<const Window> find_in_process(Handle handle);

 private:
  /// Records of live windows, in device memory. A free place is used again only after all others,
  /// because kernels may keep values that they have read from a record.
  class Records {
   public:
    Records(gpu::Machine& machine, int device)
        : machine_(machine),
          device_(device),
          memory_(transport::Pool::of(machine, device, transport::Pool::Purpose::Persistent)) {}
    Result<Handle> add(const WindowRecord& record);
    void remove(Handle handle);
    size_t bytes() const { return memory_.bytes(); }

   private:
    gpu::Machine& machine_;
    const int device_;
    transport::Share memory_;
    std::vector<transport::Span> pages_;
    std::vector<std::byte*> free_;  // the next is the first
    size_t next_ = 0;
  };

  /// The list of windows for kernels: pages in device memory, with a copy of their entries here.
  class Table {
   public:
    Table(gpu::Machine& machine, int device)
        : machine_(machine),
          device_(device),
          memory_(transport::Pool::of(machine, device, transport::Pool::Purpose::Persistent)) {}
    /// Null until the first page is made.
    Handle first() const { return pages_.empty() ? nullptr : pages_.front().memory.data(); }
    Status begin();
    Status add(const WindowTablePage::Entry& entry);
    Status remove(Handle window);
    size_t bytes() const { return memory_.bytes(); }

   private:
    struct Page {
      transport::Span memory;
      WindowTablePage content;
    };
    Status write(const Page& page);

    gpu::Machine& machine_;
    const int device_;
    transport::Share memory_;
    std::vector<Page> pages_;
  };

  /// The owner of a window that add() makes.
  enum class Purpose : uint8_t { User, Resources, Captured };
  struct Contribution {
    WindowPart part;
    std::vector<std::shared_ptr<SharedPiece>> pieces;
  };
  int rank() const { return member_ != nullptr ? member_->rank() : 0; }
  int nranks() const { return member_ != nullptr ? member_->nranks() : 1; }
  bool is_here(int peer) const { return peer == rank() || member_->same_process(peer); }
  Result<Handle> add(void* user, size_t bytes, int flags, Purpose purpose);
  Contribution contribute(void* user, size_t bytes, int flags, bool is_enabled);
  Status collect(void* user, size_t bytes, int flags, Contribution& into);
  Result<std::vector<WindowPart>> exchange(const WindowPart& mine);
  Status check(std::span<const WindowPart> parts) const;
  Status check(const FlatLayout& layout, std::span<const WindowPart> parts) const;
  /// The first failure of any rank; else where each rank's process has its flat range.
  Result<std::vector<uint64_t>> agree(Status mine, const std::byte* base);
  /// `layout` and `bases` are the neighbours'.
  Result<Handle> enter(std::shared_ptr<Window> window, const FlatLayout& layout,
                       std::span<const uint64_t> bases, Purpose purpose);
  Status bind_windows();

  gpu::Machine& machine_;
  const int device_;
  bootstrap::Member* const member_;
  const Options options_;  // with the neighbours named
  MulticastTerms multicast_terms_;
  std::unique_ptr<WindowMulticast> multicast_;
  uint64_t added_ = 0;
  bool had_any_ = false;
  bool had_symmetric_ = false;
  std::shared_ptr<transport::DescriptorServer> server_;  // once there is a rank elsewhere
  mutable std::mutex mutex_;
  Records records_ GUARDED_BY(mutex_);
  ShiftTables shifts_ GUARDED_BY(mutex_);
  Table table_ GUARDED_BY(mutex_);
  std::unordered_map<Handle, std::shared_ptr<const Window>> live_ GUARDED_BY(mutex_);
  std::multimap<const void*, std::shared_ptr<const Window>> by_begin_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<const Window>> by_number_
      GUARDED_BY(mutex_);  // the user's
};

}  // namespace niccolite::registry
