// MatrixProduct: the computation of a program while its collectives are under way (--beside):
// products of square matrices. On CUDA devices by cuBLAS, of bfloat16, as training has them; on
// virtual GPUs by the host, of float, which has little to say but runs everywhere. Thread safety:
// of the thread that drives the rank.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "gpu/machine.h"

namespace niccolite::perf {

class MatrixProduct {
 public:
  /// Makes matrices of `edge` x `edge` elements for `stream`, which outlives the product.
  /// `cublas`: a libcublas.so; empty: looked for in the system. InvalidArgument if there is
  /// none.
  static Result<std::unique_ptr<MatrixProduct>> create(gpu::Machine& machine, int device, int edge,
                                                       gpu::StreamHandle stream,
                                                       const std::string& cublas);
  virtual ~MatrixProduct() = default;
  MatrixProduct() = default;
  MatrixProduct(const MatrixProduct&) = delete;
  /// Queues one product, or captures it.
  virtual Status launch() = 0;
};

}  // namespace niccolite::perf
