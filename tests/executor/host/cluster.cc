#include "tests/executor/host/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "executor/protocol/ll.h"

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Progress;
using gpu::virtual_::Task;

constexpr size_t kAlignment = 128;
constexpr size_t kGuard = 64;
constexpr std::byte kGuardByte{0xa5};

}  // namespace

GuardedMemory::GuardedMemory(size_t bytes, size_t misalignment)
    : memory_(std::make_unique<std::byte[]>(bytes + misalignment + 2 * kGuard + 2 * kAlignment)),
      bytes_(bytes) {
  const auto start = reinterpret_cast<uintptr_t>(memory_.get()) + kGuard;
  const uintptr_t aligned = (start + kAlignment - 1) / kAlignment * kAlignment + misalignment;
  data_ = memory_.get() + (aligned - reinterpret_cast<uintptr_t>(memory_.get()));
  std::fill_n(data_ - kGuard, kGuard, kGuardByte);
  std::fill_n(data_ + bytes, kGuard, kGuardByte);
}

bool GuardedMemory::guards_intact() const {
  const auto intact = [](const std::byte* guard) {
    return std::all_of(guard, guard + kGuard, [](std::byte b) { return b == kGuardByte; });
  };
  return intact(data_ - kGuard) && intact(data_ + bytes_);
}

ConnectionMemory::ConnectionMemory(const FifoShape& of)
    : shape(of),
      slots(of.slots_bytes()),
      sender_control(std::make_unique<ControlBlock[]>(of.channels)),
      receiver_control(std::make_unique<ControlBlock[]>(of.channels)) {}

Cluster::Cluster(schedule::Schedule schedule, Protocol protocol, const FifoShape& shape)
    : schedule_(std::move(schedule)), protocol_(protocol), shape_(shape) {
  std::map<std::tuple<int, int, int, int>, ConnectionMemory*>
      by_ends;  // sender, receiver, channel, tag
  for (const schedule::Connection& c : schedule_.connections) {
    connections_.push_back(std::make_unique<ConnectionMemory>(shape));
    by_ends[{c.sender, c.receiver, c.channel, c.tag}] = connections_.back().get();
  }
  for (int rank = 0; rank < schedule_.nranks; ++rank) {
    Result<Program> program = compile(schedule_, rank);
    if (!program.is_ok()) ADD_FAILURE() << program.status().message();
    std::vector<PortAddress> ports;
    for (const Port& port : program->ports) {
      const int sender = port.is_send ? rank : port.peer;
      const int receiver = port.is_send ? port.peer : rank;
      const ConnectionMemory& memory = *by_ends.at({sender, receiver, port.channel, port.tag});
      ControlBlock* ends[] = {memory.sender_control.get(), memory.receiver_control.get()};
      ports.push_back({.slots = memory.slots.data(),
                       .control = ends[port.is_send ? 0 : 1],
                       .remote_control = ends[port.is_send ? 1 : 0]});
    }
    ports_.push_back(std::move(ports));
    programs_.push_back(std::make_shared<const Program>(std::move(program).take()));
  }
}

uint64_t Cluster::elements_per_slot(DataType type) const {
  return data_bytes(protocol_, shape_.slot_bytes) / size_of(type);
}

void Cluster::start_at(uint64_t step) {
  // The oldest flags that LL slots may hold then: those of the last cleaning (see ll::cleans), or
  // of no step at all.
  const uint64_t cleaned = step >> 31 << 31;
  for (const auto& connection : connections_) {
    for (uint32_t channel = 0; channel < shape_.channels; ++channel) {
      connection->sender(channel) = {.remote = step, .step = step};
      connection->receiver(channel) = {.remote = protocol_ == Protocol::Simple ? step : 0,
                                       .step = step};
      if (protocol_ != Protocol::LL || cleaned == 0) continue;
      for (uint64_t clean = cleaned - shape_.depth; clean < cleaned; ++clean) {
        auto* words = reinterpret_cast<uint64_t*>(connection->slots.data() +
                                                  shape_.slot_offset(channel, clean));
        std::fill_n(words, shape_.slot_bytes / ll::kWordBytes, ll::pack(0, ll::flag_of(clean)));
      }
    }
  }
}

std::vector<Launch> Cluster::launches(const OperationArguments& arguments,
                                      const OperationBuffers& buffers) {
  const Partition partition =
      make_partition(arguments.count, static_cast<uint32_t>(size_of(arguments.type)),
                     static_cast<uint32_t>(schedule_.nblocks), shape_.channels,
                     data_bytes(protocol_, shape_.slot_bytes), /*min_channel_bytes=*/32);
  const size_t scratch = static_cast<size_t>(schedule_.scratch_blocks) * partition.block_stride *
                         size_of(arguments.type);
  const auto nranks = static_cast<size_t>(schedule_.nranks);
  if (scratch_.bytes() < scratch * nranks) scratch_ = GuardedMemory(scratch * nranks);
  std::vector<Launch> launches;
  for (size_t rank = 0; rank < nranks; ++rank) {
    launches.push_back({.program = programs_[rank],
                        .protocol = protocol_,
                        .shape = shape_,
                        .ports = ports_[rank],
                        .partition = partition,
                        .type = arguments.type,
                        .reduction = arguments.reduction,
                        .input = buffers.inputs[rank],
                        .output = buffers.outputs[rank],
                        .scratch = scratch_.data() + scratch * rank,
                        .control = &control});
  }
  return launches;
}

std::vector<std::unique_ptr<Task>> Cluster::tasks(const std::vector<Launch>& launches) {
  std::vector<std::unique_ptr<Task>> tasks;
  for (const Launch& launch : launches) {
    auto kernel = make_kernel(launch);
    if (!kernel.is_ok()) {
      ADD_FAILURE() << kernel.status().message();
      continue;
    }
    tasks.push_back((*kernel)->start());
  }
  return tasks;
}

bool Cluster::run(std::vector<std::unique_ptr<Task>> tasks, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<bool> is_blocked(tasks.size(), false);
  size_t blocked = 0;
  while (!tasks.empty()) {
    const size_t i = random() % tasks.size();
    const Progress progress = tasks[i]->step();
    if (progress == Progress::WouldBlock) {
      if (!is_blocked[i]) ++blocked;
      is_blocked[i] = true;
      if (blocked == tasks.size()) return false;
      continue;
    }
    std::fill(is_blocked.begin(), is_blocked.end(), false);
    blocked = 0;
    if (progress == Progress::Done) {
      tasks.erase(tasks.begin() + static_cast<ptrdiff_t>(i));
      is_blocked.pop_back();
    }
  }
  return true;
}

void Cluster::run_threaded(std::vector<std::unique_ptr<Task>> tasks, int threads) {
  std::vector<std::thread> workers;
  for (int worker = 0; worker < threads; ++worker) {
    workers.emplace_back([&tasks, worker, threads] {
      bool running = true;
      while (running) {
        running = false;
        bool advanced = false;
        for (size_t i = static_cast<size_t>(worker); i < tasks.size();
             i += static_cast<size_t>(threads)) {
          if (!tasks[i]) continue;
          const Progress progress = tasks[i]->step();
          if (progress == Progress::Done) {
            tasks[i].reset();
          } else {
            running = true;
          }
          advanced = advanced || progress != Progress::WouldBlock;
        }
        if (!advanced) std::this_thread::yield();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
}

bool Cluster::guards_intact() const {
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const auto& connection) { return connection->slots.guards_intact(); });
}

bool Cluster::counters_consistent() const {
  for (const auto& connection : connections_) {
    for (uint32_t channel = 0; channel < shape_.channels; ++channel) {
      const ControlBlock& sender = connection->sender(channel);
      const ControlBlock& receiver = connection->receiver(channel);
      if (sender.step != receiver.step) return false;
      if (sender.step - sender.remote > shape_.depth) return false;
      if (protocol_ == Protocol::Simple && receiver.remote != receiver.step) return false;
    }
  }
  return true;
}

}  // namespace niccolite::executor::host
