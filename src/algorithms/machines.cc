#include "algorithms/machines.h"

#include <algorithm>

#include "algorithms/lanes.h"

namespace niccolite::algorithms {

Machines::Machines(int nranks, const Options& options) {
  std::map<int, int> numbers;  // in the order of their first ranks
  for (int rank = 0; rank < nranks; ++rank) {
    const int told = options.machines.empty() ? 0 : options.machines[static_cast<size_t>(rank)];
    const int machine = numbers.try_emplace(told, static_cast<int>(numbers.size())).first->second;
    if (machine == count()) ranks_.emplace_back();
    std::vector<int>& ranks = ranks_[static_cast<size_t>(machine)];
    of_rank_.push_back(machine);
    local_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(rank);
  }
  const auto has_fewer = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  rails_ = static_cast<int>(std::ranges::min_element(ranks_, has_fewer)->size());
  most_ranks_ = static_cast<int>(std::ranges::max_element(ranks_, has_fewer)->size());
}

int Machines::rank_at(int machine, int place) const {
  const std::vector<int>& all = ranks(machine);
  return all[static_cast<size_t>(place) % all.size()];
}

std::vector<int> Machines::neighbours(int rank) const {
  std::vector<int> others = ranks(of(rank));
  std::erase(others, rank);
  return others;
}

std::vector<int> Machines::others(int machine, int step) const {
  return peers_by_distance(machine, count(), step);
}

schedule::LaneBuilder& PhaseLanes::operator[](size_t phase) {
  std::optional<schedule::LaneBuilder>& lane = lanes_[phase];
  if (!lane) lane.emplace(builder_.add_lane(rank_));
  return *lane;
}

GatherLanes::GatherLanes(schedule::Builder& builder, int rank, int nranks)
    : builder_(builder), rank_(rank), by_connection_(nranks <= kMaxLanesRanks) {}

void GatherLanes::add(int from, int tag, int block) {
  const auto key = by_connection_ ? std::pair(from, tag) : std::pair(0, 0);
  auto lane = lanes_.find(key);
  if (lane == lanes_.end()) lane = lanes_.emplace(key, builder_.add_lane(rank_)).first;
  lane->second.add(
      {.receive_from = lane->second.from(from, tag), .target = schedule::output(block)});
}

schedule::Instruction fold_of(schedule::LaneBuilder& lane, int rank,
                              std::vector<Contribution> others, int block) {
  std::ranges::sort(others, {}, &Contribution::from);
  schedule::Instruction fold{.source = schedule::input(block)};
  for (const Contribution& other : others) {
    fold.receive_from.push_back(lane.from(other.from, other.tag).front());
    fold.source_position += other.from < rank;
  }
  fold.reduce = !others.empty();
  return fold;
}

}  // namespace niccolite::algorithms
