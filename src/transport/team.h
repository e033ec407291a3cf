// Team: the multicast team (gpu/multicast.h) of a communicator's ranks on one machine, with the
// memory that this rank has in it: slots that every rank of the machine stores to, or loads from,
// at once.
//
//   range of the team       [owner][place] slots of FifoShape::slots_bytes(), then room for windows
//     owner                 the rank that stores to all, or loads of all, by its number on the machine
//     place                 lowering::Routes::tag_in_program() of its connections
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
#include "executor/protocol/fifo.h"
#include "executor/team_trial.h"
#include "gpu/memory.h"
#include "gpu/multicast.h"
#include "lowering/routes.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::transport {

class Team {
 public:
  static constexpr int kMostRanks = lowering::kMostTeamRanks;
  struct Options {
    gpu::Machine& machine;
    int device = 0;
    bootstrap::Member& member;
    std::span<const int> machines;  // by rank: equal numbers are in one team
    std::string refusal{};          // why this rank wants none; empty: it wants one, as all must
    executor::FifoShape shape;      // of each connection; equal on all ranks
    size_t window_bytes = 0;        // of the range, behind the slots; equal on all ranks
    /// Carries out a step of the trial of the addresses (executor/team_trial.h).
    std::function<Status(gpu::Machine&, int device, const executor::TeamTrial&)> try_step;
    Deadline deadline = Deadline::never();
  };
  /// Why there is no team, on any rank: the rank, the step and a remedy; and whether it was wanted.
  struct Outcome {
    std::unique_ptr<Team> team;
    std::string obstacle;
    bool has_failed = false;  // else nobody has tried
  };
  /// Collective over all ranks: all machines have a team, or none has. An error is one of the
  /// member's.
  static Result<Outcome> make(const Options& options);
  Team(const Team&) = delete;
  ~Team();

  const executor::FifoShape& shape() const { return shape_; }
  /// Sets where the slots of the port's connection are, whose other memory `address` has.
  void set_slots(const executor::Port& port, executor::PortAddress& address) const;
  size_t bytes() const { return memory_.bytes(); }

  /// The part of the range that has windows; the team's address of a byte of it.
  size_t windows_begin() const { return bound_; }
  size_t windows_end() const { return range_; }
  std::byte* at(size_t offset) const { return mapping_.data() + offset; }
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
  Team(gpu::Machine& machine, int device, const executor::FifoShape& shape)
      : machine_(machine), device_(device), shape_(shape) {}
  struct Making;
  Status bind();

  gpu::Machine& machine_;
  const int device_;
  const executor::FifoShape shape_;
  std::vector<int> numbers_;  // by rank: its number on its machine
  int rank_ = 0;
  size_t bound_ = 0;  // bytes of the range for slots
  size_t range_ = 0;  // bytes
  gpu::Memory memory_;
  gpu::MulticastTeam team_;
  gpu::MulticastMapping mapping_;
};

}  // namespace niccolite::transport
