// The configuration of one call (ncclCollConfig_t).
#pragma once

#include "api/call.h"
#include "planner/choice/call_settings.h"

namespace niccolite::api {

struct CallConfiguration {
  const planner::CallSettings* settings = nullptr;  // null: as all calls of the communicator
  cudaEvent_t launched = nullptr;                   // null: none
};

/// `config` may be null, or from an older or newer header. The environment is applied later,
/// because rank 0's environment holds for all ranks (planner::narrowed()). Errors: InvalidArgument,
/// naming `function`. Source: reference c-api-2.32, section 4.
Result<CallConfiguration> resolve(const char* function, schedule::Collective collective,
                                  const ncclCollConfig_t* config);

}  // namespace niccolite::api
