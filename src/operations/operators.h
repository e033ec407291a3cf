// Operators: the operations that a user made at run time for one communicator
// (ncclRedOpCreatePreMulSum), by their handles. A handle names a slot and carries bits of the
// communicator, so that one used on another communicator is recognised. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "planner/request.h"

namespace niccolite::operations {

class Operators {
 public:
  /// Handles are in [kFirst, 0x7fffffff]; smaller values are the built-in operations.
  static constexpr int kFirst = planner::kBuiltInOperations;

  /// `salt` differs from communicator to communicator.
  explicit Operators(uint64_t salt) : salt_(salt) {}

  int add(const planner::Operator& op, executor::DataType type);
  /// InvalidArgument: no live operation of this communicator, or made for another type.
  Result<planner::Operator> find(int handle, executor::DataType type) const;
  /// InvalidArgument: no live operation of this communicator.
  Status remove(int handle);

 private:
  struct Entry {
    planner::Operator op;
    executor::DataType type;
  };
  int handle_of(size_t slot) const;
  std::optional<size_t> slot_of(int handle) const;

  const uint64_t salt_;
  mutable std::mutex mutex_;
  std::vector<std::optional<Entry>> entries_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::operations
