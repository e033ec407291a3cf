// Flow: a collective as moves of chunks, which happen as if one after the other: a chunk of some
// rank is copied, or chunks of some ranks are added, to a place of one rank. Plans of puts and
// gets, trees, and what solvers find come to it.
//
// to_schedule() executes it symbolically and writes the Schedule that does the same:
//  - A chunk that no result needs is not moved.
//  - A rank passes a chunk on in the instruction that makes it, or later, from memory. It does as
//    needs fewer FIFO slots.
//  - A chunk that only comes to be added is received by the instruction that adds it.
//  - Blocks have nothing to do with each other: a worker has each eighth block, one after the
//    other. As in a Program, chunk i of every rank's block becomes pattern channel i.
//  - Where the output cannot hold a value yet, scratch does.
// Thread safety: values.
#pragma once

#include <string>
#include <vector>

#include "importers/places.h"

namespace niccolite::importers {

struct Operand {
  int rank;
  Place place;
};

struct Move {
  std::vector<Operand> operands;  // several: they are added
  int rank;
  Place target;
  int line = 0;  // of the file
};

struct Flow {
  std::string name;
  Layout layout;
  schedule::Use use{};
  std::vector<Move> moves{};
};

/// InvalidUsage, with the line: a move reads a place that nobody wrote, adds a contribution twice,
/// or adds several chunks that all lie in the memory of its rank. The schedule is not proved:
/// schedule::least_depth() does that.
Result<schedule::File> to_schedule(const Flow& flow);

}  // namespace niccolite::importers
