// UserMemorySteps: the chunks of one execution that need no slot at connections to other machines
// (protocol/user_memory.h), derived from its instructions and its buffers.
//
//   sends      from the block that the instruction stores to, else from the block that it copies,
//              unless an instruction that follows in the round, or another worker of the channel,
//              stores there. In an all-reduce in place the sum may be stored over an input that one
//              instruction sends to one rank and no other reads: the sum has come from that rank's
//              kernel, which has had all of the chunk, whether or not this rank knows of the
//              acknowledgement
//   receives   chunks that are only stored, into their block. The place may be made before the
//              worker comes to the instruction: once the instructions before it that use the block
//              in the same round are done. If other workers of the channel use the block, it is
//              made when the worker is there.
//
// Chunks of different rounds, or channels, have no byte in common; blocks that overlap without
// being equal are treated as if all their chunks had. docs/design/network.md says why that is
// right. Thread safety: immutable.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "executor/launch.h"

namespace niccolite::executor {

class UserMemorySteps {
 public:
  /// Does any chunk go without a slot, as far as ports and sizes say?
  static bool may_serve(const Launch& launch);
  /// Operands and results that the reduction multiplies.
  struct Scaling {
    bool of_input = false;   // operands from the input
    bool of_result = false;  // results with `finish`
  };
  /// With the buffers of the launch's works.
  UserMemorySteps(const Launch& launch, Scaling scaling);

  /// The place from which an instruction of the program reads its sends; None: slots.
  struct Source {
    OperandBuffer buffer = OperandBuffer::None;
    uint16_t block = 0;
  };
  Source source_of(size_t instruction) const { return instructions_[instruction].source; }
  /// Whether the instruction only stores its received chunk.
  bool is_placed(size_t instruction) const { return instructions_[instruction].is_placed; }
  /// The first instruction of a round at which the place of a placed `instruction` may be made.
  /// kAnyTime: in rounds before its own, too.
  static constexpr uint32_t kAnyTime = std::numeric_limits<uint32_t>::max();
  uint32_t placed_from(size_t instruction) const { return instructions_[instruction].placed_from; }
  /// The instructions that receive at a port, in their order.
  const std::vector<uint16_t>& receives_at(uint16_t port) const { return receives_at_[port]; }

 private:
  struct Of {
    Source source;
    bool is_placed = false;
    uint32_t placed_from = 0;  // an instruction of the program
  };
  class Finder;

  std::vector<Of> instructions_;                    // as the program's
  std::vector<std::vector<uint16_t>> receives_at_;  // by port
};

}  // namespace niccolite::executor
