// What ncclSetEncryption has asked for.
#pragma once

#include "base/status.h"

namespace niccolite::api {

/// InvalidUsage when the process wants its connections encrypted: this library proves who is at the
/// other end of a connection, but sends what it carries as it is. To be asked before the first
/// connection. Any thread.
Status check_encryption(const char* function);

}  // namespace niccolite::api
