// Copies of three dimensions, as cudaMemcpy3D and the nodes of graphs describe them.
#pragma once

#include <cuda_runtime_api.h>

#include "gpu/virtual/error.h"
#include "gpu/virtual/operation.h"

namespace vcuda {

/// InvalidValue: null, or of an array; InvalidPitchValue: rows overlap.
niccolite::gpu::virtual_::Error copy_of(const cudaMemcpy3DParms* volume,
                                        niccolite::gpu::virtual_::Copy* out);
cudaMemcpy3DParms volume_of(const niccolite::gpu::virtual_::Copy& copy);

}  // namespace vcuda
