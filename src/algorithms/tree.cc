#include "algorithms/tree.h"

#include <algorithm>

namespace niccolite::algorithms {
namespace {

/// More ranks than this do not hang on one.
constexpr size_t kMostOfGroup = 64;

int lowest_bit(int value) { return value & -value; }

/// By machine, or by rank.
std::vector<std::vector<int>> groups_of(const Machines& machines, int nranks) {
  std::vector<std::vector<int>> groups;
  for (int machine = 0; machine < machines.count(); ++machine)
    groups.push_back(machines.ranks(machine));
  const auto is_large = [](const std::vector<int>& group) { return group.size() > kMostOfGroup; };
  if (groups.size() > 1 && std::ranges::none_of(groups, is_large)) return groups;
  groups.clear();
  for (int rank = 0; rank < nranks; ++rank) groups.push_back({rank});
  return groups;
}

}  // namespace

// Tree 0 by places: 0 is the top; below it hangs the largest power of two; a place whose lowest bit
// is b has the places b/2 before and after it below.

int BinaryTree::place_of(int vertex) const {
  if (number_ == 0) return vertex;
  return count_ % 2 == 0 ? count_ - 1 - vertex : (vertex + count_ - 1) % count_;
}

int BinaryTree::vertex_of(int place) const {
  if (number_ == 0) return place;
  return count_ % 2 == 0 ? count_ - 1 - place : (place + 1) % count_;
}

int BinaryTree::parent(int vertex) const {
  const int place = place_of(vertex);
  if (place == 0) return -1;
  const int bit = lowest_bit(place);
  const int upper = (place - bit) | bit << 1;
  return vertex_of(upper < count_ ? upper : place - bit);
}

std::vector<int> BinaryTree::children(int vertex) const {
  const int place = place_of(vertex);
  std::vector<int> result;
  int reach = lowest_bit(place) / 2;
  if (place == 0) {
    for (reach = 1; 2 * reach < count_;) reach *= 2;
    if (reach < count_) result.push_back(vertex_of(reach));
    return result;
  }
  if (reach == 0) return result;
  result.push_back(vertex_of(place - reach));
  while (reach > 0 && place + reach >= count_) reach /= 2;
  if (reach > 0) result.push_back(vertex_of(place + reach));
  return result;
}

DoubleTree::DoubleTree(const Machines& machines, int nranks)
    : groups_(groups_of(machines, nranks)), group_of_(static_cast<size_t>(nranks)) {
  for (size_t group = 0; group < groups_.size(); ++group)
    for (const int rank : groups_[group])
      group_of_[static_cast<size_t>(rank)] = static_cast<int>(group);
}

DoubleTree DoubleTree::below(const Machines& machines, int nranks, int root) {
  DoubleTree tree(machines, nranks);
  tree.root_ = root;
  tree.root_group_ = tree.group_of_[static_cast<size_t>(root)];
  return tree;
}

int DoubleTree::head(int group, int tree) const {
  const std::vector<int>& ranks = groups_[static_cast<size_t>(group)];
  if (group == root_group_) return root_;
  return ranks[static_cast<size_t>(tree) % ranks.size()];
}

int DoubleTree::above(int rank, int tree) const {
  const int group = group_of_[static_cast<size_t>(rank)];
  if (const int top = head(group, tree); rank != top) return top;
  if (group == root_group_) return -1;
  const int groups = static_cast<int>(groups_.size());
  if (root_group_ < 0) {
    const int parent = BinaryTree(groups, tree).parent(group);
    return parent < 0 ? -1 : head(parent, tree);
  }
  // Vertex i is the group i + 1 places behind the root's.
  const int parent =
      BinaryTree(groups - 1, tree).parent((group - root_group_ - 1 + groups) % groups);
  return parent < 0 ? root_ : head((root_group_ + 1 + parent) % groups, tree);
}

std::vector<int> DoubleTree::below(int rank, int tree) const {
  const int group = group_of_[static_cast<size_t>(rank)];
  if (rank != head(group, tree)) return {};
  std::vector<int> result = groups_[static_cast<size_t>(group)];
  std::erase(result, rank);
  const int groups = static_cast<int>(groups_.size());
  if (root_group_ < 0) {
    for (const int child : BinaryTree(groups, tree).children(group))
      result.push_back(head(child, tree));
  } else if (groups > 1) {
    const BinaryTree others(groups - 1, tree);
    const std::vector<int> children =
        group == root_group_ ? std::vector<int>{others.root()}
                             : others.children((group - root_group_ - 1 + groups) % groups);
    for (const int child : children)
      result.push_back(head((root_group_ + 1 + child) % groups, tree));
  }
  std::ranges::sort(result);
  return result;
}

}  // namespace niccolite::algorithms
