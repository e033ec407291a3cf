#include "topology/walk.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace niccolite::topology {

/// One attempt: takes no hop worse than a limit, the nearest first, and goes back where no hop is
/// left.
class Walks::Search {
 public:
  Search(const Walks& walks, const Ends& ends, Hop limit)
      : walks_(walks),
        ends_(ends),
        limit_(limit),
        size_(static_cast<int>(walks.nodes_.size())),
        budget_(size_ + kMostSteps),
        is_left_(walks.nodes_.size(), true) {}

  /// Empty: there is no such order, or it takes too long to find.
  std::vector<int> run() {
    enter(ends_.first);
    if (!extend()) order_.clear();
    return std::move(order_);
  }

 private:
  // Machines of 16 GPUs are searched through where links are few, as they are where it matters.
  static constexpr int kMostSteps = 20'000;

  void enter(int place) {
    order_.push_back(place);
    is_left_[static_cast<size_t>(place)] = false;
  }

  bool extend() {
    const int current = order_.back();
    const int left = size_ - static_cast<int>(order_.size());
    if (left == 0) return !ends_.is_closed || walks_.hop(current, ends_.first) <= limit_;
    if (--budget_ < 0) return false;
    for (const int next : candidates(current, left)) {
      enter(next);
      if (extend()) return true;
      order_.pop_back();
      is_left_[static_cast<size_t>(next)] = true;
    }
    return false;
  }

  std::vector<int> candidates(int current, int left) const {
    std::vector<std::tuple<Hop, int, int>> found;  // hop, places between, place
    for (int place = 0; place < size_; ++place) {
      if (!is_left_[static_cast<size_t>(place)] || (place == ends_.last && left > 1)) continue;
      const Hop hop = walks_.hop(current, place);
      if (hop > limit_) continue;
      found.emplace_back(hop, ((place - current) * ends_.step + size_) % size_, place);
    }
    std::ranges::sort(found);
    std::vector<int> places;
    for (const auto& [hop, between, place] : found) places.push_back(place);
    return places;
  }

  const Walks& walks_;
  const Ends ends_;
  const Hop limit_;
  const int size_;
  int budget_;
  std::vector<int> order_;
  std::vector<bool> is_left_;  // by place
};

Walks::Walks(const Graph& graph, std::vector<int> nodes)
    : graph_(graph), nodes_(std::move(nodes)), taken_(nodes_.size() * nodes_.size()) {}

bool Walks::is_direct(int from, int to) const {
  const int a = nodes_[static_cast<size_t>(from)], b = nodes_[static_cast<size_t>(to)];
  if (a < 0 || b < 0) return false;
  const Path& path = graph_.path(a, b);
  return path.type == PathType::NVL && path.links == 1;
}

Walks::Hop Walks::hop(int from, int to) const {
  const int a = nodes_[static_cast<size_t>(from)], b = nodes_[static_cast<size_t>(to)];
  if (a < 0 || b < 0) return {PathType::DIS, 0};
  const Path& path = graph_.path(a, b);
  return {path.type, -path.bandwidth / (1 + taken_[pair_at(from, to)])};
}

std::vector<int> Walks::find(const Ends& ends) const {
  const int size = static_cast<int>(nodes_.size());
  std::set<Hop> limits;
  for (int from = 0; from < size; ++from)
    for (int to = 0; to < size; ++to)
      if (from != to) limits.insert(hop(from, to));
  for (const Hop& limit : limits)
    if (std::vector<int> order = Search(*this, ends, limit).run(); !order.empty()) return order;
  return {ends.first};  // of one; with the last limit every way leads on
}

bool Walks::is_free(std::span<const int> order) const {
  for (size_t i = 0; i < order.size(); ++i) {
    const int from = order[i], to = order[(i + 1) % order.size()];
    if (!is_direct(from, to) || taken_[pair_at(from, to)] > 0) return false;
  }
  return true;
}

void Walks::take(std::span<const int> order, bool is_closed) {
  for (size_t i = 0; i + (is_closed ? 0 : 1) < order.size(); ++i) {
    const int from = order[i], to = order[(i + 1) % order.size()];
    if (is_direct(from, to)) ++taken_[pair_at(from, to)];
  }
}

}  // namespace niccolite::topology
