#include "executor/host/plan.h"

#include <bit>
#include <utility>

namespace niccolite::executor::host {
namespace {

Status check_memory(const Launch& launch) {
  const Program& program = *launch.program;
  const Partition& partition = launch.partition;
  if (!std::has_single_bit(launch.shape.depth) || launch.shape.slot_bytes % 128 != 0) {
    return Status::internal("a FIFO of {} slots of {} bytes", launch.shape.depth,
                            launch.shape.slot_bytes);
  }
  if (partition.channels == 0 || partition.channels > launch.shape.channels) {
    return Status::internal("a partition over {} channels; connections have {}", partition.channels,
                            launch.shape.channels);
  }
  const size_t chunk_bytes = partition.chunk * size_of(launch.type);
  if (chunk_bytes > data_bytes(launch.protocol, launch.shape.slot_bytes)) {
    return Status::internal("a chunk of {} bytes in a {} slot of {} bytes", chunk_bytes,
                            name_of(launch.protocol), launch.shape.slot_bytes);
  }
  if (launch.ports.size() != program.ports.size()) {
    return Status::internal("{} port addresses for a program of {} ports", launch.ports.size(),
                            program.ports.size());
  }
  for (const PortAddress& port : launch.ports) {
    if (port.slots == nullptr || port.control == nullptr || port.remote_control == nullptr) {
      return Status::internal("a port without memory");
    }
  }
  if (launch.control == nullptr) return Status::internal("no control words");
  return {};
}

Status check_place(const Launch& launch, Place place, uint32_t block) {
  const bool is_scratch = place == Place::Scratch;
  const auto blocks =
      static_cast<uint32_t>(is_scratch ? launch.program->scratch_blocks : launch.program->nblocks);
  if (place != Place::None && block >= blocks)
    return Status::internal("block {} of {}", block, blocks);
  if (place == Place::Input && launch.input == nullptr) return Status::internal("no input buffer");
  if (place == Place::Output && launch.output == nullptr)
    return Status::internal("no output buffer");
  if (is_scratch && launch.scratch == nullptr) return Status::internal("no scratch buffer");
  return {};
}

Status check_instruction(const Launch& launch, const CompactInstruction& instruction,
                         uint16_t channel) {
  const Program& program = *launch.program;
  const int operands = instruction.receive_count + (instruction.source != Place::None ? 1 : 0);
  const bool has_destination = instruction.target != Place::None || instruction.send_count > 0;
  if (operands == 0 || !has_destination) return Status::internal("no operand or no destination");
  if (operands > 1 && !(instruction.flags & kReduce))
    return Status::internal("a copy of {} operands", operands);
  if (instruction.source_position > instruction.receive_count)
    return Status::internal("a source beyond the operands");
  if (instruction.target == Place::Input) return Status::internal("a store to the input");
  TRY(check_place(launch, instruction.source, instruction.source_block));
  TRY(check_place(launch, instruction.target, instruction.target_block));
  const auto check_ports = [&](uint32_t first, uint32_t count, bool is_send) -> Status {
    if (first + count > program.indices.size())
      return Status::internal("ports beyond the program's indices");
    for (uint32_t i = first; i < first + count; ++i) {
      const uint16_t port = program.indices[i];
      if (port >= program.ports.size() || program.ports[port].is_send != is_send ||
          program.ports[port].channel != channel) {
        return Status::internal("port {} cannot be used here", port);
      }
    }
    return {};
  };
  TRY(check_ports(instruction.receive, instruction.receive_count, false));
  return check_ports(instruction.send, instruction.send_count, true);
}

Status check(const Launch& launch) {
  if (launch.program == nullptr) return Status::internal("no program");
  const Program& program = *launch.program;
  if (program.nchannels <= 0) return Status::internal("a program without channels");
  TRY(check_memory(launch));
  for (const Port& port : program.ports) {
    if (port.channel < 0 || port.channel >= program.nchannels) {
      return Status::internal("a port of channel {} of {}", port.channel, program.nchannels);
    }
  }
  for (size_t l = 0; l < program.lanes.size(); ++l) {
    const CompactLane& lane = program.lanes[l];
    if (lane.channel >= program.nchannels ||
        size_t{lane.first} + lane.count > program.instructions.size()) {
      return Status::internal("lane {} is not inside the program", l);
    }
    for (size_t i = lane.first; i < size_t{lane.first} + lane.count; ++i) {
      TRY(check_instruction(launch, program.instructions[i], lane.channel)
              .with_context("lane {}, instruction {}", l, i - lane.first));
    }
  }
  return {};
}

}  // namespace

Result<Plan> Plan::create(Launch launch) {
  TRY(check(launch).with_context("a launch for a virtual GPU"));
  return Plan(std::move(launch));
}

Plan::Plan(Launch launch) : launch_(std::move(launch)), folder_(launch_.type, launch_.reduction) {
  const Program& program = *launch_.program;
  ports_of_.resize(static_cast<size_t>(program.nchannels));
  port_in_channel_.reserve(program.ports.size());
  for (size_t port = 0; port < program.ports.size(); ++port) {
    std::vector<uint16_t>& ports = ports_of_[static_cast<size_t>(program.ports[port].channel)];
    port_in_channel_.push_back(static_cast<uint16_t>(ports.size()));
    ports.push_back(static_cast<uint16_t>(port));
  }
}

}  // namespace niccolite::executor::host
