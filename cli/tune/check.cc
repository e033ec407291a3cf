#include "cli/tune/check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "planner/choice/choice.h"
#include "planner/prices/price.h"

namespace niccolite::tune {
namespace {

using planner::Choice;
using planner::CostLine;

std::string size_text(size_t bytes) {
  for (const auto& [unit, suffix] :
       {std::pair(size_t{1} << 30, "GiB"), {size_t{1} << 20, "MiB"}, {size_t{1} << 10, "KiB"}})
    if (bytes >= unit && bytes % unit == 0) return fmt::format("{} {}", bytes / unit, suffix);
  return fmt::format("{} B", bytes);
}

std::string place_of(const Workload& work) {
  return fmt::format("{} of {} over {} ranks", name_of(work.collective),
                     size_text(buffer_bytes(work)), work.nranks);
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Predictor by_lines(gpu::Kind machine, std::span<const CostLine> lines) {
  return [machine, lines](const Point& point) -> std::optional<double> {
    const auto is_of = [&](const CostLine& line) {
      return line.form == point.variant.form && line.protocol == point.variant.protocol;
    };
    const auto line = std::ranges::find_if(lines, is_of);
    if (line == lines.end()) return std::nullopt;
    return planner::predict(machine, line->cost, point.work, point.variant, point.chunk_bytes);
  };
}

Predictor by_properties(const Measurements& measurements, const PropertiesByProtocol& properties) {
  return [&](const Point& point) -> std::optional<double> {
    const auto protocol = point.variant.protocol;
    const auto demand =
        demand_of(settings_of(measurements, point.work.nranks), *point.variant.form, protocol);
    return planner::predict(properties[static_cast<size_t>(protocol)], *demand, point.work,
                            point.variant, point.chunk_bytes);
  };
}

std::vector<CheckedPoint> check(const Measurements& measurements, const Predictor& predict,
                                const Candidate& is_candidate) {
  std::map<std::tuple<Collective, int, size_t>, std::vector<const Point*>> by_work;
  for (const Point& point : measurements.points)
    if (is_candidate(point))
      by_work[{point.work.collective, point.work.nranks, point.work.bytes}].push_back(&point);
  std::vector<CheckedPoint> result;
  for (const auto& [key, points] : by_work) {
    const int nranks = std::get<int>(key);
    std::vector<Choice> choices;
    std::vector<const Point*> candidates;
    for (const Point* point : points) {
      const std::optional<double> predicted = predict(*point);
      if (!predicted) continue;
      choices.push_back({point->variant, *predicted});
      candidates.push_back(point);
    }
    if (choices.size() < 2) continue;
    const Choice& picked = planner::pick(choices, planner::CtaPolicy::Default, nranks);
    const Point* best = *std::ranges::min_element(points, {}, [&](const Point* point) {
      return planner::length_of({point->variant, point->microseconds}, nranks);
    });
    const auto index = static_cast<size_t>(&picked - choices.data());
    result.push_back({candidates[index]->work, *best, *candidates[index], picked.microseconds});
  }
  return result;
}

std::vector<CheckedOwn> check_own(const Measurements& measurements, const Candidate& is_candidate) {
  std::vector<CheckedOwn> result;
  for (const OwnTime& own : measurements.own) {
    CheckedOwn checked{own, own.microseconds};
    for (const Point& point : measurements.points)
      if (point.work == own.work && is_candidate(point))
        checked.best = std::min(checked.best, point.microseconds);
    result.push_back(checked);
  }
  return result;
}

std::string describe(std::span<const CheckedOwn> points) {
  if (points.empty()) return {};
  std::string text = "\nthe library's own choice\n";
  std::vector<double> errors;
  size_t right = 0;
  const CheckedOwn* worst = points.data();
  for (const CheckedOwn& point : points) {
    errors.push_back(std::abs(point.error()));
    if (point.loss() > worst->loss()) worst = &point;
    if (point.loss() <= kTolerance) {
      ++right;
      continue;
    }
    text +=
        fmt::format("  {}: {:.2f} us, best {:.2f}, slower by {:.1f} %\n", place_of(point.own.work),
                    point.own.microseconds, point.best, 100 * point.loss());
  }
  return text + fmt::format(
                    "  prediction: median error {:.1f} %\n"
                    "  within 5 %: {} of {} points; worst {:.1f} %, {}\n",
                    100 * median_of(std::move(errors)), right, points.size(), 100 * worst->loss(),
                    place_of(worst->own.work));
}

Summary summarise(std::span<const CheckedPoint> points) {
  Summary summary{.points = points.size()};
  std::vector<double> errors;
  for (const CheckedPoint& point : points) {
    if (point.loss() <= kTolerance) ++summary.right;
    errors.push_back(std::abs(point.error()));
    if (summary.worst == nullptr || point.loss() > summary.worst->loss()) summary.worst = &point;
    if (summary.worst_predicted == nullptr ||
        errors.back() > std::abs(summary.worst_predicted->error()))
      summary.worst_predicted = &point;
  }
  summary.median_error = median_of(std::move(errors));
  return summary;
}

std::string describe(std::span<const CheckedPoint> points) {
  std::string text;
  const Workload* last = nullptr;
  for (const CheckedPoint& point : points) {
    if (last == nullptr || last->collective != point.work.collective ||
        last->nranks != point.work.nranks)
      text += fmt::format("\n{}, {} ranks\n{:>10}  {:>10}  {:<28}{:>10}  {:>10}  {:<28}{:>7}\n",
                          name_of(point.work.collective), point.work.nranks, "size", "chosen us",
                          "variant", "predicted", "best us", "variant", "slower");
    last = &point.work;
    text += fmt::format("{:>10}  {:>10.2f}  {:<28}{:>10.2f}  {:>10.2f}  {:<28}{:>6.1f}%{}\n",
                        size_text(buffer_bytes(point.work)), point.chosen.microseconds,
                        planner::describe(point.chosen.variant), point.predicted,
                        point.best.microseconds, planner::describe(point.best.variant),
                        100 * point.loss(), point.loss() > kTolerance ? " !" : "");
  }
  const Summary summary = summarise(points);
  if (summary.points == 0) return text + "\nno point has been measured in two variants\n";
  text += fmt::format("\nprediction: median error {:.1f} %; worst {:+.1f} %, {}\n",
                      100 * summary.median_error, 100 * summary.worst_predicted->error(),
                      place_of(summary.worst_predicted->work));
  text += fmt::format("within 5 %: {} of {} points; worst {:.1f} %, {}\n", summary.right,
                      summary.points, 100 * summary.worst->loss(), place_of(summary.worst->work));
  return text;
}

nlohmann::json json_of(std::span<const CheckedPoint> points) {
  nlohmann::json all = nlohmann::json::array();
  const auto side = [](const Point& point) {
    return nlohmann::json{{"variant", planner::describe(point.variant)},
                          {"time_us", point.microseconds}};
  };
  for (const CheckedPoint& point : points)
    all.push_back({{"collective", name_of(point.work.collective)},
                   {"nranks", point.work.nranks},
                   {"bytes", buffer_bytes(point.work)},
                   {"chosen", side(point.chosen)},
                   {"predicted_us", point.predicted},
                   {"best", side(point.best)},
                   {"loss", point.loss()}});
  const Summary summary = summarise(points);
  return {{"format", "niccolite-tune-check-1"},
          {"points", std::move(all)},
          {"right", summary.right},
          {"median_error", summary.median_error}};
}

}  // namespace niccolite::tune
