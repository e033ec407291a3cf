// How failures leave the extension: as the exceptions of nccl.core. The GIL must be held.
#pragma once

#include <string>

#include "nccl.h"

namespace niccolite::python {

/// nccl.core.NcclInvalid: an argument is wrong, as far as that can be seen without the library.
[[noreturn]] void throw_invalid(const std::string& message);
/// A RuntimeError, or of a subclass of it that stands in the module
/// `nccl.bindings._internal.utils`.
[[noreturn]] void throw_runtime_error(const std::string& message);
[[noreturn]] void throw_function_not_found(const char* name);

/// Throws nccl.bindings.nccl.NCCLError, with the library's last error as its detail, unless
/// `result` is Success or InProgress.
void check(ncclResult_t result);

}  // namespace niccolite::python
