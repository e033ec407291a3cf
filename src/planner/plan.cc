#include "planner/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "algorithms/point_to_point.h"
#include "planner/choice/call_settings.h"
#include "planner/choice/channel_counts.h"
#include "planner/choice/eligibility.h"
#include "planner/choice/list_choice.h"
#include "planner/plugins/tuner.h"
#include "planner/routes.h"

namespace niccolite::planner {
namespace {

using executor::DataType;
using executor::Protocol;
using executor::ReduceOp;
using executor::Reduction;

// An average is a scaled sum. If sums of some ranks travel between ranks in the element's own type
// (a ring), scaling at the end could come after an overflow; so each contribution is scaled when it
// is read. If all operands meet in one wide accumulator, scaling once at the end is exact to one
// rounding. Integers are divided at the end, as NCCL defines.
Reduction make_reduction(const Operator& op, DataType type, int nranks, bool partial_sums) {
  switch (op.operation) {
    case Operation::Sum:
      return {.op = ReduceOp::Sum};
    case Operation::Product:
      return {.op = ReduceOp::Product};
    case Operation::Max:
      return {.op = ReduceOp::Max};
    case Operation::Min:
      return {.op = ReduceOp::Min};
    case Operation::PreMulSum:
      return {.op = ReduceOp::Sum,
              .input_scale = op.scale,
              .input_factor = op.factor,
              .device_scale = op.device_scale};
    case Operation::Average:
      break;
  }
  if (!executor::is_floating(type)) return {.op = ReduceOp::Sum, .finish_divisor = nranks};
  if (partial_sums) return {.op = ReduceOp::Sum, .input_scale = 1.0 / nranks};
  return {.op = ReduceOp::Sum, .finish_scale = 1.0 / nranks};
}

/// Do switches carry it out? Operations that they lack go other ways.
bool is_for_switch(const Request& request) {
  if (!schedule::reduces(request.collective)) return true;
  switch (request.op.operation) {
    case Operation::Sum:
      return executor::switch_reduces(request.type, ReduceOp::Sum);
    case Operation::Max:
      return executor::switch_reduces(request.type, ReduceOp::Max);
    case Operation::Min:
      return executor::switch_reduces(request.type, ReduceOp::Min);
    default:
      return false;
  }
}

// A program that uses more sizes than this in turn makes some choices anew, which takes
// microseconds.
constexpr size_t kMostChoices = 1024;

// True if `bytes` fit into the slots of one connection by Simple.
bool fits_in_slots(const Settings& settings, size_t bytes) {
  const executor::FifoShape& shape = settings.shapes[static_cast<size_t>(Protocol::Simple)];
  return bytes <= size_t{shape.channels} * shape.depth *
                      executor::data_bytes(Protocol::Simple, shape.slot_bytes);
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

Result<Planner::Compiled> Planner::program(const Form& form, int root, ByTeam by_team) {
  const auto key = std::tuple(&form, root, by_team);
  if (const auto found = programs_.find(key); found != programs_.end()) return found->second;
  algorithms::Options options = options_of(settings_);
  options.only_rank = rank_;
  options.root = root;
  const schedule::Schedule schedule = TRY(form.build(settings_.nranks, options));
  Compiled compiled;
  const lowering::Routes routes =
      TRY(find_routes(form, settings_.nranks, options, schedule, by_team));
  compiled.program =
      std::make_shared<const executor::Program>(TRY(executor::compile(schedule, rank_, routes)));
  compiled.partial_sums = schedule.partial_sums;
  programs_.emplace(key, compiled);
  return compiled;
}

bool Planner::plan_for_reach(Of of) {
  const bool reaches_messages = messages_reach_ || of == Of::CollectivesAndMessages;
  if (settings_.reaches_users && messages_reach_ == reaches_messages) return false;
  settings_.reaches_users = true;
  messages_reach_ = reaches_messages;
  choices_.clear();
  return true;
}

void Planner::plan_for_windows_of_team() {
  settings_.team_reaches_windows = true;
  choices_.clear();
}

void Planner::plan_for_slots() {
  if (!settings_.reaches_users) return;
  settings_.reaches_users = false;
  choices_.clear();
}

Settings Planner::settings_of_message(bool goes_direct) const {
  Settings settings = settings_;
  settings.reaches_users = messages_reach_ || goes_direct;
  return settings;
}

executor::Cut Planner::cut(Collective collective, const Variant& variant) const {
  return {.max_channels = static_cast<uint32_t>(std::max(1, variant.channels)),
          .slot_data_bytes = chunk_bytes(settings_, collective, variant)};
}

Result<Plan> Planner::collective(const Request& request, int most_channels) {
  // Operations side by side have channels of their own; teams have few, and the network's reducer
  // serves one operation.
  const auto help = [&](bool is_there, bool carries) {
    if (!is_there) return Help::None;
    if (!carries) return Help::NotOfIt;
    return most_channels == 0 ? Help::Given : Help::NotShared;
  };
  const Helpers helpers{.team = help(settings_.team_ranks > 0, is_for_switch(request)),
                        .network = help(settings_.reducible.bits != 0, can_reduce(request)),
                        .request = &request};
  Choice choice =
      TRY(chosen(request.collective, request.bytes(), most_channels,
                 /*goes_direct=*/false, request.settings, helpers, type_that_matters(request)));
  // Unless a call's own settings or a tuner plug-in decide.
  if (request.settings == nullptr && decide_ == nullptr && !choice.by_team)
    choice.channels = channels_for_arithmetic(settings_, request, choice);
  if (most_channels > 0) choice.channels = std::min(choice.channels, most_channels);
  return plan_of(request, choice);
}

Result<std::optional<Plan>> Planner::listed(const Request& request) {
  if (decide_ != nullptr) return std::optional<Plan>();  // a plug-in decides for each by itself
  const std::optional<Choice> choice =
      choose_for_list(settings_, request.collective, request.bytes());
  if (!choice) return std::optional<Plan>();
  return std::optional(TRY(plan_of(request, *choice)));
}

Result<std::optional<Plan>> Planner::listed_directly(const Request& request) {
  if (decide_ != nullptr) return std::optional<Plan>();
  const executor::ListOperation operation{
      .collective = request.collective,
      .nranks = settings_.nranks,
      .root = schedule::has_root(request.collective) ? request.root : 0};
  const std::optional<executor::ListAccess> access = find_list_access(settings_, operation);
  if (!access) return std::optional<Plan>();
  // Without a root every rank needs all others to begin. With a root a rank can begin by itself.
  if (fills_slots_first_ && schedule::has_root(request.collective) &&
      fits_in_slots(settings_, request.bytes()))
    return std::optional<Plan>();
  // The one-shot all-reduce connects all ranks in both directions.
  const Form& one_shot = *one_step(Collective::AllReduce);
  const Variant variant{.form = &one_shot, .protocol = Protocol::LL};
  Plan plan;
  plan.choice.form = variant.form;
  plan.choice.protocol = plan.protocol = variant.protocol;
  plan.shape = shape_of(settings_, Collective::AllReduce, plan.protocol);
  plan.program = TRY(program(one_shot, /*root=*/0)).program;
  plan.list_access = access;
  plan.list_operation = operation;
  plan.microseconds = predict_in_direct_list(settings_, request);
  plan.reduces = schedule::reduces(request.collective);
  size_t count = request.bytes();
  if (plan.reduces) {
    plan.type = request.type;
    plan.reduction =
        make_reduction(request.op, request.type, settings_.nranks, /*partial_sums=*/false);
    count = request.count;
  }
  plan.partitions.push_back(
      executor::make_partition(count, static_cast<uint32_t>(executor::size_of(plan.type)),
                               /*nblocks=*/1, cut(Collective::AllReduce, variant)));
  return std::optional(std::move(plan));
}

/// Is the network's reducer able to carry it?
bool Planner::can_reduce(const Request& request) const {
  if (!schedule::reduces(request.collective)) return true;
  return settings_.reducible.has(request.type,
                                 make_reduction(request.op, request.type, settings_.nranks,
                                                /*partial_sums=*/true)
                                     .op);
}

Result<Plan> Planner::plan_of(const Request& request, const Choice& choice) {
  Plan plan;
  plan.choice = choice;
  plan.protocol = plan.choice.protocol;
  plan.shape = shape_of(settings_, request.collective, plan.protocol);
  plan.microseconds = plan.choice.microseconds;
  const Compiled compiled =
      TRY(program(*plan.choice.form, schedule::has_root(request.collective) ? request.root : 0,
                  by_team_of(plan.choice)));
  if (plan.choice.by_team) {
    plan.team_shape = settings_.team_slots.of(plan.protocol);
    const auto is_here = [&](int machine) {
      return machine == settings_.machines[static_cast<size_t>(rank_)];
    };
    plan.team_ranks = settings_.machines.empty()
                          ? settings_.nranks
                          : static_cast<int>(std::ranges::count_if(settings_.machines, is_here));
  }
  plan.program = compiled.program;
  plan.reduces = schedule::reduces(request.collective);
  size_t count = request.count;
  if (plan.reduces) {
    plan.type = request.type;
    plan.reduction =
        make_reduction(request.op, request.type, settings_.nranks, compiled.partial_sums);
    plan.pull_bytes = pull_bytes(
        settings_,
        {.collective = request.collective, .nranks = settings_.nranks, .bytes = request.bytes()});
  } else {
    count = request.bytes();
  }
  const auto element = static_cast<uint32_t>(executor::size_of(plan.type));
  const auto nblocks = static_cast<uint32_t>(plan.program->works[0].nblocks);
  const executor::Cut cuts = cut(request.collective, plan.choice);
  plan.partitions.push_back(schedule::cuts_one_buffer(request.collective)
                                ? executor::make_partition(count, element, nblocks, cuts)
                                : executor::make_block_partition(count, element, nblocks, cuts));
  return plan;
}

Result<Protocol> Planner::protocol_of_message(size_t bytes, bool goes_direct) {
  return TRY(chosen(Collective::PointToPoint, bytes, /*most_channels=*/0, goes_direct)).protocol;
}

Result<Protocol> Planner::protocol_of_copy(size_t bytes, bool goes_direct) {
  const Protocol like_others = TRY(protocol_of_message(bytes, goes_direct));
  return planner::protocol_of_copy(settings_of_message(goes_direct), like_others, bytes);
}

// A call's own configuration takes precedence over a tuner plug-in, which decides for all calls.
Result<Choice> Planner::chosen(Collective collective, size_t bytes, int most_channels,
                               bool goes_direct, const CallSettings* own, Helpers helpers,
                               std::optional<DataType> type) {
  const auto key = Chosen(collective, bytes, most_channels, goes_direct, own, helpers.team,
                          helpers.network, type);
  if (const auto found = choices_.find(key); found != choices_.end()) return found->second;
  const bool is_message = collective == Collective::PointToPoint;
  const bool is_tuned = decide_ != nullptr && Tuner::decides(collective);
  Settings settings = is_message ? settings_of_message(goes_direct) : settings_;
  // A plug-in's decision does not say it when it travels between ranks.
  if (helpers.team != Help::Given || is_tuned) settings.team_ranks = 0;
  const auto reduction = [&] {
    return fmt::format("{} by {}", executor::name_of(helpers.request->type),
                       name_of(helpers.request->op.operation));
  };
  if (helpers.team == Help::NotOfIt) settings.not_of_teams = reduction();
  if (helpers.network == Help::NotOfIt) settings.not_of_reducer = reduction();
  if (helpers.network == Help::NotShared) settings = without_reducer(settings);
  settings.type = type;
  const auto decide = [&] {
    if (own != nullptr) return choose_by(settings, *own, collective, bytes, most_channels);
    if (is_tuned) return decide_(settings, collective, bytes, most_channels);
    return choose(settings, collective, bytes, most_channels);
  };
  const Choice choice = TRY(decide());
  if (choices_.size() >= kMostChoices) choices_.erase(choices_.begin());
  choices_.emplace(key, choice);
  return choice;
}

std::optional<DataType> Planner::type_that_matters(const Request& request) const {
  if (!schedule::reduces(request.collective) ||
      !has_algorithms_of_types(settings_, request.collective))
    return {};
  return request.type;
}

executor::Partition Planner::partition_of_message(size_t bytes, Protocol protocol,
                                                  bool goes_direct) const {
  const Choice choice = choose_for_message(settings_of_message(goes_direct), protocol, bytes);
  return executor::make_block_partition(bytes, 1, 1, cut(Collective::PointToPoint, choice));
}

executor::Partition Planner::partition_of_copy(const Message& message, Protocol protocol) const {
  const Choice choice =
      choose_for_copy(settings_of_message(message.goes_direct), protocol, message.bytes);
  return executor::make_block_partition(message.bytes, 1, 1, cut(Collective::PointToPoint, choice));
}

Result<std::shared_ptr<const executor::Program>> Planner::message_program(
    std::span<const std::vector<Message>> layers, Protocol protocol) const {
  algorithms::Options options;
  options.only_rank = rank_;
  options.message_tag = message_tag(settings_, protocol);
  std::vector<executor::Program> programs;
  for (const std::vector<Message>& layer : layers) {
    std::vector<algorithms::Envelope> ends;
    for (const Message& message : layer)
      ends.push_back(message.is_send ? algorithms::Envelope{rank_, message.peer}
                                     : algorithms::Envelope{message.peer, rank_});
    const schedule::Schedule schedule =
        TRY(algorithms::point_to_point(settings_.nranks, ends, options));
    programs.push_back(TRY(executor::compile(schedule, rank_)));
  }
  if (programs.size() == 1)
    return std::make_shared<const executor::Program>(std::move(programs.front()));
  std::vector<const executor::Program*> all;
  for (const executor::Program& program : programs) all.push_back(&program);
  return std::make_shared<const executor::Program>(TRY(executor::join_messages(all)));
}

Result<Plan> Planner::messages(std::span<const std::vector<Message>> layers, Protocol protocol) {
  Plan plan;
  plan.protocol = protocol;
  plan.shape = shape_of(settings_, Collective::PointToPoint, protocol);
  plan.program = TRY(message_program(layers, protocol));
  size_t sent = 0, received = 0;
  bool goes_direct = true;
  std::map<std::pair<int, bool>, size_t> last;  // work with (peer, is_send)
  for (const std::vector<Message>& layer : layers) {
    for (const Message& message : layer) {
      (message.is_send ? sent : received) += message.bytes;
      goes_direct &= message.goes_direct;
      const size_t work = plan.partitions.size();
      plan.partitions.push_back(
          message.peer == rank_
              ? partition_of_copy(message, protocol)
              : partition_of_message(message.bytes, protocol, message.goes_direct));
      executor::Turn& turn = plan.turns.emplace_back();
      const auto [before, is_first] = last.try_emplace({message.peer, message.is_send}, work);
      if (is_first || message.peer == rank_) continue;
      const size_t other = std::exchange(before->second, work);
      plan.turns[other].is_followed = true;
      turn.first_step = plan.turns[other].first_step + plan.partitions[other].rounds;
    }
  }
  plan.microseconds =
      predict_messages(settings_of_message(goes_direct), protocol,
                       static_cast<int>(plan.partitions.size()), std::max(sent, received));
  return plan;
}

}  // namespace niccolite::planner
