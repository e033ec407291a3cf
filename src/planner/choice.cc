#include "planner/choice.h"

#include <algorithm>
#include <string>

#include "executor/program.h"
#include "planner/price.h"

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
constexpr int kLineChannelCounts[] = {1, 2, 3, 4, 6, 10, 16, 24, 48, 64};
/// The same of chunks in host memory, where two counts may be far apart in no order: an all-reduce
/// of 1 MiB takes 55 us by 6, 62 by 8 and 54 by 12.
constexpr int kHostChannelCounts[] = {1, 3, 6, 12, 24, 48, 64};
std::span<const int> counts_of(const Settings& settings, Protocol protocol) {
  if (settings.shares_host && publishes_chunks(protocol)) return kHostChannelCounts;
  if (protocol == Protocol::LL128) return kLineChannelCounts;
  return kChannelCounts;
}

/// Whatever NCCL_ALGO and NCCL_PROTO say.
std::string why_impossible(const Settings& settings, const Algorithm& algorithm,
                           Protocol protocol) {
  return planner::why_impossible(settings.machine, settings.nranks, algorithm, protocol,
                                 machines_in(settings),
                                 settings.is_invariant && schedule::reduces(algorithm.collective));
}

/// Why a variant is not eligible: by NCCL_ALGO and NCCL_PROTO, among so many ranks of such a
/// machine. Empty: it is.
std::string obstacle_to(const Settings& settings, const Variant& variant) {
  const Algorithm& algorithm = *variant.algorithm;
  const auto kind = static_cast<size_t>(algorithm.collective);
  const auto protocol = static_cast<size_t>(variant.protocol);
  std::string impossible = why_impossible(settings, algorithm, variant.protocol);
  if (!impossible.empty()) return impossible;
  if (settings.is_invariant && !reduces_in_one_order(settings, algorithm))
    return "reduces in an order of its own, which NICCOLITE_INVARIANT forbids";
  if (!allows(settings, algorithm)) return "is left out by NCCL_ALGO";
  if (!settings.protocols[kind][protocol]) {
    if (protocols_between_ranks(settings)[protocol]) return "is left out by NCCL_PROTO";
    return settings.spans_machines
               ? "needs memory that all ranks share, and the network connects some"
               : "needs links that keep its lines whole, and one tears them";
  }
  if (settings.shapes[protocol].channels == 0) return "has no connections on this machine";
  return {};
}

bool is_allowed(const Settings& settings, const Variant& variant) {
  return obstacle_to(settings, variant).empty();
}

/// Does NCCL_ALGO leave `collective` all that it has?
bool allows_all(const Settings& settings, Collective collective) {
  return std::ranges::all_of(algorithms::of(collective), [&](const Algorithm& algorithm) {
    return allows(settings, algorithm);
  });
}

/// Do blocks lie side by side whose length is no multiple of 16 bytes? On a GPU threads then move
/// them, and not bulk copies alone: what the model knows of the number of channels is not true of
/// them, but that each of them moves as much as it can. (Of messages nobody knows how both ends are
/// aligned.)
bool is_uneven(const Settings& settings, const Workload& work) {
  return settings.machine == gpu::Kind::Cuda && schedule::has_blocks_of_ranks(work.collective) &&
         work.bytes % 16 != 0;
}

/// Do links between GPUs carry the data? Host memory and networks are slower than what CTAs do.
bool has_links(const Settings& settings) {
  return settings.machine == gpu::Kind::Cuda && !settings.shares_host && !settings.spans_machines;
}

/// Channels of such blocks, of the counts that there are. Where one rank's link carries all of it,
/// more than 20 gain nothing, and take away from each other: a gather of two blocks of 15 MB takes
/// 54 us on two H200, and 59 by 24.
int most_of_uneven(Collective collective, std::span<const int> counts) {
  constexpr int kMostOfOneRoot = 20;
  const bool has_one_root = collective == Collective::Gather || collective == Collective::Scatter;
  return has_one_root ? std::clamp(kMostOfOneRoot, counts.front(), counts.back()) : counts.back();
}

/// Do so many data go from one GPU to one other through host memory that the model does not know
/// what they take? What has left the processor's cache when the other GPU reads it comes late, and
/// so does what waits for a slot.
bool is_long_way_through_host(const Settings& settings, const Workload& work) {
  constexpr size_t kLeast = 4 << 20;
  return settings.shares_host && settings.nranks == 2 && schedule::has_root(work.collective) &&
         buffer_bytes(work) >= kLeast;
}

/// Channels of such data, whose chunks are whole: all, up to a size that was measured; beyond, as
/// many as leave the data in the cache. (From one H100 to another 16 MiB take 0.35 ms by 24, 0.40
/// by 12, and 64 MiB 1.45 and 1.38.)
int most_through_host(const Workload& work, std::span<const int> counts) {
  constexpr int kMostOfLong = 12;
  constexpr size_t kLong = 32 << 20;
  if (buffer_bytes(work) < kLong) return counts.back();
  return std::clamp(kMostOfLong, counts.front(), counts.back());
}

/// Adds `variant` with all channel counts and chunk sizes.
void add_forms(const Settings& settings, const Workload& work, Variant variant, const Price& price,
               std::vector<Choice>& result) {
  const int possible = most_parts(variant.protocol);
  const int least = std::clamp(settings.chunk_parts, 1, possible);
  const bool publishes = publishes_chunks(variant.protocol);
  const bool is_long_way = publishes && is_long_way_through_host(settings, work);
  const bool is_cut = !is_long_way && (!publishes || buffer_bytes(work) >= kLeastPublishedInParts);
  const int most = settings.chunk_parts == 0 && is_cut ? possible : least;
  std::vector<int> counts = channel_counts(settings, variant.protocol);
  if (publishes && (is_uneven(settings, work) || is_long_way) && !counts.empty()) {
    // Uneven data have what they have over other links: threads move them there, too.
    const int widest = is_uneven(settings, work) ? most_of_uneven(work.collective, counts)
                                                 : most_through_host(work, counts);
    std::erase_if(counts, [&](int count) { return count >= widest; });
    if (settings.policy == CtaPolicy::Default) counts.clear();
    counts.push_back(widest);
  }
  for (const int channels : counts) {
    variant.channels = channels;
    for (variant.parts = least; variant.parts <= most; variant.parts *= 2) {
      const size_t chunk = chunk_bytes(settings, work.collective, variant);
      // Data that fit a smaller chunk are not cut by it.
      if (variant.parts > least && work.bytes <= chunk) break;
      result.push_back({variant, price.time_of(settings, work, variant)});
    }
  }
}

/// The variables of rank 0 that leave out some of what `collective` has: "NCCL_ALGO and
/// NCCL_PROTO".
std::string restricting(const Settings& settings, Collective collective) {
  const ProtocolSet& allowed = settings.protocols[static_cast<size_t>(collective)];
  const ProtocolSet carried = protocols_between_ranks(settings);
  bool is_protocol_left_out = false;
  for (size_t p = 0; p < allowed.size(); ++p) is_protocol_left_out |= carried[p] && !allowed[p];
  std::string names;
  if (settings.is_invariant && schedule::reduces(collective)) names = "NICCOLITE_INVARIANT";
  if (!allows_all(settings, collective)) names += names.empty() ? "NCCL_ALGO" : " and NCCL_ALGO";
  if (is_protocol_left_out) names += names.empty() ? "NCCL_PROTO" : " and NCCL_PROTO";
  return names;
}

/// The algorithms of `collective` that may run among so many ranks: "direct, pat".
std::string possible_algorithms(const Settings& settings, Collective collective) {
  const ProtocolSet carried = protocols_between_ranks(settings);
  std::string names;
  for (const Algorithm& algorithm : algorithms::of(collective)) {
    bool is_any_possible = false;
    for (int p = 0; p < executor::kProtocols; ++p)
      is_any_possible |= carried[static_cast<size_t>(p)] &&
                         why_impossible(settings, algorithm, static_cast<Protocol>(p)).empty() &&
                         (!settings.is_invariant || reduces_in_one_order(settings, algorithm));
    if (is_any_possible) names += fmt::format("{}{}", names.empty() ? "" : ", ", algorithm.name);
  }
  return names;
}

/// "LL, LL128 and Simple".
std::string names_of(const ProtocolSet& protocols) {
  std::vector<std::string> names;
  for (size_t p = 0; p < protocols.size(); ++p)
    if (protocols[p]) names.emplace_back(executor::name_of(static_cast<Protocol>(p)));
  std::string text = names.back();
  for (size_t i = names.size() - 1; i-- > 0;)
    text = fmt::format("{}{}{}", names[i], i + 2 == names.size() ? " and " : ", ", text);
  return text;
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
      "This version has {} for so many ranks, by {}",
      function_name(collective), bytes, settings.nranks, variables,
      variables.find(" and ") != std::string::npos ? "" : "s", names.empty() ? "nothing" : names,
      names_of(protocols_between_ranks(settings)));
}

}  // namespace

std::vector<int> channel_counts(const Settings& settings, Protocol protocol) {
  const int most = static_cast<int>(settings.shapes[static_cast<size_t>(protocol)].channels);
  if (most == 0) return {};
  const int fewest = std::min(settings.min_channels, most);
  std::vector<int> counts{fewest};
  for (const int count : counts_of(settings, protocol))
    if (count > fewest && count < most) counts.push_back(count);
  if (most > fewest) counts.push_back(most);
  return counts;
}

std::vector<Option> survey(const Settings& settings, Collective collective, size_t bytes,
                           Surveyed of) {
  const Workload work{.collective = collective, .nranks = settings.nranks, .bytes = bytes};
  std::vector<Option> options;
  // Derived prices decide where nothing was measured, or nothing but what passes data from rank to
  // rank: chains, of which the longest ever measured say little about longer ones.
  bool has_direct = false;
  for (const Algorithm& algorithm : algorithms::of(collective))
    for (int p = 0; p < executor::kProtocols; ++p) {
      const Variant variant{.algorithm = &algorithm, .protocol = static_cast<Protocol>(p)};
      Option& option = options.emplace_back();
      option.algorithm = variant.algorithm;
      option.protocol = variant.protocol;
      option.obstacle = obstacle_to(settings, variant);
      if (!option.obstacle.empty()) continue;
      option.competes = is_fitted(settings, algorithm, variant.protocol);
      has_direct |=
          option.competes && (algorithm.traits.connects_all || algorithm.build == nullptr);
    }
  for (Option& option : options) option.competes |= option.obstacle.empty() && !has_direct;
  for (Option& option : options) {
    if (!option.obstacle.empty()) continue;
    if (of == Surveyed::WhatDecides && !option.competes) continue;
    add_forms(settings, work, {.algorithm = option.algorithm, .protocol = option.protocol},
              Price::of(settings, *option.algorithm, option.protocol), option.choices);
  }
  return options;
}

std::vector<Choice> candidates(std::span<const Option> options) {
  std::vector<Choice> measured, others;
  for (const Option& option : options) {
    std::vector<Choice>& result = option.competes ? measured : others;
    result.insert(result.end(), option.choices.begin(), option.choices.end());
  }
  return measured.empty() ? others : measured;
}

std::vector<Choice> candidates(const Settings& settings, Collective collective, size_t bytes) {
  return candidates(survey(settings, collective, bytes, Surveyed::WhatDecides));
}

double length_of(const Choice& choice, int nranks) {
  // Of an operation of 20 us and more; a shorter one keeps them from others for less long. (And
  // where buffers begin anywhere, which is not known here, twice as many CTAs save up to 17 % of
  // short ones by LL128. Between more than two ranks, where the model is less sure, they were found
  // to lose as often as to gain.)
  constexpr double kOfTwiceAsMany = 0.05;
  constexpr double kLong = 20;
  const int more = std::max(0, choice.channels - kUsualCtas);
  const double share = nranks == 2 ? std::min(1.0, choice.microseconds / kLong) : 1;
  return choice.microseconds * (1 + kOfTwiceAsMany * share * more / kUsualCtas);
}

double longest_acceptable(std::span<const Choice> choices, CtaPolicy policy, int nranks) {
  double least = length_of(choices.front(), nranks);
  for (const Choice& choice : choices) least = std::min(least, length_of(choice, nranks));
  return least * (1 + tolerance_of(policy));
}

const Choice& pick(std::span<const Choice> choices, CtaPolicy policy, int nranks) {
  const double most = longest_acceptable(choices, policy, nranks);
  const Choice* best = nullptr;
  for (const Choice& choice : choices)
    if (length_of(choice, nranks) <= most &&
        (best == nullptr || choice.channels < best->channels ||
         (choice.channels == best->channels && choice.microseconds < best->microseconds)))
      best = &choice;
  return *best;
}

Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes,
                      std::span<const Option> options, int most_channels) {
  std::vector<Choice> choices = candidates(options);
  const auto is_too_wide = [&](const Choice& choice) {
    return most_channels > 0 && choice.channels > most_channels;
  };
  if (!std::all_of(choices.begin(), choices.end(), is_too_wide))
    std::erase_if(choices, is_too_wide);
  if (!choices.empty()) return pick(choices, settings.policy, settings.nranks);
  return why_none(settings, collective, bytes);
}

Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes,
                      int most_channels) {
  return choose(settings, collective, bytes,
                survey(settings, collective, bytes, Surveyed::WhatDecides), most_channels);
}

std::optional<executor::ListAccess> find_list_access(const Settings& settings,
                                                     Collective collective, int root) {
  if (!settings.reaches_users || settings.spans_machines || settings.nranks < 2 ||
      settings.nranks > static_cast<int>(executor::kMostRanksOfListAccess))
    return std::nullopt;
  if (settings.is_invariant && schedule::reduces(collective)) return std::nullopt;
  // The connections are the one-shot all-reduce's; else a selection is about what is not selected.
  const auto kind = static_cast<size_t>(collective);
  if (!allows_all(settings, collective) || !settings.protocols[kind][size_t(Protocol::LL)] ||
      settings.shapes[size_t(Protocol::LL)].channels == 0)
    return std::nullopt;
  const auto all = static_cast<uint8_t>((1u << settings.nranks) - 1);
  const auto only_root = static_cast<uint8_t>(1u << root);
  using executor::ListForm;
  switch (collective) {
    case Collective::AllReduce:
      return executor::ListAccess{.form = ListForm::Whole, .inputs = all, .outputs = all};
    case Collective::Reduce:
      return executor::ListAccess{.form = ListForm::Whole, .inputs = all, .outputs = only_root};
    case Collective::Broadcast:
      return executor::ListAccess{.form = ListForm::Whole, .inputs = only_root, .outputs = all};
    case Collective::ReduceScatter:
      return executor::ListAccess{.form = ListForm::Scatter, .inputs = all, .outputs = all};
    case Collective::AllGather:
      return executor::ListAccess{.form = ListForm::Gather, .inputs = all, .outputs = all};
    default:
      return std::nullopt;
  }
}

namespace {

struct DirectListPrice {
  size_t least_bytes;                    // of all operations together
  size_t least_bytes_of_live_operation;  // live calls have their buffers looked up, which takes
                                         // longer than small operations do in other lists
  double fixed_microseconds;             // whatever is in the list
};
// Two ranks on an H100, in graphs: a direct list takes 10 us and 0.3 us for each 100 KB. Others
// take 5 us a launch, and 2 us for each 8 KiB of a channel. Buffers are looked up in more time than
// the smallest operations take.
constexpr DirectListPrice kDirectListOfCuda{768 << 10, 16 << 10, 10};
// Without it each operation is a launch, which costs more than both waits of a list do.
constexpr DirectListPrice kDirectListOfVirtual{0, 0, 5};

constexpr const DirectListPrice& price_of_direct_list(const Settings& settings) {
  return settings.machine == gpu::Kind::Cuda ? kDirectListOfCuda : kDirectListOfVirtual;
}

}  // namespace

bool pays_direct_list(const Settings& settings, Collective collective, size_t operations,
                      size_t bytes, bool is_captured) {
  const DirectListPrice& price = price_of_direct_list(settings);
  if (operations < 2) return false;
  const bool may_be_listed = choose_for_list(settings, collective, bytes / operations).has_value();
  if (!is_captured && may_be_listed)
    return bytes >= std::max(price.least_bytes, operations * price.least_bytes_of_live_operation);
  // What is in no other list has a launch for as many as there are channels.
  const size_t channels = settings.shapes[static_cast<size_t>(Protocol::LL)].channels;
  return bytes >= price.least_bytes || (!may_be_listed && operations > channels);
}

double predict_direct_list(const Settings& settings) {
  return price_of_direct_list(settings).fixed_microseconds;
}

double predict_in_direct_list(const Settings& settings, const Request& request) {
  // Of a rank's link, one way: two H100, lists of 32 operations of 1 to 16 MiB. What scatters only
  // loads from peers, what gathers only stores to them; else tiles' owners do both, and of a buffer
  // the rank that all others read carries so much. (Of sums. Other reductions, and those of bytes,
  // take up to half as long again, in a list and alone.)
  const auto bytes = static_cast<double>(request.bytes());
  const double others = settings.nranks - 1;
  const double whole = 2 * others / settings.nranks * bytes;
  const double block = others * bytes;
  constexpr double kBytesPerMicrosecond = 1e3;  // at a gigabyte a second
  if (settings.machine != gpu::Kind::Cuda) return bytes / (8 * kBytesPerMicrosecond);
  switch (request.collective) {
    case Collective::ReduceScatter:
      return block / (280 * kBytesPerMicrosecond);
    case Collective::AllGather:
      return block / (270 * kBytesPerMicrosecond);
    case Collective::Broadcast:
      return whole / (345 * kBytesPerMicrosecond);
    default:
      return whole / (315 * kBytesPerMicrosecond);
  }
}

Choice widened(const Settings& settings, const Request& request, Choice choice) {
  const bool is_byte =
      request.type == executor::DataType::Int8 || request.type == executor::DataType::Uint8;
  if (has_links(settings) && settings.policy == CtaPolicy::Default &&
      schedule::reduces(request.collective) && request.op.operation == Operation::Average &&
      is_byte && publishes_chunks(choice.protocol))
    choice.channels = channel_counts(settings, choice.protocol).back();
  return choice;
}

Choice choose_for_message(const Settings& settings, Protocol protocol, size_t bytes) {
  const Workload work{
      .collective = Collective::PointToPoint, .nranks = settings.nranks, .bytes = bytes};
  const Variant variant{.algorithm = &algorithms::of_messages(), .protocol = protocol};
  std::vector<Choice> choices;
  add_forms(settings, work, variant, Price::of(settings, *variant.algorithm, protocol), choices);
  Choice choice = pick(choices, settings.policy, settings.nranks);
  // Messages of such lengths often lie side by side, begin anywhere, and are moved by threads. An
  // uneven all-to-all of 64 MiB over two H200 takes 80 us by 20 CTAs, and 100 by 14; if all begin
  // at multiples of 16 bytes, 75 and 76.
  constexpr int kChannels = 20;
  constexpr size_t kLeast = 4 << 20;
  if (has_links(settings) && settings.policy == CtaPolicy::Default && settings.nranks == 2 &&
      publishes_chunks(protocol) && bytes % 16 != 0 && bytes >= kLeast)
    choice.channels =
        std::max(choice.channels, std::min(kChannels, channel_counts(settings, protocol).back()));
  return choice;
}

namespace {

// By which CTAs copy by themselves, and threads need not wait.
bool has_bulk_copies(const Settings& settings, Protocol protocol) {
  return settings.machine == gpu::Kind::Cuda && publishes_chunks(protocol);
}

}  // namespace

Choice choose_for_copy(const Settings& settings, Protocol protocol, size_t bytes) {
  constexpr size_t kLeastBytesOfChannel = 64 << 10;  // two microseconds of a CTA
  Choice choice = choose_for_message(settings, protocol, bytes);
  if (settings.policy != CtaPolicy::Default || !has_bulk_copies(settings, protocol)) return choice;
  const size_t most = settings.shapes[static_cast<size_t>(protocol)].channels;
  const auto channels = static_cast<int>(std::min(bytes / kLeastBytesOfChannel, most));
  choice.channels = std::max(choice.channels, channels);
  return choice;
}

double predict_copy(const Settings& settings, Protocol protocol, size_t bytes) {
  constexpr double kGigabytesPerSecond = 30;  // of a CTA, which also sends: H100
  const Choice choice = choose_for_copy(settings, protocol, bytes);
  if (has_bulk_copies(settings, protocol))
    return static_cast<double>(bytes) / (kGigabytesPerSecond * 1e3 * choice.channels);
  return choice.microseconds - choose_for_copy(settings, protocol, 1).microseconds;
}

Protocol protocol_of_copy(const Settings& settings, Protocol of_messages, size_t bytes) {
  constexpr Protocol kSimple = Protocol::Simple;
  if (!is_allowed(settings, {.algorithm = &algorithms::of_messages(), .protocol = kSimple}))
    return of_messages;
  const auto time_of = [&](Protocol protocol) {
    return choose_for_message(settings, protocol, 1).microseconds +
           predict_copy(settings, protocol, bytes);
  };
  return time_of(kSimple) < time_of(of_messages) ? kSimple : of_messages;
}

std::optional<Choice> choose_for_list(const Settings& settings, Collective collective,
                                      size_t bytes) {
  if (settings.machine != gpu::Kind::Cuda || settings.spans_machines || settings.nranks < 2 ||
      settings.nranks > kMostRanksOfLists ||
      bytes * static_cast<size_t>(settings.nranks - 1) > kMostListedBytes)
    return std::nullopt;
  const Algorithm* const algorithm = algorithms::one_step(collective);
  if (algorithm == nullptr) return std::nullopt;
  const Variant variant{.algorithm = algorithm, .protocol = Protocol::LL};
  if (!is_allowed(settings, variant) ||
      settings.shapes[static_cast<size_t>(variant.protocol)].channels == 0)
    return std::nullopt;
  const Workload work{.collective = collective, .nranks = settings.nranks, .bytes = bytes};
  return Choice{variant,
                Price::of(settings, *algorithm, variant.protocol).time_of(settings, work, variant)};
}

}  // namespace niccolite::planner
