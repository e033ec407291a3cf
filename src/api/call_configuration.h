// What a call's own configuration (ncclCollConfig_t) asks for.
#pragma once

#include "api/call.h"
#include "planner/call_settings.h"

namespace niccolite::api {

struct CallConfiguration {
  const planner::CallSettings* settings = nullptr;  // null: as all calls of the communicator
  cudaEvent_t launched = nullptr;                   // null: none
};

/// Defaults and environment applied; `config` may be null, or of an older or newer header. Errors:
/// InvalidArgument, naming `function`. Source: reference c-api-2.32, section 4.
Result<CallConfiguration> resolve(const char* function, schedule::Collective collective,
                                  const ncclCollConfig_t* config);

}  // namespace niccolite::api
