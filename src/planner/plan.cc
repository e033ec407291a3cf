#include "planner/plan.h"

#include <algorithm>

#include "algorithms/point_to_point.h"
#include "algorithms/registry.h"

namespace niccolite::planner {
namespace {

using executor::DataType;
using executor::Fold;
using executor::Protocol;
using executor::Reduction;

// An average is a scaled sum. Where sums of some ranks travel between ranks in the element's own
// type (a ring), scaling at the end could come after an overflow, so that each contribution is
// scaled when it is read; where all operands meet in one wide accumulator, scaling once at the end
// is exact to one rounding. Integers are divided at the end, as NCCL defines.
Reduction make_reduction(const Operator& op, DataType type, int nranks, bool partial_sums) {
  switch (op.operation) {
    case Operation::Sum:
      return {.fold = Fold::Sum};
    case Operation::Product:
      return {.fold = Fold::Product};
    case Operation::Max:
      return {.fold = Fold::Max};
    case Operation::Min:
      return {.fold = Fold::Min};
    case Operation::PreMulSum:
      return {.fold = Fold::Sum,
              .input_scale = op.scale,
              .input_factor = op.factor,
              .device_scale = op.device_scale};
    case Operation::Average:
      break;
  }
  if (!executor::is_floating(type)) return {.fold = Fold::Sum, .finish_divisor = nranks};
  if (partial_sums) return {.fold = Fold::Sum, .input_scale = 1.0 / nranks};
  return {.fold = Fold::Sum, .finish_scale = 1.0 / nranks};
}

// Measured on four H200 (bench/results/h200_lanes.md):
// From here on a two-shot by phases moves 3 % more than one with a lane for each instruction.
constexpr size_t kPhasesFrom = 192 << 20;
// A chain's chunks are halved once its data no longer fit the slots: it then waits for credit, and
// more and smaller chunks are in flight.
constexpr uint32_t kChainParts = 2;

// On GPUs a lane that waits, or that publishes what it stored, moves nothing meanwhile: with a lane
// for each instruction, or two chains side by side, others do. (A core of virtual GPUs goes on to
// another lane anyway, and would only have more of them to look at.)
std::string variant_of(const Settings& settings, const Request& request, const Choice& choice) {
  const std::string name = name_of(choice.algorithm);
  if (settings.machine == gpu::Kind::Virtual) return name;
  const algorithms::Algorithm* lanes = algorithms::find(request.collective, name + "_lanes");
  const bool by_phase =
      request.collective == Collective::AllReduce && request.bytes() >= kPhasesFrom;
  if (lanes != nullptr && settings.nranks <= lanes->max_ranks && !by_phase) return lanes->name;
  const algorithms::Algorithm* strands = algorithms::find(request.collective, name + "_strands");
  if (strands != nullptr && choice.protocol == Protocol::Simple) return strands->name;
  return name;
}

bool is_chain(const Plan& plan, Collective collective) {
  return plan.choice.algorithm == AlgorithmId::Ring && plan.protocol == Protocol::Simple &&
         (collective == Collective::Broadcast || collective == Collective::Reduce);
}

}  // namespace

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::Sum:
      return "sum";
    case Operation::Product:
      return "prod";
    case Operation::Max:
      return "max";
    case Operation::Min:
      return "min";
    case Operation::Average:
      return "avg";
    case Operation::PreMulSum:
      return "premulsum";
  }
  return "?";
}

Result<Planner::Compiled> Planner::program(Collective collective, const std::string& name,
                                           int root) {
  const auto key = std::tuple(collective, name, root);
  if (const auto found = programs_.find(key); found != programs_.end()) return found->second;
  const algorithms::Algorithm* algorithm = algorithms::find(collective, name);
  if (algorithm == nullptr)
    return Status::internal("no algorithm '{}' for {}", name, function_name(collective));
  algorithms::Options options;
  options.only_rank = rank_;
  options.root = root;
  const schedule::Schedule schedule = TRY(algorithm->build(settings_.nranks, options));
  Compiled compiled;
  compiled.program =
      std::make_shared<const executor::Program>(TRY(executor::compile(schedule, rank_)));
  compiled.partial_sums = schedule.partial_sums;
  programs_.emplace(key, compiled);
  return compiled;
}

executor::Cut Planner::cut(Protocol protocol, int channels) const {
  const executor::FifoShape& shape = settings_.shapes[static_cast<size_t>(protocol)];
  return {.max_channels = static_cast<uint32_t>(std::max(1, channels)),
          .slot_data_bytes = executor::data_bytes(protocol, shape.slot_bytes)};
}

Result<Plan> Planner::collective(const Request& request, int most_channels) {
  Plan plan;
  plan.choice = TRY(choose(settings_, request.collective, request.bytes()));
  if (most_channels > 0) plan.choice.channels = std::min(plan.choice.channels, most_channels);
  plan.protocol = plan.choice.protocol;
  plan.microseconds = plan.choice.microseconds;
  const Compiled compiled =
      TRY(program(request.collective, variant_of(settings_, request, plan.choice),
                  schedule::has_root(request.collective) ? request.root : 0));
  plan.program = compiled.program;
  plan.reduces = schedule::reduces(request.collective);
  size_t count = request.count;
  if (plan.reduces) {
    plan.type = request.type;
    plan.reduction =
        make_reduction(request.op, request.type, settings_.nranks, compiled.partial_sums);
  } else {
    count = request.bytes();
  }
  const auto element = static_cast<uint32_t>(executor::size_of(plan.type));
  const auto nblocks = static_cast<uint32_t>(plan.program->works[0].nblocks);
  executor::Cut cuts = cut(plan.protocol, plan.choice.channels);
  const uint32_t depth = settings_.shapes[static_cast<size_t>(plan.protocol)].depth;
  if (settings_.machine == gpu::Kind::Cuda && is_chain(plan, request.collective) &&
      request.bytes() / nblocks >= cuts.slot_data_bytes * depth * cuts.max_channels)
    cuts.slot_data_bytes = executor::round_up(cuts.slot_data_bytes / kChainParts, 16);
  plan.partitions.push_back(schedule::cuts_one_buffer(request.collective)
                                ? executor::make_partition(count, element, nblocks, cuts)
                                : executor::make_block_partition(count, element, nblocks, cuts));
  return plan;
}

Result<Protocol> Planner::protocol_of_message(size_t bytes) const {
  return TRY(choose(settings_, Collective::PointToPoint, bytes)).protocol;
}

Result<Plan> Planner::messages(std::span<const Message> messages, Protocol protocol) {
  std::vector<algorithms::Envelope> ends;
  size_t sent = 0, received = 0;
  for (const Message& message : messages) {
    if (message.is_send) {
      ends.push_back({rank_, message.peer});
    } else {
      ends.push_back({message.peer, rank_});
    }
    (message.is_send ? sent : received) += message.bytes;
  }
  algorithms::Options options;
  options.only_rank = rank_;
  const schedule::Schedule schedule =
      TRY(algorithms::point_to_point(settings_.nranks, ends, options));
  Plan plan;
  plan.protocol = protocol;
  plan.program = std::make_shared<const executor::Program>(TRY(executor::compile(schedule, rank_)));
  for (const Message& message : messages) {
    // Of the message alone: both ends have to come to the same.
    const Choice choice =
        predict(settings_, Collective::PointToPoint, AlgorithmId::Direct, protocol, message.bytes);
    plan.partitions.push_back(
        executor::make_block_partition(message.bytes, 1, 1, cut(protocol, choice.channels)));
  }
  plan.microseconds = predict_messages(settings_, protocol, static_cast<int>(messages.size()),
                                       std::max(sent, received));
  return plan;
}

}  // namespace niccolite::planner
