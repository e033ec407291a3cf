#include "algorithms/machines.h"

#include <algorithm>

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

std::vector<int> Machines::ranks_of_rail(int rail) const {
  std::vector<int> ranks;
  for (int machine = 0; machine < count(); ++machine) ranks.push_back(rank_at(machine, rail));
  std::ranges::sort(ranks);
  return ranks;
}

std::vector<int> Machines::neighbours(int rank) const {
  std::vector<int> others = ranks(of(rank));
  std::erase(others, rank);
  return others;
}

std::vector<int> Machines::others(int machine, int step) const {
  return peers_by_distance(machine, count(), step);
}

GatherWorkers::GatherWorkers(schedule::Builder& builder, int rank, int nranks)
    : builder_(builder), rank_(rank), by_connection_(nranks <= kMaxWorkersRanks) {}

void GatherWorkers::add(int from, int tag, int block) {
  const auto key = by_connection_ ? std::pair(from, tag) : std::pair(0, 0);
  auto worker = workers_.find(key);
  if (worker == workers_.end()) worker = workers_.emplace(key, builder_.add_worker(rank_)).first;
  worker->second.add(
      {.receive_from = worker->second.from(from, tag), .target = schedule::output(block)});
}

}  // namespace niccolite::algorithms
