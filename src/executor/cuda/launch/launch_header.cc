#include "executor/cuda/launch/launch_header.h"

#include <algorithm>
#include <bit>

#include "executor/cuda/interpreter/byte_quotient.h"
#include "executor/cuda/launch/kernel_launch.h"

namespace niccolite::executor::cuda {
namespace {

/// Returns the block of the input that the first instruction reads, if the program has one worker
/// only; its threads are then all threads of the CTA. kNoBlock if there is none.
uint32_t prefetch_block(const Program& program) {
  if (program.workers.size() != 1 || program.workers[0].count == 0) return kNoBlock;
  const CompactInstruction& first = program.instructions[program.workers[0].first];
  const bool reads_own_chunk =
      first.source == OperandBuffer::Input && first.source_block == first.chunk_block;
  return reads_own_chunk ? first.source_block : kNoBlock;
}

}  // namespace

bool reduces(const Launch& launch, uint32_t flags) {
  if (flags != 0) return true;
  if (launch.list_access) return reduces(*launch.list_access);
  for (const CompactInstruction& instruction : launch.program->instructions) {
    if (instruction.receive_count + (instruction.source != OperandBuffer::None) > 1) return true;
  }
  return false;
}

uint32_t flags_of(const Launch& launch) {
  const Reduction& reduction = launch.reduction;
  const bool floating = is_floating(launch.type);
  uint32_t flags = 0;
  if (scales_input(launch.type, reduction)) flags |= kScalesInput;
  if (floating ? reduction.finish_scale != 1 : reduction.finish_divisor != 1) {
    flags |= kScalesResult;
    if (reduced_as(launch.type, reduction.op) != launch.type) flags |= kUnsigned;
  }
  return flags;
}

uint8_t width_of(const Buffers& buffers, uint32_t stride_width) {
  const uintptr_t bits = std::bit_cast<uintptr_t>(buffers.input) |
                         std::bit_cast<uintptr_t>(buffers.output) |
                         std::bit_cast<uintptr_t>(buffers.scratch) | uintptr_t{stride_width};
  return static_cast<uint8_t>(1u << std::countr_zero(bits));
}

std::vector<Buffers> buffers_of(const Launch& launch) {
  std::vector<Buffers> buffers;
  for (const Work& work : launch.works) buffers.push_back(work.buffers);
  return buffers;
}

bool is_in_host(const Launch& launch) {
  return std::ranges::any_of(launch.ports, &PortAddress::in_host);
}

bool is_relayed(const Launch& launch) {
  return std::ranges::any_of(launch.ports, &PortAddress::is_relayed);
}

Counters counters_of(const Launch& launch) {
  if (is_relayed(launch)) return Counters::OfProxies;
  return is_in_host(launch) ? Counters::InHost : Counters::InGpu;
}

void set_operation(const Launch& launch, LaunchHeader& header) {
  header.abort = &launch.control_device->abort;
  header.report = &launch.control_device->report;
  header.newest = launch.marks.newest();
  header.marked_ctas = launch.marks.columns();
  header.device_scale = static_cast<const std::byte*>(launch.reduction.device_scale);
  header.input_scale = launch.reduction.input_scale;
  header.input_factor = launch.reduction.input_factor;
  header.result_scale = launch.reduction.finish_scale;
  header.result_divisor = launch.reduction.finish_divisor;
  header.elements = elements_of(launch);
  header.result_divider = byte_divider(static_cast<uint64_t>(launch.reduction.finish_divisor));
  if (is_in_host(launch)) header.flags |= kCountersInHost;
  header.shape = launch.shape;
  header.element_bytes = static_cast<uint32_t>(size_of(launch.type));
  header.nworks = static_cast<uint32_t>(launch.works.size());
  header.nports = static_cast<uint32_t>(launch.ports.size());
  header.prefetch_block = prefetch_block(*launch.program);
  header.params_at = header.nworks * static_cast<uint32_t>(sizeof(WorkTask));
}

}  // namespace niccolite::executor::cuda
