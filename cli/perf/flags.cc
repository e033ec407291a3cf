// The flags of `niccolite perf` and what --help says about them.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

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

Exit status: 0 fine; 1 wrong results; 2 wrong usage; 3 the run failed (an error, a dead process).)";

}  // namespace

void add_options(CLI::App& app, RawOptions& raw) {
  Options& options = raw.options;
  app.footer("Collectives:\n" + describe_collectives() + kFooter);
  app.add_option("collective", raw.collective,
                 "What to measure: collectives, comma-separated, or all")
      ->capture_default_str();

  app.add_option("-t,--nthreads", raw.threads, "Threads per process")->group("Ranks");
  app.add_option("-g,--ngpus", raw.gpus, "GPUs per thread")->group("Ranks");
  app.add_option("--processes", options.processes,
                 "Processes to start; ranks = processes x threads x GPUs")
      ->group("Ranks");
  app.add_flag("--apart", options.apart,
               "Processes meet as if each were on a machine of its own: the network connects them")
      ->group("Ranks");
  app.add_option("--hosts", options.hosts,
                 "Start a process on each of these hosts: a,b:4,c, or @FILE with a host a line; "
                 "b:4 has four threads, the others one for each GPU")
      ->group("Ranks");
  app.add_option("--remote-shell", options.remote_shell,
                 "What reaches a host, which is its last word (default: ssh)")
      ->group("Ranks");
  app.add_option("-p,--parallel_init", options.parallel_init,
                 "1: each thread initialises its own ranks")
      ->group("Ranks");

  app.add_option("-b,--minbytes", raw.min_bytes, "First size (default 8)")->group("Sizes and data");
  app.add_option("-e,--maxbytes", raw.max_bytes, "Last size (default 64M)")
      ->group("Sizes and data");
  app.add_option("-i,--stepbytes", raw.step_bytes, "Add this to go from size to size")
      ->group("Sizes and data");
  app.add_option("-f,--stepfactor", raw.step_factor, "Or multiply by this (default 2)")
      ->group("Sizes and data");
  app.add_option("--sizes", raw.sizes, "These sizes instead, comma-separated")
      ->group("Sizes and data");
  app.add_option("--starts", raw.starts,
                 "Where buffers begin, in elements behind an aligned address, comma-separated")
      ->capture_default_str()
      ->group("Sizes and data");
  app.add_option("--extra", raw.extras,
                 "Elements that the count of a call has more than the size gives, comma-separated")
      ->capture_default_str()
      ->group("Sizes and data");
  app.add_option("-d,--datatype", raw.type, "Types, comma-separated, or all")
      ->capture_default_str()
      ->group("Sizes and data");
  app.add_option("-o,--op", raw.operation,
                 "Operations: sum, prod, min, max, avg, mulsum (a scalar per rank, from the host) "
                 "or mulsumd (from the device), comma-separated, or all")
      ->capture_default_str()
      ->group("Sizes and data");
  app.add_option("-r,--root", options.root, "Root, where there is one; -1: every rank in turn")
      ->capture_default_str()
      ->group("Sizes and data");
  app.add_flag("--send-recv", options.send_recv,
               "alltoall, gather and scatter by sends and receives, not by their own functions")
      ->group("Sizes and data");
  app.add_option("-R,--local_register", raw.registration,
                 "1: register the buffers (ncclCommRegister); 2: as symmetric windows")
      ->group("Sizes and data");
  app.add_option("--allocator", raw.allocator,
                 "Where buffers come from: malloc (cudaMalloc), nccl (ncclMemAlloc of each "
                 "library), vmm (mapped granules, exportable), vmm-private (not exportable), async "
                 "(the default pool), pool (an exportable pool), managed or host (page-locked)")
      ->capture_default_str()
      ->group("Sizes and data");
  app.add_option("--buffers", raw.buffers,
                 "Pairs of send and receive buffers that operations use in turn; new: a fresh pair "
                 "before each call, which is freed after it")
      ->capture_default_str()
      ->group("Sizes and data");
  app.add_flag("--in-place", raw.only_in_place, "In-place results only")->group("Sizes and data");
  app.add_flag("--out-of-place", raw.only_out_of_place, "Out-of-place results only")
      ->group("Sizes and data");

  app.add_option("-n,--iters", options.iterations, "Iterations timed together")
      ->capture_default_str()
      ->group("Timing");
  app.add_option("-w,--warmup_iters", options.warmup_iterations, "Iterations before, not timed")
      ->capture_default_str()
      ->group("Timing");
  app.add_option("-m,--agg_iters", options.aggregated, "Operations per group call")
      ->capture_default_str()
      ->group("Timing");
  app.add_option("--communicators", options.communicators,
                 "Communicators that do each operation side by side, on streams and data of their "
                 "own; the time is that of all")
      ->capture_default_str()
      ->group("Timing");
  app.add_option("--beside", options.beside,
                 "Run a product of two matrices of this edge beside each operation, on another "
                 "stream; the time is that of both, and each alone is measured, too")
      ->group("Timing");
  app.add_option("--cublas", options.cublas,
                 "libcublas.so that computes it (default: the one that the system finds)")
      ->group("Timing");
  app.add_option("-G,--cudagraph", options.graph_launches,
                 "Capture the iterations into a graph; time this many replays, take the median")
      ->group("Timing");
  app.add_option(
         "--first", options.first_calls,
         "Also time this many calls one by one, the first on a fresh pair of buffers, in each "
         "round")
      ->group("Timing");
  app.add_option("-z,--blocking", options.blocking, "1: wait for the GPU after every operation")
      ->group("Timing");
  app.add_option("-a,--average", raw.average,
                 "Time of a row: 0 rank 0's, 1 mean of the ranks, 2 least, 3 most")
      ->capture_default_str()
      ->group("Timing");
  app.add_option("-C,--report_cputime", options.report_cpu_time,
                 "1: time of the calls instead of the operations")
      ->group("Timing");

  app.add_option("-c,--check", options.check_iterations, "Verified iterations per row; 0: none")
      ->capture_default_str()
      ->group("Verification");
  app.add_flag("--bitwise", options.bitwise,
               "Also require equal bits on all ranks for values that round")
      ->group("Verification");
  app.add_option("-T,--timeout", options.timeout_seconds,
                 "Give up after this many seconds without progress; 0: never")
      ->group("Verification");

  app.add_option("--lib", options.library,
                 "Library to measure (default: ../lib/libnccl.so.2 beside this command)")
      ->group("Libraries");
  app.add_option("--vs", options.other_library, "Second library, measured in turn with the first")
      ->group("Libraries");
  app.add_option("--rounds", options.rounds,
                 "Rounds per row, of which the median counts (default 1; 5 with --vs)")
      ->group("Libraries");
  app.add_flag("--memory", options.memory, "Measure the device memory that the communicators take")
      ->group("Output");
  app.add_option("-J,--output_file", options.json_path, "Write the results as JSON")
      ->group("Output");

  app.add_option("--child-process", options.process)
      ->group("");  // an empty group hides it from --help
  app.add_option("--host-process", options.place.process)->group("");
  app.add_option("--host-processes", options.host_processes)->group("");
  app.add_option("--host-threads", options.host_threads)->group("");
  app.add_option("--team-fd", options.team_fd)->group("");
  app.add_option("--report-fd", options.report_fd)->group("");
}

}  // namespace niccolite::perf
