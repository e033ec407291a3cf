#include "planner/model.h"

#include <algorithm>
#include <optional>

namespace niccolite::planner {
namespace {

using executor::Protocol;

struct ProtocolCost {
  double step_microseconds;  // one slot from the sender's data to the receiver's fold
  double channel_gigabytes;  // GB/s of memory traffic that one channel can move
  double link_gigabytes;     // GB/s that all channels together can send
  size_t channel_bytes;      // fewest bytes of a block worth a channel of its own
};

struct MachineCost {
  double launch_microseconds;
  ProtocolCost protocols[executor::kProtocols];  // LL, Simple
  int most_direct_ranks;  // largest communicator in which every rank is connected to every other
};

// H200: bench/results/ (four GPUs, NVLink through switches).
constexpr MachineCost kCuda{2.4, {{0.9, 12.0, 330.0, 1024}, {3.2, 7.0, 345.0, 4096}}, 8};
// Virtual GPUs: two cores of a CI machine. Ranks share the cores, so bytes count, not links.
constexpr MachineCost kVirtual{12.0, {{2.0, 3.0, 3.0, 1024}, {4.0, 8.0, 8.0, 16384}}, 16};

const MachineCost& cost_of(gpu::Kind machine) {
  return machine == gpu::Kind::Cuda ? kCuda : kVirtual;
}

struct Shape {
  double steps;  // slots that follow one another on the critical path, for one chunk
  double sent;   // bytes that one rank sends, per byte of data
  int blocks;
};

Shape shape_of(AlgorithmId algorithm, int nranks) {
  const double n = nranks;
  switch (algorithm) {
    case AlgorithmId::Ring:
      return {2 * (n - 1), 2 * (n - 1) / n, nranks};
    case AlgorithmId::OneShot:
      return {1, n - 1, 1};
    case AlgorithmId::TwoShot:
      return {2, 2 * (n - 1) / n, nranks};
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
  const ProtocolCost& cost = machine.protocols[static_cast<size_t>(protocol)];
  const Shape shape = shape_of(algorithm, settings.nranks);
  const executor::FifoShape& fifo = settings.shapes[static_cast<size_t>(protocol)];

  const double block = static_cast<double>(bytes) / shape.blocks;
  const double useful = std::max(1.0, block / static_cast<double>(cost.channel_bytes));
  const int most = std::min<int>(settings.max_channels, static_cast<int>(fifo.channels));
  const int channels = std::clamp(static_cast<int>(std::min<double>(useful, most)),
                                  std::min(settings.min_channels, most), most);

  const double sent = static_cast<double>(bytes) * shape.sent * (protocol == Protocol::LL ? 2 : 1);
  const double bandwidth = std::min(cost.link_gigabytes, channels * cost.channel_gigabytes);
  Choice choice{algorithm, protocol, channels, 0};
  choice.microseconds =
      machine.launch_microseconds + shape.steps * cost.step_microseconds + sent / (bandwidth * 1e3);
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
