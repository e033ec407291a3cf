// Plan: a Launch that has been checked and prepared for the CPU; shared by all its executions (a
// graph has many). Thread safety: immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "executor/buffer_needs.h"
#include "executor/host/fold.h"
#include "executor/launch.h"

namespace niccolite::executor::host {

class Plan {
 public:
  /// Whatever buffers it has. InternalError, naming what is wrong, when the launch cannot be run:
  /// these are our own mistakes, not the user's.
  static Result<Plan> create(Launch launch);
  /// The same for other buffers, by work, and another Launch::number. InternalError when there is
  /// one too few.
  Result<Plan> with_buffers(std::span<const Buffers> buffers, uint64_t number) const;
  /// Are there all buffers that the works need?
  Status check_buffers() const;

  const Launch& launch() const { return launch_; }
  const Program& program() const { return *launch_.program; }
  const Folder& folder() const { return folder_; }
  size_t element_bytes() const { return folder_.element_bytes(); }

  /// The work whose data the program's lane `lane` moves.
  const Work& work_of(size_t lane) const { return launch_.works[program().lanes[lane].work]; }
  /// Does the lane run on this channel of its work's partition?
  bool runs_on(size_t lane, uint32_t channel) const;

  /// A port belongs to one lane. This is the number of `port` among the lane's.
  uint16_t port_in_lane(uint16_t port) const { return tables_->port_in_lane[port]; }
  /// The ports of a lane, in that order.
  const std::vector<uint16_t>& ports_of(size_t lane) const { return tables_->ports_of[lane]; }

  /// May the channels share the tiles of the lane (lowering::Tiles::Dynamic)? They do where all
  /// that it gets and puts is reached.
  bool may_share_tiles(size_t lane) const { return tables_->may_share_tiles[lane]; }

 private:
  /// What depends on the program alone; shared by plans for different buffers.
  struct Tables {
    std::vector<uint16_t> port_in_lane;
    std::vector<std::vector<uint16_t>> ports_of;  // by lane
    std::vector<bool> may_share_tiles;            // by lane
  };
  Plan(Launch launch, const std::vector<int>& lanes_of_ports);

  Launch launch_;
  Folder folder_;
  BufferNeeds needs_;
  std::shared_ptr<const Tables> tables_;
};

}  // namespace niccolite::executor::host
