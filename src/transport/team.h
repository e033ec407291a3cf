// Team: the multicast team (gpu/multicast.h) of a communicator's ranks on one machine, with the
// memory that this rank has in it: slots that every rank of the machine stores to, or loads from,
// at once. The slots of a communicator are a part of the team's range (team_range.h):
//
//   part of the range       executor::TeamSlots
//
// Every rank has all slots. What a rank stores at the team's addresses is in all ranks'
// memory.
//
// An optional path never takes a job down: whatever fails on some rank, or takes longer than a
// limit, all ranks hear of it, and have no team. Thread safety: one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/wait.h"
#include "bootstrap/member.h"
#include "executor/program.h"
#include "executor/protocol/team_slots.h"
#include "executor/team_trial.h"
#include "gpu/memory.h"
#include "lowering/routes.h"
#include "transport/team_range.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::transport {

struct TeamWord;

class Team {
 public:
  static constexpr int kMostRanks = lowering::kMostTeamRanks;
  struct Options {
    gpu::Machine& machine;
    int device = 0;
    bootstrap::Member& member;
    std::span<const int> machines;  // by rank: equal numbers are in one team
    std::string refusal{};          // why this rank wants none; empty: it wants one, as all must
    executor::TeamSlots slots;      // equal on all ranks
    size_t window_bytes = 0;        // of the range, behind the slots; equal on all ranks
    int parts = 1;  // of the range: communicators that can share the team; equal on all ranks
    /// This rank's end of teams whose members are the same ranks, where a communicator has some.
    /// All ranks have one, or none has.
    std::shared_ptr<TeamRange> shared{};
    /// Carries out a step of the trial of the addresses (executor/team_trial.h).
    std::function<Status(gpu::Machine&, int device, const executor::TeamTrial&)> try_step;
    Deadline deadline = Deadline::never();
  };
  /// Why there is no team, on any rank: the rank, the step and a remedy; and whether it was wanted.
  struct Outcome {
    std::unique_ptr<Team> team;
    std::string obstacle;
    bool has_failed = false;  // else nobody has tried
    bool is_shared = false;   // `team` is a part of Options::shared
  };
  /// Collective over all ranks: all machines have a team, or none has. An error is one of the
  /// member's. Makes teams where the shared ones have no part left that is large enough.
  static Result<Outcome> make(const Options& options);
  Team(const Team&) = delete;
  ~Team();

  const executor::TeamSlots& slots() const { return slots_; }
  /// Sets where the slots of the port's connection by the protocol are, whose other memory
  /// `address` has.
  void set_slots(const executor::Port& port, executor::Protocol protocol,
                 executor::PortAddress& address) const;
  size_t bytes() const { return memory_.bytes(); }

  /// The range, which communicators of the same ranks may share.
  const std::shared_ptr<TeamRange>& range() const { return range_; }
  /// The part of the range that has windows; the team's address of a byte of it.
  size_t windows_begin() const { return range_->windows_begin(); }
  size_t windows_end() const { return range_->bytes(); }
  std::byte* at(size_t offset) const { return range_->at(offset); }
  struct Piece {
    const void* memory;
    size_t bytes;
  };
  /// Binds memory of this rank, one piece behind the other, from `offset` of the range on, or
  /// nothing. `keep` is kept as long as the driver needs it. Nothing: it has not ended in time, and
  /// may never.
  static std::optional<Status> bind_window(const std::shared_ptr<Team>& team, size_t offset,
                                           std::vector<Piece> pieces,
                                           std::shared_ptr<const void> keep);
  /// Ends such bindings.
  void unbind_window(size_t offset, std::span<const Piece> pieces);
  /// The failure of a step, with a remedy. No status: it has not ended in time.
  static std::string obstacle(const char* what, const std::optional<Status>& status);

  /// Gives the memory back to the device, and brings it again, zero; addresses stay. Between the
  /// two steps of all ranks nobody uses it (Endpoint).
  Status suspend();
  Status resume();

 private:
  Team(gpu::Machine& machine, int device, const executor::TeamSlots& slots)
      : machine_(machine), device_(device), slots_(slots) {}
  struct Making;
  static std::shared_ptr<Making> begin(const Options& options);
  /// The outcome of a step with a time limit.
  static TeamWord in_time(const std::shared_ptr<Making>& making, const char* what,
                          Status (Making::*step)());
  /// Nothing: the shared teams have no room, on all ranks.
  static Result<std::optional<Outcome>> share(const Options& options);
  size_t offset() const { return static_cast<size_t>(part_) * range_->part_bytes(); }
  Status bind();
  Status unbind();

  gpu::Machine& machine_;
  const int device_;
  const executor::TeamSlots slots_;
  std::vector<int> numbers_;  // by rank: its number on its machine
  int rank_ = 0;
  int members_ = 0;
  std::shared_ptr<TeamRange> range_;
  int part_ = -1;     // of the range; -1: none has been taken
  size_t bytes_ = 0;  // of the memory
  bool is_bound_ = false;
  gpu::Memory memory_;
};

}  // namespace niccolite::transport
