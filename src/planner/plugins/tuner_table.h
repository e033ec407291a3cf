// The view of tuner plug-ins, in NCCL's terms: the cell of NCCL's table of algorithms and protocols
// for an algorithm of this library, the constants of NCCL's cost model, and the placement of the
// ranks (docs/plugins.md). Pure functions: any thread.
#pragma once

#include <span>

#include "planner/choice/choice.h"
#include "planner/plugins/tuner.h"
#include "planner/plugins/tuner_abi.h"

namespace niccolite::planner::abi {

struct Cell {
  int row = 0, column = 0;
  friend bool operator==(const Cell&, const Cell&) = default;
};
/// Returns the cell of an algorithm. One that reaches all ranks at once has the cell of NCCL's
/// multicast.
Cell cell_of(const Form& form, executor::Protocol protocol);

const char* name_of_row(int row);
const char* name_of_column(int column);

/// Returns the cost model's favourite among the cell's options; null: the cell has none.
const Choice* best_of(std::span<const Option> options, Cell cell);

/// NCCL's defaults.
Constants default_constants();

Domains domains_of(const Tuner::Communicator& of);

}  // namespace niccolite::planner::abi
