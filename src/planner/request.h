// Request: one operation as the planner sees it, without its buffers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/numeric.h"
#include "planner/variant.h"

namespace niccolite::planner {

enum class Operation : uint8_t { Sum, Product, Max, Min, Average, PreMulSum };
inline constexpr int kBuiltInOperations = 5;  // the ones with a value of ncclRedOp_t of their own
const char* name_of(Operation operation);

/// An operation with its operands. PreMulSum: each rank's contribution is first multiplied by the
/// rank's own scalar, which is `scale` (floating types), `factor` (integers), or the element at
/// `device_scale` when the operation runs.
struct Operator {
  Operation operation = Operation::Sum;
  double scale = 1;
  int64_t factor = 1;
  const void* device_scale = nullptr;
  friend bool operator==(const Operator&, const Operator&) = default;

  /// Does it change the data of a lone rank?
  bool scales() const { return operation == Operation::PreMulSum; }
};

struct CallSettings;

/// `count` > 0 elements: of the one buffer, or of each block where blocks lie side by side
/// (schedule.h). `op` is looked at by reductions alone, `root` by collectives that have one.
/// `settings` (call_settings.h: intern()) are a collective's own; null: none.
struct Request {
  Collective collective = Collective::AllReduce;
  size_t count = 0;
  executor::DataType type = executor::DataType::Uint8;
  Operator op{};
  int root = 0;
  const CallSettings* settings = nullptr;
  friend bool operator==(const Request&, const Request&) = default;

  size_t bytes() const { return count * executor::size_of(type); }
};

/// One end of a message.
struct Message {
  int peer = 0;
  bool is_send = false;
  size_t bytes = 0;
  bool goes_direct = false;  // the sender reaches the receiver's buffer, as both ends know
  friend bool operator==(const Message&, const Message&) = default;
};

}  // namespace niccolite::planner
