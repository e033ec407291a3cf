// Inputs and expected results of reductions, exact in every type: small integers, whose sums and
// products every type holds.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdlib>
#include <vector>

#include "executor/numeric/element.h"

namespace niccolite::test {

using Bytes = std::vector<unsigned char>;

/// Calls `body` with an executor::Element of the type.
template <typename Body>
auto with_type(ncclDataType_t type, Body&& body) {
  using executor::DataType;
  switch (static_cast<DataType>(type)) {
#define X(name, bytes, text) \
  case DataType::name:       \
    return body(executor::Element<DataType::name>{});
    NICCOLITE_DATA_TYPES(X)
#undef X
  }
  std::abort();
}

size_t bytes_of(ncclDataType_t type);

/// Bytes of `values` as elements of `type`, which holds each exactly.
Bytes encode(ncclDataType_t type, const std::vector<double>& values);

/// Element `index` of `rank`. Depends on both, so that a swapped block or rank is seen. Products
/// stay within 2^nranks and sums within 3 * nranks. The ranks' contributions to an average are
/// multiples of the number of ranks, so that the average is a whole number however it is scaled.
double input_value(ncclRedOp_t op, int rank, size_t index, int nranks);

/// What a reduction makes of `result` with another rank's value; an average is not divided yet.
void accumulate(ncclRedOp_t op, double& result, double value);

/// Of a rank.
Bytes input(ncclDataType_t type, ncclRedOp_t op, int rank, size_t count, int nranks);
/// Of all ranks' inputs together.
Bytes expected(ncclDataType_t type, ncclRedOp_t op, size_t count, int nranks);

}  // namespace niccolite::test
