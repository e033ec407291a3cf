// The struct ncclDevCommRequirements of callers with headers of 2.28 to 2.32, as the library's own
// terms. Pure functions. Source: device-api reference, section 4.
#pragma once

#include <vector>

#include "base/status.h"
#include "registry/device_comms.h"

typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;

namespace niccolite::api {

/// A caller's requirements. They are read in the call, since the caller may change them afterwards;
/// `needs` and the teams still point to the handles that the caller waits for.
struct DeviceRequirements {
  /// A team that is to have multicast addresses.
  struct MulticastTeam {
    int ranks, rank, stride;
    void** base;  // of the caller, who wants to know it; or null
  };
  unsigned version = 0;  // whose layout the caller expects
  std::vector<MulticastTeam> multicast_teams;
  registry::DeviceNeeds needs;
};

/// InvalidUsage: not initialized, or by a header that is not known. InvalidArgument: the
/// requirement that this library cannot meet. `without_network`: why kernels of this communicator
/// have no networking; null: they have.
Result<DeviceRequirements> read_requirements(const ncclDevCommRequirements_t* reqs,
                                             const char* without_network);
/// The first header whose kernels can have networking here.
inline constexpr unsigned kFirstWithNetwork = 23000;

/// Does `version` belong to a header whose structs are known? Else InvalidUsage.
Status check_version(const char* function, unsigned magic, unsigned version);

}  // namespace niccolite::api
