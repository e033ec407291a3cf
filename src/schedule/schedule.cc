#include "schedule/schedule.h"

namespace niccolite::schedule {

const char* name_of(Buffer buffer) {
  switch (buffer) {
    case Buffer::Input:
      return "input";
    case Buffer::Output:
      return "output";
    case Buffer::Scratch:
      return "scratch";
  }
  return "unknown buffer";
}

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::AllReduce:
      return "all_reduce";
  }
  return "unknown collective";
}

int chunk_block(const Instruction& instruction) {
  if (instruction.chunk_of >= 0) return instruction.chunk_of;
  if (instruction.source) return instruction.source->block;
  if (instruction.target) return instruction.target->block;
  return -1;
}

std::string describe(const Position& position) {
  return fmt::format("rank {} channel {} lane {} instruction {}", position.rank, position.channel,
                     position.lane, position.instruction);
}

}  // namespace niccolite::schedule
