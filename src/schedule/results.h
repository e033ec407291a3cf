// The results that a collective requires: which blocks of input and output are the same memory in
// place, and the content of each output block at the end. For the checkers of schedules and of
// lowered plans. Pure functions.
#pragma once

#include <optional>

#include "schedule/schedule.h"

namespace niccolite::schedule {

/// InPlace: input and output are one buffer, at the ranks that have both.
enum class Placement : unsigned char { OutOfPlace, InPlace };

/// Has `collective` an in-place form?
bool can_be_in_place(Collective collective);

/// The input block that output block `block` of `rank` is when the operation is in place
/// (schedule.h); none: they are different memory all the same.
std::optional<int> input_in_place(const Schedule& schedule, int rank, int block);

/// The required content of an output block at the end: input block `block` of rank `from`, or of
/// all ranks, reduced and finished.
struct Wanted {
  int block;
  int from;  // -1: all
};
Wanted wanted_result(const Schedule& schedule, int rank, int block);

}  // namespace niccolite::schedule
