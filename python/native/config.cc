#include "config.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "communicator.h"
#include "errors.h"
#include "library.h"
#include "team.h"

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
#define NICCOLITE_CONFIG_TAIL(X)                                                                  \
  X(launch_order_implicit, launchOrderImplicit) X(num_rma_sig, numRmaSig)                         \
  X(rma_eager_init, rmaEagerInit) X(host_cft_mode, hostCftMode) X(nvls_host_mode, nvlsHostMode)
#define NICCOLITE_COLL_CONFIG_FIELDS(X)                                                           \
  X(min_ctas, minCTAs) X(max_ctas, maxCTAs) X(nvls_ctas, nvlsCTAs)                                \
  X(cga_cluster_size, cgaClusterSize) X(force_alg_selection, forceAlgSelection)                   \
  X(cta_policy, CTAPolicy)
// clang-format on

// clang-format off
#define NICCOLITE_REQUIREMENT_FIELDS(X)                                                           \
  X(lsa_multimem, lsaMultimem) X(barrier_count, barrierCount)                                     \
  X(lsa_barrier_count, lsaBarrierCount) X(rail_gin_barrier_count, railGinBarrierCount)            \
  X(lsa_ll_a2a_block_count, lsaLLA2ABlockCount) X(lsa_ll_a2a_slot_count, lsaLLA2ASlotCount)       \
  X(gin_force_enable, ginForceEnable) X(gin_context_count, ginContextCount)                       \
  X(gin_signal_count, ginSignalCount) X(gin_counter_count, ginCounterCount)                       \
  X(gin_connection_type, ginConnectionType) X(gin_exclusive_contexts, ginExclusiveContexts)       \
  X(gin_queue_depth, ginQueueDepth) X(gin_traffic_class, ginTrafficClass)                         \
  X(world_gin_barrier_count, worldGinBarrierCount)                                                \
  X(gin_strong_signals_required, ginStrongSignalsRequired)                                        \
  X(gin_va_signals_required, ginVaSignalsRequired)
#define NICCOLITE_REQUIREMENT_TAIL(X)                                                             \
  X(gin_custom_stride, ginCustomStride) X(gin_type, ginType) X(cft_caps, cftCaps)                 \
  X(cft_barrier_count, cftBarrierCount)
// clang-format on

// An integer of Python, as the field `Struct::values.*member`.
template <typename Struct, typename Values, typename Field>
void bind_field(nb::class_<Struct>& bound, const char* name, Field Values::*member) {
  bound.def_prop_rw(
      name, [member](const Struct& self) { return static_cast<int>(self.values.*member); },
      [member](Struct& self, int value) { self.values.*member = static_cast<Field>(value); });
}
template <typename Struct, typename Values, typename Field>
void bind_tail(nb::class_<Struct>& bound, const char* name, Field Values::*member) {
  bound.def_prop_rw(
      name, [member](const Struct& self) { return static_cast<int>(self.values.*member); },
      [member](Struct& self, int value) {
        self.values.*member = static_cast<Field>(value);
        announce_tail(self.values);
      });
}
// A text, which `self.*owner` keeps.
template <typename Struct, typename Values>
void bind_text(nb::class_<Struct>& bound, const char* name, std::string Struct::*owner,
               const char* Values::*member) {
  bound.def_prop_rw(
      name, [owner](const Struct& self) { return self.*owner; },
      [owner, member](Struct& self, std::string value) {
        self.*owner = std::move(value);
        self.values.*member = (self.*owner).c_str();
      });
}

template <typename Struct>
void bind_address(nb::class_<Struct>& bound) {
  bound.def_prop_ro("ptr",
                    [](const Struct& self) { return reinterpret_cast<uintptr_t>(&self.values); });
}

template <typename Node>
Node& append(std::deque<Node>& list, Node node) {
  Node& added = list.emplace_back(node);
  if (list.size() > 1) list[list.size() - 2].next = &added;
  return added;
}

ncclConfigExt_t& add_option(CollConfig& self, int vendor, int option) {
  ncclConfigExt_t& added =
      append(self.options, {.next = nullptr, .key = {vendor, option}, .val = {}});
  self.values.ext = &self.options.front();
  return added;
}

void bind_coll_config(nb::module_& module) {
  nb::class_<CollConfig> config(module, "CollConfig");
  config.def(nb::init<>());
#define NICCOLITE_BIND(python_name, c_name) \
  bind_field(config, #python_name, &ncclCollConfig_t::c_name);
  NICCOLITE_COLL_CONFIG_FIELDS(NICCOLITE_BIND)
#undef NICCOLITE_BIND
  bind_address(config);
  bind_text(config, "alg_selection", &CollConfig::alg_selection, &ncclCollConfig_t::algSelection);
  config.def_prop_rw(
      "user_profiler_tag", [](const CollConfig& self) { return self.values.userProfilerTag; },
      [](CollConfig& self, uint64_t value) { self.values.userProfilerTag = value; });
  config.def_prop_rw(
      "launch_completion_event",
      [](const CollConfig& self) {
        return reinterpret_cast<uintptr_t>(self.values.launchCompletionEvent);
      },
      [](CollConfig& self, uintptr_t event) {
        self.values.launchCompletionEvent =
            reinterpret_cast<cudaEvent_t>(event);  // NOLINT(performance-no-int-to-ptr)
      });
  config.def("add_int_option", [](CollConfig& self, int vendor, int option, int value) {
    add_option(self, vendor, option).val.i = value;
  });
  config.def("add_text_option", [](CollConfig& self, int vendor, int option, std::string value) {
    self.texts.push_back(std::move(value));
    add_option(self, vendor, option).val.s = self.texts.back().c_str();
  });
  config.def("add_raw_option", [](CollConfig& self, int vendor, int option, uintptr_t value) {
    add_option(self, vendor, option).val.raw =
        reinterpret_cast<void*>(value);  // NOLINT(performance-no-int-to-ptr)
  });
}

void bind_requirements(nb::module_& module) {
  nb::class_<ncclMultimemHandle_t>(
      module, "MultimemHandle",
      "Multicast memory of a team: what DevCommResource.multimem_handle() answers.")
      .def("__init__", [](ncclMultimemHandle_t* self) { new (self) ncclMultimemHandle_t{}; })
      .def_prop_ro(
          "mc_base_pointer",
          [](const ncclMultimemHandle_t& self) {
            return reinterpret_cast<uintptr_t>(self.mcBasePtr);
          },
          "Its first address; 0: there is none.");
  nb::class_<ncclLsaBarrierHandle_t>(
      module, "LsaBarrierHandle",
      "Barriers of a load-store team, in the memory of a device communicator.")
      .def("__init__", [](ncclLsaBarrierHandle_t* self) { new (self) ncclLsaBarrierHandle_t{}; })
      .def_ro("buf_handle", &ncclLsaBarrierHandle_t::bufHandle, "Where, in units of 128 bytes.")
      .def_ro("n_barriers", &ncclLsaBarrierHandle_t::nBarriers, "How many.");
  nb::class_<ncclGinBarrierHandle_t>(module, "GinBarrierHandle",
                                     "Barriers of a team by signals of the network.")
      .def("__init__", [](ncclGinBarrierHandle_t* self) { new (self) ncclGinBarrierHandle_t{}; })
      .def_ro("signal0", &ncclGinBarrierHandle_t::signal0, "The first signal.");
  nb::class_<ncclLLA2AHandle_t>(
      module, "LLA2AHandle",
      "Slots of all-to-all exchanges, in the memory of a device communicator.")
      .def("__init__", [](ncclLLA2AHandle_t* self) { new (self) ncclLLA2AHandle_t{}; })
      .def_ro("buf_handle", &ncclLLA2AHandle_t::bufHandle, "Where, in units of 128 bytes.")
      .def_ro("n_slots", &ncclLLA2AHandle_t::nSlots, "Slots of a block.");
  nb::class_<ChannelsHandle>(module, "ChannelsHandle",
                             "Signals between all pairs of ranks of a load-store team.")
      .def(nb::init<>())
      .def_ro("handle", &ChannelsHandle::handle, "Where, in units of 128 bytes.")
      .def_ro("n_channels", &ChannelsHandle::count, "How many.");

  nb::class_<DevCommRequirements> requirements(module, "DevCommRequirements");
  requirements.def(nb::init<>());
#define NICCOLITE_BIND(python_name, c_name) \
  bind_field(requirements, #python_name, &ncclDevCommRequirements_t::c_name);
  NICCOLITE_REQUIREMENT_FIELDS(NICCOLITE_BIND)
#undef NICCOLITE_BIND
#define NICCOLITE_BIND(python_name, c_name) \
  bind_tail(requirements, #python_name, &DevCommRequirements::Values::c_name);
  NICCOLITE_REQUIREMENT_TAIL(NICCOLITE_BIND)
#undef NICCOLITE_BIND
  bind_address(requirements);
  // The handles live as long as the requirements, and until ncclDevCommCreate has returned.
  requirements.def(
      "add_team",
      [](DevCommRequirements& self, Team team, ncclMultimemHandle_t* handle) {
        append(self.teams, {.next = nullptr,
                            .team = as_team(team),
                            .multimem = handle != nullptr,
                            .outMultimemHandle = handle});
        self.values.teamRequirementsList = &self.teams.front();
      },
      nb::arg(), nb::arg().none());
  const auto resource = [](DevCommRequirements& self, const auto& fill) {
    ncclDevResourceRequirements_t made{};
    check(fill(&made));
    append(self.resources, made);
    self.values.resourceRequirementsList = &self.resources.front();
  };
  requirements.def("add_lsa_barrier", [resource](DevCommRequirements& self, Team team, int barriers,
                                                 ncclLsaBarrierHandle_t& handle) {
    resource(self, [&](auto* made) {
      return library().LsaBarrierCreateRequirement(as_team(team), barriers, &handle, made);
    });
  });
  requirements.def("add_gin_barrier",
                   [resource](DevCommRequirements& self, Communicator& communicator, Team team,
                              int barriers, ncclGinBarrierHandle_t& handle) {
                     resource(self, [&](auto* made) {
                       return library().GinBarrierCreateRequirement(
                           communicator.handle, as_team(team), barriers, &handle, made);
                     });
                   });
  requirements.def("add_ll_a2a", [resource](DevCommRequirements& self, int blocks, int elements,
                                            int element_size, ncclLLA2AHandle_t& handle) {
    resource(self, [&](auto* made) {
      const int slots = library().LLA2ACalcSlots(elements, element_size);
      return library().LLA2ACreateRequirement(blocks, slots, &handle, made);
    });
  });
  // As require_channels() of niccolite/device.h, whose emulation has no place here.
  requirements.def("add_channels", [resource](DevCommRequirements& self, Team team, int channels,
                                              ChannelsHandle& handle) {
    if (channels < 0) throw nb::value_error("ChannelsRequirement: n_channels is negative");
    handle.count = channels;
    resource(self, [&](auto* made) {
      made->bufferSize = static_cast<size_t>(channels) * 3 *
                         static_cast<size_t>(as_team(team).nRanks) * sizeof(uint64_t);
      made->bufferAlign = sizeof(uint64_t);
      made->outBufferHandle = &handle.handle;
      return ncclSuccess;
    });
  });
}

}  // namespace

void bind_configs(nb::module_& module) {
  nb::class_<Config> config(module, "Config");
  config.def(nb::init<>());
#define NICCOLITE_BIND(python_name, c_name) bind_field(config, #python_name, &ncclConfig_t::c_name);
  NICCOLITE_CONFIG_FIELDS(NICCOLITE_BIND)
#undef NICCOLITE_BIND
#define NICCOLITE_BIND(python_name, c_name) \
  bind_tail(config, #python_name, &Config::Values::c_name);
  NICCOLITE_CONFIG_TAIL(NICCOLITE_BIND)
#undef NICCOLITE_BIND
  bind_text(config, "net_name", &Config::net_name, &ncclConfig_t::netName);
  bind_text(config, "comm_name", &Config::comm_name, &ncclConfig_t::commName);
  bind_coll_config(module);
  bind_requirements(module);
}

}  // namespace niccolite::python
