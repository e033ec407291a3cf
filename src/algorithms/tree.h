// Double binary trees. Two trees over the same vertices, each for half of the data: who has
// children in one is a leaf of the other, so that nobody sends, or receives, more than the data
// once each way.
//
//   8 vertices     tree 0              tree 1 (mirrored)
//                  0                   7
//                  4                   3
//                2   6               5   1
//               1 3 5 7             6 4 2 0
//
// Vertices are machines, each with one of its ranks as a head on which the others hang (another one
// for each tree, so that two wires are used); or ranks, where all are on one machine.
// Source: P. Sanders, J. Speck, J. Traeff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan", 2009.
#pragma once

#include <span>
#include <vector>

#include "algorithms/instructions.h"
#include "algorithms/machines.h"

namespace niccolite::algorithms {

inline constexpr int kTrees = 2;

/// One of the two trees over vertices 0 to `count` - 1.
class BinaryTree {
 public:
  BinaryTree(int count, int number) : count_(count), number_(number) {}
  int root() const { return vertex_of(0); }
  /// -1: of the root.
  int parent(int vertex) const;
  std::vector<int> children(int vertex) const;

 private:
  int place_of(int vertex) const;
  int vertex_of(int place) const;

  int count_;
  int number_;
};

/// The neighbours of ranks in both trees.
class DoubleTree {
 public:
  /// Over all ranks.
  DoubleTree(const Machines& machines, int nranks);
  /// Over all machines but the root's (over all other ranks), whose tops hang on the root itself.
  static DoubleTree below(const Machines& machines, int nranks, int root);

  /// Above: the rank to which `rank` sends sums, and from which it gets results. Below: the ranks
  /// that hang on it, ascending. The tag is the number of the tree.
  TreeEdges edges(int rank, int tree) const {
    return {.above = above(rank, tree), .below = below(rank, tree), .tag = tree};
  }

 private:
  DoubleTree() = default;
  int above(int rank, int tree) const;
  std::vector<int> below(int rank, int tree) const;
  int head(int group, int tree) const;

  std::vector<std::vector<int>> groups_;
  std::vector<int> group_of_;
  int root_ = -1;        // of below()
  int root_group_ = -1;  // likewise: no vertex
};

}  // namespace niccolite::algorithms
