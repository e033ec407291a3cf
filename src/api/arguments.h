// Checks of arguments that several entry points share.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "executor/numeric.h"
#include "nccl.h"

namespace niccolite::api {

/// Returns the number that a caller passed as an enumeration. The number may be no value of the
/// enumeration, so the argument must not be read as one.
template <typename Enumeration>
int number_of(const Enumeration& value) {
  static_assert(sizeof(Enumeration) == sizeof(int));
  int number = 0;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

/// Copies a struct that begins with its size, from a caller that was compiled with any version of
/// the header. Fields that the caller's version lacks get their values from `initial`. The magic
/// word is the caller's, or 0 if the struct is too short for it; the caller of this function checks
/// it.
template <typename Struct>
Struct copy_versioned(const Struct* passed, Struct initial) {
  initial.magic = 0;
  size_t size = 0;
  std::memcpy(&size, passed, sizeof size);
  std::memcpy(&initial, passed, std::min(size, sizeof initial));
  return initial;
}

/// InvalidArgument, naming `function`, when `value` is no ncclDataType_t.
inline Result<executor::DataType> data_type(const char* function, int value) {
  if (value < 0 || value >= ncclNumTypes)
    return Status::invalid_argument("{} : invalid type {}: 0 to {} are types", function, value,
                                    ncclNumTypes - 1);
  return static_cast<executor::DataType>(value);
}

}  // namespace niccolite::api
