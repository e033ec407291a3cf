// The header compiled as C++: the same layout, and initializers that C++ accepts. Compiled once per
// standard.
#include "abi_layout.h"

#include <type_traits>

static_assert(std::is_trivially_copyable_v<ncclUniqueId> && alignof(ncclUniqueId) == 1);
static_assert(std::is_standard_layout_v<ncclConfig_t>);

// As in NCCL 2.30, a call of ncclResetDebugInit compiles to nothing, so that new programs do not
// need the symbol.
#ifndef ncclResetDebugInit
#error "ncclResetDebugInit should be a macro when NCCL_OS_LINUX is not defined"
#endif

[[maybe_unused]] static ncclConfig_t a_config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclResetDebugInit();
  return config;
}
[[maybe_unused]] static ncclSimInfo_t a_sim_info() { return NCCL_SIM_INFO_INITIALIZER; }
[[maybe_unused]] static ncclComm_t no_comm() { return NCCL_COMM_NULL; }
