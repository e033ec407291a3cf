#include "cli/tune/fit_properties.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cli/tune/least_squares.h"
#include "cli/tune/passes.h"
#include "planner/prices/price.h"

namespace niccolite::tune {
namespace {

using executor::Protocol;
using lowering::Demand;
using planner::Properties;

/// Fewer points of a protocol than these say too little of so many properties.
constexpr size_t kFewestSamples = 100;

/// The penalty for a property that is e times its known value, in squares of log(predicted /
/// measured). Of virtual GPUs between machines two ranks are measured, mostly, and nearly all
/// properties are costs of a message: with little pull the fit makes some of them nothing and
/// others a hundred times as much, which suits two ranks and no other number.
constexpr double kPrior = 1e-4;
constexpr double kPriorOfVirtualNetworks = 1;
constexpr double kNearly = 1.1;

/// The kind of measurements that says something of a property.
enum class Of : uint8_t {
  AnyMachine,
  OwnCores,
  SharedCores,
  TwoRanks,
  MoreRanks,
  DirectAccess,
  SeveralMachines,
};

struct Property {
  double Properties::*field;
  Unknown unknown;
  double start;  // of a search that begins with nothing
  Of of = Of::AnyMachine;
};
const Property kProperties[] = {
    {&Properties::fixed, {1e-3, 1e4}, 3},
    {&Properties::instruction, {1e-4, 1e3}, 0.2},
    {&Properties::end, {1e-4, 1e3}, 0.1},
    {&Properties::slot_hop, {1e-4, 1e3}, 1.5},
    {&Properties::put_hop, {1e-4, 1e3}, 3, Of::DirectAccess},
    {&Properties::get_hop, {1e-4, 1e3}, 3, Of::DirectAccess},
    {&Properties::between_hop, {1e-2, 1e4}, 25, Of::SeveralMachines},
    {&Properties::message, {1e-3, 1e4}, 5, Of::SeveralMachines},
    {&Properties::work, {1e-4, 1e3}, 0.2},
    {&Properties::machine_work, {1e-4, 1e3}, 0.1, Of::SharedCores},
    {&Properties::channel, {1e-4, 10}, 0.02},
    {&Properties::round, {1e-4, 1e3}, 1},
    {&Properties::round_instruction, {1e-4, 1e3}, 0.2},
    {&Properties::link_two_ranks, {0.1, 1e4}, 200, Of::TwoRanks},
    {&Properties::link_more_ranks, {0.1, 1e4}, 300, Of::MoreRanks},
    {&Properties::rail, {1e-3, 1e4}, 5, Of::SeveralMachines},
    {&Properties::machine_engine, {0.1, 1e4}, 80, Of::SharedCores},
    {&Properties::slot_copy, {0.1, 1e4}, 60, Of::OwnCores},
    {&Properties::slot_reduction, {0.1, 1e4}, 40, Of::OwnCores},
    {&Properties::direct_copy, {0.1, 1e4}, 60, Of::DirectAccess},
    {&Properties::direct_reduction, {0.1, 1e4}, 60, Of::DirectAccess},
    {&Properties::fill, {1e-3, 10}, 0.1},
    {&Properties::direct_fill, {0.005, 0.995, /*is_part=*/true}, 0.5, Of::DirectAccess},
    {&Properties::overlap, {1e-4, 0.995, /*is_part=*/true}, 0.5},
    {&Properties::crowd, {1e-5, 1}, 1e-3, Of::OwnCores},
    {&Properties::dynamic_crowd, {1e-5, 1}, 1e-3, Of::DirectAccess},
    {&Properties::spread, {1e-3, 1}, 0.4, Of::OwnCores}};

/// The properties of one protocol, as LeastSquares wants them.
class MachineModel {
 public:
  MachineModel(const Measurements& measurements, std::span<const Sample> samples,
               const Properties& known)
      : samples_(samples), known_(known) {
    std::map<int, planner::Settings> settings;
    for (const Sample& sample : samples) {
      const int nranks = sample.point.work.nranks;
      const auto [of_ranks, is_new] = settings.try_emplace(nranks);
      if (is_new) of_ranks->second = settings_of(measurements, nranks);
      const Variant& variant = sample.point.variant;
      demands_.push_back(demand_of(of_ranks->second, *variant.form, variant.protocol));
    }
  }

  size_t count() const { return samples_.size(); }
  double weight(size_t i) const { return samples_[i].weight; }
  Properties make(const Vector& values) const {
    Properties properties = known_;
    for (size_t i = 0; i < std::size(kProperties); ++i)
      properties.*kProperties[i].field = values[i];
    return properties;
  }
  double residual(const Properties& properties, size_t i) const {
    const Point& point = samples_[i].point;
    return std::log(
        planner::predict(properties, *demands_[i], point.work, point.variant, point.chunk_bytes) /
        point.microseconds);
  }
  bool has(Of of, gpu::Kind machine) const {
    const bool shares_cores = machine == gpu::Kind::Virtual;
    if (of == Of::AnyMachine) return true;
    if (of == Of::OwnCores || of == Of::SharedCores) return shares_cores == (of == Of::SharedCores);
    if (of == Of::DirectAccess)
      return std::ranges::any_of(demands_, [](const auto& demand) {
        return demand->work.moved.direct_copies + demand->work.moved.direct_reductions > 0;
      });
    const bool is_between = demands_[0]->chain.between > 0;
    if (of == Of::SeveralMachines || is_between) return is_between == (of == Of::SeveralMachines);
    return !shares_cores && std::ranges::any_of(samples_, [&](const Sample& each) {
      return (each.point.work.nranks <= 2) == (of == Of::TwoRanks);
    });
  }

 private:
  const std::span<const Sample> samples_;
  std::vector<std::shared_ptr<const Demand>> demands_;  // of each sample
  const Properties known_;
};

Properties fit(const MachineModel& model, gpu::Kind machine, const Properties& known) {
  std::vector<Unknown> unknowns;
  Vector values, starts;
  for (const Property& property : kProperties) {
    unknowns.push_back(property.unknown);
    unknowns.back().is_open = model.has(property.of, machine);
    values.push_back(known.*property.field);
    starts.push_back(property.start);
  }
  const bool is_of_virtual_network =
      machine == gpu::Kind::Virtual && model.has(Of::SeveralMachines, machine);
  const double prior = is_of_virtual_network ? kPriorOfVirtualNetworks : kPrior;
  const LeastSquares search(model, unknowns, values, Pull{.outlier = 0.2, .prior = prior});
  const Solution again = search.run(values), anew = search.run(starts);
  Vector found = again.loss <= anew.loss ? again.values : anew.values;
  // The search knows no zero: a property that costs nothing ends at its least value, which would
  // break ties between algorithms.
  for (size_t i = 0; i < found.size(); ++i) {
    const double least = kProperties[i].unknown.least;
    if (values[i] < least && found[i] <= kNearly * least) found[i] = values[i];
  }
  return model.make(found);
}

}  // namespace

PropertiesByProtocol fit_properties(const Measurements& measurements,
                                    const PropertiesByProtocol& known,
                                    const Candidate& is_candidate) {
  SamplesByKey<Protocol> samples;
  for (Sample& sample : weighed(measurements))
    samples[sample.point.variant.protocol].push_back(std::move(sample));
  std::erase_if(samples, [](const auto& entry) { return entry.second.size() < kFewestSamples; });
  const auto key_of = [](const Point& point) { return point.variant.protocol; };
  const auto refit = [&](PropertiesByProtocol& fitted, Protocol protocol,
                         std::span<const Sample> of_protocol) {
    const Properties& before = known[static_cast<size_t>(protocol)];
    fitted[static_cast<size_t>(protocol)] =
        fit(MachineModel(measurements, of_protocol, before), measurements.machine, before);
  };
  const auto predict = [&](const PropertiesByProtocol& fitted) {
    return by_properties(measurements, fitted);
  };
  return fit_in_passes(measurements, is_candidate, std::move(samples), known, key_of, refit,
                       predict);
}

}  // namespace niccolite::tune
