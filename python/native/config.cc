#include "config.h"

#include <nanobind/stl/string.h>

namespace nb = nanobind;

namespace niccolite::python {
namespace {

// Python's name of a field, and C's. Read and written as integers of Python.
// clang-format off
#define NICCOLITE_CONFIG_FIELDS(X)                                                                \
  X(blocking, blocking) X(cga_cluster_size, cgaClusterSize) X(min_ctas, minCTAs)                  \
  X(max_ctas, maxCTAs) X(split_share, splitShare) X(traffic_class, trafficClass)                  \
  X(collnet_enable, collnetEnable) X(cta_policy, CTAPolicy) X(shrink_share, shrinkShare)          \
  X(nvls_ctas, nvlsCTAs) X(n_channels_per_net_peer, nChannelsPerNetPeer)                          \
  X(nvlink_centric_sched, nvlinkCentricSched) X(graph_usage_mode, graphUsageMode)                 \
  X(num_rma_ctx, numRmaCtx) X(max_p2p_peers, maxP2pPeers)                                         \
  X(graph_stream_ordering, graphStreamOrdering)
// clang-format on

// clang-format off
#define NICCOLITE_REQUIREMENT_FIELDS(X)                                                           \
  X(lsa_multimem, lsaMultimem) X(barrier_count, barrierCount)                                     \
  X(lsa_barrier_count, lsaBarrierCount) X(rail_gin_barrier_count, railGinBarrierCount)            \
  X(lsa_ll_a2a_block_count, lsaLLA2ABlockCount) X(lsa_ll_a2a_slot_count, lsaLLA2ASlotCount)       \
  X(gin_force_enable, ginForceEnable) X(gin_context_count, ginContextCount)                       \
  X(gin_signal_count, ginSignalCount) X(gin_counter_count, ginCounterCount)                       \
  X(gin_connection_type, ginConnectionType) X(gin_exclusive_contexts, ginExclusiveContexts)       \
  X(gin_queue_depth, ginQueueDepth) X(world_gin_barrier_count, worldGinBarrierCount)              \
  X(gin_strong_signals_required, ginStrongSignalsRequired)                                        \
  X(gin_va_signals_required, ginVaSignalsRequired)
// clang-format on

}  // namespace

void bind_configs(nb::module_& module) {
  nb::class_<Config> config(module, "Config");
  config.def(nb::init<>());
#define NICCOLITE_BIND(python_name, c_name)                                \
  config.def_prop_rw(                                                      \
      #python_name, [](const Config& self) { return self.values.c_name; }, \
      [](Config& self, int value) { self.values.c_name = value; });
  NICCOLITE_CONFIG_FIELDS(NICCOLITE_BIND)
#undef NICCOLITE_BIND
  config.def_prop_rw(
      "net_name", [](const Config& self) { return self.net_name; },
      [](Config& self, std::string value) {
        self.net_name = std::move(value);
        self.values.netName = self.net_name.c_str();
      });
  config.def_prop_rw(
      "comm_name", [](const Config& self) { return self.comm_name; },
      [](Config& self, std::string value) {
        self.comm_name = std::move(value);
        self.values.commName = self.comm_name.c_str();
      });

  nb::class_<ncclDevCommRequirements_t> requirements(module, "DevCommRequirements");
  requirements.def("__init__", [](ncclDevCommRequirements_t* self) {
    new (self) ncclDevCommRequirements_t NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  });
#define NICCOLITE_BIND(python_name, c_name)                                                \
  requirements.def_prop_rw(                                                                \
      #python_name,                                                                        \
      [](const ncclDevCommRequirements_t& self) { return static_cast<int>(self.c_name); }, \
      [](ncclDevCommRequirements_t& self, int value) {                                     \
        self.c_name = static_cast<decltype(self.c_name)>(value);                           \
      });
  NICCOLITE_REQUIREMENT_FIELDS(NICCOLITE_BIND)
#undef NICCOLITE_BIND
}

}  // namespace niccolite::python
