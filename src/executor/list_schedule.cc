#include "executor/list_schedule.h"

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "lowering/check.h"
#include "schedule/builder.h"
#include "schedule/check.h"
#include "schedule/order.h"

namespace niccolite::executor {
namespace {

using schedule::Builder;
using schedule::Collective;
using schedule::input;
using schedule::Instruction;
using schedule::output;
using schedule::Schedule;
using schedule::WorkerBuilder;

constexpr int kInputs = 0, kOutputs = 1;  // tags

bool has(uint32_t ranks, int rank) { return has_rank(ranks, static_cast<uint32_t>(rank)); }

/// An instruction of `own` that takes `block` of the inputs of `sources` (bits by rank), and
/// reduces it if they are several.
Instruction operands_of(WorkerBuilder& worker, const ListOperation& operation, int own,
                        uint32_t sources, int block) {
  Instruction instruction{.finish = schedule::reduces(operation.collective)};
  for (int rank = 0; rank < operation.nranks; ++rank) {
    if (!has(sources, rank)) continue;
    if (rank == own) {
      instruction.source = input(block);
      instruction.source_position = static_cast<int>(instruction.receive_from.size());
    } else {
      instruction.receive_from.push_back(worker.from(rank, kInputs).front());
    }
  }
  instruction.reduce =
      instruction.receive_from.size() + (instruction.source.has_value() ? 1 : 0) > 1;
  return instruction;
}

/// One rank's part in one tile, from `sources` to `targets` (bits by rank). The other ranks have
/// workers that only let it read and store.
struct Move {
  int rank;
  uint32_t sources;
  uint32_t targets;
  int source_block;
  int target_block;
};

void add_move(Builder& builder, const ListOperation& operation, const Move& move) {
  WorkerBuilder worker = builder.add_worker(move.rank);
  Instruction instruction =
      operands_of(worker, operation, move.rank, move.sources, move.source_block);
  for (int rank = 0; rank < operation.nranks; ++rank) {
    if (rank == move.rank) continue;
    if (has(move.sources, rank)) {
      WorkerBuilder sender = builder.add_worker(rank);
      sender.add({.source = input(move.source_block), .send_to = sender.to(move.rank, kInputs)});
    }
    if (has(move.targets, rank)) {
      WorkerBuilder receiver = builder.add_worker(rank);
      receiver.add({.receive_from = receiver.from(move.rank, kOutputs),
                    .target = output(move.target_block)});
      instruction.send_to.push_back(worker.to(rank, kOutputs).front());
    }
  }
  if (has(move.targets, move.rank)) instruction.target = output(move.target_block);
  worker.add(std::move(instruction));
}

Builder builder_of(const ListOperation& operation, int nblocks) {
  return Builder({.collective = operation.collective,
                  .algorithm = "list",
                  .nranks = operation.nranks,
                  .nblocks = nblocks,
                  .root = operation.root});
}

struct Proof {
  std::string refusal;  // empty: it is right
  bool reduces_in_one_order = false;
};

Status prove(const Schedule& direct, const Schedule& in_slots) {
  TRY(check(direct, {.depth = 1}));
  const lowering::AccessPlan plan = TRY(lower_list(direct));
  TRY(lowering::check(plan, {.with_aborts = false}));
  return check(in_slots, {.depth = 1}).with_context("in slots");
}

Proof proof_of(const ListAccess& access, const ListOperation& operation) {
  using Key = std::tuple<ListForm, uint8_t, uint8_t, ListOperation>;
  static auto& mutex = *new std::mutex;  // never ends: threads may plan while the process does
  static auto& known = *new std::map<Key, Proof>;
  const Key key(access.form, access.inputs, access.outputs, operation);
  const std::lock_guard lock(mutex);
  const auto [proof, is_new] = known.try_emplace(key);
  if (is_new) {
    const Schedule direct = list_schedule(access, operation);
    const Schedule in_slots = list_schedule_in_slots(access, operation);
    proof->second.refusal = prove(direct, in_slots).message();
    proof->second.reduces_in_one_order = proof->second.refusal.empty() &&
                                         schedule::reduces_in_one_order(direct) &&
                                         schedule::reduces_in_one_order(in_slots);
  }
  return proof->second;
}

}  // namespace

std::optional<ListAccess> list_access_of(const ListOperation& operation) {
  const auto all = static_cast<uint8_t>((1u << operation.nranks) - 1);
  const auto root = static_cast<uint8_t>(1u << operation.root);
  switch (operation.collective) {
    case Collective::AllReduce:
      return ListAccess{.form = ListForm::Whole, .inputs = all, .outputs = all};
    case Collective::Reduce:
      return ListAccess{.form = ListForm::Whole, .inputs = all, .outputs = root};
    case Collective::Broadcast:
      return ListAccess{.form = ListForm::Whole, .inputs = root, .outputs = all};
    case Collective::ReduceScatter:
      return ListAccess{.form = ListForm::Scatter, .inputs = all, .outputs = all};
    case Collective::AllGather:
      return ListAccess{.form = ListForm::Gather, .inputs = all, .outputs = all};
    default:
      return std::nullopt;
  }
}

Schedule list_schedule(const ListAccess& access, const ListOperation& operation, uint32_t work) {
  const auto nranks = static_cast<uint32_t>(operation.nranks);
  const bool is_whole = access.form == ListForm::Whole;
  Builder builder = builder_of(operation, operation.nranks);
  for (uint32_t rank = 0; rank < nranks; ++rank)
    for (uint32_t tile = next_tile_of(access, rank, work, 0, nranks);
         tile < (is_whole ? nranks : 1); tile += tile_stride(access, nranks)) {
      add_move(builder, operation,
               {.rank = static_cast<int>(rank),
                .sources = sources_of(access, rank),
                .targets = targets_of(access, rank),
                .source_block = static_cast<int>(tile + source_block_of(access, rank)),
                .target_block = static_cast<int>(tile + target_block_of(access, rank))});
    }
  return std::move(builder).take();
}

Schedule list_schedule_in_slots(const ListAccess& access, const ListOperation& operation) {
  const int nranks = operation.nranks;
  const auto source_block = [&](int rank) {
    return static_cast<int>(source_block_of(access, static_cast<uint32_t>(rank)));
  };
  const auto target_block = [&](int rank) {
    return static_cast<int>(target_block_of(access, static_cast<uint32_t>(rank)));
  };
  Builder builder = builder_of(operation, access.form == ListForm::Whole ? 1 : nranks);
  for (int rank = 0; rank < nranks; ++rank) {
    WorkerBuilder worker = builder.add_worker(rank);
    // All that is sent comes first: in place, results replace it.
    for (int to = 0; to < nranks; ++to)
      if (to != rank && has(access.inputs, rank) && has(access.outputs, to))
        worker.add({.source = input(source_block(to)), .send_to = worker.to(to, kInputs)});
    if (!has(access.outputs, rank)) continue;
    const auto add = [&](uint32_t sources, int block) {
      Instruction instruction = operands_of(worker, operation, rank, sources, source_block(rank));
      instruction.target = output(block);
      worker.add(std::move(instruction));
    };
    if (access.form != ListForm::Gather) {
      add(access.inputs, 0);
      continue;
    }
    for (int of = 0; of < nranks; ++of)
      if (has(access.inputs, of)) add(1u << of, target_block(of));
  }
  return std::move(builder).take();
}

Result<lowering::AccessPlan> lower_list(const Schedule& direct) {
  // Threads move fixed tiles.
  lowering::AccessPlan plan = TRY(
      lowering::lower(direct, {.facilities = {.reduces = schedule::reduces(direct.collective)}}));
  for (const lowering::LoweredConnection& connection : plan.connections)
    if (connection.way == lowering::Way::Slot)
      return Status::invalid_usage("a tile of a list would go through slots");
  return plan;
}

Status prove_list(const ListAccess& access, const ListOperation& operation) {
  const Proof proof = proof_of(access, operation);
  if (proof.refusal.empty()) return {};
  return Status::internal("a list of {} over {} ranks is wrong: {}",
                          schedule::name_of(operation.collective), operation.nranks, proof.refusal);
}

bool reduces_in_one_order(const ListAccess& access, const ListOperation& operation) {
  return proof_of(access, operation).reduces_in_one_order;
}

}  // namespace niccolite::executor
