// The configuration structs of the library, as keyword arguments of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <deque>
#include <string>

#include "nccl.h"
#include "nccl_device.h"

namespace niccolite::python {

/// Structs of NCCL 2.32's headers have more fields, a tail, than the structs of nccl.h. The library
/// hears of the tail only when a field in it is set, because an older library does not know the
/// layout.
constexpr unsigned kVersionOfTails = NCCL_VERSION(2, 32, 3);
template <typename Struct>
void announce_tail(Struct& values) {
  static_assert(sizeof(Struct) > sizeof(typename Struct::Head));
  values.size = sizeof(Struct);
  values.version = kVersionOfTails;
}

/// ncclConfig_t and the texts that it points to. Made by the calls of nccl.core.NCCLConfig.
struct Config {
  struct Values : ncclConfig_t {
    using Head = ncclConfig_t;
    int launchOrderImplicit = NCCL_CONFIG_UNDEF_INT;
    int numRmaSig = NCCL_CONFIG_UNDEF_INT;
    int rmaEagerInit = NCCL_CONFIG_UNDEF_INT;
    int hostCftMode = NCCL_CONFIG_UNDEF_INT;
    int nvlsHostMode = NCCL_CONFIG_UNDEF_INT;
  };
  Values values{NCCL_CONFIG_INITIALIZER};
  std::string net_name;
  std::string comm_name;
};

/// ncclCollConfig_t, the settings of one call, with the texts and options that it points to.
struct CollConfig {
  ncclCollConfig_t values = NCCL_COLLCONFIG_INITIALIZER;
  std::string alg_selection;
  std::deque<ncclConfigExt_t> options;
  std::deque<std::string> texts;  // of the options
};

/// ncclDevCommRequirements_t, with the lists that it points to.
struct DevCommRequirements {
  struct Values : ncclDevCommRequirements_t {
    using Head = ncclDevCommRequirements_t;
    int ginCustomStride = 1;
    int ginType = NCCL_GIN_TYPE_NONE;
    bool useRuntimeVersion = false;
    int cftCaps = 0;
    int cftBarrierCount = 0;
  };
  Values values{NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER};
  std::deque<ncclTeamRequirements_t> teams;
  std::deque<ncclDevResourceRequirements_t> resources;
};

/// Signals of niccolite/device.h in the memory of a device communicator, as its ChannelsHandle.
struct ChannelsHandle {
  uint32_t handle = 0;
  int count = 0;
};

void bind_configs(nanobind::module_& module);

}  // namespace niccolite::python
