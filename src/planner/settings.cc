#include "planner/settings.h"

#include <algorithm>
#include <bit>
#include <string>

#include "algorithms/machines.h"
#include "base/log.h"
#include "base/parameters.h"
#include "executor/program.h"
#include "lowering/routes.h"
#include "planner/choice/selection.h"
#include "planner/prices/model.h"
#include "planner/prices/tunings.h"

namespace niccolite::planner {
namespace {

using executor::Protocol;
using schedule::Collective;

// NCCL_CTA_POLICY_EFFICIENCY and _ZERO.
constexpr int kEfficiencyBit = 1;
constexpr int kZeroBit = 2;

// Limits of the connections for messages. Among many ranks every pair may get a connection. All of
// a rank's connections together have no more slots of a protocol than connections to this many
// peers would have. Virtual GPUs have fewer, because the slots of all ranks are in one machine's
// memory.
constexpr int kMostSharedByMessages = 16;
constexpr size_t kMostVirtualMessageBytes = 4 << 20;
constexpr size_t kLeastMessageSlot = 128;

// Small messages of one pair share a launch, a slot of the connection each: as
// many each way as a CTA has room for.
constexpr uint32_t kSmallMessagesOfALaunch = 8;

int larger(int64_t a, int64_t b, int none) {
  const int64_t most = std::max(a, b);
  return most == INT64_MIN ? none : static_cast<int>(most);
}

int smaller(int64_t a, int64_t b, int none) {
  if (a == INT64_MIN) a = INT64_MAX;
  if (b == INT64_MIN) b = INT64_MAX;
  const int64_t least = std::min(a, b);
  return least == INT64_MAX ? none : static_cast<int>(least);
}

int threads_from_environment() {
  const int64_t asked = parameters::nthreads();
  if (asked == INT64_MIN) return 0;
  int threads = static_cast<int>(asked);
  if (threads > 512 || threads % 32 != 0) threads = 512;
  if (threads < 64) threads = 64;
  if (threads != asked)
    LOG(Warn, Env, "NCCL_NTHREADS={} is not a multiple of 32 from 64 to 512: {} is taken", asked,
        threads);
  return threads;
}

int chunk_parts_from_environment() {
  const auto asked = static_cast<uint64_t>(parameters::chunk_parts());
  const uint64_t parts = std::bit_floor(asked);
  if (parts != asked)
    LOG(Warn, Env, "NICCOLITE_CHUNK_PARTS={} is not a power of two: {} is taken", asked, parts);
  return static_cast<int>(parts);
}

/// Reads names joined by '|', or the older digit. Warns of an unknown name, and skips it.
int policy_bits(const std::string& text) {
  if (text.empty()) return 0;
  if (text.size() == 1 && text[0] >= '0' && text[0] <= '2') return text[0] - '0';
  int bits = 0;
  const std::string plain = lower(text);
  for (const std::string_view name : split(plain, '|')) {
    if (name == "efficiency") {
      bits |= kEfficiencyBit;
    } else if (name == "zero") {
      bits |= kZeroBit;
    } else if (name != "default") {
      LOG(Warn, Env, "NCCL_CTA_POLICY={}: '{}' is none of DEFAULT, EFFICIENCY, ZERO: ignored", text,
          name);
    }
  }
  return bits;
}

/// All that `collective` has.
uint32_t all_forms(Collective collective) {
  return static_cast<uint32_t>((uint64_t{1} << forms_of(collective).size()) - 1) | 1u << kNvlsBit |
         1u << kNvlsTreeBit;
}

template <size_t kCount>
void allow(std::array<bool, kCount>& allowed, uint32_t bits) {
  for (size_t i = 0; i < kCount; ++i) allowed[i] = (bits >> i & 1) != 0;
}

/// True if the first group of a selection, the one without a function, leaves no variant of
/// `collective`, while no group names the collective. NCCL_ALGO=two_shot is then meant for
/// all-reduce.
bool is_meant_for_others(uint32_t allowed, const std::string& text, Collective collective) {
  if (collective == Collective::AllReduce || is_named(text, lower(function_name(collective))))
    return false;
  return allowed == 0;
}

/// An unknown name may stand in a file that was left out.
Status with_refused_files(const Status& status) {
  const std::span<const std::string> refused = algorithms::refused_files();
  if (refused.empty()) return status.copy();
  return Status::invalid_usage("{}. Of NICCOLITE_ALGORITHMS {} file{} left out: {}",
                               status.message(), refused.size(),
                               refused.size() == 1 ? " is" : "s are", refused.front());
}

/// Fills in the algorithms and protocols that NCCL_ALGO and NCCL_PROTO allow.
Status select(Settings& settings) {
  const std::string algorithm_text = parameters::read_now("NCCL_ALGO").value_or("");
  const std::string protocol_text = parameters::read_now("NCCL_PROTO").value_or("");
  for (const auto& [name, text] :
       {std::pair("NCCL_ALGO", &algorithm_text), {"NCCL_PROTO", &protocol_text}})
    if (!text->empty())
      LOG(Info, Env, "{} set by {} to {}", name, parameters::origin_of(name), *text);
  const std::vector<Token> protocols = protocol_tokens();
  for (size_t c = 0; c < schedule::kCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    const std::string function = lower(function_name(collective));
    const Result<uint32_t> selected = parse_selection("NCCL_ALGO", algorithm_text, function,
                                                      algorithm_tokens(collective), /*foreign=*/{});
    if (!selected.is_ok()) return with_refused_files(selected.status());
    uint32_t allowed = selected.value();
    if (is_meant_for_others(allowed, algorithm_text, collective)) allowed = all_forms(collective);
    settings.forms[c] = allowed;
    const uint32_t allowed_protocols =
        TRY(parse_selection("NCCL_PROTO", protocol_text, function, protocols, {}));
    allow(settings.protocols[c], allowed_protocols);
  }
  const bool names_teams = lower(algorithm_text).find("nvls") != std::string::npos &&
                           std::ranges::any_of(settings.forms, [](const FormSet& allowed) {
                             return allowed.test(kNvlsBit) || allowed.test(kNvlsTreeBit);
                           });
  settings.asks_for_team = names_teams || parameters::nvls_enable() == 1;
  return {};
}

void set_message_shapes(Settings& settings) {
  settings.message_shapes = settings.shapes;
  executor::FifoShape& small = settings.message_shapes[static_cast<size_t>(Protocol::LL)];
  small.depth = std::max(small.depth, kSmallMessagesOfALaunch);
  if (settings.nranks <= kMostSharedByMessages) return;
  for (size_t protocol = 0; protocol < settings.message_shapes.size(); ++protocol) {
    executor::FifoShape& shape = settings.message_shapes[protocol];
    size_t most = settings.shapes[protocol].slots_bytes() * kMostSharedByMessages;
    if (settings.machine == gpu::Kind::Virtual) most = std::min(most, kMostVirtualMessageBytes);
    const size_t slots =
        size_t{shape.channels} * shape.depth * static_cast<size_t>(settings.nranks);
    const size_t share = std::max(most / slots / 128 * 128, kLeastMessageSlot);
    shape.slot_bytes = std::min(shape.slot_bytes, static_cast<uint32_t>(share));
  }
}

// Takes the tuning's shapes, within the channels and the memory that the user allows. A minimum
// above the tuning's channels raises the number of channels.
void set_shapes(Settings& settings) {
  settings.shapes = slots_of(class_of(settings), settings.gpu, settings.nranks);
  for (executor::FifoShape& shape : settings.shapes)
    shape.channels = static_cast<uint32_t>(
        std::clamp(static_cast<int>(shape.channels), settings.min_channels, settings.max_channels));
  if (settings.slots_bytes >= 0) {
    executor::FifoShape& simple = settings.shapes[static_cast<size_t>(Protocol::Simple)];
    const auto slot = static_cast<uint64_t>(settings.slots_bytes) / simple.depth / 128 * 128;
    simple.slot_bytes =
        static_cast<uint32_t>(std::clamp<uint64_t>(slot, kLeastSlotBytes, kMostSlotBytes));
  }
  set_message_shapes(settings);
}

}  // namespace

int most_channels(const Settings& settings) {
  return static_cast<int>(
      std::ranges::max(settings.shapes, {}, &executor::FifoShape::channels).channels);
}

int usual_channels(const Settings& settings) {
  return std::min(most_channels(settings), std::max(settings.min_channels, kUsualCtas));
}

CtaPolicy policy_of(int bits, std::string_view origin) {
  if ((bits & kEfficiencyBit) != 0 && (bits & kZeroBit) != 0)
    LOG(Warn, Env, "{} asks for both EFFICIENCY and ZERO: EFFICIENCY is ignored.", origin);
  if ((bits & kZeroBit) != 0) return CtaPolicy::Zero;
  return (bits & kEfficiencyBit) != 0 ? CtaPolicy::Efficiency : CtaPolicy::Default;
}

void bound_ctas(Settings& settings, int most) {
  if (settings.min_channels > most)
    LOG(Warn, Env,
        "at least {} CTAs of an operation are asked for (NCCL_MIN_CTAS or config.minCTAs), and {} "
        "of each rank have a place on the GPU that ranks share: that many are taken",
        settings.min_channels, most);
  settings.max_channels = std::min(settings.max_channels, most);
  settings.min_channels = std::min(settings.min_channels, most);
}

void set_reach(Settings& settings, bool reaches_users) {
  settings.reaches_users = reaches_users;
  set_shapes(settings);
}

void set_shares_host(Settings& settings, bool shares_host) {
  settings.shares_host = shares_host;
  set_shapes(settings);
}

Settings without_reducer(const Settings& settings) {
  Settings others = settings;
  others.reducible = {};
  for (int c = 0; c < schedule::kCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    FormSet reducing;
    for (const Form& form : forms_of(collective))
      if (form.traits().through_network) reducing.set(index_of(form));
    FormSet by_others = FormSet(all_forms(collective)) & ~reducing;
    by_others.reset(kNvlsBit).reset(kNvlsTreeBit);
    FormSet& allowed = others.forms[static_cast<size_t>(c)];
    if ((allowed & reducing).none()) continue;
    allowed &= by_others;
    if (allowed.none()) allowed = by_others;
  }
  return others;
}

Status forbid_ll128(Settings& settings) {
  settings.tears_lines = true;
  for (size_t c = 0; c < schedule::kCollectives; ++c) {
    auto& allowed = settings.protocols[c];
    allowed[static_cast<size_t>(Protocol::LL128)] = false;
    if (std::find(allowed.begin(), allowed.end(), true) == allowed.end())
      return Status::invalid_usage(
          "NCCL_PROTO of rank 0 leaves {} no protocol but LL128, which needs links that keep lines "
          "whole: allow LL or Simple",
          function_name(static_cast<Collective>(c)));
  }
  return {};
}

void span_machines(Settings& settings, std::vector<int> machines) {
  settings.spans_machines = true;
  settings.machines = std::move(machines);
  for (int rank = static_cast<int>(settings.machines.size()); rank < settings.nranks; ++rank)
    settings.machines.push_back(rank);
  // Proxies carry words, and slots with counters, but no lines. Where NCCL_PROTO asks for lines
  // alone, Simple serves.
  for (auto& allowed : settings.protocols) {
    allowed[static_cast<size_t>(Protocol::LL128)] = false;
    if (std::ranges::find(allowed, true) == allowed.end())
      allowed[static_cast<size_t>(Protocol::Simple)] = true;
  }
  set_shapes(settings);
}

ProtocolSet protocols_between_ranks(const Settings& settings) {
  Settings unselected;
  unselected.machine = settings.machine;
  for (ProtocolSet& allowed : unselected.protocols) allowed.fill(true);
  if (settings.tears_lines)
    forbid_ll128(unselected).ignore("of all protocols, one leaves the others");
  if (settings.spans_machines) span_machines(unselected, {});
  return unselected.protocols.front();
}

void set_rings(Settings& settings, std::vector<std::vector<int>> rings) {
  if (rings.size() == 1 && std::ranges::is_sorted(rings[0])) rings.clear();
  // The all-reduce has the most instructions a ring.
  const int of_ring = 2 * settings.nranks - 1;
  const auto most = static_cast<size_t>(std::max(1, executor::kMostInstructions / of_ring));
  if (rings.size() > most) rings.resize(most);
  settings.rings = std::move(rings);
}

executor::TeamSlots team_slots_for(const Settings& settings, int ranks) {
  if (ranks == 0) return {};
  // More CTAs than these do not make a switch faster, as far as is published.
  constexpr uint32_t kMostTeamChannels = 16;
  const auto shape_of = [&](Protocol protocol, size_t most_bytes, int places) {
    executor::FifoShape shape = settings.shapes[static_cast<size_t>(protocol)];
    shape.channels = std::min(shape.channels, settings.team_channels > 0
                                                  ? static_cast<uint32_t>(settings.team_channels)
                                                  : kMostTeamChannels);
    const size_t most = most_bytes / static_cast<size_t>(places * ranks);
    const auto slot_of = [&] { return most / (size_t{shape.channels} * shape.depth) / 128 * 128; };
    while (slot_of() < kLeastSlotBytes && shape.channels > 1) --shape.channels;
    shape.slot_bytes = std::min(shape.slot_bytes, static_cast<uint32_t>(slot_of()));
    return shape;
  };
  return {.chunks = shape_of(Protocol::Simple, kMostTeamBytes - kMostTeamWordBytes,
                             lowering::kTeamPlaces),
          .words = shape_of(Protocol::LL, kMostTeamWordBytes, lowering::kMostTeamTags)};
}

void set_team(Settings& settings, int ranks) {
  settings.team_ranks = ranks;
  settings.team_slots = team_slots_for(settings, ranks);
}

std::vector<int> members_of_rail(std::span<const int> machines, int rank) {
  const algorithms::Machines of(static_cast<int>(machines.size()),
                                {.machines = {machines.begin(), machines.end()}});
  if (of.local(rank) >= of.rails()) return {};
  return of.ranks_of_rail(of.local(rank));
}

int machines_in(const Settings& settings) {
  std::vector<int> numbers = settings.machines;
  std::ranges::sort(numbers);
  const auto repeated = std::unique(numbers.begin(), numbers.end());
  return std::max(1, static_cast<int>(repeated - numbers.begin()));
}

algorithms::Options options_of(const Settings& settings) {
  algorithms::Options options;
  options.machines = settings.machines;
  options.rings = settings.rings;
  options.window =
      static_cast<int>(std::ranges::min(settings.shapes, {}, &executor::FifoShape::depth).depth);
  return options;
}

int message_tag(const Settings& settings, Protocol protocol) {
  const auto kind = static_cast<size_t>(protocol);
  return settings.message_shapes[kind] == settings.shapes[kind] ? 0 : schedule::kMessageTag;
}

const executor::FifoShape& shape_of(const Settings& settings, Collective collective,
                                    Protocol protocol) {
  const bool is_message = collective == Collective::PointToPoint;
  const Shapes& shapes = is_message ? settings.message_shapes : settings.shapes;
  return shapes[static_cast<size_t>(protocol)];
}

Result<Settings> make_settings(gpu::Kind machine, int nranks, const Limits& limits) {
  TRY(check_tunings());
  Settings settings;
  settings.machine = machine;
  settings.nranks = nranks;
  // The environment wins over the configuration; of the old and the new name the stricter one does.
  settings.min_channels =
      larger(parameters::min_ctas(), parameters::min_nchannels(), std::max(1, limits.min_ctas));
  settings.max_channels = smaller(parameters::max_ctas(), parameters::max_nchannels(),
                                  limits.max_ctas > 0 ? limits.max_ctas : kMostChannels);
  settings.max_channels = std::min(settings.max_channels, kMostChannels);
  settings.min_channels = std::min(settings.min_channels, settings.max_channels);
  settings.are_channels_named =
      larger(parameters::min_ctas(), parameters::min_nchannels(), 0) != 0 ||
      smaller(parameters::max_ctas(), parameters::max_nchannels(), 0) != 0;
  static const int threads = threads_from_environment();  // warns once of a refused value
  settings.threads = threads;
  static const int parts = chunk_parts_from_environment();  // warns once, too
  settings.chunk_parts = parts;
  settings.pull_block = parameters::pull_block();
  settings.is_invariant = parameters::invariant() == 1;
  const int64_t team_channels = parameters::nvls_nchannels();
  settings.team_channels =
      team_channels != INT64_MIN ? static_cast<int>(team_channels) : limits.nvls_ctas;
  settings.maps_captured = parameters::graph_register() != 0;
  if (const int64_t bytes = parameters::buffsize(); bytes != INT64_MIN)
    settings.slots_bytes = bytes;
  static const int bits = policy_bits(parameters::cta_policy());  // warns once, too
  settings.policy =
      parameters::cta_policy().empty() ? limits.policy : policy_of(bits, "NCCL_CTA_POLICY");

  settings.is_policy_named = !parameters::cta_policy().empty();

  set_reach(settings, /*reaches_users=*/true);
  TRY(select(settings));
  return settings;
}

}  // namespace niccolite::planner
