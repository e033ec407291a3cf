// The life of a communicator: initialises all ranks of this machine in one process, all-reduces
// once and destroys, many times. Prints as JSON what each part takes (medians) and what is left
// behind: memory, descriptors and threads after the first cycles and at the end. For bench/scale
// and scripts/gpu-check.
//   init_destroy [cycles] [ranks] [libnccl.so.2]
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <vector>

#include "cli/perf/library.h"
#include "gpu/machine.h"

namespace niccolite {
namespace {

// The first cycles fill pools and caches that live as long as the process.
constexpr int kWarmupCycles = 5;
constexpr size_t kCount = 65536;

struct Usage {
  size_t heap_bytes = 0;      // in use, of malloc
  size_t resident_bytes = 0;  // of the process
  size_t mappings = 0;
  size_t descriptors = 0;
  size_t threads = 0;
};

size_t entries_of(const char* folder) {
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++entries;
  return entries;
}

Usage usage() {
  malloc_trim(0);  // what is free goes back, so that resident memory is what is used
  Usage now;
  now.heap_bytes = mallinfo2().uordblks;
  size_t total = 0;
  size_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  now.resident_bytes = resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++now.mappings;
  now.descriptors = entries_of("/proc/self/fd");
  now.threads = entries_of("/proc/self/task");
  return now;
}

void print(const char* name, const Usage& usage) {
  std::printf(
      "\"%s\": {\"heap_bytes\": %zu, \"resident_bytes\": %zu, \"mappings\": %zu, \"descriptors\": "
      "%zu, "
      "\"threads\": %zu}, ",
      name, usage.heap_bytes, usage.resident_bytes, usage.mappings, usage.descriptors,
      usage.threads);
}

// Milliseconds of all ranks together, as the one thread that calls sees them.
struct Times {
  double init = 0;
  double first_operation = 0;  // from the call until the last rank has its result
  double destroy = 0;
};

class Clock {
 public:
  /// Milliseconds since the last call, or since construction.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double ms = std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    return ms;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

double median(const std::vector<Times>& cycles, double Times::*part) {
  std::vector<double> values;
  for (const Times& times : cycles) values.push_back(times.*part);
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

Result<Times> cycle(gpu::Machine& machine, const perf::Library& nccl, int nranks) {
  Times times;
  std::deque<perf::Communicator> comms;
  std::vector<gpu::Stream> streams;
  std::vector<gpu::Memory> buffers;
  Clock clock;
  ncclUniqueId id;
  TRY(nccl.check(nccl.get_unique_id(&id), "ncclGetUniqueId"));
  TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
  for (int rank = 0; rank < nranks; ++rank) {
    TRY(machine.set_current_device(rank));
    TRY(comms.emplace_back().init(nccl, nranks, id, rank));
  }
  TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
  times.init = clock.lap();
  for (int rank = 0; rank < nranks; ++rank) {
    streams.push_back(TRY(machine.create_stream(rank)));
    buffers.push_back(TRY(machine.allocate(rank, kCount * sizeof(float), false)));
  }
  clock.lap();
  TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
  for (size_t rank = 0; rank < comms.size(); ++rank)
    TRY(nccl.check(
        nccl.all_reduce(buffers[rank].data(), buffers[rank].data(), kCount, ncclFloat32, ncclSum,
                        comms[rank].get(), static_cast<cudaStream_t>(streams[rank].handle())),
        "ncclAllReduce"));
  TRY(nccl.check(nccl.group_end(), "ncclGroupEnd"));
  for (int rank = 0; rank < nranks; ++rank)
    TRY(machine.synchronize_stream(rank, streams[static_cast<size_t>(rank)].handle()));
  times.first_operation = clock.lap();
  for (perf::Communicator& comm : comms) TRY(comm.destroy());
  times.destroy = clock.lap();
  return times;
}

Status run(int cycles, int nranks, const std::string& path) {
  gpu::Machine* machine = TRY(gpu::machine());
  const std::string library_path = path.empty() ? TRY(perf::default_library_path()) : path;
  const perf::Library nccl = TRY(perf::Library::open(library_path));
  if (nranks == 0) nranks = machine->device_count();
  for (int i = 0; i < kWarmupCycles; ++i) TRY(cycle(*machine, nccl, nranks));
  std::vector<Times> times;
  times.reserve(static_cast<size_t>(cycles));  // before the memory in use is counted
  const Usage before = usage();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < cycles; ++i) times.push_back(TRY(cycle(*machine, nccl, nranks)));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const Usage after = usage();
  std::printf("{");
  print("before", before);
  print("after", after);
  std::printf(
      "\"library\": \"%s\", \"version\": \"%s\", "
      "\"median_ms\": {\"init\": %.3f, \"first_operation\": %.3f, \"destroy\": %.3f}, ",
      nccl.path().c_str(), nccl.version_text().c_str(), median(times, &Times::init),
      median(times, &Times::first_operation), median(times, &Times::destroy));
  std::printf("\"cycles\": %d, \"nranks\": %d, \"seconds_per_cycle\": %.6f}\n", cycles, nranks,
              seconds / cycles);
  return {};
}

}  // namespace
}  // namespace niccolite

int main(int argc, char** argv) {
  const int cycles = argc > 1 ? std::atoi(argv[1]) : 100;
  const int nranks = argc > 2 ? std::atoi(argv[2]) : 0;
  const niccolite::Status status = niccolite::run(cycles, nranks, argc > 3 ? argv[3] : "");
  if (status.is_ok()) return 0;
  std::fprintf(stderr, "init_destroy: %s\n", status.message().c_str());
  return 3;
}
