#include "executor/host/plan.h"

#include <bit>
#include <utility>

namespace niccolite::executor::host {
namespace {

constexpr const char* kWhere = "a launch for a virtual GPU";

Status check_connections(const Launch& launch) {
  if (launch.program == nullptr) return Status::internal("no program");
  const Program& program = *launch.program;
  if (!std::has_single_bit(launch.shape.depth) || launch.shape.slot_bytes % 128 != 0) {
    return Status::internal("a FIFO of {} slots of {} bytes", launch.shape.depth,
                            launch.shape.slot_bytes);
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

Status check_work(const Launch& launch, const Work& work, const WorkShape& shape) {
  const Partition& partition = work.partition;
  // Without connections, channels are but shares of the data.
  const bool has_ports = !launch.program->ports.empty();
  if (partition.channels == 0 ||
      (has_ports && (work.first_channel > launch.shape.channels ||
                     partition.channels > launch.shape.channels - work.first_channel))) {
    return Status::internal("a partition over {} channels from {} on; connections have {}",
                            partition.channels, work.first_channel, launch.shape.channels);
  }
  TRY(check_turn(launch, work));
  const size_t chunk_bytes = partition.chunk * size_of(launch.type);
  if (chunk_bytes > data_bytes(launch.protocol, launch.shape.slot_bytes)) {
    return Status::internal("a chunk of {} bytes in a {} slot of {} bytes", chunk_bytes,
                            name_of(launch.protocol), launch.shape.slot_bytes);
  }
  if (shape.nblocks <= 0 || shape.nchannels <= 0) {
    return Status::internal("{} blocks over {} channels", shape.nblocks, shape.nchannels);
  }
  return {};
}

Status check_place(const WorkShape& work, OperandBuffer place, uint32_t block) {
  if (place == OperandBuffer::None) return {};
  const int blocks = place == OperandBuffer::Input    ? work.input_blocks
                     : place == OperandBuffer::Output ? work.output_blocks
                                                      : work.scratch_blocks;
  if (block >= static_cast<uint32_t>(blocks))
    return Status::internal("block {} of {}", block, blocks);
  return {};
}

Status check_instruction(const Program& program, const CompactInstruction& instruction,
                         size_t worker, std::vector<int>& workers_of_ports) {
  const int operands =
      instruction.receive_count + (instruction.source != OperandBuffer::None ? 1 : 0);
  const bool has_destination =
      instruction.target != OperandBuffer::None || instruction.send_count > 0;
  if (operands == 0 || !has_destination) return Status::internal("no operand or no destination");
  if (operands > 1 && !(instruction.flags & kReduce))
    return Status::internal("a copy of {} operands", operands);
  if (instruction.source_position > instruction.receive_count)
    return Status::internal("a source beyond the operands");
  if (instruction.target == OperandBuffer::Input) return Status::internal("a store to the input");
  const CompactWorker& owner = program.workers[worker];
  const WorkShape& work = program.works[owner.work];
  if (instruction.chunk_block >= work.nblocks)
    return Status::internal("a chunk of block {} of {}", instruction.chunk_block, work.nblocks);
  TRY(check_place(work, instruction.source, instruction.source_block));
  TRY(check_place(work, instruction.target, instruction.target_block));
  const auto check_ports = [&](uint32_t first, uint32_t count, bool is_send) -> Status {
    if (first + count > program.indices.size())
      return Status::internal("ports beyond the program's indices");
    for (uint32_t i = first; i < first + count; ++i) {
      const uint16_t number = program.indices[i];
      if (number >= program.ports.size()) return Status::internal("there is no port {}", number);
      const Port& port = program.ports[number];
      int& user = workers_of_ports[number];
      if (user < 0) user = static_cast<int>(worker);
      if (port.is_send != is_send || port.channel != owner.channel || port.work != owner.work ||
          user != static_cast<int>(worker)) {
        return Status::internal("port {} cannot be used here", number);
      }
    }
    return {};
  };
  TRY(check_ports(instruction.receive, instruction.receive_count, false));
  return check_ports(instruction.send, instruction.send_count, true);
}

// Fills in the worker of every port, or -1 for one that no instruction names.
Status check(const Launch& launch, std::vector<int>& workers_of_ports) {
  TRY(check_connections(launch));
  const Program& program = *launch.program;
  if (launch.is_list()) {
    if (!launch.list_access) return Status::internal("a list that goes through slots");
    return check_direct_list(launch);
  }
  if (launch.works.size() != program.works.size()) {
    return Status::internal("{} works for a program of {}", launch.works.size(),
                            program.works.size());
  }
  for (size_t w = 0; w < program.works.size(); ++w) {
    TRY(check_work(launch, launch.works[w], program.works[w]).with_context("work {}", w));
  }
  workers_of_ports.assign(program.ports.size(), -1);
  for (size_t l = 0; l < program.workers.size(); ++l) {
    const CompactWorker& worker = program.workers[l];
    if (worker.work >= program.works.size() ||
        size_t{worker.first} + worker.count > program.instructions.size()) {
      return Status::internal("worker {} is not inside the program", l);
    }
    const WorkShape& work = program.works[worker.work];
    if (worker.channel < work.first_channel ||
        worker.channel >= work.first_channel + work.nchannels) {
      return Status::internal("worker {} is in channel {}, its work in {} from {} on", l,
                              worker.channel, work.nchannels, work.first_channel);
    }
    for (size_t i = worker.first; i < size_t{worker.first} + worker.count; ++i) {
      TRY(check_instruction(program, program.instructions[i], l, workers_of_ports)
              .with_context("worker {}, instruction {}", l, i - worker.first));
    }
  }
  return {};
}

bool reduces(const Program& program) {
  for (const CompactInstruction& instruction : program.instructions)
    if (instruction.receive_count + (instruction.source != OperandBuffer::None ? 1 : 0) > 1)
      return true;
  return false;
}

/// Follows the rule of GPUs.
lowering::Facilities facilities_of(const Launch& launch) {
  const Reducer reducer(launch.type, launch.reduction);
  const bool scales = reducer.scales_input() || reducer.scales_result();
  return {.publishes_chunks = launch.protocol == Protocol::Simple,
          .has_bulk_copies = true,
          .has_stages = true,
          .reduces = scales || reduces(*launch.program),
          .scales_input = reducer.scales_input(),
          .scales_result = reducer.scales_result(),
          .threads_pass_on_puts = true,
          .has_counter = !launch.ports.empty()};
}

}  // namespace

Result<Plan> Plan::create(Launch launch) {
  TRY(check_connections(launch).with_context(kWhere));
  std::vector<lowering::WorkerPlan> workers;
  if (!launch.is_list()) workers = plan_workers(launch, facilities_of(launch));
  return create(std::move(launch), std::move(workers));
}

Result<Plan> Plan::create(Launch launch, std::vector<lowering::WorkerPlan> workers) {
  std::vector<int> workers_of_ports;
  TRY(check(launch, workers_of_ports).with_context(kWhere));
  if (!launch.is_list())
    TRY(check_plan(launch, workers, facilities_of(launch)).with_context(kWhere));
  return Plan(std::move(launch), std::move(workers), workers_of_ports);
}

Result<Plan> Plan::with_buffers(std::span<const Buffers> buffers, uint64_t number,
                                gpu::virtual_::VirtualMachine* machine) const {
  Plan plan = *this;
  plan.machine_ = machine;
  plan.launch_.number = number;
  for (size_t w = 0; w < plan.launch_.works.size() && w < buffers.size(); ++w)
    plan.launch_.works[w].buffers = buffers[w];
  TRY(plan.check_buffers());
  return plan;
}

Status Plan::check_buffers() const {
  if (launch_.team_ranks > 0 && machine_ == nullptr)
    return Status::internal("{}: a team without a machine", kWhere);
  std::vector<Buffers> buffers;
  for (const Work& work : launch_.works) buffers.push_back(work.buffers);
  return needs_.check(buffers).with_context(kWhere);
}

Plan::Plan(Launch launch, std::vector<lowering::WorkerPlan> workers,
           const std::vector<int>& workers_of_ports)
    : launch_(std::move(launch)), reducer_(launch_.type, launch_.reduction), needs_(launch_) {
  if (launch_.is_list()) {
    tables_ = std::make_shared<const Tables>(Tables{.port_in_worker = {},
                                                    .ports_of = {},
                                                    .workers = {},
                                                    .list_starts = share_list_tiles(launch_)});
    return;
  }
  Tables tables{.port_in_worker = std::vector<uint16_t>(workers_of_ports.size()),
                .ports_of = std::vector<std::vector<uint16_t>>(program().workers.size()),
                .workers = std::move(workers),
                .list_starts = {}};
  for (size_t port = 0; port < workers_of_ports.size(); ++port) {
    if (workers_of_ports[port] < 0) continue;
    std::vector<uint16_t>& ports = tables.ports_of[static_cast<size_t>(workers_of_ports[port])];
    tables.port_in_worker[port] = static_cast<uint16_t>(ports.size());
    ports.push_back(static_cast<uint16_t>(port));
  }
  tables_ = std::make_shared<const Tables>(std::move(tables));
}

bool Plan::runs_on(size_t worker, uint32_t channel) const {
  const CompactWorker& compact = program().workers[worker];
  const WorkShape& work = program().works[compact.work];
  // Checked: the worker's channel is one of the work's.
  const auto pattern = static_cast<uint32_t>(compact.channel - work.first_channel);
  return channel < launch_.works[compact.work].partition.channels &&
         channel % static_cast<uint32_t>(work.nchannels) == pattern;
}

}  // namespace niccolite::executor::host
