#include "schedule/schedule.h"

#include <algorithm>

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

const char* name_of(Through through) {
  switch (through) {
    case Through::Nothing:
      return "nothing";
    case Through::Reduction:
      return "reduction";
    case Through::Gathering:
      return "gathering";
    case Through::Scattering:
      return "scattering";
  }
  return "?";
}

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::AllReduce:
      return "all_reduce";
    case Collective::Reduce:
      return "reduce";
    case Collective::Broadcast:
      return "broadcast";
    case Collective::AllGather:
      return "all_gather";
    case Collective::ReduceScatter:
      return "reduce_scatter";
    case Collective::AllToAll:
      return "all_to_all";
    case Collective::Gather:
      return "gather";
    case Collective::Scatter:
      return "scatter";
    case Collective::PointToPoint:
      return "point_to_point";
  }
  return "unknown collective";
}

int chunk_block(const Instruction& instruction) {
  if (instruction.chunk_of >= 0) return instruction.chunk_of;
  if (instruction.source) return instruction.source->block;
  if (instruction.target) return instruction.target->block;
  return -1;
}

int input_blocks(const Schedule& schedule, int rank) {
  switch (schedule.collective) {
    case Collective::AllReduce:
    case Collective::Reduce:
    case Collective::ReduceScatter:
    case Collective::AllToAll:
      return schedule.nblocks;
    case Collective::Broadcast:
    case Collective::Scatter:
      return rank == schedule.root ? schedule.nblocks : 0;
    case Collective::AllGather:
    case Collective::Gather:
      return 1;
    case Collective::PointToPoint:
      return static_cast<int>(
          std::count_if(schedule.messages.begin(), schedule.messages.end(),
                        [&](const Message& message) { return message.sender == rank; }));
  }
  return 0;
}

int output_blocks(const Schedule& schedule, int rank) {
  switch (schedule.collective) {
    case Collective::AllReduce:
    case Collective::Broadcast:
    case Collective::AllGather:
    case Collective::AllToAll:
      return schedule.nblocks;
    case Collective::Reduce:
    case Collective::Gather:
      return rank == schedule.root ? schedule.nblocks : 0;
    case Collective::ReduceScatter:
    case Collective::Scatter:
      return 1;
    case Collective::PointToPoint:
      return static_cast<int>(
          std::count_if(schedule.messages.begin(), schedule.messages.end(),
                        [&](const Message& message) { return message.receiver == rank; }));
  }
  return 0;
}

std::string describe(const Position& position) {
  return fmt::format("rank {} channel {} worker {} instruction {}", position.rank, position.channel,
                     position.worker, position.instruction);
}

}  // namespace niccolite::schedule
