#include "planner/choice.h"

#include <algorithm>
#include <string>

namespace niccolite::planner {
namespace {

using executor::Protocol;

// How much slower than the fastest variant one may be that takes fewer CTAs. By default hardly:
// what the model cannot tell apart is no reason to take more of the user's. Plain buffers are never
// moved without CTAs (docs/design/0012), so that ZERO can only ask for few.
double tolerance_of(CtaPolicy policy) { return policy == CtaPolicy::Default ? 0.01 : 0.05; }

// Beyond this, a channel by itself is slower than what an operation has of all of them beside
// others: bytes that a rank receives.
constexpr size_t kMostListedBytes = 16 << 10;
constexpr int kMostRanksOfLists = 8;  // of the kernel for them

constexpr int kChannelCounts[] = {1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64};
/// A warp moves lines of LL128 in rows (ll128_step.cuh), and what a row begun costs the model does
/// not know: between counts that were measured (docs/tune.md) it may be 20 % off.
constexpr int kLineChannelCounts[] = {1, 2, 3, 4, 6, 10, 16, 24, 32, 48, 64};
std::span<const int> counts_of(Protocol protocol) {
  if (protocol == Protocol::LL128) return kLineChannelCounts;
  return kChannelCounts;
}

/// By NCCL_ALGO and NCCL_PROTO, and among so many ranks of such a machine.
bool is_allowed(const Settings& settings, Collective collective, const Variant& variant) {
  const auto kind = static_cast<size_t>(collective);
  return settings.algorithms[kind][static_cast<size_t>(variant.algorithm)] &&
         settings.protocols[kind][static_cast<size_t>(variant.protocol)] &&
         is_possible(settings.machine, settings.nranks, collective, variant.algorithm,
                     variant.protocol);
}

/// The algorithm of one step in which a rank sends one block of its own, to all that it sends to.
std::optional<AlgorithmId> one_step_to_all(Collective collective) {
  switch (collective) {
    case Collective::AllReduce:
      return AlgorithmId::OneShot;
    case Collective::AllGather:
      return AlgorithmId::DirectLanes;
    case Collective::Broadcast:
    case Collective::Reduce:
      return AlgorithmId::Direct;
    default:
      return std::nullopt;
  }
}

/// Do blocks lie side by side whose length is no multiple of 16 bytes? On a GPU threads then move
/// them, in small pieces, and not bulk copies: what the model knows of the number of channels is
/// not true of them, but that each of them moves as much as it can.
bool is_uneven(const Settings& settings, const Workload& work) {
  return settings.machine == gpu::Kind::Cuda && schedule::has_blocks_of_ranks(work.collective) &&
         work.bytes % 16 != 0;
}

/// Adds `variant` with all channel counts and chunk sizes.
void add_forms(const Settings& settings, const Workload& work, Variant variant, const Cost& cost,
               std::vector<Choice>& result) {
  const int possible = most_parts(settings, work.collective, variant.protocol);
  const int least = std::clamp(settings.chunk_parts, 1, possible);
  const bool is_cut =
      !publishes_chunks(variant.protocol) || buffer_bytes(work) >= kLeastPublishedInParts;
  const int most = settings.chunk_parts == 0 && is_cut ? possible : least;
  std::vector<int> counts = channel_counts(settings, variant.protocol);
  if (publishes_chunks(variant.protocol) && is_uneven(settings, work) &&
      settings.policy == CtaPolicy::Default && !counts.empty())
    counts.erase(counts.begin(), counts.end() - 1);
  for (const int channels : counts) {
    variant.channels = channels;
    for (variant.parts = least; variant.parts <= most; variant.parts *= 2) {
      const size_t chunk = chunk_bytes(settings, work.collective, variant);
      // Data that fit a smaller chunk are not cut by it.
      if (variant.parts > least && work.bytes <= chunk) break;
      result.push_back({variant, predict(settings.machine, cost, work, variant, chunk)});
    }
  }
}

/// The variables of rank 0 that leave out some of what `collective` has: "NCCL_ALGO and
/// NCCL_PROTO".
std::string restricting(const Settings& settings, Collective collective) {
  const auto kind = static_cast<size_t>(collective);
  const auto leaves_out = [](const auto& allowed) {
    return std::find(allowed.begin(), allowed.end(), false) != allowed.end();
  };
  std::string names;
  if (leaves_out(settings.algorithms[kind])) names = "NCCL_ALGO";
  if (leaves_out(settings.protocols[kind]))
    names += names.empty() ? "NCCL_PROTO" : " and NCCL_PROTO";
  return names;
}

/// The algorithms of `collective` that may run among so many ranks: "direct, pat".
std::string possible_algorithms(const Settings& settings, Collective collective) {
  std::string names;
  for (int a = 0; a < kAlgorithms; ++a) {
    const auto id = static_cast<AlgorithmId>(a);
    bool is_any_possible = false;
    for (int p = 0; p < executor::kProtocols; ++p)
      is_any_possible |=
          is_possible(settings.machine, settings.nranks, collective, id, static_cast<Protocol>(p));
    if (is_any_possible) names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(id));
  }
  return names;
}

/// Of candidates() that are none: which variables are to blame, if any are.
Status why_none(const Settings& settings, Collective collective, size_t bytes) {
  const std::string variables = restricting(settings, collective);
  const std::string names = possible_algorithms(settings, collective);
  if (variables.empty())
    return Status::invalid_usage("this version has no algorithm for {} over {} ranks",
                                 function_name(collective), settings.nranks);
  return Status::invalid_usage(
      "no algorithm/protocol available for {} of {} bytes over {} ranks: {} of rank 0 leave{} "
      "none. "
      "This version has {} for so many ranks, by LL, LL128 and Simple",
      function_name(collective), bytes, settings.nranks, variables,
      variables.size() > sizeof "NCCL_PROTO" ? "" : "s", names.empty() ? "nothing" : names);
}

}  // namespace

std::vector<int> channel_counts(const Settings& settings, Protocol protocol) {
  const int most = static_cast<int>(settings.shapes[static_cast<size_t>(protocol)].channels);
  if (most == 0) return {};
  const int fewest = std::min(settings.min_channels, most);
  std::vector<int> counts{fewest};
  for (const int count : counts_of(protocol))
    if (count > fewest && count < most) counts.push_back(count);
  if (most > fewest) counts.push_back(most);
  return counts;
}

std::vector<Choice> candidates(const Settings& settings, Collective collective, size_t bytes) {
  const Workload work{.collective = collective, .nranks = settings.nranks, .bytes = bytes};
  std::vector<Choice> measured, others;
  for (int a = 0; a < kAlgorithms; ++a)
    for (int p = 0; p < executor::kProtocols; ++p) {
      const Variant variant{.algorithm = static_cast<AlgorithmId>(a),
                            .protocol = static_cast<Protocol>(p)};
      if (!is_allowed(settings, collective, variant)) continue;
      const KnownCost known =
          find_cost(class_of(settings), collective, variant.algorithm, variant.protocol);
      add_forms(settings, work, variant, known.cost, known.is_measured ? measured : others);
    }
  return measured.empty() ? others : measured;
}

const Choice& pick(std::span<const Choice> choices, CtaPolicy policy) {
  const auto faster = [](const Choice& a, const Choice& b) {
    return a.microseconds < b.microseconds;
  };
  const Choice& fastest = *std::min_element(choices.begin(), choices.end(), faster);
  const double most = fastest.microseconds * (1 + tolerance_of(policy));
  const Choice* best = &fastest;
  for (const Choice& choice : choices)
    if (choice.microseconds <= most &&
        (choice.channels < best->channels ||
         (choice.channels == best->channels && faster(choice, *best))))
      best = &choice;
  return *best;
}

Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes,
                      int most_channels) {
  std::vector<Choice> choices = candidates(settings, collective, bytes);
  const auto is_too_wide = [&](const Choice& choice) {
    return most_channels > 0 && choice.channels > most_channels;
  };
  if (!std::all_of(choices.begin(), choices.end(), is_too_wide))
    std::erase_if(choices, is_too_wide);
  if (!choices.empty()) return pick(choices, settings.policy);
  return why_none(settings, collective, bytes);
}

Choice choose_for_message(const Settings& settings, Protocol protocol, size_t bytes) {
  const Workload work{
      .collective = Collective::PointToPoint, .nranks = settings.nranks, .bytes = bytes};
  const Variant variant{.algorithm = AlgorithmId::Direct, .protocol = protocol};
  const Cost cost =
      find_cost(class_of(settings), work.collective, variant.algorithm, protocol).cost;
  std::vector<Choice> choices;
  add_forms(settings, work, variant, cost, choices);
  return pick(choices, settings.policy);
}

std::optional<Choice> choose_for_list(const Settings& settings, Collective collective,
                                      size_t bytes) {
  if (settings.machine != gpu::Kind::Cuda || settings.nranks < 2 ||
      settings.nranks > kMostRanksOfLists ||
      bytes * static_cast<size_t>(settings.nranks - 1) > kMostListedBytes)
    return std::nullopt;
  const std::optional<AlgorithmId> algorithm = one_step_to_all(collective);
  if (!algorithm) return std::nullopt;
  const Variant variant{.algorithm = *algorithm, .protocol = Protocol::LL};
  if (!is_allowed(settings, collective, variant) ||
      settings.shapes[static_cast<size_t>(variant.protocol)].channels == 0)
    return std::nullopt;
  const Cost cost =
      find_cost(class_of(settings), collective, variant.algorithm, variant.protocol).cost;
  const Workload work{.collective = collective, .nranks = settings.nranks, .bytes = bytes};
  return Choice{variant, predict(settings.machine, cost, work, variant,
                                 chunk_bytes(settings, collective, variant))};
}

}  // namespace niccolite::planner
