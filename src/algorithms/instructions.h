// Instructions that several algorithms share: one rank's step with one block that goes along a
// tree, or straight to its receiver, or is reduced from the contributions of others.
#pragma once

#include <vector>

#include "schedule/builder.h"

namespace niccolite::algorithms {

/// A contribution to a reduction, received from `from` over the connection of `tag`.
struct Contribution {
  int from;
  int tag;
};

/// Reduces the own block `block` and the `others`, in ascending order of ranks: the operands of an
/// instruction.
///
///   rank 1, others 3, 0    0 + input(1) + 3
///
/// Where there are no others, nothing is reduced: the operand is the own block alone.
schedule::Instruction reduction_of(schedule::WorkerBuilder& worker, int rank,
                                   std::vector<Contribution> others, int block);
/// Does the same where all contributions have one tag.
schedule::Instruction reduction_of(schedule::WorkerBuilder& worker, int rank,
                                   const std::vector<int>& others, int tag, int block);

/// The whole reduction of the own block `block`, to which all other ranks send theirs over
/// connections of `tag`. In one instruction and ascending order of ranks, so that no partial sum is
/// rounded and the result does not depend on who reduces:
///
///   rank 2 of 4    0 + 1 + input(block) + 3, finished
schedule::Instruction reduction_of_all(schedule::WorkerBuilder& worker, int rank, int nranks,
                                       int tag, int block);

/// The peers of a rank in a tree.
struct TreeEdges {
  int above;               // -1: of the top
  std::vector<int> below;  // in the order in which they are sent to
  int tag = 0;             // of the connections, both ways
};

/// A block on its way down a tree: every rank keeps it, and the top has it in its input.
///
///          top         source -> target, below
///           |
///         rank         above -> target, below
///        +--+--+
///     below  below
schedule::Instruction passed_down(schedule::WorkerBuilder& worker, const TreeEdges& edges,
                                  schedule::BlockReference source, schedule::BlockReference target);

/// A block on its way up a tree, the other way round: every rank adds its own contribution, and the
/// top keeps the finished sum.
///
///          top         input(block) + below -> target, finished
///           |
///         rank         input(block) + below -> above
///        +--+--+
///     below  below
schedule::Instruction reduced_up(schedule::WorkerBuilder& worker, int rank, const TreeEdges& edges,
                                 int block, schedule::BlockReference target);

/// The way of a block from its owner to one receiver, as a rank on it sees it.
struct Passage {
  int from;                         // the rank before this one; -1: this is the owner
  int to;                           // the rank behind this one; -1: this is the receiver
  schedule::BlockReference source;  // of the owner
  schedule::BlockReference target;  // of the receiver
  int chunk_of;                     // the block, as any rank on its way numbers it
};

/// Only the receiver keeps the block; who is neither owner nor receiver has it in slots alone.
///
///   owner       source -> to
///   between     from   -> to
///   receiver    from   -> target
schedule::Instruction passed_on(schedule::WorkerBuilder& worker, const Passage& passage);

}  // namespace niccolite::algorithms
