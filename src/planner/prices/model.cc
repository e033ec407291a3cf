#include "planner/prices/model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "algorithms/loaded.h"

namespace niccolite::planner {
namespace {

using algorithms::Load;
using algorithms::Suits;
using executor::Protocol;

/// Less than this a channel does not get.
constexpr double kGrain = 16;

// The cost of variants without a line in the tuning. Such variants are taken only if no other is
// allowed, and must then have some order.
constexpr Cost kUnmeasured{8, 2, 0.02, 100, 100, 8, 1, 1, 0};

bool ranks_share_bandwidth(gpu::Kind machine) { return machine == gpu::Kind::Virtual; }

double time_of(gpu::Kind machine, const Cost& cost, int nranks, const Load& load, double bytes,
               const Variant& variant, size_t chunk_bytes) {
  const double block = std::max(1.0, bytes / load.blocks);
  const double channels = channels_of(block, variant);
  const double channel_bytes = block / channels;
  const double chunk = static_cast<double>(chunk_bytes);
  const double sent = wire_bytes(variant.protocol, std::max(1.0, bytes) * load.sent);

  double link_gigabytes = nranks <= 2 ? cost.link_two_ranks : cost.link_more_ranks;
  if (ranks_share_bandwidth(machine)) link_gigabytes /= nranks;
  const double filling = 1 + cost.fill * std::min(1.0, chunk / channel_bytes);
  const double link = sent / (link_gigabytes * 1e3) * (1 + cost.crowd * channels) * filling;
  const double further_rounds = std::max(0.0, std::ceil(channel_bytes / chunk) - 1);
  const double channel =
      sent / channels / (cost.channel_gigabytes * 1e3) * filling + further_rounds * cost.round;
  const double transfer = smooth_max(link, channel);
  const double latency = cost.fixed + load.steps * cost.step + channels * cost.channel;
  return latency + transfer - cost.overlap * latency * transfer / (latency + transfer);
}

/// Returns the least block that reductions of `collective` pull instead of reading it, as measured
/// on H200. Two GPUs read from each other as fast as 16 CTAs can store, and a
/// pull takes time to begin. More than four GPUs were not measured; reductions have few warps then.
size_t least_pulled_block(Collective collective, int nranks) {
  constexpr size_t kNever = std::numeric_limits<size_t>::max();
  if (nranks < 3 || nranks > 4) return kNever;
  if (collective == Collective::AllReduce) return 16 << 20;
  return collective == Collective::ReduceScatter ? 128 << 20 : kNever;
}

}  // namespace

double channels_of(double block_bytes, const Variant& variant) {
  return std::clamp<double>(block_bytes / kGrain, 1, variant.channels);
}

double wire_bytes(Protocol protocol, double bytes) {
  return protocol == Protocol::LL      ? bytes * 2
         : protocol == Protocol::LL128 ? bytes * 128 / 120
                                       : bytes;
}

double smooth_max(double a, double b) {
  return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b));
}

KnownCost find_cost(const Tuning& tuning, const Form& form, Protocol protocol) {
  if (const Cost* const cost = tuning.find(form, protocol)) return {*cost, true};
  return {kUnmeasured, false};
}

constexpr int kMostDirectMachines = 32;

size_t buffer_bytes(const Workload& work) {
  return schedule::has_blocks_of_ranks(work.collective)
             ? work.bytes * static_cast<size_t>(work.nranks)
             : work.bytes;
}

int most_direct_ranks(gpu::Kind machine) { return machine == gpu::Kind::Cuda ? 8 : 16; }

/// Returns the most ranks that a collective connects with each other. Some collectives have no
/// algorithms besides direct ones and PAT, which forwards data that direct ones send at once; they
/// gain from direct connections up to more ranks.
int most_direct_ranks(gpu::Kind machine, Collective collective) {
  constexpr int kMostOfAllToAll = 32;
  constexpr int kMostOfOneRoot = 256;
  if (collective == Collective::AllToAll) return kMostOfAllToAll;
  const bool has_one_root = collective == Collective::Gather || collective == Collective::Scatter;
  return has_one_root ? kMostOfOneRoot : most_direct_ranks(machine);
}

std::string why_impossible(gpu::Kind machine, int nranks, const Form& form, Protocol protocol,
                           int machines, bool may_connect_all) {
  const Collective collective = form.collective;
  if (collective == Collective::PointToPoint) return {};
  if (const algorithms::Loaded* const loaded = form.loaded())
    if (loaded->find(nranks) == nullptr)
      return fmt::format("is read from files for {}", loaded->describe_ranks());
  const algorithms::Traits& traits = form.traits();
  if (const int most = most_direct_ranks(machine, collective);
      traits.connects_all && !may_connect_all && nranks > most)
    return fmt::format("connects all ranks with each other, which is done for up to {}", most);
  if (traits.suits == Suits::SeveralMachines && machines < 2)
    return "is for ranks on several machines";
  if (traits.connects_machines && machines > kMostDirectMachines)
    return fmt::format("connects each machine with all others, which is done for up to {}",
                       kMostDirectMachines);
  if (traits.suits == Suits::ThreeRanks && nranks < 3)
    return "between two ranks is what direct does, in two steps";
  // The other protocols only add latency.
  if (traits.suits == Suits::LowestLatency && protocol != Protocol::LL && nranks != 2)
    return "is for the lowest latency, which LL has, unless there are two ranks";
  return {};
}

double predict(gpu::Kind machine, const Cost& cost, const Workload& work, const Variant& variant,
               size_t chunk_bytes) {
  return time_of(machine, cost, work.nranks, fitted_load_of(*variant.form, work.nranks),
                 static_cast<double>(work.bytes), variant, chunk_bytes);
}

int most_parts(Protocol protocol) {
  // LL and LL128: every word or line arrives by itself, and a chunk's cost is its round.
  constexpr int kMostPublished = 4;
  return publishes_chunks(protocol) ? kMostPublished : 1;
}

size_t chunk_bytes(const Settings& settings, Collective collective, const Variant& variant) {
  const executor::FifoShape& shape = shape_of(settings, collective, variant.protocol);
  uint32_t memory = shape.slot_bytes;
  if (variant.by_team)
    memory = std::min(memory, settings.team_slots.of(variant.protocol).slot_bytes);
  const size_t slot = executor::data_bytes(variant.protocol, memory);
  return (slot / static_cast<size_t>(variant.parts) + 15) / 16 * 16;
}

uint32_t pull_bytes(const Settings& settings, const Workload& work) {
  if (settings.machine != gpu::Kind::Cuda || !settings.reaches_users ||
      !schedule::reduces(work.collective)) {
    return 0;
  }
  // H200: shorter units cost more than they share out evenly.
  constexpr uint32_t kUnitBytes = 32 << 10;
  const bool is_all_reduce = work.collective == Collective::AllReduce;
  const size_t block = work.bytes / static_cast<size_t>(is_all_reduce ? settings.nranks : 1);
  const size_t least = settings.pull_block < 0
                           ? least_pulled_block(work.collective, settings.nranks)
                           : static_cast<size_t>(settings.pull_block);
  return block >= least ? kUnitBytes : 0;
}

double predict_messages(const Settings& settings, Protocol protocol, int ends, size_t bytes) {
  const Form& direct = form_of_messages();
  const Variant variant{
      .form = &direct, .protocol = protocol, .channels = most_channels(settings, protocol)};
  const Cost cost = find_cost(tuning_of(settings), direct, protocol).cost;
  return time_of(settings.machine, cost, settings.nranks, {1 + ends / 2.0, 1, 1},
                 static_cast<double>(bytes), variant,
                 chunk_bytes(settings, Collective::PointToPoint, variant));
}

}  // namespace niccolite::planner
