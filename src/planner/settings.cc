#include "planner/settings.h"

#include <algorithm>
#include <bit>

#include "base/log.h"
#include "base/parameters.h"
#include "planner/selection.h"

namespace niccolite::planner {
namespace {

using executor::Protocol;

constexpr int kMostChannels = 64;

struct Defaults {
  int channels;
  std::array<executor::FifoShape, executor::kProtocols>
      shapes;  // LL, Simple; channels: the most that pay
};

// CUDA (H200): an LL slot holds a CTA's chunk of a 256 KiB one-shot. Simple: with the same memory,
// four slots of 32 KiB move 6 % more than two of 64 KiB, since the lanes of a two-shot wait less
// for each other (bench/results/two_shot_slots.md). Virtual GPUs: a slot and the data it is copied
// from and to fit a core's second-level cache, and ranks, not channels, keep the cores busy.
constexpr Defaults kCuda{64, {{{32, 4, 16 << 10}, {64, 4, 32 << 10}}}};
constexpr Defaults kVirtual{1, {{{1, 4, 16 << 10}, {1, 4, 128 << 10}}}};

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

}  // namespace

const char* name_of(AlgorithmId id) {
  switch (id) {
    case AlgorithmId::Ring:
      return "ring";
    case AlgorithmId::OneShot:
      return "one_shot";
    case AlgorithmId::TwoShot:
      return "two_shot";
  }
  return "?";
}

const char* log_name_of(AlgorithmId id) {
  switch (id) {
    case AlgorithmId::Ring:
      return "RING";
    case AlgorithmId::OneShot:
      return "ONE_SHOT";
    case AlgorithmId::TwoShot:
      return "TWO_SHOT";
  }
  return "?";
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

  constexpr std::string_view kAlgorithmNames[] = {"ring", "one_shot", "two_shot"};
  constexpr std::string_view kForeignAlgorithms[] = {"tree", "collnetdirect", "collnetchain",
                                                     "nvls", "nvlstree",      "pat"};
  constexpr std::string_view kProtocolNames[] = {"ll", "simple"};
  constexpr std::string_view kForeignProtocols[] = {"ll128"};
  const auto algorithm_text = parameters::read_now("NCCL_ALGO");
  const auto protocol_text = parameters::read_now("NCCL_PROTO");
  const auto algorithms = TRY(parse_selection("NCCL_ALGO", algorithm_text.value_or(""), "allreduce",
                                              kAlgorithmNames, kForeignAlgorithms));
  const auto protocols = TRY(parse_selection("NCCL_PROTO", protocol_text.value_or(""), "allreduce",
                                             kProtocolNames, kForeignProtocols));
  std::copy(algorithms.begin(), algorithms.end(), settings.algorithms.begin());
  std::copy(protocols.begin(), protocols.end(), settings.protocols.begin());
  settings.selected_by_user = algorithm_text.has_value() || protocol_text.has_value();
  return settings;
}

}  // namespace niccolite::planner
