// Options of `niccolite perf`: the flags of nccl-tests, and ours. Plain data; parsed by
// add_options + finish.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/perf/collective.h"
#include "cli/perf/element.h"

namespace CLI {
class App;
}

namespace niccolite::perf {

/// How buffers are registered before they are used; the numbers of -R, as in nccl-tests.
enum class Registration { None = 0, Local = 1, Window = 2 };

/// Where the memory of buffers comes from: a function of CUDA's, or of the measured library's.
enum class Allocator : unsigned char {
  Malloc,      // cudaMalloc
  Nccl,        // ncclMemAlloc, of each library for its own operations
  Vmm,         // cuMemCreate and cuMemMap, granule by granule, exportable by file descriptor
  VmmPrivate,  // the same, which cannot be exported
  Async,       // cudaMallocAsync, from the default pool
  Pool,        // cudaMallocFromPoolAsync, from a pool that can be exported and grants no access
  Managed,     // cudaMallocManaged
  Host         // cudaHostAlloc: page-locked
};
const char* name_of(Allocator allocator);
std::vector<std::string> names_of_allocators();

/// How kernels that communicate by themselves reach peers.
enum class DeviceWay : unsigned char {
  None,       // operations of the library are measured, not kernels
  LoadStore,  // in the load-store team
  Multicast,  // the same, where the switch adds and copies
  Network     // by the host's proxy
};
const char* name_of(DeviceWay way);

enum class Average { Rank0, Mean, Least, Most };  // which rank's time a row shows

/// Where a process stands in a run over several that share no memory; see machines.h.
struct Place {
  int process = -1;       // -1: there is no such run
  int local_process = 0;  // among the processes of its machine
  int first_device = 0;   // of its ranks
  // Known when all have met.
  int first_rank = 0;
  int all_ranks = 0;
};

struct Options {
  std::vector<const Collective*> collectives;
  bool is_every_collective = false;  // "all": without collectives that cannot be measured
  std::vector<std::string> skipped;  // why some of "all" are left out
  bool send_recv = false;            // sends and receives where there is a choice
  int root = 0;                      // -1: every rank in turn
  size_t min_bytes = 8;
  size_t max_bytes = size_t{64} << 20;
  size_t step_bytes = 0;  // > 0: sizes grow by adding
  double step_factor = 2;
  std::vector<size_t> sizes;         // --sizes: these and no others
  std::vector<size_t> starts = {0};  // elements from an aligned address to where buffers begin
  std::vector<size_t> extras = {0};  // elements that calls have more than the size says
  int communicators = 1;             // of each library, which work side by side
  int iterations = 20;
  int warmup_iterations = 5;  // the first operations of a connection touch its memory
  int aggregated = 1;         // operations per group and iteration
  int beside = 0;             // > 0: a product of matrices of this edge runs beside each operation
  std::string cublas;         // that computes it; empty: looked for
  int threads = 0;            // per process
  int gpus = 0;               // per thread; both 0: every GPU of the machine, a thread each
  int processes = 1;
  bool apart = false;  // each process is a machine of its own to the libraries (NCCL_HOSTID)
  std::vector<const ElementType*> types;
  std::vector<const Operation*> operations;
  int check_iterations = 1;
  DeviceWay device_way = DeviceWay::None;
  Registration registration = Registration::None;
  Allocator allocator = Allocator::Malloc;
  int buffer_pairs = 1;  // that operations use in turn; 0: a fresh one for each iteration
  int first_calls = 0;   // on a fresh pair, each timed by itself, before the others
  bool bitwise = false;  // also reduce values that round, and compare the ranks' bits
  int graph_launches = 0;
  bool blocking = false;
  bool parallel_init = false;
  Average average = Average::Mean;
  bool report_cpu_time = false;
  bool out_of_place = true;
  bool in_place = true;
  int timeout_seconds = 0;
  std::string algorithm;      // NCCL_ALGO of the run; empty: the environment's
  std::string library;        // empty: found beside the command
  std::string other_library;  // --vs; empty: none
  bool memory = false;        // measure the devices' memory that communicators take
  int rounds = 0;             // alternations per row; 0: 1 alone, 5 with --vs
  bool wants_json = false;    // the JSON document on standard output, instead of the table
  std::string json_path, csv_path, svg_path, html_path;  // "-": standard output
  std::string limit_name = "limit";                      // of --peak
  double limit_gbs = 0;  // a line in plots of bus bandwidth; 0: none

  std::string hosts;         // --hosts; empty: this one
  std::string remote_shell;  // empty: ssh
  Place place;               // of a process that hosts.h or a launcher has started
  int host_processes = 1;    // of such a run
  int host_threads = 0;      // of such a process; 0: as the other flags say

  // Set by the supervisor in the processes that it starts; see processes.h.
  int process = -1;
  int team_fd = -1;
  int report_fd = -1;

  int ranks_per_process() const { return threads * gpus; }
  int nranks() const {
    return place.all_ranks > 0 ? place.all_ranks : processes * ranks_per_process();
  }
  /// The first rank of this process.
  int first_rank() const {
    return is_placed() ? place.first_rank : std::max(process, 0) * ranks_per_process();
  }
  int libraries() const { return other_library.empty() ? 1 : 2; }
  bool has_fresh_buffers() const { return buffer_pairs == 0; }
  size_t most_start() const { return *std::max_element(starts.begin(), starts.end()); }
  size_t most_extra() const { return *std::max_element(extras.begin(), extras.end()); }
  bool by_kernels() const { return device_way != DeviceWay::None; }
  bool is_child() const { return process >= 0; }
  bool is_placed() const { return place.process >= 0; }
  bool wants_every_gpu() const { return gpus == 0; }
  /// The files that the run writes at its end.
  std::vector<std::string> paths() const {
    std::vector<std::string> all;
    for (const std::string& path : {json_path, csv_path, svg_path, html_path})
      if (!path.empty()) all.push_back(path);
    return all;
  }
  /// Does standard output get a document in place of the table?
  bool hides_table() const {
    const std::vector<std::string> all = paths();
    return wants_json || std::find(all.begin(), all.end(), "-") != all.end();
  }
};

/// The values of the flags before they are checked; must live as long as the app parses.
struct RawOptions {
  Options options;
  std::string collective = "all_reduce";
  std::string min_bytes, max_bytes, step_bytes, sizes;
  std::string starts = "0", extras = "0";
  std::string allocator = "malloc", buffers = "1";
  std::string device;
  std::optional<double> step_factor;
  std::optional<int> threads, gpus, ranks;
  std::string machines;
  std::string peak;
  int registration = 0;
  std::string type = "float", operation = "sum", average = "1";
  bool only_in_place = false, only_out_of_place = false;
};

/// Gives `app` (the subcommand) its flags.
void add_options(CLI::App& app, RawOptions& raw);

/// Checks and completes the parsed values. InvalidArgument names the flag.
Result<Options> finish(const RawOptions& raw);

/// Removes collectives that `check` refuses from options.collectives if "all" was given; else
/// returns the first refusal.
Status keep_collectives(Options& options, const std::function<Status(const Collective&)>& check);

/// The sizes of a sweep: those named, or from min_bytes to max_bytes, ascending.
std::vector<size_t> sizes_of(const Options& options);

/// How a sweep gets from size to size: "2(factor)", "1024(bytes)", "8,4096(sizes)".
std::string describe_step(const Options& options);

}  // namespace niccolite::perf
