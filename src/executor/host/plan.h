// Plan: a Launch that has been checked and prepared for the CPU; shared by all its executions (a
// graph has many). Thread safety: immutable.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "executor/host/fold.h"
#include "executor/launch.h"

namespace niccolite::executor::host {

class Plan {
 public:
  /// InternalError, naming what is wrong, when the launch cannot be run: these are our own
  /// mistakes, not the user's.
  static Result<Plan> create(Launch launch);

  const Launch& launch() const { return launch_; }
  const Program& program() const { return *launch_.program; }
  const Folder& folder() const { return folder_; }
  size_t element_bytes() const { return folder_.element_bytes(); }

  /// A channel uses only the ports of its pattern channel. This is the number of `port` among
  /// those.
  uint16_t port_in_channel(uint16_t port) const { return port_in_channel_[port]; }
  /// The ports of a pattern channel, in that order.
  const std::vector<uint16_t>& ports_of(uint32_t pattern_channel) const {
    return ports_of_[pattern_channel];
  }

 private:
  explicit Plan(Launch launch);

  Launch launch_;
  Folder folder_;
  std::vector<uint16_t> port_in_channel_;
  std::vector<std::vector<uint16_t>> ports_of_;
};

}  // namespace niccolite::executor::host
