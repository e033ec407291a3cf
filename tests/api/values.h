// Inputs and expected results of reductions, exact in every type: small integers, whose sums and
// products every type holds.
#pragma once

#include <nccl.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "executor/numeric/element.h"

namespace niccolite::test {

using Bytes = std::vector<unsigned char>;

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

inline size_t bytes_of(ncclDataType_t type) {
  return executor::size_of(static_cast<executor::DataType>(type));
}

/// Bytes of `values` as elements of `type`, which holds each exactly.
inline Bytes encode(ncclDataType_t type, const std::vector<double>& values) {
  return with_type(type, [&](auto element) {
    using E = decltype(element);
    Bytes bytes(values.size() * sizeof(typename E::Storage));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto stored = E::narrow(static_cast<typename E::Accumulator>(values[i]));
      std::memcpy(bytes.data() + i * sizeof stored, &stored, sizeof stored);
    }
    return bytes;
  });
}

/// Element `index` of `rank`. Depends on both, so that a swapped block or rank is seen. Products
/// stay within 2^nranks and sums within 3 * nranks. The ranks' contributions to an average are
/// multiples of the number of ranks, so that the average is a whole number however it is scaled.
inline double input_value(ncclRedOp_t op, int rank, size_t index, int nranks) {
  const size_t mixed = index * 7 + static_cast<size_t>(rank) * 13 + index / 251;
  switch (op) {
    case ncclProd:
      return mixed % 3 == 0 ? 2 : 1;
    case ncclAvg:
      return static_cast<double>(mixed % 2) * nranks;
    default:
      return static_cast<double>(mixed % 4);
  }
}

inline Bytes input(ncclDataType_t type, ncclRedOp_t op, int rank, size_t count, int nranks) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = input_value(op, rank, i, nranks);
  return encode(type, values);
}

inline Bytes expected(ncclDataType_t type, ncclRedOp_t op, size_t count, int nranks) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) {
    double result = input_value(op, 0, i, nranks);
    for (int rank = 1; rank < nranks; ++rank) {
      const double value = input_value(op, rank, i, nranks);
      switch (op) {
        case ncclProd:
          result *= value;
          break;
        case ncclMax:
          result = std::max(result, value);
          break;
        case ncclMin:
          result = std::min(result, value);
          break;
        default:
          result += value;
      }
    }
    if (op == ncclAvg) result /= nranks;
    values[i] = result;
  }
  return encode(type, values);
}

}  // namespace niccolite::test
