// The request of ncclSetEncryption to encrypt connections.
#pragma once

#include "base/status.h"

namespace niccolite::api {

/// InvalidUsage if the process wants encrypted connections. This library authenticates the other
/// end of a connection but does not encrypt the data. To be called before the first connection. Any
/// thread.
Status check_encryption(const char* function);

}  // namespace niccolite::api
