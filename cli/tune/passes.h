// Fits a model again where it chooses wrong: a model that is as near as possible to all times may
// still take the second best of two variants that are near each other.
#pragma once

#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cli/tune/check.h"
#include "cli/tune/fit.h"

namespace niccolite::tune {

/// Samples by the part of the model that they fit: the constants of a variant, or the properties of
/// a protocol.
template <typename Key>
using SamplesByKey = std::map<Key, std::vector<Sample>>;

/// `refit(model, key, samples)` fits the part `key` of `model`; first of all keys, and after each
/// pass of the keys whose points led to a wrong choice. The times of the chosen and of the fastest
/// variant then weigh twice as much. Returns the model with the most right choices of all passes,
/// the first of equals. `key_of(point)` is where a point's samples are; `predict(model)` is a
/// Predictor that is used while `model` stays as it is.
template <typename Key, typename Model, typename KeyOf, typename Refit, typename Predict>
Model fit_in_passes(const Measurements& measurements, const Candidate& is_candidate,
                    SamplesByKey<Key> samples, Model model, const KeyOf& key_of, const Refit& refit,
                    const Predict& predict) {
  constexpr int kPasses = 24;
  constexpr double kMoreWeight = 2;
  std::set<Key> stale;
  for (const auto& entry : samples) stale.insert(entry.first);
  Model best = model;
  size_t most_right = 0;
  for (int pass = 0; pass < kPasses && !stale.empty(); ++pass) {
    for (const Key& key : std::exchange(stale, {}))
      refit(model, key, std::span<const Sample>(samples[key]));
    const std::vector<CheckedPoint> points = check(measurements, predict(model), is_candidate);
    const size_t right = summarise(points).right;
    if (pass == 0 || right > most_right) {
      best = model;
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
  }
  return best;
}

}  // namespace niccolite::tune
