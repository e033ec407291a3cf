#include "planner/model.h"

#include <algorithm>
#include <optional>

namespace niccolite::planner {
namespace {

using executor::Protocol;

/// What one variant costs on one class of machine:
///   time = fixed + steps * step + bytes that a rank sends / bandwidth
struct VariantCost {
  double fixed_microseconds;
  double step_microseconds;
  double gigabytes_two_ranks;  // GB/s of one rank, with all the channels that pay
  double gigabytes_more_ranks;
  double channel_gigabytes;  // GB/s that one channel can move
  size_t channel_bytes;      // fewest bytes of a block worth a channel of its own
};

struct MachineCost {
  VariantCost variants[kAlgorithms]
                      [executor::kProtocols];  // [ring, one-shot, two-shot][LL, Simple]
  bool ranks_share;                            // the ranks share one pool of bandwidth, the cores
  int most_direct_ranks;  // largest communicator in which every rank is connected to every other
};

// H200, NVLink through switches: fitted to 2 and 4 ranks in graph replay
// (bench/results/h200_variants.md).
constexpr MachineCost kCuda{{{{2, 2.0, 68, 68, 8.5, 1024}, {2, 5.1, 205, 215, 4.8, 2048}},
                             {{2, 0.35, 180, 180, 8.5, 128}, {2, 5.5, 150, 150, 8, 2048}},
                             {{1, 2.7, 240, 200, 8.5, 1024}, {0, 5.6, 300, 320, 11.7, 2048}}},
                            false,
                            8};
// Virtual GPUs on two cores; GB/s of all ranks together (bench/results/virtual_variants.md).
constexpr MachineCost kVirtual{{{{2, 1.3, 8, 8, 64, 1 << 20}, {2, 1, 21, 29, 64, 1 << 20}},
                                {{1, 1.3, 9, 10, 64, 1 << 20}, {3, 1.5, 9, 10, 64, 1 << 20}},
                                {{1, 1.5, 6, 10, 64, 1 << 20}, {2, 1.5, 34, 21, 64, 1 << 20}}},
                               true,
                               16};

const MachineCost& cost_of(gpu::Kind machine) {
  return machine == gpu::Kind::Cuda ? kCuda : kVirtual;
}

struct Shape {
  double steps;  // what the fixed latency grows with
  double sent;   // bytes that one rank sends, per byte of data
  int blocks;
};

Shape shape_of(AlgorithmId algorithm, int nranks) {
  const double n = nranks;
  switch (algorithm) {
    case AlgorithmId::Ring:
      return {2 * (n - 1), 2 * (n - 1) / n, nranks};  // slots on the critical path
    case AlgorithmId::OneShot:
      return {n, n - 1, 1};  // peers to store to and to wait for
    case AlgorithmId::TwoShot:
      return {n, 2 * (n - 1) / n, nranks};
  }
  return {};
}

}  // namespace

bool is_possible(const Settings& settings, AlgorithmId algorithm, Protocol protocol) {
  if (algorithm == AlgorithmId::Ring) return true;
  if (settings.nranks > cost_of(settings.machine).most_direct_ranks) return false;
  // One-shot holds all of a chunk's operands at once; it is a latency algorithm, and Simple adds
  // only latency to it.
  return algorithm != AlgorithmId::OneShot || protocol == Protocol::LL || settings.nranks == 2;
}

Choice predict(const Settings& settings, AlgorithmId algorithm, Protocol protocol, size_t bytes) {
  const MachineCost& machine = cost_of(settings.machine);
  const VariantCost& cost =
      machine.variants[static_cast<size_t>(algorithm)][static_cast<size_t>(protocol)];
  const Shape shape = shape_of(algorithm, settings.nranks);
  const executor::FifoShape& fifo = settings.shapes[static_cast<size_t>(protocol)];

  const double block = static_cast<double>(bytes) / shape.blocks;
  const double useful = std::max(1.0, block / static_cast<double>(cost.channel_bytes));
  const int most = std::min<int>(settings.max_channels, static_cast<int>(fifo.channels));
  const int channels = std::clamp(static_cast<int>(std::min<double>(useful, most)),
                                  std::min(settings.min_channels, most), most);

  const double sent = static_cast<double>(bytes) * shape.sent * (protocol == Protocol::LL ? 2 : 1);
  double bandwidth = settings.nranks == 2 ? cost.gigabytes_two_ranks : cost.gigabytes_more_ranks;
  if (machine.ranks_share) bandwidth /= settings.nranks;
  bandwidth = std::min(bandwidth, channels * cost.channel_gigabytes);
  Choice choice{algorithm, protocol, channels, 0};
  choice.microseconds =
      cost.fixed_microseconds + shape.steps * cost.step_microseconds + sent / (bandwidth * 1e3);
  return choice;
}

Result<Choice> choose(const Settings& settings, size_t bytes) {
  std::optional<Choice> best;
  for (int a = 0; a < kAlgorithms; ++a)
    for (int p = 0; p < executor::kProtocols; ++p) {
      if (!settings.algorithms[static_cast<size_t>(a)] ||
          !settings.protocols[static_cast<size_t>(p)])
        continue;
      const auto algorithm = static_cast<AlgorithmId>(a);
      const auto protocol = static_cast<Protocol>(p);
      if (!is_possible(settings, algorithm, protocol)) continue;
      const Choice candidate = predict(settings, algorithm, protocol, bytes);
      if (!best || candidate.microseconds < best->microseconds) best = candidate;
    }
  if (best) return *best;
  return Status::invalid_usage(
      "no algorithm/protocol available for AllReduce of {} bytes over {} ranks: NCCL_ALGO and "
      "NCCL_PROTO leave none. This "
      "version has ring (LL, Simple), one_shot (LL) and two_shot (LL, Simple) for up to {} ranks",
      bytes, settings.nranks, cost_of(settings.machine).most_direct_ranks);
}

}  // namespace niccolite::planner
