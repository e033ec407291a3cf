#include "cli/tune/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/tune/least_squares.h"

namespace niccolite::tune {
namespace {

using planner::Cost;

struct Constant {
  double Cost::*field;
  Unknown unknown;
};
constexpr std::array<Constant, 10> kConstants{{{&Cost::fixed, {0.1, 1e4}},
                                               {&Cost::step, {0.001, 1e3}},
                                               {&Cost::channel, {0.0005, 10}},
                                               {&Cost::link_two_ranks, {0.01, 1e4}},
                                               {&Cost::link_more_ranks, {0.01, 1e4}},
                                               {&Cost::channel_gigabytes, {0.01, 1e3}},
                                               {&Cost::round, {0.001, 1e3}},
                                               {&Cost::fill, {0.001, 10}},
                                               {&Cost::overlap, {0.005, 0.995, /*is_part=*/true}},
                                               {&Cost::crowd, {1e-5, 1}}}};

Vector values_of(const Cost& cost) {
  Vector values;
  for (const Constant& constant : kConstants) values.push_back(cost.*constant.field);
  return values;
}

/// Are there samples of two ranks, and of more?
std::pair<bool, bool> links_of(std::span<const Sample> samples) {
  const auto is_of_two = [](const Sample& sample) { return sample.point.work.nranks <= 2; };
  return {std::ranges::any_of(samples, is_of_two), !std::ranges::all_of(samples, is_of_two)};
}

/// The constants of one variant, as LeastSquares wants them.
class VariantModel {
 public:
  VariantModel(gpu::Kind machine, std::span<const Sample> samples)
      : machine_(machine), samples_(samples) {}

  size_t count() const { return samples_.size(); }
  double weight(size_t i) const { return samples_[i].weight; }
  Cost make(const Vector& values) const {
    Cost cost{};
    for (size_t i = 0; i < kConstants.size(); ++i) cost.*kConstants[i].field = values[i];
    return cost;
  }
  double residual(const Cost& cost, size_t i) const {
    const Point& point = samples_[i].point;
    return std::log(planner::predict(machine_, cost, point.work, point.variant, point.chunk_bytes) /
                    point.microseconds);
  }

 private:
  const gpu::Kind machine_;
  const std::span<const Sample> samples_;
};

/// Returns where searches begin: the known constants, and guesses from the fastest and from the
/// busiest sample.
std::vector<Cost> starts_of(const Cost& known, std::span<const Sample> samples) {
  double least = samples[0].point.microseconds, rate = 0.1, channel_rate = 0.1;
  for (const Sample& sample : samples) {
    const Point& point = sample.point;
    least = std::min(least, point.microseconds);
    const double gigabytes = static_cast<double>(point.work.bytes) / (point.microseconds * 1e3);
    rate = std::max(rate, gigabytes);
    channel_rate = std::max(channel_rate, gigabytes / point.variant.channels);
  }
  std::vector<Cost> starts{known};
  for (const double overlap : {0.3, 0.9})
    for (const double factor : {1.5, 4.0}) {
      Cost start = known;
      start.fixed = 0.7 * least;
      start.channel = 0.01;
      start.link_two_ranks = start.link_more_ranks = rate * factor;
      start.channel_gigabytes = channel_rate * factor;
      start.round = 0.3;
      start.fill = 0.2;
      start.overlap = overlap;
      starts.push_back(start);
    }
  return starts;
}

double weight_near(double microseconds, double best) {
  const double slower = microseconds / best;
  return slower < 1.15 ? 1 : slower < 1.5 ? 0.4 : slower < 3 ? 0.1 : 0.03;
}

/// A link that no sample has keeps its speed, with the most channels that any sample has, whatever
/// the others say of crowding.
void keep_unknown_links(const Cost& known, std::span<const Sample> samples, Cost& found) {
  int channels = 1;
  for (const Sample& sample : samples) channels = std::max(channels, sample.point.variant.channels);
  const auto [has_two, has_more] = links_of(samples);
  const double factor = (1 + found.crowd * channels) / (1 + known.crowd * channels);
  if (!has_two) found.link_two_ranks = known.link_two_ranks * factor;
  if (!has_more) found.link_more_ranks = known.link_more_ranks * factor;
}

}  // namespace

std::vector<Sample> weighed(const Measurements& measurements) {
  std::map<std::tuple<Collective, int, size_t>, double> fastest;
  const auto work_of = [](const Point& point) {
    return std::tuple(point.work.collective, point.work.nranks, point.work.bytes);
  };
  for (const Point& point : measurements.points) {
    const auto [place, is_new] = fastest.try_emplace(work_of(point), point.microseconds);
    place->second = std::min(place->second, point.microseconds);
  }
  std::vector<Sample> samples;
  for (const Point& point : measurements.points)
    samples.push_back({point, weight_near(point.microseconds, fastest[work_of(point)])});
  return samples;
}

Cost fit(gpu::Kind machine, const Cost& known, std::span<const Sample> samples) {
  const VariantModel model(machine, samples);
  const auto [has_two, has_more] = links_of(samples);
  std::vector<Unknown> unknowns;
  for (const Constant& constant : kConstants) {
    unknowns.push_back(constant.unknown);
    if (constant.field == &Cost::link_two_ranks) unknowns.back().is_open = has_two;
    if (constant.field == &Cost::link_more_ranks) unknowns.back().is_open = has_more;
  }
  const LeastSquares search(model, unknowns, values_of(known), Pull{});
  std::optional<Solution> best;
  for (const Cost& start : starts_of(known, samples)) {
    Solution found = search.run(values_of(start));
    if (!best || found.loss < best->loss) best = std::move(found);
  }
  Cost cost = model.make(best->values);
  keep_unknown_links(known, samples, cost);
  return cost;
}

}  // namespace niccolite::tune
