// One operation as the executor tests run it: its description, the launches of all ranks, inputs
// and the expected output. Memory is the caller's: of a GPU, or of the host for an emulated one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "algorithms/point_to_point.h"
#include "executor/launch.h"
#include "schedule/schedule.h"
#include "tests/device/wiring.h"

namespace niccolite::device_test {

struct Operation {
  schedule::Collective collective = schedule::Collective::AllReduce;
  std::string algorithm = "one_shot";  // of the registry
  int nranks = 2;
  int root = 0;
  executor::Protocol protocol = executor::Protocol::LL;
  executor::DataType type = executor::DataType::Float32;
  executor::Reduction reduction{};
  /// Elements of the one buffer that blocks are parts of, else of a block.
  uint64_t count = 1;
  /// PointToPoint: who sends to whom, and how much (empty: `count` each). A rank's messages lie
  /// side by side in its buffers.
  std::vector<algorithms::Envelope> messages{};
  std::vector<uint64_t> message_counts{};
  uint32_t channels = 1;
  uint32_t depth = 4;
  uint32_t slot_bytes = 4096;
  uint64_t min_channel_bytes = 256;
  int threads = 0;
  uint16_t tag = 0x1234;
  size_t misalignment = 0;  // elements that buffers start behind a multiple of 16 bytes
  bool in_place = false;
  /// Buffers are memory of cudaMalloc, which all ranks reach: what may go direct does.
  bool is_reached = false;
  uint32_t pull_bytes = 0;  // executor::Launch::pull_bytes
  /// Of an all-reduce in one step by LL: a list of so many operations, whose buffers lie side by
  /// side, `count` elements together, over all channels. 0: it is no list.
  uint32_t list = 0;
};
std::string describe(const Operation& operation);

using Programs = std::vector<std::shared_ptr<const executor::Program>>;

/// The programs of all ranks.
Result<Programs> compile_all(const Operation& operation);

executor::FifoShape shape_of(const Operation& operation);

/// Elements that a rank has of either buffer.
uint64_t input_count(const Operation& operation, int rank);
uint64_t output_count(const Operation& operation, int rank);
/// In place: elements at which a rank's input and output begin in the one buffer that they share.
struct Offsets {
  uint64_t input = 0;
  uint64_t output = 0;
};
Offsets in_place_offsets(const Operation& operation, int rank);
size_t scratch_bytes(const Operation& operation, const executor::Program& program);

/// The launch of one rank, but for its ports and control words.
executor::Launch launch_of(const Operation& operation,
                           std::shared_ptr<const executor::Program> program,
                           const executor::Buffers& buffers);

/// A rank's input. Elements depend on rank and index. Sums and products of them over the ranks are
/// exact in every type, so that the order of reducing does not matter.
std::vector<std::byte> input_of(const Operation& operation, int rank);
/// The same with full mantissas, for algorithms that reduce in rank order without partial sums.
std::vector<std::byte> rough_input_of(const Operation& operation, int rank);
/// What `rank` must hold: by the collective's definition, reduced in ascending rank order, rounded
/// once.
std::vector<std::byte> expected_output(const Operation& operation,
                                       const std::vector<std::vector<std::byte>>& inputs, int rank);

/// "" when equal, else the first difference.
std::string difference(const Operation& operation, const std::byte* got,
                       const std::vector<std::byte>& expected);

}  // namespace niccolite::device_test
