// Least squares by Levenberg's and Marquardt's method, over the logarithms of the unknowns (of
// parts: over their odds), with outliers counting less, and a slight pull towards known values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace niccolite::tune {

struct Unknown {
  double least = 0, most = 0;  // of its value; both more than 0
  bool is_part = false;        // from 0 to 1
  bool is_open = true;         // else it keeps its value
};

double encode(const Unknown& unknown, double value);
double decode(const Unknown& unknown, double x);

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;
/// Solves a x = b; nothing where a is singular.
std::optional<Vector> solve(Matrix a, Vector b);

struct Solution {
  double loss = 0;
  Vector values;  // of the unknowns
};

struct Pull {
  double outlier = 0.1;  // residuals beyond this count linearly
  double prior = 1e-5;   // pull towards known values
};

/// `Model` has `make(values)`, from which residuals are computed, and `residual(made, i)` and
/// `weight(i)` of `count()` samples.
template <typename Model>
class LeastSquares {
 public:
  LeastSquares(const Model& model, std::span<const Unknown> unknowns, const Vector& known,
               Pull pull)
      : model_(model), unknowns_(unknowns), known_(known), pull_(pull) {
    for (size_t i = 0; i < size(); ++i) known_x_.push_back(encode(unknowns_[i], known[i]));
  }

  /// From `start`, but for unknowns that are not open.
  Solution run(const Vector& start) const {
    Vector x;
    for (size_t i = 0; i < size(); ++i)
      x.push_back(unknowns_[i].is_open ? encode(unknowns_[i], start[i]) : known_x_[i]);
    double damping = 1e-2;
    double loss = loss_of(x);
    for (int iteration = 0; iteration < kIterations && damping < kMostDamping; ++iteration) {
      const auto [hessian, gradient] = linearise(x);
      bool improved = false;
      while (!improved && damping < kMostDamping) {
        Matrix damped = hessian;
        for (size_t i = 0; i < size(); ++i) damped[i][i] += damping * hessian[i][i] + 1e-12;
        const std::optional<Vector> step = solve(std::move(damped), gradient);
        Vector next = x;
        for (size_t i = 0; step && i < size(); ++i)
          next[i] = std::clamp(x[i] - std::clamp((*step)[i], -1.0, 1.0),
                               encode(unknowns_[i], unknowns_[i].least),
                               encode(unknowns_[i], unknowns_[i].most));
        const double next_loss = loss_of(next);
        improved = step && next_loss < loss;
        damping *= improved ? 0.3 : 4;
        if (!improved) continue;
        x = std::move(next);
        loss = next_loss;
      }
    }
    return {loss, values_of(x)};
  }

 private:
  static constexpr int kIterations = 60;
  static constexpr double kMostDamping = 1e8;

  size_t size() const { return unknowns_.size(); }

  Vector values_of(const Vector& x) const {
    Vector values;
    for (size_t i = 0; i < size(); ++i)
      values.push_back(unknowns_[i].is_open ? decode(unknowns_[i], x[i]) : known_[i]);
    return values;
  }

  double loss_of(const Vector& x) const {
    const auto made = model_.make(values_of(x));
    const double outlier = pull_.outlier;
    double loss = 0;
    for (size_t i = 0; i < model_.count(); ++i) {
      const double r = std::abs(model_.residual(made, i));
      loss += model_.weight(i) * (r <= outlier ? r * r : outlier * (2 * r - outlier));
    }
    for (size_t i = 0; i < size(); ++i)
      loss += pull_.prior * (x[i] - known_x_[i]) * (x[i] - known_x_[i]);
    return loss;
  }

  std::pair<Matrix, Vector> linearise(const Vector& x) const {
    constexpr double kDelta = 1e-4;
    using Made = decltype(model_.make(x));
    const Made made = model_.make(values_of(x));
    std::vector<std::pair<size_t, Made>> moved;
    for (size_t i = 0; i < size(); ++i) {
      if (!unknowns_[i].is_open) continue;
      Vector near = x;
      near[i] += kDelta;
      moved.emplace_back(i, model_.make(values_of(near)));
    }
    Matrix hessian(size(), Vector(size()));
    Vector gradient(size());
    Vector slope(size());
    for (size_t sample = 0; sample < model_.count(); ++sample) {
      const double r = model_.residual(made, sample);
      const double weight =
          model_.weight(sample) * std::min(1.0, pull_.outlier / (std::abs(r) + 1e-12));
      for (const auto& [i, of_near] : moved)
        slope[i] = (model_.residual(of_near, sample) - r) / kDelta;
      for (size_t i = 0; i < size(); ++i) {
        gradient[i] += weight * slope[i] * r;
        for (size_t k = 0; k < size(); ++k) hessian[i][k] += weight * slope[i] * slope[k];
      }
    }
    for (size_t i = 0; i < size(); ++i) {
      hessian[i][i] += pull_.prior;
      gradient[i] += pull_.prior * (x[i] - known_x_[i]);
    }
    return {hessian, gradient};
  }

  const Model& model_;
  const std::span<const Unknown> unknowns_;
  const Vector known_;
  Vector known_x_;
  const Pull pull_;
};

}  // namespace niccolite::tune
