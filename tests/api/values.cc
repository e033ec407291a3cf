#include "tests/api/values.h"

#include <algorithm>
#include <cstring>

namespace niccolite::test {

size_t bytes_of(ncclDataType_t type) {
  return executor::size_of(static_cast<executor::DataType>(type));
}

Bytes encode(ncclDataType_t type, const std::vector<double>& values) {
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

double input_value(ncclRedOp_t op, int rank, size_t index, int nranks) {
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

Bytes input(ncclDataType_t type, ncclRedOp_t op, int rank, size_t count, int nranks) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = input_value(op, rank, i, nranks);
  return encode(type, values);
}

void accumulate(ncclRedOp_t op, double& result, double value) {
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

Bytes expected(ncclDataType_t type, ncclRedOp_t op, size_t count, int nranks) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) {
    double result = input_value(op, 0, i, nranks);
    for (int rank = 1; rank < nranks; ++rank)
      accumulate(op, result, input_value(op, rank, i, nranks));
    if (op == ncclAvg) result /= nranks;
    values[i] = result;
  }
  return encode(type, values);
}

}  // namespace niccolite::test
