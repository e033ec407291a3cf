// One all-reduce as the executor tests run it: its description, the launches of all ranks, inputs
// and the expected output. Memory is the caller's: of a GPU, or of the host for an emulated one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/launch.h"
#include "schedule/schedule.h"
#include "tests/device/wiring.h"

namespace niccolite::device_test {

struct AllReduce {
  std::string algorithm = "one_shot";
  int nranks = 2;
  executor::Protocol protocol = executor::Protocol::LL;
  executor::DataType type = executor::DataType::Float32;
  executor::Reduction reduction{};
  uint64_t count = 1;
  uint32_t channels = 1;
  uint32_t depth = 4;
  uint32_t slot_bytes = 4096;
  uint64_t min_channel_bytes = 256;
  int threads = 0;
  uint16_t tag = 0x1234;
  size_t misalignment = 0;  // elements that input and output start behind a multiple of 16 bytes
  bool in_place = false;
};
std::string describe(const AllReduce& operation);

/// The programs of all ranks.
Result<std::vector<std::shared_ptr<const executor::Program>>> compile_all(
    const std::string& algorithm, int nranks);

/// How the operation is cut up.
executor::Partition partition_of(const AllReduce& operation, const executor::Program& program);
executor::FifoShape shape_of(const AllReduce& operation);

/// The launch of one rank, but for its ports, buffers and control words.
executor::Launch launch_of(const AllReduce& operation,
                           std::shared_ptr<const executor::Program> program);

/// `count` elements of rank `rank`'s input. They depend on rank and index. Sums and products of
/// them over the ranks are exact in every type, so that the order of folding does not matter.
std::vector<std::byte> input_of(const AllReduce& operation, int rank);
/// The same with full mantissas, for algorithms that fold in rank order without partial sums.
std::vector<std::byte> rough_input_of(const AllReduce& operation, int rank);
/// What every rank must hold: `inputs` folded in ascending rank order, rounded once.
std::vector<std::byte> expected_output(const AllReduce& operation,
                                       const std::vector<std::vector<std::byte>>& inputs);

/// "" when equal, else the first difference.
std::string difference(const AllReduce& operation, const std::byte* got,
                       const std::vector<std::byte>& expected);

}  // namespace niccolite::device_test
