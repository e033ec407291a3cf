#include "planner/settings.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <string>

#include "base/log.h"
#include "base/parameters.h"
#include "planner/selection.h"

namespace niccolite::planner {
namespace {

using executor::Protocol;
using schedule::Collective;

constexpr int kMostChannels = 64;

struct Defaults {
  int channels;
  std::array<executor::FifoShape, executor::kProtocols>
      shapes;  // LL, Simple; channels: the most that pay
};

// CUDA (H200): an LL slot holds a CTA's chunk of a 256 KiB one-shot. Simple: publishing a slot
// costs its lane about 2 us, so that chains of one lane (a lone send, a broadcast) want large
// slots, where algorithms with many lanes have enough with 32 KiB (bench/results/h200_lanes.md).
// Virtual GPUs: a slot and the data it is copied from and to fit a core's second-level cache, and
// ranks, not channels, keep the cores busy.
constexpr Defaults kCuda{64, {{{32, 4, 16 << 10}, {32, 4, 16 << 10}, {64, 4, 64 << 10}}}};
constexpr Defaults kVirtual{1, {{{1, 4, 16 << 10}, {1, 4, 32 << 10}, {1, 4, 128 << 10}}}};

struct AlgorithmName {
  std::string_view name;  // in the schedule registry and in NCCL_ALGO
  const char* log_name;
};
constexpr std::array<AlgorithmName, kAlgorithms> kNames{{{"ring", "RING"},
                                                         {"direct", "DIRECT"},
                                                         {"one_shot", "ONE_SHOT"},
                                                         {"two_shot", "TWO_SHOT"},
                                                         {"pat", "PAT"},
                                                         {"scatter_gather", "SCATTER_GATHER"}}};
constexpr std::array<std::string_view, 5> kForeignAlgorithms{"tree", "collnetdirect",
                                                             "collnetchain", "nvls", "nvlstree"};
constexpr std::array<std::string_view, executor::kProtocols> kProtocolNames{"ll", "ll128",
                                                                            "simple"};
constexpr std::array<const char*, schedule::kCollectives> kFunctionNames{
    "AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
    "AlltoAll",  "Gather", "Scatter",   "SendRecv"};

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
    LOG(Info, Env, "NCCL_NTHREADS {} is not a multiple of 32 from 64 to 512: {} used.", asked,
        threads);
  return threads;
}

/// Does the first group of a selection, the one without a function, leave nothing of what
/// `collective` has, while no group names it? NCCL_ALGO=two_shot is then meant for all-reduce.
template <size_t kCount, typename Has>
void ignore_empty(std::array<bool, kCount>& allowed, std::string_view text,
                  std::string_view function, Has&& has) {
  if (function == "allreduce" || is_named(text, function)) return;
  bool any = false;
  for (size_t i = 0; i < kCount; ++i) any = any || (allowed[i] && has(i));
  if (!any) allowed.fill(true);
}

/// Fills in what NCCL_ALGO and NCCL_PROTO allow.
Status select(Settings& settings) {
  const std::string algorithm_text = parameters::read_now("NCCL_ALGO").value_or("");
  const std::string protocol_text = parameters::read_now("NCCL_PROTO").value_or("");
  std::array<std::string_view, kAlgorithms> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kNames[i].name;
  for (size_t c = 0; c < schedule::kCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    std::string function = function_name(collective);
    std::transform(function.begin(), function.end(), function.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    const auto algorithms =
        TRY(parse_selection("NCCL_ALGO", algorithm_text, function, names, kForeignAlgorithms));
    const auto protocols =
        TRY(parse_selection("NCCL_PROTO", protocol_text, function, kProtocolNames, {}));
    std::copy(algorithms.begin(), algorithms.end(), settings.algorithms[c].begin());
    std::copy(protocols.begin(), protocols.end(), settings.protocols[c].begin());
    ignore_empty(settings.algorithms[c], algorithm_text, function, [&](size_t id) {
      return has_algorithm(collective, static_cast<AlgorithmId>(id));
    });
  }
  return {};
}

}  // namespace

const char* name_of(AlgorithmId id) { return kNames[static_cast<size_t>(id)].name.data(); }
const char* log_name_of(AlgorithmId id) { return kNames[static_cast<size_t>(id)].log_name; }
const char* function_name(Collective collective) {
  return kFunctionNames[static_cast<size_t>(collective)];
}

bool has_algorithm(Collective collective, AlgorithmId id) {
  switch (collective) {
    case Collective::AllReduce:
      return id == AlgorithmId::Ring || id == AlgorithmId::OneShot || id == AlgorithmId::TwoShot;
    case Collective::Reduce:
      return id == AlgorithmId::Ring || id == AlgorithmId::Direct;
    case Collective::Broadcast:
      return id == AlgorithmId::Ring || id == AlgorithmId::Direct ||
             id == AlgorithmId::ScatterGather;
    case Collective::AllGather:
    case Collective::ReduceScatter:
      return id == AlgorithmId::Ring || id == AlgorithmId::Direct || id == AlgorithmId::Pat;
    case Collective::AllToAll:
    case Collective::Gather:
    case Collective::Scatter:
    case Collective::PointToPoint:
      return id == AlgorithmId::Direct;
  }
  return false;
}

Result<Settings> make_settings(gpu::Kind machine, int nranks, const Limits& limits) {
  const Defaults& defaults = machine == gpu::Kind::Cuda ? kCuda : kVirtual;
  Settings settings;
  settings.machine = machine;
  settings.nranks = nranks;
  // The environment wins over the configuration; of the old and the new name the stricter one does.
  settings.min_channels =
      larger(parameters::min_ctas(), parameters::min_nchannels(), std::max(1, limits.min_ctas));
  settings.max_channels = smaller(parameters::max_ctas(), parameters::max_nchannels(),
                                  limits.max_ctas > 0 ? limits.max_ctas : defaults.channels);
  settings.max_channels = std::min(settings.max_channels, kMostChannels);
  settings.min_channels = std::min(settings.min_channels, kMostChannels);
  // A minimum above the default asks for more; above an explicit maximum it gives way to it.
  const bool maximum_is_explicit = limits.max_ctas > 0 || parameters::max_ctas() != INT64_MIN ||
                                   parameters::max_nchannels() != INT64_MIN;
  if (settings.min_channels > settings.max_channels)
    (maximum_is_explicit ? settings.min_channels : settings.max_channels) =
        maximum_is_explicit ? settings.max_channels : settings.min_channels;
  settings.threads = threads_from_environment();

  settings.shapes = defaults.shapes;
  for (executor::FifoShape& shape : settings.shapes)
    shape.channels = static_cast<uint32_t>(
        std::min<int>(std::max<int>(static_cast<int>(shape.channels), settings.min_channels),
                      settings.max_channels));
  if (const int64_t bytes = parameters::buffsize(); bytes != INT64_MIN) {
    executor::FifoShape& simple = settings.shapes[static_cast<size_t>(Protocol::Simple)];
    const auto slot = static_cast<uint64_t>(bytes) / simple.depth / 128 * 128;
    simple.slot_bytes = static_cast<uint32_t>(std::clamp<uint64_t>(slot, 512, 64 << 20));
  }

  TRY(select(settings));
  return settings;
}

}  // namespace niccolite::planner
