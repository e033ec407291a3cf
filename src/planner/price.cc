#include "planner/price.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "schedule/order.h"

namespace niccolite::planner {
namespace {

using executor::Protocol;
using Derived = Price::Derived;

// Of schedules that hold an instruction for each pair of ranks, larger ones take too long to look
// at; those algorithms say what they ask for (Traits::load).
constexpr int kMostAnalysed = 64;

/// By the algorithm's own word. Of its hops so many are between machines as of a ring's.
Derived say(const Settings& settings, const Algorithm& algorithm, const schedule::Delays& delays) {
  const algorithms::Load load = algorithm.traits.load(settings.nranks);
  const double machines = planner::machines_in(settings);
  const double crossing = machines > 1 ? machines / settings.nranks : 0;
  const double ranks_of_machine = settings.nranks / machines;
  Derived derived;
  derived.load.blocks = load.blocks;
  derived.load.link = load.sent;
  derived.load.engine = 3 * load.sent;
  derived.load.machine_engine = derived.load.engine * ranks_of_machine;
  derived.load.machine_instructions = static_cast<int>(load.steps * ranks_of_machine);
  if (machines > 1) {
    derived.load.rail = load.sent;
    // A ring crosses each wire once, others with all that is for other machines.
    const bool is_ring = algorithm.family() == "ring";
    derived.load.wire = load.sent * (is_ring ? 1 : ranks_of_machine);
  }
  derived.chain.hops_between = static_cast<int>(std::ceil(load.steps * crossing));
  derived.chain.hops_inside = static_cast<int>(load.steps) - derived.chain.hops_between;
  derived.chain.microseconds = load.steps * (delays.instruction + 2 * delays.end) +
                               derived.chain.hops_inside * delays.inside +
                               derived.chain.hops_between * delays.between;
  return derived;
}

Derived analyse(const Settings& settings, const Algorithm& algorithm,
                const schedule::Delays& delays) {
  const bool says = algorithm.traits.load != nullptr;
  if (says && settings.nranks > kMostAnalysed) return say(settings, algorithm, delays);
  algorithms::Options options;
  options.machines = settings.machines;
  const Result<schedule::Schedule> built = algorithm.build(settings.nranks, options);
  if (!built.is_ok()) return {};
  Derived derived;
  derived.load = schedule::load_of(built.value(), settings.machines);
  if (Result<schedule::Chain> chain = longest_chain(built.value(), settings.machines, delays);
      chain.is_ok())
    derived.chain = *chain;
  return derived;
}

/// analyse(), remembered for all communicators of the process.
std::shared_ptr<const Derived> derived_of(const Settings& settings, const Algorithm& algorithm,
                                          const schedule::Delays& delays) {
  using Key = std::tuple<const Algorithm*, int, std::vector<int>, double, double>;
  // Never destroyed: communicators may outlive main().
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<Key, std::shared_ptr<const Derived>>;
  constexpr size_t kMostKnown = 4096;
  Key key{&algorithm, settings.nranks, settings.machines, delays.inside, delays.between};
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  auto derived = std::make_shared<const Derived>(analyse(settings, algorithm, delays));
  const std::lock_guard lock(mutex);
  if (known.size() >= kMostKnown) known.clear();
  return known.try_emplace(std::move(key), std::move(derived)).first->second;
}

/// Microseconds that a byte of the operation takes what carries most.
double slowest(const schedule::Load& load, const Properties& machine) {
  const auto rate = [](double bytes, double gigabytes) {
    return gigabytes > 0 ? bytes / (gigabytes * 1e3) : 0;
  };
  return std::max({rate(load.wire, machine.wire), rate(load.rail, machine.rail),
                   rate(load.link, machine.link), rate(load.engine, machine.engine),
                   rate(load.machine_engine, machine.machine_engine)});
}

}  // namespace

bool is_fitted(const Settings& settings, const Algorithm& algorithm, Protocol protocol) {
  if (algorithm.build == nullptr) return true;  // of messages there is no schedule beforehand
  // Between machines, constants are of ranks that have one each.
  const int machines = planner::machines_in(settings);
  if (machines > 1 && machines < settings.nranks) return false;
  return tuning_of(settings).find(algorithm, protocol) != nullptr;
}

bool reduces_in_one_order(const Settings& settings, const Algorithm& algorithm) {
  if (!schedule::reduces(algorithm.collective)) return true;
  if (settings.nranks > algorithms::kMaxDirectRanks) return false;  // no fold has more operands
  using Key = std::tuple<const Algorithm*, int, std::vector<int>>;
  static auto& mutex = *new std::mutex;  // neither is ever destroyed, as above
  static auto& known = *new std::map<Key, bool>;
  const Key key{&algorithm, settings.nranks, settings.machines};
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  algorithms::Options options;
  options.machines = settings.machines;
  Result<schedule::Schedule> built = algorithm.build(settings.nranks, options);
  // Averages of partial sums are scaled at another place (plan.cc).
  const bool is_so =
      built.is_ok() && !built->partial_sums && schedule::reduces_in_one_order(*built);
  return known[key] = is_so;
}

Price Price::of(const Settings& settings, const Algorithm& algorithm, Protocol protocol) {
  Price price;
  const Tuning& tuning = tuning_of(settings);
  price.cost_ = find_cost(tuning, algorithm, protocol).cost;
  price.properties_ = tuning.properties;
  if (planner::is_fitted(settings, algorithm, protocol)) return price;
  const Properties& properties = price.properties_;
  price.derived_ = derived_of(settings, algorithm,
                              {.instruction = properties.instruction,
                               .end = properties.end,
                               .inside = properties.inside[static_cast<size_t>(protocol)],
                               .between = properties.between});
  return price;
}

algorithms::Load fitted_load_of(const Algorithm& algorithm, int nranks) {
  if (algorithm.traits.load != nullptr) return algorithm.traits.load(nranks);
  Settings settings;
  settings.nranks = nranks;
  // Every hop counts as one step.
  const auto derived = derived_of(settings, algorithm, {0, 0, 1, 1});
  return {.steps = derived->chain.microseconds,
          .sent = std::max(derived->load.link, derived->load.rail),
          .blocks = derived->load.blocks};
}

double Price::time_of(const Settings& settings, const Workload& work,
                      const Variant& variant) const {
  const size_t chunk_size = chunk_bytes(settings, work.collective, variant);
  if (is_fitted()) return predict(settings.machine, cost_, work, variant, chunk_size);
  const schedule::Load& load = derived_->load;
  const schedule::Chain& chain = derived_->chain;
  const double bytes = std::max(1.0, static_cast<double>(work.bytes));
  const double block = std::max(1.0, bytes / load.blocks);
  const double channels = channels_of(block, variant);
  const double channel_bytes = block / channels;
  const double chunk = static_cast<double>(chunk_size);

  const double latency = properties_.fixed + chain.microseconds +
                         load.machine_instructions * channels * properties_.machine_instruction +
                         channels * properties_.channel;
  const double link = wire_bytes(variant.protocol, bytes) * slowest(load, properties_);
  const double further_rounds = std::max(0.0, std::ceil(channel_bytes / chunk) - 1);
  const double sent = wire_bytes(variant.protocol, bytes) * std::max(load.link, load.rail);
  const double channel =
      sent / channels /
          (properties_.channel_gigabytes[static_cast<size_t>(variant.protocol)] * 1e3) +
      further_rounds * (properties_.round +
                        load.machine_instructions * channels * properties_.machine_instruction);
  // A chunk has to arrive before it is passed on.
  const double first = wire_bytes(variant.protocol, std::min(chunk, channel_bytes) * channels);
  const auto hops = [first](int count, double gigabytes) {
    return gigabytes > 0 ? count * first / (gigabytes * 1e3) : 0;
  };
  const double filling = hops(std::max(0, chain.hops_between - 1), properties_.rail) +
                         hops(chain.hops_inside, properties_.link);
  return latency + smooth_max(link, channel) + filling;
}

}  // namespace niccolite::planner
