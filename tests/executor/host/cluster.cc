#include "tests/executor/host/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "executor/protocol/advertisement.h"
#include "executor/protocol/call_tag.h"
#include "executor/protocol/ll.h"
#include "executor/protocol/ll128.h"

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Progress;

constexpr size_t kAlignment = 128;
constexpr size_t kGuard = 64;
constexpr std::byte kGuardByte{0xa5};
constexpr uint16_t kOldTag = 0x0b5;  // of the calls before the first

// LL128: leaves the flags of the last steps before `step` in all lines.
void fill_lines(const ConnectionMemory& memory, uint32_t channel, uint64_t step) {
  for (uint64_t old = step - memory.shape.depth; old != step; ++old) {
    std::byte* slot = memory.slots.data() + memory.shape.slot_offset(channel, old);
    for (uint32_t line = 0; line < memory.shape.slot_bytes; line += ll128::kLineBytes) {
      const uint64_t flag = ll128::flag_of(old, kOldTag);
      std::memcpy(slot + line + ll128::kFlagOffset, &flag, sizeof flag);
    }
  }
}

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
    : Cluster(std::vector<schedule::Schedule>{std::move(schedule)}, protocol, shape) {}

Cluster::Cluster(std::vector<schedule::Schedule> schedules, Protocol protocol,
                 const FifoShape& shape)
    : Cluster(std::move(schedules), protocol, shape, /*has_team=*/false, /*window_bytes=*/0,
              /*machines=*/{}) {}

Cluster Cluster::by_team(schedule::Schedule schedule, const FifoShape& shape, size_t window_bytes,
                         Protocol protocol, std::vector<int> machines) {
  return Cluster({std::move(schedule)}, protocol, shape, /*has_team=*/true, window_bytes,
                 std::move(machines));
}

int Cluster::number_in_team(int rank) const {
  const auto begin = machines_.begin();
  return static_cast<int>(std::count(begin, begin + rank, begin[rank]));
}

int Cluster::team_ranks(int rank) const {
  return static_cast<int>(std::ranges::count(machines_, machines_[static_cast<size_t>(rank)]));
}

std::byte* Cluster::window_of(int rank) const {
  return team_memory_[static_cast<size_t>(rank)].data() + team_slots_bytes();
}

Cluster::Cluster(std::vector<schedule::Schedule> schedules, Protocol protocol,
                 const FifoShape& shape, bool has_team, size_t window_bytes,
                 std::vector<int> machines)
    : schedules_(std::move(schedules)),
      protocol_(protocol),
      shape_(shape),
      team_slots_{.chunks = shape, .words = shape},
      has_team_(has_team),
      machines_(std::move(machines)) {
  team_slots_.chunks.slot_bytes += 128;
  team_slots_.words.slot_bytes += 256;
  const auto nranks = static_cast<size_t>(schedules_[0].nranks);
  machines_.resize(nranks);
  for (size_t rank = 0; has_team && rank < nranks; ++rank) {
    const size_t bytes = team_slots_bytes() + window_bytes;
    team_memory_.emplace_back(bytes);
    team_addresses_.emplace_back(bytes);
    if (window_bytes == 0) continue;
    // No rank reaches another's window but by the team.
    std::vector<uint64_t>& shifts = window_shifts_.emplace_back(nranks + 1, advertisement::kUnseen);
    shifts[nranks] =
        advertisement::kFirstPlace - reinterpret_cast<uint64_t>(team_memory_.back().data());
  }
  for (const schedule::Schedule& schedule : schedules_) {
    const lowering::Routes routes =
        lowering::routes_of(schedule, machines_, has_team,
                            /*publishes_chunks=*/!has_team || protocol == Protocol::Simple);
    for (const schedule::Connection& c : schedule.connections) {
      const int tag = routes.tag_in_program(c.tag);
      const ConnectionMemory*& memory = by_ends_[{c.sender, c.receiver, tag}];
      if (memory != nullptr) continue;
      connections_.push_back(std::make_unique<ConnectionMemory>(shape));
      memory = connections_.back().get();
    }
    std::vector<std::shared_ptr<const Program>>& programs = programs_.emplace_back();
    for (int rank = 0; rank < schedule.nranks; ++rank) {
      Result<Program> program = compile(schedule, rank, routes);
      if (!program.is_ok()) ADD_FAILURE() << program.status().message();
      programs.push_back(std::make_shared<const Program>(std::move(program).take()));
    }
  }
}

std::vector<PortAddress> Cluster::addresses(const Program& program) {
  std::vector<PortAddress> ports;
  for (const Port& port : program.ports) {
    const int sender = port.is_send ? program.rank : port.peer;
    const int receiver = port.is_send ? port.peer : program.rank;
    const ConnectionMemory& memory = *by_ends_.at({sender, receiver, port.tag});
    ControlBlock* ends[] = {memory.sender_control.get(), memory.receiver_control.get()};
    ports.push_back({.slots = memory.slots.data(),
                     .control = ends[port.is_send ? 0 : 1],
                     .remote_control = ends[port.is_send ? 1 : 0],
                     .can_put = links_reach_users,
                     .can_get = links_reach_users,
                     .fills_slots_first = fills_slots_first,
                     .opens_buffers = (open_ranks >> program.rank & 1) != 0});
    if (!lowering::uses_team(port.route.way)) continue;
    const bool is_store = port.route.way == lowering::Way::TeamStore;
    const int owner = port.is_send == is_store ? program.rank : port.peer;
    const size_t offset = team_slots_.offset(protocol_, nranks(), number_in_team(owner), port.tag);
    const auto rank = static_cast<size_t>(program.rank);
    ports.back().slots = team_memory_[rank].data() + offset;
    ports.back().team = team_addresses_[rank].data() + offset;
  }
  return ports;
}

uint64_t Cluster::elements_per_slot(DataType type) const {
  return data_bytes(protocol_, shape_.slot_bytes) / size_of(type);
}

void Cluster::start_at(uint64_t step) {
  // The oldest flags that LL slots may hold then: those of the last cleaning (see ll::cleans), or
  // of no step at all.
  const uint64_t cleaned = step >> 15 << 15;
  for (const auto& connection : connections_) {
    for (uint32_t channel = 0; channel < shape_.channels; ++channel) {
      ControlBlock& sender = connection->sender(channel);
      ControlBlock& receiver = connection->receiver(channel);
      sender.remote = sender.step = receiver.step = step;
      receiver.remote = protocol_ == Protocol::Simple ? call_tag::tail(step, kOldTag) : 0;
      if (protocol_ == Protocol::LL128) fill_lines(*connection, channel, step);
      if (protocol_ != Protocol::LL || cleaned == 0) continue;
      for (uint64_t clean = cleaned - shape_.depth; clean < cleaned; ++clean) {
        auto* words = reinterpret_cast<uint64_t*>(connection->slots.data() +
                                                  shape_.slot_offset(channel, clean));
        std::fill_n(words, shape_.slot_bytes / ll::kWordBytes,
                    ll::pack(0, ll::flag_of(clean, kOldTag)));
      }
    }
  }
}

std::vector<Launch> Cluster::launches(const OperationArguments& arguments,
                                      const OperationBuffers& buffers) {
  return launches({{.counts = {arguments.count}, .buffers = buffers, .tag = arguments.tag}},
                  arguments.type, arguments.reduction);
}

std::vector<Launch> Cluster::launches(const std::vector<Part>& parts, DataType type,
                                      const Reduction& reduction) {
  return launches(parts, type, reduction, Channels::Apart);
}

std::vector<Launch> Cluster::launches_in_turns(const std::vector<Part>& parts) {
  std::vector<Launch> launches = this->launches(parts, DataType::Uint8, {}, Channels::InTurns);
  for (Launch& launch : launches) {
    std::map<std::pair<int, bool>, Work*> last;  // by peer and direction
    for (const Port& port : launch.program->ports) {
      Work& work = launch.works[static_cast<size_t>(port.work)];
      Work*& before = last[{port.peer, port.is_send}];
      if (before != nullptr) {
        before->turn.is_followed = true;
        work.turn.first_step = before->turn.first_step + before->partition.rounds;
      }
      before = &work;
    }
  }
  return launches;
}

std::vector<Launch> Cluster::launches_in_a_list(const std::vector<Part>& parts, DataType type,
                                                const Reduction& reduction, uint32_t channels,
                                                uint32_t parts_of_work) {
  std::vector<Launch> launches = this->launches({parts[0]}, type, reduction);
  for (int rank = 0; rank < nranks(); ++rank) {
    Launch& launch = launches[static_cast<size_t>(rank)];
    launch.list_channels = channels;
    launch.list_parts = parts_of_work;
    launch.works.clear();
    for (const Part& part : parts)
      launch.works.push_back(works(part, rank, type, /*first_channel=*/0, /*channels=*/1)[0]);
  }
  return launches;
}

std::vector<Launch> Cluster::launches(const std::vector<Part>& parts, DataType type,
                                      const Reduction& reduction, Channels mode) {
  const bool in_turns = mode == Channels::InTurns;
  const uint32_t channels =
      in_turns ? shape_.channels : shape_.channels / static_cast<uint32_t>(parts.size());
  std::vector<Launch> launches;
  for (int rank = 0; rank < nranks(); ++rank) {
    Launch launch;
    launch.protocol = protocol_;
    launch.shape = shape_;
    if (has_team_) launch.team_shape = team_slots_.of(protocol_);
    if (has_team_) launch.team_ranks = team_ranks(rank);
    if (!window_shifts_.empty())
      launch.team_windows = team_addresses_[static_cast<size_t>(rank)].data();
    launch.type = type;
    launch.reduction = reduction;
    launch.control = &control;
    launch.pull_bytes = pull_bytes;
    std::vector<const Program*> programs;
    for (const Part& part : parts) {
      launch.program = programs_[part.schedule][static_cast<size_t>(rank)];
      const auto first = in_turns ? 0 : static_cast<uint32_t>(programs.size()) * channels;
      for (const Work& work : works(part, rank, type, first, channels)) {
        launch.works.push_back(work);
      }
      programs.push_back(launch.program.get());
    }
    if (parts.size() > 1) {
      Result<Program> joined = in_turns ? join_messages(programs) : join(programs);
      if (!joined.is_ok()) ADD_FAILURE() << joined.status().message();
      launch.program = std::make_shared<const Program>(std::move(joined).take());
    }
    set_ports(launch, addresses(*launch.program));
    launches.push_back(std::move(launch));
  }
  return launches;
}

std::vector<Work> Cluster::works(const Part& part, int rank, DataType type, uint32_t first_channel,
                                 uint32_t channels) {
  const schedule::Schedule& schedule = schedules_[part.schedule];
  const auto element = static_cast<uint32_t>(size_of(type));
  const auto nblocks = static_cast<uint32_t>(schedule.nblocks);
  const Cut cut{.max_channels = channels,
                .slot_data_bytes = data_bytes(protocol_, shape_.slot_bytes),
                .min_channel_bytes = 32};
  if (schedule.collective != schedule::Collective::PointToPoint) {
    const Partition partition = schedule::cuts_one_buffer(schedule.collective)
                                    ? make_partition(part.counts[0], element, nblocks, cut)
                                    : make_block_partition(part.counts[0], element, nblocks, cut);
    const size_t bytes =
        static_cast<size_t>(schedule.scratch_blocks) * partition.block_stride * element;
    auto& scratch = scratch_.try_emplace({part.schedule, rank}, 128).first->second;
    if (scratch.bytes() < bytes) scratch = GuardedMemory(bytes);
    const auto r = static_cast<size_t>(rank);
    return {{.partition = partition,
             .first_channel = first_channel,
             .tag = part.tag,
             .buffers = {part.buffers.inputs[r], part.buffers.outputs[r], scratch.data()}}};
  }
  // The sends first, then the receives from others, each in the order of its blocks.
  std::map<std::tuple<bool, int>, Work> ordered;
  for (size_t m = 0; m < schedule.messages.size(); ++m) {
    const schedule::Message& message = schedule.messages[m];
    if (message.sender != rank && message.receiver != rank) continue;
    const bool is_send = message.sender == rank;
    Work work{.partition = make_block_partition(part.counts[m], element, 1, cut),
              .first_channel = first_channel,
              .tag = part.tag,
              .buffers = {}};
    if (is_send) work.buffers.input = part.buffers.inputs[m];
    if (message.receiver == rank) work.buffers.output = part.buffers.outputs[m];
    ordered[{!is_send, is_send ? message.send_block : message.receive_block}] = work;
  }
  std::vector<Work> works;
  for (const auto& [place, work] : ordered) works.push_back(work);
  return works;
}

Cluster::Tasks Cluster::tasks(const std::vector<Launch>& launches) {
  Tasks tasks;
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

bool Cluster::run(Tasks tasks, uint32_t seed) {
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

void Cluster::run_threaded(Tasks tasks, int threads) {
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
                     [](const auto& c) { return c->slots.guards_intact(); }) &&
         std::all_of(scratch_.begin(), scratch_.end(),
                     [](const auto& memory) { return memory.second.guards_intact(); });
}

bool Cluster::counters_consistent(bool has_advertisements) const {
  for (const auto& connection : connections_) {
    for (uint32_t channel = 0; channel < shape_.channels; ++channel) {
      const ControlBlock& sender = connection->sender(channel);
      const ControlBlock& receiver = connection->receiver(channel);
      if (sender.step != receiver.step) return false;
      // What has been put took no slots, whose credit comes with the next operation. What was
      // exposed has no tail, but all of its credit.
      const auto owed = static_cast<int64_t>(sender.step - sender.remote);
      if (owed < 0 || (!has_advertisements && owed > int64_t{shape_.depth})) return false;
      const bool was_direct_get = has_advertisements && sender.remote == sender.step;
      if (protocol_ == Protocol::Simple && !was_direct_get &&
          call_tag::steps_in(receiver.remote, receiver.step) != receiver.step)
        return false;
    }
  }
  return true;
}

}  // namespace niccolite::executor::host
