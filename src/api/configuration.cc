#include "api/configuration.h"

#include <cstring>

#include "api/arguments.h"
#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::api {
namespace {

// The fields a caller's header could not have, by its version: bytes there are padding, or were
// never set.
void reset_newer_fields(ncclConfig_t& config) {
  const ncclConfig_t unset = NCCL_CONFIG_INITIALIZER;
  const unsigned version = config.version;
  if (version < NCCL_VERSION(2, 14, 0)) config.blocking = unset.blocking;
  if (version < NCCL_VERSION(2, 17, 0)) {
    config.cgaClusterSize = unset.cgaClusterSize;
    config.minCTAs = unset.minCTAs;
    config.maxCTAs = unset.maxCTAs;
    config.netName = unset.netName;
  }
  if (version < NCCL_VERSION(2, 26, 0))
    config.trafficClass = unset.trafficClass;  // 2.25 had padding there
  if (version < NCCL_VERSION(2, 27, 0)) {
    config.collnetEnable = unset.collnetEnable;
    config.CTAPolicy = unset.CTAPolicy;
    config.shrinkShare = unset.shrinkShare;
    config.nvlsCTAs = unset.nvlsCTAs;
  }
  if (version < NCCL_VERSION(2, 28, 0)) {
    config.nChannelsPerNetPeer = unset.nChannelsPerNetPeer;
    config.nvlinkCentricSched = unset.nvlinkCentricSched;
  }
  if (version < NCCL_VERSION(2, 29, 0)) {
    config.graphUsageMode = unset.graphUsageMode;
    config.numRmaCtx = unset.numRmaCtx;
  }
  if (version < NCCL_VERSION(2, 30, 0)) config.maxP2pPeers = unset.maxP2pPeers;
  if (version < NCCL_VERSION(2, 30, 5))
    config.graphStreamOrdering = unset.graphStreamOrdering;  // padding until then
}

struct Bounds {
  const char* name;
  const char* words;  // in the log, where programs look for them
  int ncclConfig_t::*field;
  int least;
  int most;
};
constexpr Bounds kBounds[] = {
    {"blocking", "Blocking", &ncclConfig_t::blocking, 0, 1},
    {"cgaClusterSize", "CGA cluster size", &ncclConfig_t::cgaClusterSize, 0, INT_MAX},
    {"minCTAs", "Min CTAs", &ncclConfig_t::minCTAs, 1, INT_MAX},
    {"maxCTAs", "Max CTAs", &ncclConfig_t::maxCTAs, 1, INT_MAX},
    {"splitShare", "Split share", &ncclConfig_t::splitShare, 0, 1},
    {"collnetEnable", "Collnet enable", &ncclConfig_t::collnetEnable, 0, 1},
    {"CTAPolicy", "CTA policy", &ncclConfig_t::CTAPolicy, 0, 3},
    {"shrinkShare", "Shrink share", &ncclConfig_t::shrinkShare, 0, 1},
    {"nvlsCTAs", "NVLS CTAs", &ncclConfig_t::nvlsCTAs, 1, INT_MAX},
    {"nChannelsPerNetPeer", "Channels per network peer", &ncclConfig_t::nChannelsPerNetPeer, 1, 64},
    {"nvlinkCentricSched", "NVLink centric scheduling", &ncclConfig_t::nvlinkCentricSched, 0, 1},
    {"graphUsageMode", "Graph usage mode", &ncclConfig_t::graphUsageMode, 0, 2},
    {"numRmaCtx", "RMA contexts", &ncclConfig_t::numRmaCtx, 0, INT_MAX},
    {"maxP2pPeers", "Max P2P peers", &ncclConfig_t::maxP2pPeers, 1, INT_MAX},
    {"graphStreamOrdering", "Graph stream ordering", &ncclConfig_t::graphStreamOrdering, 0, 1},
};

Status check_bounds(const ncclConfig_t& config) {
  for (const Bounds& bounds : kBounds) {
    const int value = config.*bounds.field;
    if (value == NCCL_CONFIG_UNDEF_INT) continue;
    if (value < bounds.least || value > bounds.most)
      return Status::invalid_argument("Invalid config {} attribute value {}: allowed are {} to {}",
                                      bounds.name, value, bounds.least, bounds.most);
    LOG(Info, Env, "Comm config {} set to {}", bounds.words, value);
  }
  // NCCL rejects minCTAs without maxCTAs, since it compares with "not set". Taking it is harmless.
  if (config.maxCTAs != NCCL_CONFIG_UNDEF_INT && config.minCTAs > config.maxCTAs)
    return Status::invalid_argument("Invalid config: minCTAs {} is larger than maxCTAs {}",
                                    config.minCTAs, config.maxCTAs);
  return {};
}

// ncclConfig_t of 2.31 and newer has more fields at its end than this header. Source: reference
// c-api-2.32, section 3.
constexpr size_t kLaunchOrderAt = 96;
constexpr size_t kSignalsAt = 100;
constexpr size_t kHostCftModeAt = 108;
static_assert(sizeof(ncclConfig_t) == kLaunchOrderAt);

int newer_field(const ncclConfig_t* config, const ncclConfig_t& copy, size_t at) {
  int value = NCCL_CONFIG_UNDEF_INT;
  if (config != nullptr && copy.version >= NCCL_VERSION(2, 31, 0) && copy.size >= at + sizeof value)
    std::memcpy(&value, reinterpret_cast<const std::byte*>(config) + at, sizeof value);
  return value;
}

// Calls have signal 0 alone, as by default.
void tell_of_signals(int count) {
  if (count > 1)
    LOG(Info, Env,
        "Comm config numRmaSig {} has no effect: a pair of ranks has one signal, sigIdx 0", count);
}

// Checks the mode. Disable and Fallback mean the same here, because this library does not use the
// compute fabric; Enable is an error.
Status check_fabric(int host_cft_mode) {
  enum { kEnable = 1, kDisable = 2, kFallback = 3 };
  switch (host_cft_mode) {
    case NCCL_CONFIG_UNDEF_INT:
    case kDisable:
    case kFallback:
      return {};
    case kEnable:
      return Status::invalid_argument(
          "config hostCftMode is ncclHostCftEnable, and this library does not use the Compute "
          "Fabric "
          "Transport: set ncclHostCftFallback, which uses it where it is there");
    default:
      return Status::invalid_argument(
          "Invalid config hostCftMode attribute value {}: allowed are 1 to 3", host_cft_mode);
  }
}

bool orders_launches(int value) {
  if (value == 0 || value == 1)
    LOG(Info, Env, "Comm config Launch order implicit set to {}", value);
  if (const int64_t named = parameters::launch_order_implicit(); named != INT64_MIN) {
    value = static_cast<int>(named);
    LOG(Info, Env, "Comm config launchOrderImplicit reset to NCCL_LAUNCH_ORDER_IMPLICIT={}", named);
  }
  return value != 0;
}

}  // namespace

Result<comm::Configuration> resolve(const ncclConfig_t* config) {
  ncclConfig_t copy = NCCL_CONFIG_INITIALIZER;
  if (config != nullptr) {
    copy = copy_versioned(config, copy);
    if (copy.magic != NCCL_API_MAGIC)
      return Status::invalid_argument(
          "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    reset_newer_fields(copy);
    TRY(check_bounds(copy));
    if (copy.netName != nullptr) LOG(Info, Env, "Comm config Net name set to {}", copy.netName);
    if (copy.commName != nullptr) LOG(Info, Env, "Comm config Comm name set to {}", copy.commName);
  }
  const auto or_zero = [](int value) { return value == NCCL_CONFIG_UNDEF_INT ? 0 : value; };
  comm::Configuration result;
  if (copy.commName != nullptr) result.name = copy.commName;
  if (copy.netName != nullptr) result.network = copy.netName;
  if (copy.trafficClass != NCCL_CONFIG_UNDEF_INT) {
    result.traffic_class = copy.trafficClass;
    LOG(Info, Env, "Comm config Traffic class set to {}", copy.trafficClass);
  }
  result.blocking = copy.blocking != 0;
  if (const int64_t blocking = parameters::comm_blocking(); blocking != INT64_MIN) {
    result.blocking = blocking != 0;
    LOG(Info, Env, "Comm config blocking reset to NCCL_COMM_BLOCKING={}", blocking);
  }
  result.limits = {.min_ctas = or_zero(copy.minCTAs),
                   .max_ctas = or_zero(copy.maxCTAs),
                   .nvls_ctas = or_zero(copy.nvlsCTAs),
                   .policy = planner::policy_of(or_zero(copy.CTAPolicy), "config.CTAPolicy")};
  bool network_reduces = copy.collnetEnable == 1;
  if (const int64_t named = parameters::collnet_enable(); named != INT64_MIN) {
    network_reduces = named == 1;
    if (copy.collnetEnable != NCCL_CONFIG_UNDEF_INT)
      LOG(Info, Env, "Comm config Collnet enable reset to NCCL_COLLNET_ENABLE={}", named);
  }
  if (network_reduces)
    result.least_of_reducer =
        static_cast<int>(std::max<int64_t>(2, parameters::collnet_node_threshold()));
  int64_t graph_mode = copy.graphUsageMode == NCCL_CONFIG_UNDEF_INT ? 2 : copy.graphUsageMode;
  if (const int64_t mixing = parameters::graph_mixing_support(); mixing != INT64_MIN) {
    graph_mode = mixing != 0 ? 2 : 0;
    LOG(Info, Env, "Comm config graphUsageMode reset to NCCL_GRAPH_MIXING_SUPPORT={}", mixing);
  }
  result.graphs_mix = graph_mode == 2;
  result.orders_launches = orders_launches(newer_field(config, copy, kLaunchOrderAt));
  tell_of_signals(newer_field(config, copy, kSignalsAt));
  TRY(check_fabric(newer_field(config, copy, kHostCftModeAt)));
  int64_t contexts = copy.numRmaCtx == NCCL_CONFIG_UNDEF_INT ? 1 : copy.numRmaCtx;
  if (const int64_t named = parameters::num_rma_ctx(); named != INT64_MIN) {
    contexts = named;
    LOG(Info, Env, "Comm config numRmaCtx reset to NCCL_NUM_RMA_CTX={}", named);
  }
  result.one_sided = contexts > 0 && parameters::rma_disable() == 0;
  return result;
}

}  // namespace niccolite::api
