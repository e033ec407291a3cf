// The check of the cost model: at every measured point, is the variant that it chooses within 5 %
// of the fastest one? And how far are its predictions from the truth?
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>

#include "cli/tune/points.h"
#include "planner/prices/tuning.h"

namespace niccolite::tune {

/// A choice may lose this much and be right.
inline constexpr double kTolerance = 0.05;
/// Constants whose predictions are off by more in the median are poor.
inline constexpr double kMostMedianError = 0.25;

struct CheckedPoint {
  Workload work;
  Point best;
  Point chosen;
  double predicted = 0;  // microseconds of the chosen one

  double loss() const { return chosen.microseconds / best.microseconds - 1; }
  double error() const { return predicted / chosen.microseconds - 1; }
};

/// Microseconds of a point; none: nothing is known of its variant.
using Predictor = std::function<std::optional<double>(const Point&)>;
/// Returns a predictor by the constants of each variant.
Predictor by_lines(gpu::Kind machine, std::span<const planner::CostLine> lines);
/// Returns a predictor by the properties of the machine, whatever was measured of the variant. Both
/// arguments have to outlive it.
using PropertiesByProtocol = std::array<planner::Properties, executor::kProtocols>;
Predictor by_properties(const Measurements& measurements, const PropertiesByProtocol& properties);

/// May the variant of a point be chosen?
using Candidate = std::function<bool(const Point&)>;

/// By collective, ranks and size, where at least two candidates have been measured.
std::vector<CheckedPoint> check(const Measurements& measurements, const Predictor& predict,
                                const Candidate& is_candidate);

/// The check of a choice that the library made by itself.
struct CheckedOwn {
  OwnTime own;
  double best = 0;  // microseconds of the fastest variant, or its own

  double loss() const { return own.microseconds / best - 1; }
  double error() const { return own.predicted / own.microseconds - 1; }
};
std::vector<CheckedOwn> check_own(const Measurements& measurements, const Candidate& is_candidate);

struct Summary {
  size_t points = 0, right = 0;
  const CheckedPoint* worst = nullptr;  // of the choices; null: no points
  double median_error = 0;              // absolute, of the predictions
  const CheckedPoint* worst_predicted = nullptr;

  bool is_poor() const { return points == 0 || median_error > kMostMedianError; }
};
Summary summarise(std::span<const CheckedPoint> points);

/// Text for people: the choices that lose more than the tolerance, and a summary. Empty without
/// points.
std::string describe(std::span<const CheckedOwn> points);
/// A table for people, and the summary in its last lines.
std::string describe(std::span<const CheckedPoint> points);
/// The table and its summary for programs, in the format "niccolite-tune-check-1".
nlohmann::json json_of(std::span<const CheckedPoint> points);

}  // namespace niccolite::tune
