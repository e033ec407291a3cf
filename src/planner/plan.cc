#include "planner/plan.h"

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
Reduction make_reduction(Operation operation, DataType type, int nranks, bool partial_sums) {
  switch (operation) {
    case Operation::Sum:
      return {.fold = Fold::Sum};
    case Operation::Product:
      return {.fold = Fold::Product};
    case Operation::Max:
      return {.fold = Fold::Max};
    case Operation::Min:
      return {.fold = Fold::Min};
    case Operation::Average:
      break;
  }
  if (!executor::is_floating(type)) return {.fold = Fold::Sum, .finish_divisor = nranks};
  if (partial_sums) return {.fold = Fold::Sum, .input_scale = 1.0 / nranks};
  return {.fold = Fold::Sum, .finish_scale = 1.0 / nranks};
}

// LL data are small: one lane that pushes, folds and gathers in turn saves the hand-over between
// lanes.
std::string variant_of(AlgorithmId algorithm, Protocol protocol) {
  if (algorithm == AlgorithmId::TwoShot && protocol == Protocol::LL) return "two_shot_lane";
  return name_of(algorithm);
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
  }
  return "?";
}

Result<Planner::Compiled> Planner::program(const std::string& name) {
  if (const auto found = programs_.find(name); found != programs_.end()) return found->second;
  const algorithms::Algorithm* algorithm = algorithms::find(schedule::Collective::AllReduce, name);
  if (algorithm == nullptr) return Status::internal("no algorithm '{}'", name);
  algorithms::Options options;
  options.only_rank = rank_;
  const schedule::Schedule schedule = TRY(algorithm->build(settings_.nranks, options));
  Compiled compiled;
  compiled.program =
      std::make_shared<const executor::Program>(TRY(executor::compile(schedule, rank_)));
  compiled.partial_sums = schedule.partial_sums;
  programs_.emplace(name, compiled);
  return compiled;
}

Result<Plan> Planner::all_reduce(size_t count, DataType type, Operation operation) {
  const size_t bytes = count * executor::size_of(type);
  Plan plan;
  plan.choice = TRY(choose(settings_, bytes));
  const Compiled compiled = TRY(program(variant_of(plan.choice.algorithm, plan.choice.protocol)));
  plan.program = compiled.program;
  const executor::FifoShape& shape = settings_.shapes[static_cast<size_t>(plan.choice.protocol)];
  plan.partition = executor::make_partition(
      count, static_cast<uint32_t>(executor::size_of(type)),
      static_cast<uint32_t>(plan.program->nblocks), static_cast<uint32_t>(plan.choice.channels),
      executor::data_bytes(plan.choice.protocol, shape.slot_bytes), 16);
  plan.reduction = make_reduction(operation, type, settings_.nranks, compiled.partial_sums);
  return plan;
}

}  // namespace niccolite::planner
