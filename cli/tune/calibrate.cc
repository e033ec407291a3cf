#include "cli/tune/calibrate.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "cli/tune/check.h"
#include "cli/tune/fit.h"

namespace niccolite::tune {
namespace {

using planner::Cost;
using planner::CostLine;
using Key = std::pair<const Algorithm*, executor::Protocol>;  // in the registry's order

constexpr int kPasses = 8;
constexpr double kMoreWeight = 2;

Key key_of(const Point& point) { return {point.variant.algorithm, point.variant.protocol}; }

std::map<Key, std::vector<Sample>> samples_of(const Measurements& measurements) {
  std::map<Key, std::vector<Sample>> samples;
  for (Sample& sample : weighed(measurements)) {
    const Key key = key_of(sample.point);
    samples[key].push_back(std::move(sample));
  }
  std::erase_if(samples, [](const auto& entry) { return entry.second.size() < kFewestPoints; });
  return samples;
}

std::vector<CostLine> lines_of(const std::map<Key, Cost>& costs) {
  std::vector<CostLine> lines;
  for (const auto& [key, cost] : costs) lines.push_back({key.first, key.second, cost});
  return lines;
}

}  // namespace

Coverage coverage_of(const Measurements& measurements) {
  std::set<Key> keys;
  for (const Point& point : measurements.points) keys.insert(key_of(point));
  return {.measured = keys.size(), .fitted = samples_of(measurements).size()};
}

std::vector<CostLine> calibrate(const Measurements& measurements, const planner::Tuning& known,
                                int most_channels) {
  std::map<Key, std::vector<Sample>> samples = samples_of(measurements);
  std::map<Key, Cost> costs;
  for (const CostLine& line : known.costs()) costs[{line.algorithm, line.protocol}] = line.cost;
  std::set<Key> stale;
  for (const auto& entry : samples) stale.insert(entry.first);

  std::vector<CostLine> best;
  size_t most_right = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    for (const Key& key : stale) {
      const Cost before = planner::find_cost(known, *key.first, key.second).cost;
      costs[key] = fit(measurements.machine, before, samples[key]);
    }
    stale.clear();
    std::vector<CostLine> lines = lines_of(costs);
    const std::vector<CheckedPoint> points =
        check(measurements, by_lines(measurements.machine, lines), most_channels);
    const size_t right = summarise(points).right;
    if (pass == 0 || right > most_right) {
      best = std::move(lines);
      most_right = right;
    }
    for (const CheckedPoint& point : points) {
      if (point.loss() <= kTolerance) continue;
      for (const Point* culprit : {&point.best, &point.chosen}) {
        const auto found = samples.find(key_of(*culprit));
        if (found == samples.end()) continue;
        for (Sample& sample : found->second)
          if (sample.point == *culprit) sample.weight *= kMoreWeight;
        stale.insert(found->first);
      }
    }
    if (stale.empty()) break;
  }
  return best;
}

}  // namespace niccolite::tune
