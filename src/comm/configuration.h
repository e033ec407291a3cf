// Configuration: the choices of a communicator's user, and the choices of a rank in a split.
#pragma once

#include <string>

#include "base/status.h"
#include "planner/settings.h"

namespace niccolite::comm {

/// ncclConfig_t as resolved: defaults and environment applied. Source: reference c-api §5.
struct Configuration {
  bool blocking = true;
  bool graphs_mix = true;        // see StreamOrder
  bool orders_launches = false;  // see LaunchOrder
  bool one_sided = true;         // puts and signals; config.numRmaCtx 0: none
  planner::Limits limits;
  int least_of_reducer = 0;  // planner::Settings
  std::string name;          // ncclConfig_t::commName: of logs and profiles; empty: none
  std::string network;       // ncclConfig_t::netName, which NCCL_NET overrides; empty: any
  int traffic_class = -1;    // ncclConfig_t::trafficClass, of network plug-ins; -1: none
};

/// The arguments of one rank for a split.
struct SplitWish {
  static constexpr int kNoColor = -1;
  int color = kNoColor;
  int key = 0;
  Configuration configuration;
  Status refusal;  // of its arguments: the split then fails on all ranks
};

}  // namespace niccolite::comm
