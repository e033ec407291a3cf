// Niccolite's own version. The version of NCCL's API that the library speaks is another one:
// comm/version.h.
#pragma once

namespace niccolite {

extern const char* const kProductVersion;  // "0.4.0", from the project() of CMakeLists.txt

}  // namespace niccolite
