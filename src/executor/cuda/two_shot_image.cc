#include "executor/cuda/two_shot_image.h"

#include <algorithm>
#include <vector>

#include "executor/cuda/tables.h"
#include "executor/protocol/ll128.h"

namespace niccolite::executor::cuda {
namespace {

/// The instructions by what they do.
struct Phases {
  std::vector<CompactInstruction> pushes;
  std::vector<CompactInstruction> gathers;
  CompactInstruction fold{};
};

bool is_push(const CompactInstruction& i) {
  return i.receive_count == 0 && i.send_count == 1 && i.flags == 0 && i.source == Place::Input &&
         i.source_block == i.chunk_block && i.target == Place::None;
}

bool is_gather(const CompactInstruction& i) {
  return i.receive_count == 1 && i.send_count == 0 && i.flags == 0 && i.source == Place::None &&
         i.target == Place::Output && i.target_block == i.chunk_block;
}

bool is_fold(const CompactInstruction& i, uint32_t peers) {
  return i.receive_count == peers && i.send_count == peers && i.flags == (kReduce | kFinish) &&
         i.source == Place::Input && i.source_block == i.chunk_block && i.target == Place::Output &&
         i.target_block == i.chunk_block && i.source_position <= peers;
}

/// None unless there are as many of each as a two-shot has. (That the connections carry what these
/// lists take them for, the schedule's proof says.)
std::optional<Phases> phases_of(const Program& program, uint32_t peers) {
  Phases phases;
  size_t folds = 0;
  for (const CompactInstruction& instruction : program.instructions) {
    if (is_push(instruction)) {
      phases.pushes.push_back(instruction);
    } else if (is_gather(instruction)) {
      phases.gathers.push_back(instruction);
    } else if (is_fold(instruction, peers)) {
      phases.fold = instruction;
      ++folds;
    } else {
      return std::nullopt;
    }
  }
  if (folds != 1 || phases.pushes.size() != peers || phases.gathers.size() != peers) {
    return std::nullopt;
  }
  // Owners give back what is pushed to them: in place, that keeps the two apart (two_shot.cuh).
  const auto peer_of = [&](uint16_t index) { return program.ports[program.indices[index]].peer; };
  for (const CompactInstruction& gather : phases.gathers) {
    if (std::none_of(phases.pushes.begin(), phases.pushes.end(), [&](const auto& push) {
          return push.chunk_block == gather.chunk_block &&
                 peer_of(push.send) == peer_of(gather.receive);
        })) {
      return std::nullopt;
    }
  }
  return phases;
}

TwoShotBlock block_of(const Launch& launch, uint16_t block) {
  const Partition& partition = launch.works[0].partition;
  const uint64_t at = block * partition.block_stride;
  const uint64_t count =
      at < partition.count ? std::min(partition.count - at, partition.block_stride) : 0;
  return {at * size_of(launch.type), count * size_of(launch.type)};
}

bool may_be_two_shot(const Launch& launch) {
  const Program& program = *launch.program;
  if (launch.protocol != Protocol::LL128 || program.nchannels != 1 || program.works.size() != 1) {
    return false;
  }
  // Factors of the input are rare, and would be applied in many places.
  const Reduction& reduction = launch.reduction;
  if (reduction.device_scale != nullptr || reduction.input_scale != 1 ||
      reduction.input_factor != 1) {
    return false;
  }
  const int nblocks = program.works[0].nblocks;
  if (nblocks < 2 || nblocks > static_cast<int>(kMostTwoShotPeers) + 1) return false;
  // The kernel pushes a round ahead: with one slot it would wait for what only it can free.
  if (launch.shape.depth < 2 && launch.works[0].partition.rounds > 1) return false;
  return program.ports.size() == kTwoShotEnds * static_cast<size_t>(nblocks - 1) &&
         std::all_of(program.ports.begin(), program.ports.end(),
                     [](const Port& port) { return port.steps == 1; });
}

}  // namespace

std::optional<TwoShotImage> two_shot_image(const Launch& launch) {
  if (!may_be_two_shot(launch)) return std::nullopt;
  const Program& program = *launch.program;
  const auto peers = static_cast<uint32_t>(program.works[0].nblocks - 1);
  const std::optional<Phases> phases = phases_of(program, peers);
  if (!phases) return std::nullopt;

  TwoShotImage image{};
  image.peers = peers;
  image.source_position = phases->fold.source_position;
  image.reciprocal = (1u << 16) / peers + 1;
  image.own = block_of(launch, phases->fold.chunk_block);
  const auto set = [&](TwoShotEnd end, uint32_t i, uint32_t index) {
    image.ports[static_cast<uint32_t>(end) * peers + i] = task_of(launch, program.indices[index]);
  };
  for (uint32_t i = 0; i < peers; ++i) {
    const CompactInstruction& push = phases->pushes[i];
    const CompactInstruction& gather = phases->gathers[i];
    image.pushed[i] = block_of(launch, push.chunk_block);
    image.gathered[i] = block_of(launch, gather.chunk_block);
    set(TwoShotEnd::Push, i, push.send);
    set(TwoShotEnd::Operand, i, phases->fold.receive + i);
    set(TwoShotEnd::Result, i, phases->fold.send + i);
    set(TwoShotEnd::Gather, i, gather.receive);
  }
  return image;
}

uint32_t two_shot_threads(const Launch& launch, const TwoShotImage& image) {
  constexpr uint32_t kWarpLines = 4;
  const uint64_t chunk = uint64_t{launch.works[0].partition.chunk} * size_of(launch.type);
  const uint64_t warps = divide_up(ll128::lines_of(chunk), kWarpLines) * image.peers;
  return static_cast<uint32_t>(std::clamp<uint64_t>(warps * kWarp, kWarp, kMaxThreads));
}

}  // namespace niccolite::executor::cuda
