#include "schedule/results.h"

namespace niccolite::schedule {

bool can_be_in_place(Collective collective) {
  return collective != Collective::AllToAll && collective != Collective::PointToPoint;
}

std::optional<int> input_in_place(const Schedule& schedule, int rank, int block) {
  switch (schedule.collective) {
    case Collective::AllReduce:
      return block;
    case Collective::Reduce:
    case Collective::Broadcast:
      if (rank == schedule.root) return block;
      return std::nullopt;
    case Collective::AllGather:
      if (block == rank) return 0;
      return std::nullopt;
    case Collective::Gather:
      if (rank == schedule.root && block == rank) return 0;
      return std::nullopt;
    case Collective::ReduceScatter:
      return rank;
    case Collective::Scatter:
      if (rank == schedule.root) return rank;
      return std::nullopt;
    case Collective::AllToAll:
    case Collective::PointToPoint:
      return std::nullopt;
  }
  return std::nullopt;
}

Wanted wanted_result(const Schedule& schedule, int rank, int block) {
  switch (schedule.collective) {
    case Collective::AllReduce:
    case Collective::Reduce:
      return {block, -1};
    case Collective::ReduceScatter:
      return {rank, -1};
    case Collective::Broadcast:
      return {block, schedule.root};
    case Collective::AllGather:
    case Collective::Gather:
      return {0, block};
    case Collective::AllToAll:
      return {rank, block};
    case Collective::Scatter:
      return {rank, schedule.root};
    case Collective::PointToPoint:
      for (const Message& message : schedule.messages)
        if (message.receiver == rank && message.receive_block == block)
          return {message.send_block, message.sender};
  }
  return {block, rank};
}

}  // namespace niccolite::schedule
