// Operands: the buffers of all ranks for one operation, filled with numbers that depend on rank,
// block and index; and what must stand in them afterwards, by the collective's definition.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/numeric.h"
#include "schedule/schedule.h"
#include "tests/executor/host/cluster.h"

namespace niccolite::executor::host {

struct OperandOptions {
  bool is_in_place = false;      // as the collective defines it; where it does not, ignored
  bool is_misaligned = false;    // to the element, and no more
  int misaligned_input_of = -1;  // the same of one rank's input alone
  /// If not empty: elements from an aligned address to the start of each buffer, in turn.
  std::vector<uint64_t> starts = {};
  /// Of input and finish; exact for the numbers that are drawn.
  Reduction reduction{};
};

class Operands {
 public:
  /// `counts`: one, or one for each message.
  Operands(const schedule::Schedule& schedule, DataType type, std::vector<uint64_t> counts,
           const OperandOptions& options);

  OperationBuffers addresses() const { return buffers_; }

  /// Fails the test where a byte of any buffer, result or not, is not what it must be.
  void check() const;

 private:
  using Bytes = std::vector<std::byte>;
  struct Memory {
    GuardedMemory memory;
    Bytes expected;
  };
  struct View {
    std::byte* data = nullptr;
    std::byte* expected = nullptr;
  };

  void make_collective();
  void make_messages();
  /// `misalignment`: elements from an aligned address, if `is_off`.
  View allocate(uint64_t elements, uint64_t misalignment, bool is_off);
  View offset(const View& view, uint64_t elements) const;
  Bytes numbers(int rank, uint64_t count, uint64_t first) const;
  std::vector<Bytes> contributions(int rank) const;

  const schedule::Schedule& schedule_;
  const DataType type_;
  const std::vector<uint64_t> counts_;
  const OperandOptions options_;
  std::vector<Memory> memories_;
  OperationBuffers buffers_;
};

}  // namespace niccolite::executor::host
