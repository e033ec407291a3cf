// WindowMulticast: multicast addresses of windows, for kernels (lsaMultimem). The ranks of a
// load-store team have one multicast team (transport/team.h), whose range has a part for each
// window: each rank binds its copy there, so that
//
//   base() + (part's offset + MulticastPlace::begin) + offset
//
// is the byte `offset` of all copies. The ranks of a team choose the parts alike: the part of a
// window is free again once every rank has told that its binding has ended.
//
// An optional path never takes a job down: where a rank cannot bind its copy, or not in time, no
// rank has an address of that window, and one line says why: of memory that cannot be bound at
// INFO, since such a window is of use for much else, and of failures as a warning. Thread safety:
// make() and bind() by one thread at a time, since they are collective; places end on any thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "bootstrap/member.h"
#include "registry/shared_piece.h"
#include "transport/team.h"

namespace niccolite::registry {

/// Numbers of windows whose part of the range this rank has in use.
struct HeldParts {
  std::mutex mutex;
  std::set<uint64_t> numbers GUARDED_BY(mutex);
};

/// A window's part of the range. Its end ends the binding.
struct MulticastPlace {
  uint64_t number = 0;  // of the window, on all ranks
  // Equal on all ranks of the machine. No bytes: the copies lie differently, and cannot be bound.
  uint64_t bytes = 0;
  uint64_t begin = 0;        // of the window in its part
  uint64_t first_piece = 0;  // of this rank, in the part
  std::vector<std::shared_ptr<SharedPiece>> pieces;

  ~MulticastPlace();
  /// The window's first byte; null: it has none.
  std::byte* address() const { return address_.load(std::memory_order_acquire); }

 private:
  friend class WindowMulticast;
  std::vector<transport::Team::Piece> memory() const;
  void end_binding();

  bool is_tried_ = false;
  std::atomic<std::byte*> address_{nullptr};
  uint64_t offset_ = 0;                    // of the part
  std::shared_ptr<transport::Team> team_;  // null: not bound
  std::shared_ptr<HeldParts> held_;
};

class WindowMulticast {
 public:
  struct Options {
    gpu::Machine& machine;
    int device;
    bootstrap::Member& member;
    int team_ranks;
    std::string refusal;  // why this rank wants none; or empty
    std::function<Status(gpu::Machine&, int, const executor::TeamTrial&)> try_step;
  };
  /// Collective over all ranks. InvalidArgument, on all of them: the reason why there is none.
  static Result<std::unique_ptr<WindowMulticast>> make(const Options& options);
  WindowMulticast(const WindowMulticast&) = delete;

  std::byte* base() const { return team_->at(0); }
  /// In units of 4096 bytes, as window records have it.
  uint32_t offset_4k(const std::byte* address) const {
    return static_cast<uint32_t>((address - base()) / 4096);
  }
  size_t bytes() const { return team_->bytes(); }

  /// Collective: binds the windows of `live` that all ranks have, each of them once. An error is
  /// one of the member's.
  Status bind(std::span<const std::shared_ptr<MulticastPlace>> live);
  /// Why the latest window that has no address has none.
  const std::string& obstacle() const { return obstacle_; }
  /// A binding has not ended in time, and no further window is bound.
  bool has_given_up() const { return has_given_up_; }

 private:
  // The better first. Unfit: the memory is such that it was not tried.
  enum class Outcome : uint8_t { Bound, Unfit, Failed, NotInTime };
  struct Part {
    uint64_t offset;
    uint64_t bytes;
  };
  using Places = std::vector<std::shared_ptr<MulticastPlace>>;

  WindowMulticast(bootstrap::Member& member, std::shared_ptr<transport::Team> team, uint64_t unit)
      : member_(member), team_(std::move(team)), unit_(unit) {}
  struct Choice {
    Places places;
    bool is_last;  // no rank has had more to tell
  };
  Result<Choice> choose(std::span<const std::shared_ptr<MulticastPlace>> live);
  Status bind_chosen(const Places& chosen);
  bool find_room(MulticastPlace& place);
  Outcome try_binding(const std::shared_ptr<MulticastPlace>& place, std::string& obstacle);

  bootstrap::Member& member_;
  const std::shared_ptr<transport::Team> team_;
  const uint64_t unit_;  // of offsets and bound memory
  const std::shared_ptr<HeldParts> held_ = std::make_shared<HeldParts>();
  std::map<uint64_t, Part> parts_;  // by number
  std::string obstacle_;
  bool has_given_up_ = false;
};

}  // namespace niccolite::registry
