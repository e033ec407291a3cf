#include "cli/perf/rank.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace niccolite::perf {
namespace {

constexpr size_t kAlignment = 256;   // of the operations of one timed run within the buffers
constexpr size_t kGuardBytes = 256;  // behind each result; nobody may write there
constexpr uint8_t kPoison = 0xa5;
constexpr size_t kStagingBytes = size_t{4} << 20;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

uint64_t digest_of(uint64_t seed, const std::byte* data, size_t bytes) {
  // Four independent lanes, so that the multiplications overlap.
  uint64_t lanes[4] = {seed, seed ^ 1, seed ^ 2, seed ^ 3};
  size_t lane = 0;
  for (size_t done = 0; done < bytes; done += 8, lane = (lane + 1) % 4) {
    uint64_t word = 0;
    std::memcpy(&word, data + done, std::min<size_t>(8, bytes - done));
    lanes[lane] = (lanes[lane] ^ word) * 0x9e3779b97f4a7c15;
    lanes[lane] ^= lanes[lane] >> 29;
  }
  uint64_t all = seed;
  for (const uint64_t each : lanes) all = (all ^ each) * 0xbf58476d1ce4e5b9 + (all >> 31);
  return all;
}

}  // namespace

Result<Rank> Rank::create(gpu::Machine& machine, const Options& options, int rank, int device) {
  Rank made;
  made.rank = rank;
  made.device = device;
  made.stream = TRY(machine.create_stream(device));
  const size_t bytes = round_up(options.max_bytes, kAlignment) + kGuardBytes;
  made.send = TRY(machine.allocate(device, bytes, false));
  made.receive = TRY(machine.allocate(device, bytes, false));
  // Touched once: the first write to a page of a virtual GPU's memory is the system's work, not the
  // library's.
  for (const gpu::Memory* memory : {&made.send, &made.receive})
    TRY(machine.set_async(memory->data(), 0, bytes, device, made.stream.handle()));
  made.staging = TRY(machine.allocate_host(std::min(kStagingBytes, bytes)));
  for (int i = 0; i <= options.graph_launches && options.graph_launches > 0; ++i)
    made.events.push_back(TRY(machine.create_event(device, true)));
  TRY(machine.synchronize_stream(device, made.stream.handle()));
  return made;
}

Status Worker::init_communicators() {
  for (size_t library = 0; library < libraries_.size(); ++library) {
    const Library& nccl = libraries_[library];
    TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
    for (Rank& rank : ranks_) {
      TRY(machine_.set_current_device(rank.device));
      TRY(rank.comms.emplace_back().init(nccl, team_.nranks(), team_.id(static_cast<int>(library)),
                                         rank.rank));
    }
    TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
  }
  return {};
}

Status Worker::destroy_communicators() {
  for (size_t library = 0; library < libraries_.size(); ++library)
    for (Rank& rank : ranks_) TRY(rank.comms[library].destroy());
  return {};
}

Status Worker::launch(const Call& call, size_t offset) {
  const Library& nccl = libraries_[static_cast<size_t>(call.library)];
  const bool is_group = ranks_.size() > 1;
  if (is_group) TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
  for (const Rank& rank : ranks_) {
    std::byte* receive = static_cast<std::byte*>(rank.receive.data()) + offset;
    const std::byte* send =
        call.is_in_place ? receive : static_cast<const std::byte*>(rank.send.data()) + offset;
    TRY(nccl.check(nccl.all_reduce(send, receive, call.count, call.type->id, call.operation->id,
                                   rank.comms[static_cast<size_t>(call.library)].get(),
                                   static_cast<cudaStream_t>(rank.stream.handle())),
                   "ncclAllReduce"));
  }
  if (is_group) TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
  return {};
}

Status Worker::launch_iterations(const Call& call, int iterations) {
  // Successive operations walk through the buffers, so that a small one does not find its data in a
  // cache by itself.
  const Library& nccl = libraries_[static_cast<size_t>(call.library)];
  const size_t stride = round_up(std::max<size_t>(call.bytes(), 1), kAlignment);
  const size_t places = std::max<size_t>(round_up(options_.max_bytes, kAlignment) / stride, 1);
  size_t place = 0;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    if (options_.aggregated > 1) TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
    for (int i = 0; i < options_.aggregated; ++i) {
      TRY(launch(call, place * stride));
      place = place + 1 == places ? 0 : place + 1;
    }
    if (options_.aggregated > 1) TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
    if (options_.blocking) TRY(synchronize());
  }
  return {};
}

Status Worker::synchronize() {
  for (const Rank& rank : ranks_)
    TRY(machine_.synchronize_stream(rank.device, rank.stream.handle()));
  return {};
}

Result<std::vector<gpu::Graph>> Worker::capture(const Call& call, int iterations) {
  for (const Rank& rank : ranks_) TRY(machine_.begin_capture(rank.device, rank.stream.handle()));
  TRY(launch_iterations(call, iterations));
  std::vector<gpu::Graph> graphs;
  for (const Rank& rank : ranks_)
    graphs.push_back(TRY(machine_.end_capture(rank.device, rank.stream.handle())));
  return graphs;
}

Status Worker::warm_up(const Call& call) {
  TRY(launch_iterations(call, options_.warmup_iterations));
  return synchronize();
}

Status Worker::time(const Call& call) {
  TRY(warm_up(call));
  return options_.graph_launches > 0 ? time_graph(call) : time_stream(call);
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
  for (const Rank& rank : ranks_)
    team_.records()[static_cast<size_t>(rank.rank)].microseconds =
        microseconds / options_.iterations / options_.aggregated;
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

Status Worker::fill_inputs(const Call& call, const Pattern& pattern, size_t shift) {
  const size_t bytes = call.bytes();
  for (const Rank& rank : ranks_) {
    void* stream = rank.stream.handle();
    TRY(machine_.set_async(rank.receive.data(), kPoison, bytes + kGuardBytes, rank.device, stream));
    auto* input =
        static_cast<std::byte*>(call.is_in_place ? rank.receive.data() : rank.send.data());
    size_t filled = std::min(bytes, pattern.period_bytes());
    if (filled == 0) continue;
    TRY(machine_.copy_async(input, pattern.input(rank.rank, shift), filled, rank.device, stream));
    // The device repeats the period by itself, twice as much each time.
    while (filled < bytes) {
      const size_t more = std::min(filled, bytes - filled);
      TRY(machine_.copy_async(input + filled, input, more, rank.device, stream));
      filled += more;
    }
  }
  return synchronize();
}

Status Worker::run_once(const Call& call, const std::vector<gpu::Graph>& graphs) {
  if (graphs.empty()) {
    TRY(launch(call, 0));
  } else {
    for (size_t i = 0; i < ranks_.size(); ++i)
      TRY(machine_.launch_graph(graphs[i], ranks_[i].device, ranks_[i].stream.handle()));
  }
  return synchronize();
}

template <typename Visit>
Status Worker::read_back(const Rank& rank, size_t bytes, Visit visit) {
  const auto* result = static_cast<const std::byte*>(rank.receive.data());
  // Whole elements of every type fit a piece.
  const size_t piece = rank.staging.bytes() / 8 * 8;
  for (size_t done = 0; done < bytes; done += piece) {
    const size_t size = std::min(piece, bytes - done);
    TRY(machine_.copy_async(rank.staging.data(), result + done, size, rank.device,
                            rank.stream.handle()));
    TRY(machine_.synchronize_stream(rank.device, rank.stream.handle()));
    visit(static_cast<const std::byte*>(rank.staging.data()), done, size);
  }
  return {};
}

Result<uint64_t> Worker::wrong_in_guard(const Rank& rank, size_t bytes) {
  const auto* guard = static_cast<const std::byte*>(rank.receive.data()) + bytes;
  TRY(machine_.copy_async(rank.staging.data(), guard, kGuardBytes, rank.device,
                          rank.stream.handle()));
  TRY(machine_.synchronize_stream(rank.device, rank.stream.handle()));
  const auto* copy = static_cast<const std::byte*>(rank.staging.data());
  return static_cast<uint64_t>(std::count_if(
      copy, copy + kGuardBytes, [](std::byte byte) { return byte != std::byte{kPoison}; }));
}

Status Worker::check(const Call& call, const Pattern& pattern) {
  std::vector<uint64_t> wrong(ranks_.size());
  std::vector<gpu::Graph> graphs;
  if (options_.graph_launches > 0) graphs = TRY(capture(call, 1));
  for (int iteration = 0; iteration < options_.check_iterations; ++iteration) {
    // Other data each time: a stale result of the iteration before is wrong now.
    const size_t shift = static_cast<size_t>(iteration) * 1009 % Pattern::kPeriod;
    TRY(fill_inputs(call, pattern, shift));
    TRY(run_once(call, graphs));
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const uint64_t in_guard = TRY(wrong_in_guard(ranks_[i], call.bytes()));
      wrong[i] += in_guard;
      TRY(read_back(ranks_[i], call.bytes(),
                    [&](const std::byte* data, size_t first, size_t bytes) {
                      wrong[i] += pattern.count_wrong(data, first / call.type->bytes,
                                                      bytes / call.type->bytes, shift);
                    }));
    }
  }
  for (size_t i = 0; i < ranks_.size(); ++i)
    team_.records()[static_cast<size_t>(ranks_[i].rank)].wrong = wrong[i];
  return {};
}

Status Worker::digest(const Call& call, const Pattern& pattern) {
  std::vector<gpu::Graph> graphs;
  if (options_.graph_launches > 0) graphs = TRY(capture(call, 1));
  TRY(fill_inputs(call, pattern, 0));
  TRY(run_once(call, graphs));
  for (const Rank& rank : ranks_) {
    uint64_t digest = 0;
    TRY(read_back(rank, call.bytes(), [&](const std::byte* data, size_t, size_t bytes) {
      digest = digest_of(digest, data, bytes);
    }));
    team_.records()[static_cast<size_t>(rank.rank)].digest = digest;
  }
  return {};
}

}  // namespace niccolite::perf
