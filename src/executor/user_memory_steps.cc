#include "executor/user_memory_steps.h"

#include <algorithm>
#include <optional>

#include "executor/protocol/user_memory.h"

namespace niccolite::executor {

/// Finds the chunks. It lives as long as that takes.
class UserMemorySteps::Finder {
 public:
  Finder(const Launch& launch, Scaling scaling, UserMemorySteps& steps)
      : launch_(launch), program_(*launch.program), scaling_(scaling), steps_(steps) {}
  void look_at(size_t worker);

 private:
  struct Block {
    uint64_t begin = 0, end = 0;  // addresses; none: equal
    bool overlaps(const Block& other) const { return begin < other.end && other.begin < end; }
    bool operator==(const Block&) const = default;
  };
  Block block_of(size_t worker, OperandBuffer buffer, uint32_t block) const;
  template <typename Visit>
  void for_channel_of(size_t worker, Visit&& visit) const;
  Source find_source(size_t worker, size_t instruction) const;
  uint32_t find_place(size_t worker, size_t instruction) const;

  const Launch& launch_;
  const Program& program_;
  const Scaling scaling_;
  UserMemorySteps& steps_;
};

bool UserMemorySteps::may_serve(const Launch& launch) {
  if (launch.protocol != Protocol::Simple) return false;
  uint64_t most = 0;
  for (const Work& work : launch.works)
    most = std::max(most, work.partition.chunk * size_of(launch.type));
  return std::ranges::any_of(launch.ports, [&](const PortAddress& port) {
    return port.user_memory != nullptr && most >= port.user_memory->least_bytes() &&
           port.user_memory->reaches_any();
  });
}

UserMemorySteps::UserMemorySteps(const Launch& launch, Scaling scaling)
    : instructions_(launch.program->instructions.size()),
      receives_at_(launch.program->ports.size()) {
  Finder finder(launch, scaling, *this);
  for (size_t worker = 0; worker < launch.program->workers.size(); ++worker) finder.look_at(worker);
}

UserMemorySteps::Finder::Block UserMemorySteps::Finder::block_of(size_t worker,
                                                                 OperandBuffer buffer,
                                                                 uint32_t block) const {
  const Work& work = launch_.works[program_.workers[worker].work];
  const void* start = nullptr;
  switch (buffer) {
    case OperandBuffer::None:
      return {};
    case OperandBuffer::Input:
      start = work.buffers.input;
      break;
    case OperandBuffer::Output:
      start = work.buffers.output;
      break;
    case OperandBuffer::Scratch:
      start = work.buffers.scratch;
      break;
  }
  const uint64_t bytes = work.partition.block_stride * size_of(launch_.type);
  const uint64_t begin = reinterpret_cast<uint64_t>(start) + block * bytes;
  return {.begin = begin, .end = begin + bytes};
}

void UserMemorySteps::Finder::look_at(size_t worker) {
  const CompactWorker& own = program_.workers[worker];
  for (size_t i = own.first; i < size_t{own.first} + own.count; ++i) {
    const CompactInstruction& present = program_.instructions[i];
    for (uint32_t r = 0; r < present.receive_count; ++r)
      steps_.receives_at_[program_.indices[present.receive + r]].push_back(
          static_cast<uint16_t>(i));
    Of& of = steps_.instructions_[i];
    of.source = find_source(worker, i);
    const bool scales = (present.flags & kFinish) != 0 && scaling_.of_result;
    of.is_placed = present.receive_count == 1 && present.source == OperandBuffer::None &&
                   present.target != OperandBuffer::None && (present.flags & kReduce) == 0 &&
                   !scales;
    if (of.is_placed) of.placed_from = find_place(worker, i);
  }
}

// Calls visit(is of this worker, instruction, its source, its target) for all instructions that
// move the same chunks of the same buffers as the worker does.
template <typename Visit>
void UserMemorySteps::Finder::for_channel_of(size_t worker, Visit&& visit) const {
  const CompactWorker& own = program_.workers[worker];
  for (size_t other = 0; other < program_.workers.size(); ++other) {
    const CompactWorker& of = program_.workers[other];
    if (of.work != own.work || of.channel != own.channel) continue;
    for (size_t i = of.first; i < size_t{of.first} + of.count; ++i) {
      const CompactInstruction& its = program_.instructions[i];
      visit(other == worker, i, block_of(other, its.source, its.source_block),
            block_of(other, its.target, its.target_block));
    }
  }
}

UserMemorySteps::Source UserMemorySteps::Finder::find_source(size_t worker,
                                                             size_t instruction) const {
  const CompactInstruction& present = program_.instructions[instruction];
  const bool scales = (present.flags & kFinish) != 0 && scaling_.of_result;
  Source source;
  if (present.target != OperandBuffer::None)
    source = {.buffer = present.target, .block = present.target_block};
  else if (present.receive_count == 0 && !scales &&
           !(present.source == OperandBuffer::Input && scaling_.of_input))
    source = {.buffer = present.source, .block = present.source_block};
  const Block sent = block_of(worker, source.buffer, source.block);
  bool is_kept = true;  // until the end
  // Is this the only way of this rank's input into the result, which alone is stored there later?
  bool is_only_reader = source.buffer == OperandBuffer::Input && present.send_count == 1;
  bool reduces = false;
  int stores = 0;
  for_channel_of(worker, [&](bool is_own, size_t i, const Block& read, const Block& target) {
    if (is_own && i == instruction) return;
    reduces |= (program_.instructions[i].flags & kReduce) != 0;
    is_only_reader &= !read.overlaps(sent);
    if (!target.overlaps(sent)) return;
    is_only_reader &= target == sent;
    ++stores;
    is_kept &= is_own && i < instruction && target == sent;
  });
  // If a rank reduces, and has as many blocks in the end as in the beginning, each result contains
  // its input: so in all-reduces, and in reduces at the root.
  const WorkShape& shape = program_.works[program_.workers[worker].work];
  const bool is_replaced_by_result =
      is_only_reader && stores == 1 && reduces && shape.input_blocks == shape.output_blocks;
  return is_kept || is_replaced_by_result ? source : Source{};
}

uint32_t UserMemorySteps::Finder::find_place(size_t worker, size_t instruction) const {
  const CompactInstruction& present = program_.instructions[instruction];
  const Block stored = block_of(worker, present.target, present.target_block);
  const auto here = static_cast<uint32_t>(instruction);
  std::optional<uint32_t> from;  // none: any time
  for_channel_of(worker, [&](bool is_own, size_t i, const Block& source, const Block& target) {
    for (const Block& used : {source, target}) {
      if (!used.overlaps(stored) || (is_own && i == instruction)) continue;
      if (!is_own || used != stored) from = here;
      if (i < instruction) from = std::max(from.value_or(0), static_cast<uint32_t>(i) + 1);
    }
  });
  return from.value_or(kAnyTime);
}

}  // namespace niccolite::executor
