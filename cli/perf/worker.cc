#include "cli/perf/worker.h"

#include <algorithm>
#include <chrono>

#include "cli/perf/device_memory.h"

namespace niccolite::perf {

/// Measures a library's share of its devices' memory between two points (--memory).
class Worker::MemoryMeter {
 public:
  static Result<MemoryMeter> start(const Worker& worker) {
    MemoryMeter meter(worker);
    if (worker.options_.memory) meter.free_ = TRY(meter.free_now());
    return meter;
  }

  /// Adds the memory that was taken since start() to the ranks' records.
  Status stop(int library) {
    if (!worker_.options_.memory) return {};
    const std::vector<int64_t> now = TRY(free_now());
    for (size_t i = 0; i < now.size(); ++i) {
      RankRecord& record = worker_.team_.records()[static_cast<size_t>(worker_.ranks_[i].rank)];
      record.device_bytes[library] += free_[i] - now[i];
    }
    return {};
  }

 private:
  explicit MemoryMeter(const Worker& worker) : worker_(worker) {}
  Result<std::vector<int64_t>> free_now() const {
    std::vector<int64_t> free;
    for (const Rank& rank : worker_.ranks_)
      free.push_back(TRY(free_device_memory(worker_.machine_, rank.device)));
    return free;
  }
  const Worker& worker_;
  std::vector<int64_t> free_;
};

Status Worker::init_communicators() {
  const auto communicators = static_cast<size_t>(options_.communicators);
  for (size_t library = 0; library < libraries_.size(); ++library) {
    const Library& nccl = libraries_[library];
    MemoryMeter meter = TRY(MemoryMeter::start(*this));
    for (size_t i = 0; i < communicators; ++i) {
      TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
      for (Rank& rank : ranks_) {
        TRY(machine_.set_current_device(rank.device));
        TRY(rank.comms.emplace_back().init(nccl, team_.nranks(),
                                           team_.id(library * communicators + i), rank.rank));
      }
      TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
    }
    TRY(meter.stop(static_cast<int>(library)));
  }
  for (const Rank& rank : ranks_) {
    RankRecord& record = team_.records()[static_cast<size_t>(rank.rank)];
    std::copy_n(record.device_bytes, libraries_.size(), record.device_bytes_after_init);
  }
  TRY(register_buffers());
  return make_device_comms();
}

Status Worker::make_device_comms() {
  if (kernels_ == nullptr) return {};
  const size_t communicators = libraries_.size() * static_cast<size_t>(options_.communicators);
  for (size_t number = 0; number < communicators; ++number) {
    const Library& nccl = ranks_[0].comms[number].library();
    TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
    for (Rank& rank : ranks_)
      TRY(rank.device_comms.emplace_back().create(rank.comms[number], *kernels_,
                                                  options_.device_way));
    TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
    for (const Rank& rank : ranks_) TRY(rank.device_comms[number].check(options_.device_way));
  }
  return {};
}

// In one group, since windows are registered by all ranks at once.
Status Worker::register_buffers() {
  if (options_.registration == Registration::None) return {};
  const bool as_windows = options_.registration == Registration::Window;
  const auto communicators = static_cast<size_t>(options_.communicators);
  for (size_t number = 0; number < libraries_.size() * communicators; ++number) {
    const Library& nccl = libraries_[number / communicators];
    if (as_windows ? nccl.window_register == nullptr : nccl.comm_register == nullptr)
      return Status::invalid_argument("--local_register: {} has no {}", nccl.path(),
                                      as_windows ? "ncclCommWindowRegister" : "ncclCommRegister");
    const auto library = static_cast<int>(number / communicators);
    const auto pairs = static_cast<size_t>(options_.buffer_pairs);
    for (size_t which = 0; which < 2 * pairs; ++which) {
      TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
      for (Rank& rank : ranks_) {
        rank.registered.resize(rank.comms.size());
        rank.registered[number].resize(2 * pairs);  // which a group writes to when it ends
        void*& handle = rank.registered[number][which];
        const ncclComm_t comm = rank.comms[number].get();
        const BufferPair& pair = rank.buffers.pairs(library)[which / 2];
        void* const data = (which % 2 == 0 ? pair.send : pair.receive).data();
        const size_t bytes = rank.buffers.bytes_each();
        TRY(as_windows
                ? nccl.check(nccl.window_register(comm, data, bytes,
                                                  reinterpret_cast<ncclWindow_t*>(&handle),
                                                  NCCL_WIN_COLL_SYMMETRIC),
                             "ncclCommWindowRegister")
                : nccl.check(nccl.comm_register(comm, data, bytes, &handle), "ncclCommRegister"));
      }
      TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
    }
  }
  return {};
}

Status Worker::deregister_buffers() {
  for (Rank& rank : ranks_) {
    for (size_t number = 0; number < rank.registered.size(); ++number) {
      const Library& nccl = rank.comms[number].library();
      for (void* const handle : rank.registered[number]) {
        const ncclComm_t comm = rank.comms[number].get();
        TRY(options_.registration == Registration::Window
                ? nccl.check(nccl.window_deregister(comm, static_cast<ncclWindow_t>(handle)),
                             "ncclCommWindowDeregister")
                : nccl.check(nccl.comm_deregister(comm, handle), "ncclCommDeregister"));
      }
    }
  }
  return {};
}

Status Worker::destroy_communicators() {
  for (Rank& rank : ranks_) {
    rank.operations.clear();
    for (DeviceComm& each : rank.device_comms) TRY(each.destroy());
  }
  TRY(deregister_buffers());
  const size_t communicators = libraries_.size() * static_cast<size_t>(options_.communicators);
  for (size_t number = 0; number < communicators; ++number)
    for (Rank& rank : ranks_) TRY(rank.comms[number].destroy());
  return {};
}

Status Worker::set_operation(const ElementType& type, const Operation& operation) {
  for (Rank& rank : ranks_) TRY(rank.set_operation(machine_, type, operation));
  return {};
}

Invocation Worker::invocation(const Call& call, const Rank& rank, Place place) const {
  const Shape shape = this->shape(call, rank);
  const size_t bytes = call.type->bytes;
  const auto communicators = static_cast<size_t>(options_.communicators);
  const size_t number = static_cast<size_t>(call.library) * communicators + place.communicator;
  const size_t begin =
      place.communicator * slot_bytes(options_) + place.offset + call.start_bytes();
  const BufferPair& pair = rank.buffers.current(call.library);
  auto* receive = static_cast<std::byte*>(pair.receive.data()) + begin;
  const auto* send = static_cast<const std::byte*>(pair.send.data()) + begin;
  if (call.is_in_place) {
    send = receive + shape.send_offset * bytes;
    receive += shape.receive_offset * bytes;
  }
  return {.send = send,
          .receive = receive,
          .count = shape.count,
          .type = call.type,
          .operation = rank.operations[number].id(),
          .root = call.root,
          .rank = rank.rank,
          .nranks = team_.nranks(),
          .comm = rank.comms[number].get(),
          .stream = static_cast<cudaStream_t>(rank.stream_of(place.communicator)),
          .by_send_recv = options_.send_recv};
}

Status Worker::copy_own_blocks(const Call& call, Place place) {
  for (const Rank& rank : ranks_) {
    const Invocation each = invocation(call, rank, place);
    if (each.count > 0)
      TRY(machine_.copy_async(each.receive_block(rank.rank), each.send, each.block_bytes(),
                              rank.device, rank.stream_of(place.communicator)));
  }
  return {};
}

Status Worker::launch_kernel(const Call& call, const Rank& rank, Place place) const {
  const Invocation each = invocation(call, rank, place);
  const BufferPair& pair = rank.buffers.current(call.library);
  const auto number =
      static_cast<size_t>(call.library) * static_cast<size_t>(options_.communicators) +
      place.communicator;
  const std::vector<void*>& windows = rank.registered[number];
  const size_t receive = 2 * rank.buffers.current_number(call.library) + 1;
  const size_t send = call.is_in_place ? receive : receive - 1;
  const UserMemory& sent = call.is_in_place ? pair.receive : pair.send;
  const auto offset = [](const std::byte* data, const UserMemory& memory) {
    return static_cast<size_t>(data - static_cast<const std::byte*>(memory.data()));
  };
  TRY(machine_.set_current_device(rank.device));
  const char* const error =
      kernels_->launch({.work = *call.collective->kernel,
                        .by_network = options_.device_way == DeviceWay::Network,
                        .type = call.type->id,
                        .count = each.count,
                        .device = &rank.device_comms[number].get(),
                        .send = static_cast<ncclWindow_t>(windows[send]),
                        .receive = static_cast<ncclWindow_t>(windows[receive]),
                        .send_offset = offset(each.send, sent),
                        .receive_offset = offset(each.receive, pair.receive),
                        .epochs = rank.device_comms[number].epochs(),
                        .stream = each.stream});
  if (error == nullptr) return {};
  return Status::cuda_error("rank {}: a kernel for {} is not launched: {}", rank.rank,
                            call.collective->name, error);
}

Status Worker::launch_at(const Call& call, Place place) {
  if (kernels_ != nullptr) {
    for (const Rank& rank : ranks_) TRY(launch_kernel(call, rank, place));
    return {};
  }
  const Library& nccl = libraries_[static_cast<size_t>(call.library)];
  const Collective& collective = *call.collective;
  const bool is_group = ranks_.size() > 1;
  if (collective.copies_own_block && !call.is_in_place) TRY(copy_own_blocks(call, place));
  const int steps = collective.steps(team_.nranks());
  for (int step = 0; step < steps; ++step) {
    if (is_group) TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
    for (const Rank& rank : ranks_) TRY(collective.call(nccl, invocation(call, rank, place), step));
    if (is_group) TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
  }
  return {};
}

Status Worker::launch_all(const Call& call, size_t offset) {
  for (int i = 0; i < options_.communicators; ++i)
    TRY(launch_at(call, {.communicator = static_cast<size_t>(i), .offset = offset}));
  return {};
}

Status Worker::fork() {
  for (const Rank& rank : ranks_) {
    if (rank.side_streams.empty() && !multiplies()) continue;
    TRY(machine_.record_event(rank.fork, rank.device, rank.stream.handle()));
    if (multiplies())
      TRY(machine_.wait_event(rank.device, rank.product_stream.handle(), rank.fork));
    for (const gpu::Stream& side : rank.side_streams)
      TRY(machine_.wait_event(rank.device, side.handle(), rank.fork));
  }
  return {};
}

Status Worker::join() {
  for (const Rank& rank : ranks_) {
    for (size_t i = 0; i < rank.side_streams.size(); ++i) {
      TRY(machine_.record_event(rank.joins[i], rank.device, rank.side_streams[i].handle()));
      TRY(machine_.wait_event(rank.device, rank.stream.handle(), rank.joins[i]));
    }
    if (!multiplies()) continue;
    TRY(machine_.record_event(rank.product_end, rank.device, rank.product_stream.handle()));
    TRY(machine_.wait_event(rank.device, rank.stream.handle(), rank.product_end));
  }
  return {};
}

Status Worker::multiply() {
  for (const Rank& rank : ranks_) {
    TRY(machine_.set_current_device(rank.device));
    TRY(rank.product->launch());
  }
  return {};
}

// Successive operations walk through the buffers, so that a small one does not find its data in a
// cache by itself. Behind each place there is room for a guard.
Worker::Places Worker::places(const Call& call) const {
  const size_t bytes = shape(call, ranks_[0]).area() * call.type->bytes + call.start_bytes();
  const size_t stride = aligned(bytes) + kGuardBytes;
  return {.count = std::max<size_t>(slot_bytes(options_) / stride, 1), .stride = stride};
}

size_t Worker::operations(const Call& call) const {
  return std::min(static_cast<size_t>(options_.aggregated), places(call).count);
}

bool Worker::waits_for_buffers() const {
  return options_.has_fresh_buffers() && !is_stream_ordered(options_.allocator);
}

// A driver may hold a lock while it frees memory and waits for kernels that use it, which wait for
// another rank of the process, which needs that lock to launch its own: all ranks have finished
// before one frees, and none launches before all have freed.
Status Worker::next_buffers(const Call& call) {
  using Clock = std::chrono::steady_clock;
  if (waits_for_buffers()) TRY(team_.barrier());
  const Clock::time_point begin = Clock::now();
  for (Rank& rank : ranks_) TRY(rank.buffers.advance(call.library));
  allocation_us_ += std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  return waits_for_buffers() ? team_.barrier() : Status();
}

Status Worker::launch_group(const Call& call, size_t operations, size_t& place, bool takes_turns) {
  const Library& nccl = libraries_[static_cast<size_t>(call.library)];
  const Places places = this->places(call);
  const bool is_group = options_.aggregated > 1;
  TRY(fork());
  // The product comes first, as programs queue computation ahead of communication.
  if (multiplies()) TRY(multiply());
  if (parts_ == Parts::Product) return join();
  if (is_group) TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
  for (size_t i = 0; i < operations; ++i) {
    if (takes_turns)
      for (Rank& rank : ranks_) TRY(rank.buffers.advance(call.library));
    TRY(launch_all(call, place * places.stride));
    place = place + 1 == places.count ? 0 : place + 1;
  }
  if (is_group) TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
  return join();
}

Status Worker::launch(const Call& call) {
  size_t place = 0;
  return launch_group(call, operations(call), place, /*takes_turns=*/false);
}

Status Worker::launch_iterations(const Call& call, int iterations) {
  size_t place = 0;
  const bool is_fresh = options_.has_fresh_buffers();
  for (int iteration = 0; iteration < iterations; ++iteration) {
    if (is_fresh) TRY(next_buffers(call));
    TRY(launch_group(call, static_cast<size_t>(options_.aggregated), place, !is_fresh));
    if (options_.blocking || waits_for_buffers()) TRY(synchronize());
  }
  return {};
}

Status Worker::launch_graphs(const std::vector<gpu::Graph>& graphs) {
  for (size_t i = 0; i < ranks_.size(); ++i)
    TRY(machine_.launch_graph(graphs[i], ranks_[i].device, ranks_[i].stream.handle()));
  return {};
}

Status Worker::synchronize() {
  for (const Rank& rank : ranks_)
    TRY(machine_.synchronize_stream(rank.device, rank.stream.handle()));
  return {};
}

template <typename Launch>
Result<std::vector<gpu::Graph>> Worker::capture_launch(Launch launch) {
  for (const Rank& rank : ranks_) TRY(machine_.begin_capture(rank.device, rank.stream.handle()));
  TRY(launch());
  std::vector<gpu::Graph> graphs;
  for (const Rank& rank : ranks_)
    graphs.push_back(TRY(machine_.end_capture(rank.device, rank.stream.handle())));
  return graphs;
}

Result<std::vector<gpu::Graph>> Worker::capture(const Call& call, int iterations) {
  return capture_launch([&] { return launch_iterations(call, iterations); });
}

Result<std::vector<gpu::Graph>> Worker::capture(const Call& call) {
  return capture_launch([&] { return launch(call); });
}

Status Worker::warm_up(const Call& call) {
  MemoryMeter meter = TRY(MemoryMeter::start(*this));
  // Each pair of buffers once: the first operation with a buffer may make connections for it.
  const int of_pairs = (options_.buffer_pairs + options_.aggregated - 1) / options_.aggregated;
  const int wanted = options_.warmup_iterations;
  TRY(launch_iterations(call, wanted > 0 ? std::max(wanted, of_pairs) : 0));
  TRY(synchronize());
  return meter.stop(call.library);
}

Status Worker::time(const Call& call, Parts parts) {
  parts_ = parts;
  TRY(warm_up(call));
  allocation_us_ = 0;
  TRY(options_.graph_launches > 0 ? time_graph(call)
      : waits_for_buffers()       ? time_one_by_one(call)
                                  : time_stream(call));
  parts_ = Parts::Collective;
  for (const Rank& rank : ranks_)
    team_.records()[static_cast<size_t>(rank.rank)].allocation_microseconds =
        allocation_us_ / options_.iterations;
  return {};
}

void Worker::record(double microseconds) {
  for (const Rank& rank : ranks_)
    team_.records()[static_cast<size_t>(rank.rank)].microseconds = microseconds;
}

/// From the call to its completion, or to its return where the calls' time is measured.
Result<double> Worker::time_call(const Call& call) {
  using Clock = std::chrono::steady_clock;
  size_t place = 0;
  const Clock::time_point begin = Clock::now();
  TRY(launch_group(call, static_cast<size_t>(options_.aggregated), place, /*takes_turns=*/false));
  const Clock::time_point called = Clock::now();
  TRY(synchronize());
  const Clock::time_point end = options_.report_cpu_time ? called : Clock::now();
  return std::chrono::duration<double, std::micro>(end - begin).count() / options_.aggregated;
}

// Leaves out the time of allocating and freeing, which would hide the library's work with a new
// buffer.
Status Worker::time_one_by_one(const Call& call) {
  double microseconds = 0;
  for (int iteration = 0; iteration < options_.iterations; ++iteration) {
    TRY(next_buffers(call));
    microseconds += TRY(time_call(call));
  }
  record(microseconds / options_.iterations);
  return {};
}

Status Worker::time_first(const Call& call, const std::function<Status()>& visit) {
  // Connections, kernels and whatever else a size needs are there before the buffers are.
  TRY(warm_up(call));
  TRY(team_.barrier());
  for (Rank& rank : ranks_) TRY(rank.buffers.take_fresh(call.library));
  TRY(synchronize());
  for (int i = 0; i < options_.first_calls; ++i) {
    TRY(team_.barrier());
    record(TRY(time_call(call)));
    TRY(visit());
  }
  TRY(team_.barrier());
  for (Rank& rank : ranks_) rank.buffers.give_back_fresh(call.library);
  return team_.barrier();
}

Status Worker::time_stream(const Call& call) {
  using Clock = std::chrono::steady_clock;
  TRY(team_.barrier());
  const Clock::time_point begin = Clock::now();
  TRY(launch_iterations(call, options_.iterations));
  const Clock::time_point called = Clock::now();
  TRY(synchronize());
  const Clock::time_point end = options_.report_cpu_time ? called : Clock::now();
  const double microseconds = std::chrono::duration<double, std::micro>(end - begin).count();
  record(microseconds / options_.iterations / options_.aggregated);
  return {};
}

Status Worker::time_graph(const Call& call) {
  const std::vector<gpu::Graph> graphs = TRY(capture(call, options_.iterations));
  TRY(team_.barrier());
  // One replay more than asked: the first waits for the last rank to arrive, and is not counted.
  // All GPUs of this thread get replay k before any gets k + 1, so that a full launch queue never
  // holds back the work that would empty it.
  for (int replay = 0; replay <= options_.graph_launches; ++replay)
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const Rank& rank = ranks_[i];
      TRY(machine_.launch_graph(graphs[i], rank.device, rank.stream.handle()));
      TRY(machine_.record_event(rank.events[static_cast<size_t>(replay)], rank.device,
                                rank.stream.handle()));
    }
  TRY(synchronize());
  for (const Rank& rank : ranks_) {
    std::vector<double> samples;
    for (size_t i = 1; i < rank.events.size(); ++i) {
      const float milliseconds =
          TRY(machine_.elapsed_milliseconds(rank.events[i - 1], rank.events[i]));
      samples.push_back(1e3 * static_cast<double>(milliseconds) / options_.iterations /
                        options_.aggregated);
    }
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    team_.records()[static_cast<size_t>(rank.rank)].microseconds = *middle;
  }
  return {};
}

}  // namespace niccolite::perf
