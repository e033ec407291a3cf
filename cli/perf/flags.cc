// The flags of `niccolite perf` and their texts in --help.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "cli/grammar/options.h"
#include "cli/perf/options.h"

namespace niccolite::perf {
namespace {

constexpr const char* kFooter =
    R"(  all             each of them at a few sizes

Sizes take K, M, G (powers of 1024) and are those of the larger buffer, so that n ranks gather, scatter and exchange
blocks of size / n. Defaults: every GPU of this machine, a thread each, 8 B to 64 MiB doubling.

Columns: time is per operation; algbw = bytes / time; busbw = algbw x 2(n-1)/n of all_reduce, x (n-1)/n where the
data are n blocks, x 1 of broadcast, reduce and sendrecv, which is comparable between rank counts; #wrong counts
elements, over all ranks, that differ from a reference computed on the host.

Examples:
  niccolite perf all_reduce -b 8 -e 1G -f 2 -g 4         four GPUs driven by one thread
  niccolite perf all_gather --processes 4 -G 20 -e 64K   a process per GPU, replays of a CUDA graph
  niccolite perf reduce -d all -o all -r -1 -n 2 -e 1M   every type with every operation, every root
  niccolite perf alltoall --vs /path/libnccl.so.2        two libraries in turn, with the ratio of their times
  niccolite perf all_reduce --hosts a12,a13:4            two machines; mpirun, torchrun and srun start it, too
  niccolite perf all_reduce --html report.html           a page with plots and tables
  niccolite perf all_reduce --device lsa -e 1M           a kernel that loads and stores in peers' memory

Exit status: 0 fine; 1 wrong results; 2 wrong usage; 3 the run failed (an error, a dead process).)";

}  // namespace

void add_options(CLI::App& app, RawOptions& raw) {
  Options& options = raw.options;
  app.footer("Collectives:\n" + describe_collectives() + kFooter);
  using namespace grammar;
  const auto named = [&](const char* group) {
    return [&app, group](const char* names, auto& variable, const char* kind, const char* about) {
      return app.add_option(names, variable, about)->type_name(kind)->group(group);
    };
  };
  app.add_option("collective", raw.collective,
                 "What to measure: collectives, comma-separated, or all")
      ->type_name(kCollectiveList)
      ->capture_default_str();

  const auto ranks = named("Ranks");
  ranks("-t,--threads,--nthreads", raw.threads, kNumber, "Threads per process");
  ranks("-g,--gpus,--ngpus", raw.gpus, kNumber, "GPUs per thread");
  ranks("--processes", options.processes, kNumber,
        "Processes to start; ranks = processes x threads x GPUs");
  add(app, kRanks, raw.ranks, "", ", a thread and a GPU each")
      ->excludes("--threads")
      ->excludes("--gpus")
      ->group("Ranks");
  app.add_flag("--apart", options.apart,
               "Processes meet as if each were on a machine of its own: the network connects them")
      ->group("Ranks");
  add(app, kMachines, raw.machines, "",
      "; all on this one: a process for each, with --apart, and a thread for each rank")
      ->excludes("--threads")
      ->excludes("--gpus")
      ->excludes("--processes")
      ->excludes("--ranks")
      ->group("Ranks");
  ranks("--hosts", options.hosts, "HOST[:N],...",
        "Start a process on each of these hosts: a,b:4,c, or @FILE with a host a line; b:4 has "
        "four threads, the others one for each GPU")
      ->excludes("--machines");
  ranks("--remote-shell", options.remote_shell, "WORDS",
        "The command that reaches a host; the host becomes its last word (default: ssh)");
  ranks("-p,--parallel_init", options.parallel_init, "0|1",
        "1: each thread initialises its own ranks");

  const char* const group = "Sizes and data";
  const auto data = named(group);
  add(app, kMinBytes, raw.min_bytes, "-b", " (default 8)")->group(group);
  add(app, kMaxBytes, raw.max_bytes, "-e", " (default 64M)")->group(group);
  data("-i,--stepbytes", raw.step_bytes, kBytes, "Add this to go from size to size");
  add(app, kStepFactor, raw.step_factor, "-f", " (default 2)")->group(group);
  add(app, kSizes, raw.sizes)->group(group);
  data("--starts", raw.starts, kNumberList,
       "Where buffers begin, in elements behind an aligned address")
      ->capture_default_str();
  data("--extra", raw.extras, kNumberList, "Elements that calls have in addition to the size")
      ->capture_default_str();
  data("-d,--datatype", raw.type, kTypeList, "Types of the elements, or all")
      ->capture_default_str();
  data("-o,--op", raw.operation, "OPERATION,...",
       "sum, prod, min, max, avg, mulsum (a scalar per rank, from the host) or mulsumd (from the "
       "device), or all")
      ->capture_default_str();
  add(app, kRoot, options.root, "-r", "; -1: every rank in turn")
      ->capture_default_str()
      ->group(group);
  app.add_flag("--send-recv", options.send_recv,
               "alltoall, gather and scatter by sends and receives, not by their own functions")
      ->group(group);
  data("--device", raw.device, "lsa|multimem|gin",
       "Kernels that communicate by themselves instead of the library's operations: by loads and "
       "stores in the load-store team, by the switch (multimem), or by the host's proxy (gin)");
  data("-R,--local_register", raw.registration, "0|1|2",
       "1: register the buffers (ncclCommRegister); 2: as symmetric windows");
  data("--allocator", raw.allocator, "ALLOCATOR",
       "Memory of buffers: malloc (cudaMalloc), nccl (ncclMemAlloc of each library), vmm (mapped "
       "granules, exportable), vmm-private (not exportable), async (the default pool), pool (an "
       "exportable pool), managed or host (page-locked)")
      ->capture_default_str();
  data("--buffers", raw.buffers, "N|new",
       "Pairs of send and receive buffers that operations use in turn; new: a fresh pair for each "
       "call, freed after it")
      ->capture_default_str();
  app.add_flag("--in-place", raw.only_in_place, "In-place results only")->group(group);
  app.add_flag("--out-of-place", raw.only_out_of_place, "Out-of-place results only")->group(group);

  const auto timing = named("Timing");
  timing("-n,--iters", options.iterations, kNumber, "Iterations timed together")
      ->capture_default_str();
  timing("-w,--warmup_iters", options.warmup_iterations, kNumber, "Iterations before, not timed")
      ->capture_default_str();
  timing("-m,--agg_iters", options.aggregated, kNumber, "Operations per group call")
      ->capture_default_str();
  timing("--communicators", options.communicators, kNumber,
         "Communicators that do each operation side by side, on streams and data of their own; the "
         "time is that of all")
      ->capture_default_str();
  timing("--beside", options.beside, kNumber,
         "Multiply two matrices of N x N elements beside each operation, on another stream; the "
         "time is that of both, and each is also measured alone");
  timing("--cublas", options.cublas, kFile,
         "The libcublas.so that multiplies (default: the one that the system finds)");
  timing("-G,--cudagraph", options.graph_launches, kNumber,
         "Capture the iterations into a graph; time this many replays, take the median");
  timing("--first", options.first_calls, kNumber,
         "Also time this many calls one by one, the first on a fresh pair of buffers, in each "
         "round");
  timing("-z,--blocking", options.blocking, "0|1", "1: wait for the GPU after every operation");
  timing("-a,--average", raw.average, "0|1|2|3",
         "Time of a row: 0 rank 0's, 1 mean of the ranks, 2 least, 3 most")
      ->capture_default_str();
  timing("-C,--report_cputime", options.report_cpu_time, "0|1",
         "1: time of the calls instead of the operations");

  const auto verification = named("Verification");
  verification("-c,--check", options.check_iterations, kNumber,
               "Verified iterations per row; 0: none")
      ->capture_default_str();
  app.add_flag("--bitwise", options.bitwise,
               "Also require equal bits on all ranks for values that round")
      ->group("Verification");
  verification("-T,--timeout", options.timeout_seconds, kSeconds,
               "Give up after this time without progress; 0: never");

  const auto libraries = named("Libraries");
  add(app, kLibrary, options.library)->group("Libraries");
  libraries("--algorithm", options.algorithm, "NAME,...",
            "Algorithms to choose from: sets NCCL_ALGO for this run");
  libraries("--vs", options.other_library, kFile,
            "Second library, measured in turn with the first");
  libraries("--rounds", options.rounds, kNumber,
            "Rounds per row, of which the median counts (default 1; 5 with --vs)");

  const auto output = named("Output");
  app.add_flag("--memory", options.memory, "Measure the device memory that the communicators take")
      ->group("Output");
  add_flag(app, kJsonFlag, options.wants_json, " instead of the table")->group("Output");
  add(app, kOutputFile, options.json_path, "-J,--output_file")->group("Output");
  output("--csv", options.csv_path, kFile, "Write a line of values per row into this file");
  output("--svg", options.svg_path, kFile,
         "Draw latency, bus bandwidth and the ratio of two libraries into this file");
  output("--html", options.html_path, kFile,
         "Write a page with plots, tables and the machine into this file");
  output("--peak", raw.peak, "[NAME=]GB/s",
         "Bus bandwidth that plots show as a limit, such as \"peer copy=392\"");

  app.add_option("--child-process", options.process)
      ->group("");  // an empty group hides it from --help
  app.add_option("--host-process", options.place.process)->group("");
  app.add_option("--host-processes", options.host_processes)->group("");
  app.add_option("--host-threads", options.host_threads)->group("");
  app.add_option("--team-fd", options.team_fd)->group("");
  app.add_option("--report-fd", options.report_fd)->group("");
}

}  // namespace niccolite::perf
