#include "executor/cuda/launch/places.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "executor/cuda/launch/launch_header.h"
#include "executor/user_memory_steps.h"

namespace niccolite::executor::cuda {
namespace {

/// Knows whether the network reaches a buffer of the launch, all of it. Looks once for each.
class Reach {
 public:
  explicit Reach(const Launch& launch) : launch_(launch) {}

  /// By the proxy of one of `count` ports in the program's list from `first` on.
  bool holds(size_t work, OperandBuffer buffer, uint32_t first, uint32_t count) {
    const Program& program = *launch_.program;
    const auto begin = program.indices.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + static_cast<std::ptrdiff_t>(count);
    const auto index = std::find_if(
        begin, end, [&](uint16_t port) { return launch_.ports[port].user_memory != nullptr; });
    if (buffer == OperandBuffer::None || index == end) return false;
    const auto [known, is_new] =
        known_.try_emplace({work, buffer, program.ports[*index].is_send}, false);
    if (is_new) known->second = reaches(*launch_.ports[*index].user_memory, work, buffer);
    return known->second;
  }

 private:
  bool reaches(const relay::UserMemory& network, size_t work, OperandBuffer buffer) const {
    const WorkShape& shape = launch_.program->works[work];
    const Partition& partition = launch_.works[work].partition;
    const Buffers& buffers = launch_.works[work].buffers;
    const bool is_input = buffer == OperandBuffer::Input;
    const bool is_output = buffer == OperandBuffer::Output;
    const int blocks = is_input    ? shape.input_blocks
                       : is_output ? shape.output_blocks
                                   : shape.scratch_blocks;
    const void* const begin = is_input    ? buffers.input
                              : is_output ? buffers.output
                                          : buffers.scratch;
    const uint64_t whole = static_cast<uint64_t>(blocks) * partition.block_stride;
    // The last block of a user's buffer may be shorter.
    const uint64_t elements = is_input || is_output ? std::min(partition.count, whole) : whole;
    return elements != 0 &&
           network.reaches(static_cast<const std::byte*>(begin), elements * size_of(launch_.type));
  }

  const Launch& launch_;
  std::map<std::tuple<size_t, OperandBuffer, bool>, bool> known_;
};

}  // namespace

// Programs by a team have an interpreter of their own (interpreter/team_kernel.cuh).
bool may_have_places(const Launch& launch) {
  return launch.protocol == Protocol::Simple && launch.team_ranks == 0 &&
         std::ranges::any_of(launch.ports,
                             [](const PortAddress& port) { return port.user_memory != nullptr; });
}

namespace {

/// Lists the ports with places of each worker.
void add_workers(const Program& program, Places& places) {
  for (const CompactWorker& worker : program.workers) {
    const auto first = static_cast<uint16_t>(places.lists.size());
    const auto add = [&](bool is_send) {
      const size_t before = places.lists.size();
      for (size_t i = worker.first; i < size_t{worker.first} + worker.count; ++i) {
        const CompactInstruction& instruction = program.instructions[i];
        const uint32_t at = is_send ? instruction.send : instruction.receive;
        const uint32_t count = is_send ? instruction.send_count : instruction.receive_count;
        for (uint32_t p = at; p < at + count; ++p) {
          const uint16_t port = program.indices[p];
          if (places.ports[port].places == nullptr) continue;
          // A port belongs to one worker.
          const auto own = places.lists.begin() + static_cast<std::ptrdiff_t>(before);
          if (std::find(own, places.lists.end(), port) == places.lists.end())
            places.lists.push_back(port);
        }
      }
      return static_cast<uint16_t>(places.lists.size() - before);
    };
    const uint16_t receives = add(/*is_send=*/false);
    places.workers.push_back(
        {.first = first, .receives = receives, .sends = add(/*is_send=*/true)});
  }
}

}  // namespace

std::optional<Places> find_places(const Launch& launch) {
  if (!may_have_places(launch) || !UserMemorySteps::may_serve(launch)) return std::nullopt;
  const Program& program = *launch.program;
  const uint32_t flags = flags_of(launch);
  const UserMemorySteps steps(
      launch, {.of_input = (flags & kScalesInput) != 0, .of_result = (flags & kScalesResult) != 0});
  Places places;
  places.instructions.resize(program.instructions.size());
  Reach reach(launch);
  bool any = false;
  for (const CompactWorker& worker : program.workers) {
    for (size_t i = worker.first; i < size_t{worker.first} + worker.count; ++i) {
      const CompactInstruction& instruction = program.instructions[i];
      InstructionPlaces& of = places.instructions[i];
      const UserMemorySteps::Source source = steps.source_of(i);
      if (reach.holds(worker.work, source.buffer, instruction.send, instruction.send_count)) {
        of.source = source.buffer;
        of.source_block = source.block;
        any = true;
      }
      if (steps.is_placed(i) && reach.holds(worker.work, instruction.target, instruction.receive,
                                            instruction.receive_count)) {
        of.is_placed = 1;
        of.placed_from = steps.placed_from(i) == UserMemorySteps::kAnyTime
                             ? InstructionPlaces::kAnyTime
                             : static_cast<uint16_t>(steps.placed_from(i));
        any = true;
      }
    }
  }
  if (!any) return std::nullopt;
  for (size_t p = 0; p < launch.ports.size(); ++p) {
    const relay::UserMemory* const network = launch.ports[p].user_memory;
    const Work& work = launch.works[static_cast<size_t>(program.ports[p].work)];
    PortPlaces& of = places.ports.emplace_back();
    of.receives = static_cast<uint32_t>(places.receives.size());
    if (network == nullptr) continue;
    of.places = network->places() + size_t{work.first_channel} * launch.shape.depth;
    of.least_bytes = static_cast<uint32_t>(
        std::min<uint64_t>(network->least_bytes(), std::numeric_limits<uint32_t>::max()));
    const std::vector<uint16_t>& receives = steps.receives_at(static_cast<uint16_t>(p));
    places.receives.insert(places.receives.end(), receives.begin(), receives.end());
  }
  add_workers(program, places);
  return places;
}

}  // namespace niccolite::executor::cuda
