#include "cli/tune/calibrate.h"

#include <map>
#include <set>
#include <utility>

#include "cli/tune/passes.h"

namespace niccolite::tune {
namespace {

using planner::Cost;
using planner::CostLine;
using Key = std::pair<const Form*, executor::Protocol>;  // in the registry's order

Key key_of(const Point& point) { return {point.variant.form, point.variant.protocol}; }

SamplesByKey<Key> samples_of(const Measurements& measurements) {
  SamplesByKey<Key> samples;
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
                                const Candidate& is_candidate) {
  std::map<Key, Cost> costs;
  for (const CostLine& line : known.costs()) costs[{line.form, line.protocol}] = line.cost;
  const auto refit = [&](std::map<Key, Cost>& fitted, const Key& key,
                         std::span<const Sample> samples) {
    const Cost before = planner::find_cost(known, *key.first, key.second).cost;
    fitted[key] = fit(measurements.machine, before, samples);
  };
  const auto predict = [&](const std::map<Key, Cost>& fitted) {
    return Predictor([machine = measurements.machine, &fitted](const Point& point) {
      const auto found = fitted.find(key_of(point));
      return found == fitted.end()
                 ? std::nullopt
                 : std::optional(planner::predict(machine, found->second, point.work, point.variant,
                                                  point.chunk_bytes));
    });
  };
  return lines_of(fit_in_passes(measurements, is_candidate, samples_of(measurements),
                                std::move(costs), key_of, refit, predict));
}

}  // namespace niccolite::tune
