// What tuner plug-ins are shown, in NCCL's terms: which cell of its table of algorithms and
// protocols an algorithm of this library stands in, the constants of its cost model, and how its
// ranks lie (docs/plugins.md). Pure functions: any thread.
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
/// What reaches all ranks at once stands where NCCL has its multicast.
Cell cell_of(const Algorithm& algorithm, executor::Protocol protocol);

const char* name_of_row(int row);
const char* name_of_column(int column);

/// Of the cell's options: the cost model's favourite; null: it has none.
const Choice* best_of(std::span<const Option> options, Cell cell);

/// NCCL's defaults.
Constants default_constants();

Domains domains_of(const Tuner::Communicator& of);

}  // namespace niccolite::planner::abi
