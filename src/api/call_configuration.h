// The configuration of one call (ncclCollConfig_t).
#pragma once

#include "api/call.h"
#include "planner/choice/call_settings.h"

namespace niccolite::api {

struct CallConfiguration {
  const planner::CallSettings* settings = nullptr;  // null: as all calls of the communicator
  cudaEvent_t launched = nullptr;                   // null: none
};

/// `config` may be null, or of an older or newer header. What the environment says comes later,
/// since rank 0's holds for all (planner::narrowed()). Errors: InvalidArgument, naming `function`.
/// Source: reference c-api-2.32, section 4.
Result<CallConfiguration> resolve(const char* function, schedule::Collective collective,
                                  const ncclCollConfig_t* config);

}  // namespace niccolite::api
