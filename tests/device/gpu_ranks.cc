#include "tests/device/gpu_ranks.h"

#include <atomic>
#include <chrono>
#include <thread>

namespace niccolite::device_test {

using executor::ControlWords;

Result<GpuRanks> GpuRanks::create(gpu::Machine& machine, int ngpus, const Operation& operation,
                                  Programs programs, size_t buffer_bytes) {
  GpuRanks ranks;
  ranks.machine_ = &machine;
  ranks.programs_ = std::move(programs);
  std::vector<executor::Program> plain;
  for (const auto& program : ranks.programs_) plain.push_back(*program);
  ranks.wiring_ = std::make_unique<Wiring>(plain, shape_of(operation));
  ranks.control_ = TRY(machine.allocate_host(sizeof(ControlWords)));
  for (int device = 0; operation.is_reached && device < ngpus; ++device)
    for (int peer = 0; peer < ngpus; ++peer)
      if (peer != device && !machine.open_buffers(device, peer))
        return Status::cuda_error("device {} has no access to memory of device {}", device, peer);
  for (int r = 0; r < operation.nranks; ++r) {
    Rank rank;
    rank.device = r % ngpus;
    rank.stream = TRY(machine.create_stream(rank.device));
    const size_t bytes = std::max<size_t>(ranks.wiring_->bytes(r), 1);
    rank.connections = TRY(machine.allocate(rank.device, bytes, /*shareable=*/true));
    const auto allocate_buffer = [&] {
      return operation.is_reached
                 ? machine.allocate_as_user(rank.device, buffer_bytes)
                 : machine.allocate(rank.device, buffer_bytes, /*shareable=*/false);
    };
    rank.input = TRY(allocate_buffer());
    rank.output = TRY(allocate_buffer());
    const size_t scratch = scratch_bytes(operation, *ranks.programs_[static_cast<size_t>(r)]);
    rank.scratch =
        TRY(machine.allocate(rank.device, std::max<size_t>(scratch, 1), /*shareable=*/false));
    ranks.addresses_.push_back(static_cast<std::byte*>(rank.connections.data()));
    ranks.ranks_.push_back(std::move(rank));
  }
  return ranks;
}

Result<executor::cuda::PreparedLaunch> GpuRanks::prepare(int rank, const Operation& operation,
                                                         const std::byte* input,
                                                         std::byte* output) {
  executor::Launch launch = launch_of(operation, programs_[static_cast<size_t>(rank)],
                                      {input, output, at(rank).scratch.data()});
  set_ports(launch, wiring_->ports(rank, addresses_));
  launch.control = static_cast<ControlWords*>(control_.data());
  launch.control_device = launch.control;
  return executor::cuda::PreparedLaunch::create(*machine_, device(rank), launch);
}

Result<std::vector<int>> GpuRanks::running_at(Deadline deadline) {
  for (;;) {
    std::vector<int> running;
    for (int r = 0; r < nranks(); ++r) {
      if (!TRY(machine_->query_stream(device(r), stream(r)))) running.push_back(r);
    }
    if (running.empty() || deadline.passed()) return running;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

Status GpuRanks::finish(Deadline deadline) {
  std::vector<int> running = TRY(running_at(deadline));
  if (running.empty()) return {};
  abort();
  const std::vector<int> stuck = TRY(running_at(Deadline::after(std::chrono::milliseconds(5000))));
  std::string names;
  for (const int rank : running) names += fmt::format(" {}", rank);
  return Status::remote_error("ranks{} did not end in time{}", names,
                              stuck.empty() ? "" : ", and not when aborted either");
}

Status GpuRanks::abort_and_wait(Deadline deadline) {
  abort();
  const std::vector<int> running = TRY(running_at(deadline));
  if (running.empty()) return {};
  return Status::remote_error("{} ranks do not end, the first is {}", running.size(),
                              running.front());
}

uint64_t GpuRanks::report() const {
  auto* control = static_cast<ControlWords*>(control_.data());
  // Relaxed: the word is all there is to read.
  return std::atomic_ref(control->report).load(std::memory_order_relaxed);
}

void GpuRanks::abort() {
  auto* control = static_cast<ControlWords*>(control_.data());
  // Relaxed: the kernels that look at it only end.
  std::atomic_ref(control->abort).store(1, std::memory_order_relaxed);
}

}  // namespace niccolite::device_test
