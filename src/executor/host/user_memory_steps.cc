#include "executor/host/user_memory_steps.h"

#include <algorithm>

#include "executor/protocol/user_memory.h"

namespace niccolite::executor::host {

bool UserMemorySteps::may_serve(const Launch& launch) {
  if (launch.protocol != Protocol::Simple) return false;
  uint64_t most = 0;
  for (const Work& work : launch.works)
    most = std::max(most, work.partition.chunk * size_of(launch.type));
  return std::ranges::any_of(launch.ports, [&](const PortAddress& port) {
    return port.user_memory != nullptr && most >= port.user_memory->least_bytes();
  });
}

UserMemorySteps::UserMemorySteps(const Plan& plan, const Reducer& reducer)
    : plan_(plan),
      instructions_(plan.program().instructions.size()),
      receives_at_(plan.program().ports.size()) {
  for (size_t worker = 0; worker < plan.program().workers.size(); ++worker)
    look_at(worker, reducer);
}

UserMemorySteps::Block UserMemorySteps::block_of(size_t worker, OperandBuffer buffer,
                                                 uint32_t block) const {
  const Work& work = plan_.work_of(worker);
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
  const uint64_t bytes = work.partition.block_stride * plan_.element_bytes();
  const uint64_t begin = reinterpret_cast<uint64_t>(start) + block * bytes;
  return {.begin = begin, .end = begin + bytes};
}

void UserMemorySteps::look_at(size_t worker, const Reducer& reducer) {
  const Program& program = plan_.program();
  const CompactWorker& own = program.workers[worker];
  const bool scales_input = reducer.scales_input();
  const bool scales_result = reducer.scales_result();
  const auto read_by = [&](size_t of, const CompactInstruction& instruction) {
    return block_of(of, instruction.source, instruction.source_block);
  };
  const auto stored_by = [&](size_t of, const CompactInstruction& instruction) {
    return block_of(of, instruction.target, instruction.target_block);
  };
  // Of the other workers that move the same chunks of the same buffers.
  const auto any_other = [&](auto&& uses) {
    for (size_t other = 0; other < program.workers.size(); ++other) {
      const CompactWorker& of = program.workers[other];
      if (other == worker || of.work != own.work || of.channel != own.channel) continue;
      for (size_t i = of.first; i < size_t{of.first} + of.count; ++i)
        if (uses(other, program.instructions[i])) return true;
    }
    return false;
  };
  for (size_t i = own.first; i < size_t{own.first} + own.count; ++i) {
    const CompactInstruction& present = program.instructions[i];
    for (uint32_t r = 0; r < present.receive_count; ++r)
      receives_at_[program.indices[present.receive + r]].push_back(static_cast<uint16_t>(i));
    Of& of = instructions_[i];
    const bool scales = (present.flags & kFinish) != 0 && scales_result;
    const bool is_copy_of_source = present.receive_count == 0 && !scales &&
                                   !(present.source == OperandBuffer::Input && scales_input);
    if (present.target != OperandBuffer::None)
      of.source = {.buffer = present.target, .block = present.target_block};
    else if (is_copy_of_source)
      of.source = {.buffer = present.source, .block = present.source_block};
    const Block sent = block_of(worker, of.source.buffer, of.source.block);
    if (any_other([&](size_t other, const CompactInstruction& its) {
          return stored_by(other, its).overlaps(sent);
        }))
      of.source = {};

    of.is_placed = present.receive_count == 1 && present.source == OperandBuffer::None &&
                   present.target != OperandBuffer::None && (present.flags & kReduce) == 0 &&
                   !scales;
    if (!of.is_placed) continue;
    const Block stored = stored_by(worker, present);
    const auto uses = [&](size_t by, const CompactInstruction& its) {
      return read_by(by, its).overlaps(stored) || stored_by(by, its).overlaps(stored);
    };
    of.placed_from = kAnyTime;
    for (size_t before = own.first; before < size_t{own.first} + own.count; ++before) {
      const CompactInstruction& its = program.instructions[before];
      if (before == i || !uses(worker, its)) continue;
      const bool has_equal_chunks =
          (its.source == OperandBuffer::None || !read_by(worker, its).overlaps(stored) ||
           read_by(worker, its) == stored) &&
          (its.target == OperandBuffer::None || !stored_by(worker, its).overlaps(stored) ||
           stored_by(worker, its) == stored);
      if (!has_equal_chunks) {
        of.placed_from = static_cast<uint32_t>(i);
        break;
      }
      if (before < i) of.placed_from = static_cast<uint32_t>(before) + 1;
    }
    if (any_other(uses)) of.placed_from = static_cast<uint32_t>(i);
  }
}

}  // namespace niccolite::executor::host
