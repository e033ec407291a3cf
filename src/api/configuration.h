// Translates a caller's ncclConfig_t, of any version since 2.14, to a Configuration.
#pragma once

#include "comm/communicator.h"
#include "nccl.h"

namespace niccolite::api {

/// `config` may be null: all defaults. The environment wins over the fields. Source: c-api
/// reference §5. Errors: InvalidArgument for a struct that was not initialised, or a field out of
/// range, named.
Result<comm::Configuration> resolve(const ncclConfig_t* config);

}  // namespace niccolite::api
