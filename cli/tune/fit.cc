#include "cli/tune/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

namespace niccolite::tune {
namespace {

using planner::Cost;

constexpr size_t kConstants = 10;
using Vector = std::array<double, kConstants>;  // logarithms; of `overlap`, of its odds
using Matrix = std::array<Vector, kConstants>;

struct Constant {
  double Cost::*field;
  double least, most;
};
constexpr std::array<Constant, kConstants> kFields{{{&Cost::fixed, 0.1, 1e4},
                                                    {&Cost::step, 0.001, 1e3},
                                                    {&Cost::channel, 0.0005, 10},
                                                    {&Cost::link_two_ranks, 0.01, 1e4},
                                                    {&Cost::link_more_ranks, 0.01, 1e4},
                                                    {&Cost::channel_gigabytes, 0.01, 1e3},
                                                    {&Cost::round, 0.001, 1e3},
                                                    {&Cost::fill, 0.001, 10},
                                                    {&Cost::overlap, 0.005, 0.995},
                                                    {&Cost::crowd, 1e-5, 1}}};
constexpr size_t kLinkTwo = 3, kLinkMore = 4, kOverlap = 8;

constexpr int kIterations = 60;
// Residuals beyond this (about 10 %) count linearly.
constexpr double kOutlier = 0.1;
// Pull towards what is known, for constants that the data leave open.
constexpr double kPrior = 1e-5;

double encode(size_t i, double value) {
  const double bounded = std::clamp(value, kFields[i].least, kFields[i].most);
  return i == kOverlap ? std::log(bounded / (1 - bounded)) : std::log(bounded);
}

double decode(size_t i, double x) {
  const double value = i == kOverlap ? 1 / (1 + std::exp(-x)) : std::exp(x);
  return std::clamp(value, kFields[i].least, kFields[i].most);
}

Vector encode(const Cost& cost) {
  Vector x;
  for (size_t i = 0; i < kConstants; ++i) x[i] = encode(i, cost.*kFields[i].field);
  return x;
}

Cost decode(const Vector& x) {
  Cost cost{};
  for (size_t i = 0; i < kConstants; ++i) cost.*kFields[i].field = decode(i, x[i]);
  return cost;
}

/// Solves a x = b by Gauss's elimination with pivots; nothing where a is singular.
std::optional<Vector> solve(Matrix a, Vector b) {
  for (size_t column = 0; column < kConstants; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < kConstants; ++row)
      if (std::abs(a[row][column]) > std::abs(a[pivot][column])) pivot = row;
    if (std::abs(a[pivot][column]) < 1e-300) return std::nullopt;
    std::swap(a[column], a[pivot]);
    std::swap(b[column], b[pivot]);
    for (size_t row = column + 1; row < kConstants; ++row) {
      const double factor = a[row][column] / a[column][column];
      for (size_t k = column; k < kConstants; ++k) a[row][k] -= factor * a[column][k];
      b[row] -= factor * b[column];
    }
  }
  for (size_t row = kConstants; row-- > 0;) {
    for (size_t k = row + 1; k < kConstants; ++k) b[row] -= a[row][k] * b[k];
    b[row] /= a[row][row];
  }
  return b;
}

/// Are there samples of two ranks, and of more?
std::pair<bool, bool> links_of(std::span<const Sample> samples) {
  const auto is_of_two = [](const Sample& sample) { return sample.point.work.nranks <= 2; };
  return {std::ranges::any_of(samples, is_of_two), !std::ranges::all_of(samples, is_of_two)};
}

class Search {
 public:
  Search(gpu::Kind machine, std::span<const Sample> samples, const Vector& known)
      : machine_(machine), samples_(samples), known_(known) {
    const auto [has_two, has_more] = links_of(samples);
    is_open_.fill(true);
    is_open_[kLinkTwo] = has_two;
    is_open_[kLinkMore] = has_more;
  }

  /// From `start`, but for constants that the data cannot tell.
  std::pair<double, Vector> run(Vector start) const {
    for (size_t i = 0; i < kConstants; ++i)
      if (!is_open_[i]) start[i] = known_[i];
    Vector x = start;
    double damping = 1e-2;
    double loss = loss_of(x);
    for (int iteration = 0; iteration < kIterations && damping < 1e8; ++iteration) {
      const auto [hessian, gradient] = linearise(x);
      bool improved = false;
      while (!improved && damping < 1e8) {
        Matrix damped = hessian;
        for (size_t i = 0; i < kConstants; ++i) damped[i][i] += damping * hessian[i][i] + 1e-12;
        const std::optional<Vector> step = solve(damped, gradient);
        Vector next = x;
        for (size_t i = 0; step && i < kConstants; ++i)
          next[i] = std::clamp(x[i] - std::clamp((*step)[i], -1.0, 1.0),
                               encode(i, kFields[i].least), encode(i, kFields[i].most));
        const double next_loss = loss_of(next);
        improved = step && next_loss < loss;
        damping *= improved ? 0.3 : 4;
        if (!improved) continue;
        x = next;
        loss = next_loss;
      }
    }
    return {loss, x};
  }

 private:
  double residual(const Sample& sample, const Cost& cost) const {
    const Point& point = sample.point;
    return std::log(planner::predict(machine_, cost, point.work, point.variant, point.chunk_bytes) /
                    point.microseconds);
  }

  double loss_of(const Vector& x) const {
    const Cost cost = decode(x);
    double loss = 0;
    for (const Sample& sample : samples_) {
      const double r = std::abs(residual(sample, cost));
      loss += sample.weight * (r <= kOutlier ? r * r : kOutlier * (2 * r - kOutlier));
    }
    for (size_t i = 0; i < kConstants; ++i)
      loss += kPrior * (x[i] - known_[i]) * (x[i] - known_[i]);
    return loss;
  }

  std::pair<Matrix, Vector> linearise(const Vector& x) const {
    constexpr double kDelta = 1e-4;
    Matrix hessian{};
    Vector gradient{};
    const Cost cost = decode(x);
    std::array<Cost, kConstants> moved;
    for (size_t i = 0; i < kConstants; ++i) {
      Vector near = x;
      near[i] += kDelta;
      moved[i] = decode(near);
    }
    for (const Sample& sample : samples_) {
      const double r = residual(sample, cost);
      const double weight = sample.weight * std::min(1.0, kOutlier / (std::abs(r) + 1e-12));
      Vector slope{};
      for (size_t i = 0; i < kConstants; ++i)
        if (is_open_[i]) slope[i] = (residual(sample, moved[i]) - r) / kDelta;
      for (size_t i = 0; i < kConstants; ++i) {
        gradient[i] += weight * slope[i] * r;
        for (size_t k = 0; k < kConstants; ++k) hessian[i][k] += weight * slope[i] * slope[k];
      }
    }
    for (size_t i = 0; i < kConstants; ++i) {
      hessian[i][i] += kPrior;
      gradient[i] += kPrior * (x[i] - known_[i]);
    }
    return {hessian, gradient};
  }

  const gpu::Kind machine_;
  const std::span<const Sample> samples_;
  const Vector known_;
  std::array<bool, kConstants> is_open_{};
};

/// Where searches begin: what is known, and guesses from the fastest and from the busiest sample.
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

Cost fit(gpu::Kind machine, const Cost& known, std::span<const Sample> samples) {
  const Search search(machine, samples, encode(known));
  std::optional<std::pair<double, Vector>> best;
  for (const Cost& start : starts_of(known, samples)) {
    const auto found = search.run(encode(start));
    if (!best || found.first < best->first) best = found;
  }
  Cost cost = decode(best->second);
  keep_unknown_links(known, samples, cost);
  return cost;
}

}  // namespace niccolite::tune
