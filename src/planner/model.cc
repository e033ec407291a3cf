#include "planner/model.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>

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

/// The variants of one algorithm, by protocol: LL, LL128, Simple.
using Costs = VariantCost[executor::kProtocols];

/// Constants of one algorithm, for one collective or for all that have no line of their own.
struct Line {
  std::optional<Collective> collective;
  AlgorithmId algorithm;
  Costs costs;
};

struct MachineCost {
  std::span<const Line> lines;
  bool ranks_share;       // the ranks share one pool of bandwidth, the cores
  int most_direct_ranks;  // largest communicator in which every rank is connected to every other
};

// H200, NVLink through switches: fitted to 2 and 4 ranks in graph replay
// (bench/results/h200_variants.md, h200_lanes.md).
constexpr Line kCudaLines[] = {
    {Collective::AllReduce,
     AlgorithmId::OneShot,
     {{2.4, 0.35, 160, 190, 8.5, 128}, {3.6, 0.7, 135, 135, 8, 960}, {4, 1.3, 250, 150, 8, 2048}}},
    {Collective::AllReduce,
     AlgorithmId::TwoShot,
     {{5.2, 0.45, 120, 190, 8.5, 512},
      {5.6, 0.45, 190, 250, 12, 960},
      {9.7, 0.45, 325, 315, 11.7, 2048}}},
    {Collective::AllReduce,
     AlgorithmId::Ring,
     {{2, 2.0, 120, 68, 8.5, 1024},
      {2.1, 2.0, 190, 120, 8.5, 1920},
      {2, 3.7, 290, 215, 4.8, 2048}}},
    {Collective::Reduce,
     AlgorithmId::Direct,
     {{3.6, 0.2, 160, 600, 20, 512},
      {3.5, 0.2, 205, 400, 16, 960},
      {4, 0.4, 335, 330, 11.7, 2048}}},
    {Collective::Broadcast,
     AlgorithmId::Direct,
     {{3.2, 0.1, 180, 330, 12, 512},
      {3.2, 0.1, 245, 310, 12, 960},
      {4, 0.4, 330, 330, 11.7, 2048}}},
    {Collective::Broadcast,
     AlgorithmId::ScatterGather,
     {{6, 0.5, 150, 150, 8.5, 512}, {5.2, 0.5, 220, 220, 12, 960}, {8, 0.5, 270, 270, 11.7, 2048}}},
    {Collective::AllGather,
     AlgorithmId::Direct,
     {{3.9, 0.2, 125, 167, 8.5, 512},
      {4.1, 0.25, 217, 270, 12, 960},
      {6.4, 0.4, 322, 335, 11.7, 2048}}},
    {Collective::AllGather,
     AlgorithmId::Ring,
     {{2, 2.0, 68, 68, 8.5, 1024}, {1.6, 2.0, 170, 170, 12, 960}, {2, 3.2, 230, 240, 4.8, 2048}}},
    {Collective::ReduceScatter,
     AlgorithmId::Direct,
     {{3.6, 0.45, 110, 182, 8.5, 512},
      {3.6, 0.6, 165, 226, 12, 960},
      {4.1, 1.55, 310, 312, 11.7, 2048}}},
    {Collective::ReduceScatter,
     AlgorithmId::Ring,
     {{2, 2.0, 68, 68, 8.5, 1024}, {1.6, 2.2, 150, 150, 12, 960}, {2, 3.8, 230, 240, 4.8, 2048}}},
    {Collective::AllToAll,
     AlgorithmId::Direct,
     {{3.8, 0.15, 75, 100, 8.5, 512},
      {4.2, 0.15, 155, 185, 12, 960},
      {4.4, 1.15, 310, 320, 11.7, 2048}}},
    {Collective::Gather,
     AlgorithmId::Direct,
     {{3.5, 0.05, 120, 200, 8.5, 512},
      {3.2, 0.05, 240, 300, 12, 960},
      {3.9, 0.05, 335, 375, 11.7, 2048}}},
    {Collective::Scatter,
     AlgorithmId::Direct,
     {{3.4, 0.05, 190, 200, 8.5, 512},
      {3.1, 0.05, 260, 300, 12, 960},
      {3, 0.75, 330, 340, 11.7, 2048}}},
    {Collective::PointToPoint,
     AlgorithmId::Direct,
     {{3.8, 0.1, 120, 135, 8.5, 512},
      {4.1, 0.1, 180, 180, 8, 960},
      {5.8, 0.1, 325, 325, 11.7, 2048}}},
    // The chains of broadcast and reduce.
    {std::nullopt,
     AlgorithmId::Ring,
     {{2, 2.0, 120, 68, 8.5, 1024},
      {1.9, 0.8, 240, 205, 12, 960},
      {4.5, 0.5, 335, 340, 11.7, 2048}}},
    {std::nullopt,
     AlgorithmId::Pat,
     {{3, 2.4, 68, 68, 8.5, 1024}, {3, 2.6, 120, 120, 8.5, 960}, {3, 5, 150, 150, 4.8, 2048}}},
};
constexpr MachineCost kCuda{kCudaLines, false, 8};

// Virtual GPUs on two cores; GB/s of all ranks together (bench/results/virtual_variants.md).
constexpr Line kVirtualLines[] = {
    {std::nullopt,
     AlgorithmId::Ring,
     {{2, 1.3, 8, 8, 64, 1 << 20}, {2, 1.4, 7, 7, 64, 1 << 20}, {2, 1, 21, 29, 64, 1 << 20}}},
    {std::nullopt,
     AlgorithmId::Pat,
     {{2, 1.3, 8, 8, 64, 1 << 20}, {2, 1.4, 7, 7, 64, 1 << 20}, {2, 1, 21, 29, 64, 1 << 20}}},
    {std::nullopt,
     AlgorithmId::OneShot,
     {{1, 1.3, 9, 10, 64, 1 << 20}, {1, 1.4, 8, 8, 64, 1 << 20}, {3, 1.5, 9, 10, 64, 1 << 20}}},
    {std::nullopt,
     AlgorithmId::TwoShot,
     {{1, 1.5, 6, 10, 64, 1 << 20}, {1, 1.6, 5, 8, 64, 1 << 20}, {2, 1.5, 34, 21, 64, 1 << 20}}},
    {std::nullopt,
     AlgorithmId::Direct,
     {{1, 1.5, 6, 10, 64, 1 << 20}, {1, 1.6, 5, 8, 64, 1 << 20}, {2, 1.5, 34, 21, 64, 1 << 20}}},
    {std::nullopt,
     AlgorithmId::ScatterGather,
     {{1, 1.5, 6, 10, 64, 1 << 20}, {1, 1.6, 5, 8, 64, 1 << 20}, {2, 1.5, 34, 21, 64, 1 << 20}}},
};
constexpr MachineCost kVirtual{kVirtualLines, true, 16};

const MachineCost& cost_of(gpu::Kind machine) {
  return machine == gpu::Kind::Cuda ? kCuda : kVirtual;
}

struct Shape {
  double steps;  // what the fixed latency grows with
  double sent;   // bytes that the busiest rank sends or receives, per byte of the request
  int blocks;    // of the buffer that is cut
};

Shape shape_of(Collective collective, AlgorithmId algorithm, int nranks) {
  const double n = nranks;
  const double others = n - 1;
  double hops = 1;  // of a logarithmic algorithm
  for (int reach = 1; 2 * reach < nranks; reach *= 2) ++hops;
  switch (collective) {
    case Collective::AllReduce:
      switch (algorithm) {
        case AlgorithmId::Ring:
          return {2 * others, 2 * others / n, nranks};  // slots on the critical path
        case AlgorithmId::OneShot:
          return {n, others, 1};  // peers to store to and to wait for
        default:
          return {n, 2 * others / n, nranks};
      }
    case Collective::Broadcast:
      if (algorithm == AlgorithmId::ScatterGather) return {2, 1, std::max(1, nranks - 1)};
      [[fallthrough]];
    case Collective::Reduce:
      if (algorithm == AlgorithmId::Ring) return {others, 1, 1};
      return {n, others, 1};
    default:
      if (algorithm == AlgorithmId::Pat) return {hops, others, 1};
      return {algorithm == AlgorithmId::Ring ? others : n, others, 1};
    case Collective::PointToPoint:
      return {2, 1, 1};
  }
}

/// Of the line of `collective`, or else of the one for all; has_algorithm() holds.
const VariantCost& cost_of(const Settings& settings, Collective collective, AlgorithmId algorithm,
                           Protocol protocol) {
  const Line* for_all = nullptr;
  for (const Line& line : cost_of(settings.machine).lines) {
    if (line.algorithm != algorithm) continue;
    if (line.collective == collective) return line.costs[static_cast<size_t>(protocol)];
    if (!line.collective) for_all = &line;
  }
  return for_all->costs[static_cast<size_t>(protocol)];
}

double wire_bytes(Protocol protocol, double bytes) {
  return protocol == Protocol::LL      ? bytes * 2
         : protocol == Protocol::LL128 ? bytes * 128 / 120
                                       : bytes;
}

double predicted(const Settings& settings, const VariantCost& cost, Protocol protocol, double steps,
                 double sent, int channels) {
  double bandwidth = settings.nranks == 2 ? cost.gigabytes_two_ranks : cost.gigabytes_more_ranks;
  if (cost_of(settings.machine).ranks_share) bandwidth /= settings.nranks;
  bandwidth = std::min(bandwidth, channels * cost.channel_gigabytes);
  return cost.fixed_microseconds + steps * cost.step_microseconds +
         wire_bytes(protocol, sent) / (bandwidth * 1e3);
}

}  // namespace

bool is_possible(const Settings& settings, Collective collective, AlgorithmId algorithm,
                 Protocol protocol) {
  if (!has_algorithm(collective, algorithm)) return false;
  const bool connects_all = algorithm != AlgorithmId::Ring && algorithm != AlgorithmId::Pat;
  const bool has_choice = collective != Collective::AllToAll && collective != Collective::Gather &&
                          collective != Collective::Scatter &&
                          collective != Collective::PointToPoint;
  if (connects_all && has_choice && settings.nranks > cost_of(settings.machine).most_direct_ranks)
    return false;
  if (algorithm == AlgorithmId::ScatterGather && settings.nranks < 3) return false;
  // One-shot holds all of a chunk's operands at once; it is a latency algorithm, and the other
  // protocols add only latency to it.
  return algorithm != AlgorithmId::OneShot || protocol == Protocol::LL || settings.nranks == 2;
}

Choice predict(const Settings& settings, Collective collective, AlgorithmId algorithm,
               Protocol protocol, size_t bytes) {
  const VariantCost& cost = cost_of(settings, collective, algorithm, protocol);
  const Shape shape = shape_of(collective, algorithm, settings.nranks);
  const executor::FifoShape& fifo = settings.shapes[static_cast<size_t>(protocol)];

  const double block = static_cast<double>(bytes) / shape.blocks;
  const double useful = std::max(1.0, block / static_cast<double>(cost.channel_bytes));
  const int most = std::min<int>(settings.max_channels, static_cast<int>(fifo.channels));
  const int channels = std::clamp(static_cast<int>(std::min<double>(useful, most)),
                                  std::min(settings.min_channels, most), most);
  return {algorithm, protocol, channels,
          predicted(settings, cost, protocol, shape.steps, static_cast<double>(bytes) * shape.sent,
                    channels)};
}

double predict_messages(const Settings& settings, Protocol protocol, int ends, size_t bytes) {
  const executor::FifoShape& fifo = settings.shapes[static_cast<size_t>(protocol)];
  const int most = std::min<int>(settings.max_channels, static_cast<int>(fifo.channels));
  const VariantCost& cost =
      cost_of(settings, Collective::PointToPoint, AlgorithmId::Direct, protocol);
  return predicted(settings, cost, protocol, 1 + ends / 2.0, static_cast<double>(bytes), most);
}

Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes) {
  std::optional<Choice> best;
  for (int a = 0; a < kAlgorithms; ++a)
    for (int p = 0; p < executor::kProtocols; ++p) {
      const auto kind = static_cast<size_t>(collective);
      if (!settings.algorithms[kind][static_cast<size_t>(a)] ||
          !settings.protocols[kind][static_cast<size_t>(p)])
        continue;
      const auto algorithm = static_cast<AlgorithmId>(a);
      const auto protocol = static_cast<Protocol>(p);
      if (!is_possible(settings, collective, algorithm, protocol)) continue;
      const Choice candidate = predict(settings, collective, algorithm, protocol, bytes);
      if (!best || candidate.microseconds < best->microseconds) best = candidate;
    }
  if (best) return *best;
  std::string names;
  for (int a = 0; a < kAlgorithms; ++a)
    if (has_algorithm(collective, static_cast<AlgorithmId>(a)))
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(static_cast<AlgorithmId>(a)));
  return Status::invalid_usage(
      "no algorithm/protocol available for {} of {} bytes over {} ranks: NCCL_ALGO and NCCL_PROTO "
      "leave none. This version has {} by LL, LL128 and Simple; all but ring and pat for up to {} "
      "ranks",
      function_name(collective), bytes, settings.nranks, names,
      cost_of(settings.machine).most_direct_ranks);
}

}  // namespace niccolite::planner
