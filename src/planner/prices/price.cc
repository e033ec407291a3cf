#include "planner/prices/price.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "algorithms/machines.h"
#include "lowering/routes.h"
#include "schedule/order.h"

namespace niccolite::planner {
namespace {

using executor::Protocol;
using lowering::Demand;

// The most ranks for which schedules are analysed. Larger schedules with an instruction for each
// pair of ranks take too long; their algorithms state the load themselves (Traits::load).
constexpr int kMostAnalysed = 64;

/// Returns the demand that the algorithm itself states, for ranks that are all alike. As in a ring,
/// each machine has one hop to another machine.
Demand say(const algorithms::Load& load, bool is_ring, double machines, double ranks_of_machine) {
  const double crossing = machines > 1 ? 1 / ranks_of_machine : 0;
  Demand demand;
  demand.load.blocks = load.blocks;
  demand.load.link = load.sent;
  demand.load.engine = 3 * load.sent;
  demand.load.machine_engine = demand.load.engine * ranks_of_machine;
  demand.load.machine_instructions = static_cast<int>(load.steps * ranks_of_machine);
  if (machines > 1) {
    demand.load.rail = load.sent;
    // A ring crosses each wire once, others with all that is for other machines.
    demand.load.wire = load.sent * (is_ring ? 1 : ranks_of_machine);
  }
  demand.chain.instructions = static_cast<int>(load.steps);
  demand.chain.ends = 2 * demand.chain.instructions;
  demand.chain.between = static_cast<int>(std::ceil(load.steps * crossing));
  demand.chain.slots = demand.chain.instructions - demand.chain.between;
  demand.messages = demand.chain.between;
  demand.work.moved.slot_copies = demand.load.engine;
  demand.work.instructions = demand.chain.instructions;
  return demand;
}

/// Returns the demand of an algorithm that follows machines. Its stated load is about machines
/// instead of ranks, with the parts of all ranks of a machine side by side; ranks then pass the
/// parts on inside of the machine.
Demand say_of_machines(const algorithms::Load& load, double machines, double ranks_of_machine) {
  Demand demand = say(load, /*is_ring=*/false, machines, /*ranks_of_machine=*/1);
  const double passed = machines * (ranks_of_machine - 1);  // blocks, to or from each neighbour
  demand.load.link = passed;
  demand.load.wire = load.sent * ranks_of_machine;
  demand.load.engine += 3 * passed;
  demand.load.machine_engine = demand.load.engine * ranks_of_machine;
  demand.load.machine_instructions =
      static_cast<int>(machines * ranks_of_machine * ranks_of_machine);
  ++demand.chain.instructions;
  ++demand.chain.slots;
  demand.chain.ends += 2 * static_cast<int>(ranks_of_machine);
  demand.work.moved.slot_copies = demand.load.engine;
  demand.work.instructions = static_cast<int>(machines * ranks_of_machine);
  return demand;
}

Demand say(const Settings& settings, const Form& form) {
  const double machines = planner::machines_in(settings);
  const double ranks_of_machine = settings.nranks / machines;
  const algorithms::Traits& traits = form.traits();
  if (traits.follows_machines && ranks_of_machine > 1 && machines > 1)
    return say_of_machines(form.load(static_cast<int>(machines)), machines, ranks_of_machine);
  return say(form.load(settings.nranks), traits.pattern == algorithms::Pattern::Ring, machines,
             ranks_of_machine);
}

/// Rings have an equal share of the data each, and their hops are alike: one stands for all.
algorithms::Options options_of_price(const Settings& settings) {
  algorithms::Options options = options_of(settings);
  if (!options.rings.empty()) options.rings.resize(1);
  return options;
}

/// Returns the demand of a rank that sends one message and gets one, directly to its buffer if
/// possible.
Demand demand_of_messages(bool is_direct) {
  Demand demand;
  demand.load = {.link = 1, .engine = 4, .machine_engine = 8, .machine_instructions = 4};
  demand.chain = {.instructions = 2, .ends = 2, .slots = is_direct ? 0 : 1, .puts = is_direct};
  demand.work = {
      .moved = {.slot_copies = is_direct ? 0.0 : 4.0, .direct_copies = is_direct ? 2.0 : 0.0},
      .instructions = 2,
      .slot_instructions = is_direct ? 0 : 1};
  return demand;
}

/// How bytes go: through slots alone; from buffer to buffer; by a team, in words that it stores; by
/// a team; by one that reaches windows.
enum class Going : uint8_t { Slots, Direct, WordsByTeam, ByTeam, ByTeamOnWindows };

Demand analyse(const Settings& settings, const Form& form, Going going) {
  const bool is_direct = going == Going::Direct;
  if (form.is_of_messages()) return demand_of_messages(is_direct);
  const bool says = form.traits().load != nullptr;
  if (says && settings.nranks > kMostAnalysed) return say(settings, form);
  const Result<schedule::Schedule> built = form.build(settings.nranks, options_of_price(settings));
  if (!built.is_ok()) return {};
  if (going != Going::Slots) {
    lowering::Capabilities capabilities{
        .facilities = {.publishes_chunks = going != Going::WordsByTeam,
                       .has_bulk_copies = is_direct,
                       .has_stages = is_direct,
                       .reduces = schedule::reduces(form.collective)}};
    if (!is_direct) {
      capabilities.machines = settings.machines;
      capabilities.has_team = true;
      capabilities.has_windows = going == Going::ByTeamOnWindows;
    }
    if (Result<lowering::AccessPlan> plan = lower(built.value(), capabilities); plan.is_ok())
      return lowering::demand_of(plan.value(), settings.machines).value();
  }
  Result<Demand> demand = lowering::demand_of(built.value(), settings.machines);
  return demand.is_ok() ? std::move(demand).take() : Demand{};
}

/// analyse(), remembered for all communicators of the process.
std::shared_ptr<const Demand> demand_on(const Settings& settings, const Form& form, Going going) {
  using Key =
      std::tuple<const Form*, int, int, std::vector<int>, std::vector<std::vector<int>>, Going>;
  // Never destroyed: communicators may outlive main().
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<Key, std::shared_ptr<const Demand>>;
  constexpr size_t kMostKnown = 4096;
  algorithms::Options options = options_of_price(settings);
  Key key{
      &form, settings.nranks, options.window, std::move(options.machines), std::move(options.rings),
      going};
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  auto demand = std::make_shared<const Demand>(analyse(settings, form, going));
  const std::lock_guard lock(mutex);
  if (known.size() >= kMostKnown) known.clear();
  return known.try_emplace(std::move(key), std::move(demand)).first->second;
}

/// Do bytes go from user's buffer to user's buffer, where the schedule lets them?
bool may_be_direct(const Settings& settings, Protocol protocol) {
  return settings.machine == gpu::Kind::Cuda && settings.reaches_users &&
         !settings.spans_machines && !settings.shares_host && publishes_chunks(protocol);
}

/// Microseconds per byte of the operation on the slowest of the wire, rail, link and engines.
double slowest(const schedule::Load& load, const Properties& machine, int nranks) {
  const auto rate = [](double bytes, double gigabytes) {
    return gigabytes > 0 ? bytes / (gigabytes * 1e3) : 0;
  };
  return std::max({rate(load.wire, machine.wire), rate(load.rail, machine.rail),
                   rate(load.link, nranks <= 2 ? machine.link_two_ranks : machine.link_more_ranks),
                   rate(load.team, machine.team), rate(load.engine, machine.engine),
                   rate(load.machine_engine, machine.machine_engine)});
}

/// Null: the variant was not measured on such machines.
const Cost* fitted_cost(const Settings& settings, const Form& form, Protocol protocol) {
  // Between machines, constants are of ranks that have one each.
  const int machines = planner::machines_in(settings);
  if (machines > 1 && machines < settings.nranks && !form.is_of_messages()) return nullptr;
  return tuning_of(settings).find(form, protocol);
}

/// Nanoseconds that all threads of a channel take, for each byte of the operation in it.
double time_of(const lowering::Moved& moved, const Properties& machine) {
  return moved.slot_copies / machine.slot_copy + moved.slot_reductions / machine.slot_reduction +
         moved.direct_copies / machine.direct_copy +
         moved.direct_reductions / machine.direct_reduction;
}

/// Nanoseconds for each byte if workers share out the threads: the time until each channel's
/// slowest worker is done. One worker that sends and then reduces takes less time than a sending
/// worker beside a reducing one, which has more to do.
double time_of_workers(const lowering::Work& work, const Properties& machine) {
  if (work.by_worker.empty()) return time_of(work.moved, machine);
  double result = 0, slowest = 0;
  int channel = work.by_worker.front().channel;
  for (const lowering::WorkerMoved& each : work.by_worker) {
    if (each.channel != channel) result += std::exchange(slowest, 0);
    channel = each.channel;
    slowest = std::max(slowest, time_of(each.moved, machine) / each.share);
  }
  return result + slowest;
}

/// Does the machine's tuning say what its switch does?
bool prices_teams(const Settings& settings, Protocol protocol = Protocol::Simple) {
  return tuning_of(settings).properties[static_cast<size_t>(protocol)].team > 0;
}

}  // namespace

std::shared_ptr<const Demand> demand_of(const Settings& settings, const Form& form,
                                        Protocol protocol, bool by_team) {
  if (!by_team)
    return demand_on(settings, form,
                     may_be_direct(settings, protocol) ? Going::Direct : Going::Slots);
  return demand_on(settings, form,
                   !publishes_chunks(protocol)     ? Going::WordsByTeam
                   : settings.team_reaches_windows ? Going::ByTeamOnWindows
                                                   : Going::ByTeam);
}

double predict(const Properties& machine, const Demand& demand, const Workload& work,
               const Variant& variant, size_t chunk_bytes) {
  const auto& [load, chain, moved, messages] = demand;
  const double bytes = std::max(1.0, static_cast<double>(work.bytes));
  const double block = std::max(1.0, bytes / load.blocks);
  const double channels = channels_of(block, variant);
  const double channel_bytes = block / channels;
  const double chunk = static_cast<double>(chunk_bytes);
  const double sent = wire_bytes(variant.protocol, bytes);

  const double shared = load.machine_instructions * channels * machine.machine_work;
  const double latency = machine.fixed + chain.instructions * machine.instruction +
                         chain.ends * machine.end + chain.slots * machine.slot_hop +
                         chain.puts * machine.put_hop + chain.gets * machine.get_hop +
                         chain.between * machine.between_hop +
                         std::max(0, messages - chain.between) * machine.message +
                         moved.instructions * machine.work + shared + channels * machine.channel;
  const double crowd = machine.crowd * (1 - moved.dynamic) + machine.dynamic_crowd * moved.dynamic;
  const double link = sent * slowest(load, machine, work.nranks) * (1 + crowd * channels);
  const double further_rounds = std::max(0.0, std::ceil(channel_bytes / chunk) - 1);
  const double of_byte = variant.protocol == Protocol::LL128 ? time_of_workers(moved, machine)
                                                             : time_of(moved.moved, machine);
  const double channel =
      sent / channels * of_byte / 1e3 / (1 + machine.spread * (moved.workers - 1)) +
      further_rounds *
          (machine.round + machine.round_instruction * moved.slot_instructions + shared);
  // A chunk of each channel has to arrive before it is passed on.
  const double first = wire_bytes(variant.protocol, std::min(chunk, channel_bytes));
  const double by_channel = 2 * first / (machine.slot_copy * 1e3);
  const auto hop = [&](double gigabytes) {
    return gigabytes > 0 ? std::max(by_channel, first * channels / (gigabytes * 1e3)) : by_channel;
  };
  const double hops_inside = chain.slots + machine.direct_fill * (chain.puts + chain.gets);
  const double filling =
      machine.fill *
      (hops_inside * hop(work.nranks <= 2 ? machine.link_two_ranks : machine.link_more_ranks) +
       std::max(0, chain.between - 1) * hop(machine.rail));
  const double transfer = smooth_max(link, channel) + filling;
  return latency + transfer - machine.overlap * latency * transfer / (latency + transfer);
}

bool is_fitted(const Settings& settings, const Form& form, Protocol protocol) {
  return fitted_cost(settings, form, protocol) != nullptr;
}

bool reduces_in_one_order(const Settings& settings, const Form& form) {
  if (!schedule::reduces(form.collective)) return true;
  if (settings.nranks > algorithms::kMaxDirectRanks)
    return false;  // no reduction has more operands
  using Key = std::tuple<const Form*, int, std::vector<int>, std::vector<std::vector<int>>>;
  static auto& mutex = *new std::mutex;  // neither is ever destroyed, as above
  static auto& known = *new std::map<Key, bool>;
  const Key key{&form, settings.nranks, settings.machines, settings.rings};
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  Result<schedule::Schedule> built = form.build(settings.nranks, options_of(settings));
  // Averages of partial sums are scaled at another place (plan.cc).
  const bool is_so =
      built.is_ok() && !built->partial_sums && schedule::reduces_in_one_order(*built);
  return known[key] = is_so;
}

bool competes(const Settings& settings, const Variant& variant) {
  if (!variant.by_team) return is_fitted(settings, *variant.form, variant.protocol);
  return prices_teams(settings, variant.protocol);
}

int largest_team(std::span<const int> machines) {
  const algorithms::Machines of(static_cast<int>(machines.size()),
                                {.machines = {machines.begin(), machines.end()}});
  const bool can_all = of.rails() >= 2 && of.most_ranks() <= lowering::kMostTeamRanks;
  return can_all ? of.most_ranks() : 0;
}

bool wants_team(const Settings& settings) {
  return settings.asks_for_team ||
         (settings.machine == gpu::Kind::Virtual && prices_teams(settings));
}

Price Price::of(const Settings& settings, const Variant& variant) {
  const Form& form = *variant.form;
  const Protocol protocol = variant.protocol;
  const Cost* const cost = variant.by_team ? nullptr : fitted_cost(settings, form, protocol);
  Price price;
  if (cost != nullptr) {
    price.cost_ = *cost;
  } else {
    price.properties_ = tuning_of(settings).properties[static_cast<size_t>(protocol)];
    price.demand_ = demand_of(settings, form, protocol, variant.by_team);
  }
  return price;
}

algorithms::Load fitted_load_of(const Form& form, int nranks) {
  if (form.traits().load != nullptr) return form.load(nranks);
  Settings settings;
  settings.nranks = nranks;
  // The depth does not change the demand of a schedule, but a schedule needs some depth.
  for (executor::FifoShape& shape : settings.shapes) shape.depth = 4;
  const auto demand = demand_on(settings, form, Going::Slots);
  return {.steps = static_cast<double>(demand->chain.hops()),
          .sent = std::max(demand->load.link, demand->load.rail),
          .blocks = demand->load.blocks};
}

double Price::time_of(const Settings& settings, const Workload& work,
                      const Variant& variant) const {
  const size_t chunk = chunk_bytes(settings, work.collective, variant);
  return is_fitted() ? predict(settings.machine, cost_, work, variant, chunk)
                     : predict(properties_, *demand_, work, variant, chunk);
}

}  // namespace niccolite::planner
