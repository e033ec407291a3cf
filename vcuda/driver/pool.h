// Pools of memory: which pool an allocation is of. Thread safety: any thread.
#pragma once

#include "vcuda/driver/api.h"

namespace vcuda::driver {

/// The pool of the allocation that begins at `base`; null: of none.
CUmemoryPool pool_of(CUdeviceptr base);
/// May it be shared with other processes?
bool is_exportable(CUmemoryPool pool);
/// The allocation will be given back. Is it another process's?
bool forget_allocation(CUdeviceptr base);

}  // namespace vcuda::driver
