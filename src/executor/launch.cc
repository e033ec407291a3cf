#include "executor/launch.h"

namespace niccolite::executor {

Status check_turn(const Launch& launch, const Work& work) {
  if (work.turn.is_one_of_several() &&
      (launch.protocol == Protocol::Simple ||
       work.turn.first_step + work.partition.rounds > launch.shape.depth)) {
    return Status::internal("{} steps behind {} others, by {} in {} slots", work.partition.rounds,
                            work.turn.first_step, name_of(launch.protocol), launch.shape.depth);
  }
  return {};
}

}  // namespace niccolite::executor
