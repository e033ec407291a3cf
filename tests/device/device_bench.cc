// Times the CUDA executor on the GPUs of this machine: algorithm x protocol x channels x threads x
// size, in graph replay and by stream launches, a host thread per GPU. Prints a table, and JSON to
// a file. `device_bench --help` lists what can be selected; defaults fit into three minutes.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "executor/cuda/kernels.h"
#include "gpu/cuda/open.h"
#include "tests/device/gpu_ranks.h"

namespace niccolite::device_test {
namespace {

using executor::Protocol;
using executor::cuda::PreparedLaunch;
using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<int> gpus{4, 2};
  std::vector<std::string> algorithms{"one_shot", "two_shot_lane", "two_shot", "ring"};
  std::vector<std::string> protocols{"LL", "Simple"};
  std::vector<uint32_t> channels{1, 4, 8, 16, 32, 64};
  std::vector<int> threads{0};
  uint64_t min_bytes = 8;
  uint64_t max_bytes = uint64_t{1} << 30;
  uint32_t step = 4;  // factor from one size to the next
  std::vector<std::string> modes{"graph"};
  std::string type = "float";
  uint32_t ll_slot = 65536;
  uint32_t ll_depth = 8;
  uint32_t simple_slot = 131072;
  uint32_t simple_depth = 4;
  double milliseconds = 15;  // of measuring per row
  bool steps = false;
  std::string json;
};

struct Timing {
  double microseconds = 0;  // the slowest rank's, per operation
};

// All ranks run `operations` operations, `rounds` times; a thread per rank.
class Bench {
 public:
  Bench(gpu::Machine& machine, GpuRanks& ranks, std::vector<PreparedLaunch>& launches)
      : machine_(machine), ranks_(ranks), launches_(launches) {}

  Result<Timing> graph(double milliseconds) { return run(milliseconds, /*use_graph=*/true); }
  Result<Timing> stream(double milliseconds) { return run(milliseconds, /*use_graph=*/false); }

 private:
  static constexpr int kOperations = 20;  // in one graph

  Result<Timing> run(double milliseconds, bool use_graph) {
    // A first, short run warms up and tells how many fit.
    const double guess = TRY(run_rounds(2, use_graph));
    const double per_round = guess * kOperations / 1000;
    const auto rounds = static_cast<int>(std::clamp(milliseconds / per_round, 2.0, 200.0));
    std::vector<double> times;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const double microseconds = TRY(run_rounds(rounds, use_graph));
      times.push_back(microseconds);
    }
    std::sort(times.begin(), times.end());
    return Timing{times[times.size() / 2]};
  }

  Result<double> run_rounds(int rounds, bool use_graph) {
    const int nranks = ranks_.nranks();
    std::barrier meeting(nranks);
    std::vector<Status> results(static_cast<size_t>(nranks));
    std::vector<float> times(static_cast<size_t>(nranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < nranks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto r = static_cast<size_t>(rank);
        results[r] = run_rank(rank, rounds, use_graph, meeting, times[r]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (Status& result : results) TRY(std::move(result));
    const float slowest = *std::max_element(times.begin(), times.end());
    return double{slowest} * 1000 / rounds / kOperations;
  }

  Status run_rank(int rank, int rounds, bool use_graph, std::barrier<>& meeting, float& time) {
    const int device = ranks_.device(rank);
    const gpu::StreamHandle stream = ranks_.stream(rank);
    PreparedLaunch& launch = launches_[static_cast<size_t>(rank)];
    const auto queue = [&]() -> Status {
      for (int i = 0; i < kOperations; ++i) TRY(launch.launch(stream));
      return {};
    };
    gpu::Graph graph;
    gpu::Event start;
    gpu::Event stop;
    const auto prepare = [&]() -> Status {
      start = TRY(machine_.create_event(device, /*timing=*/true));
      stop = TRY(machine_.create_event(device, /*timing=*/true));
      if (!use_graph) return {};
      TRY(machine_.begin_capture(device, stream));
      TRY(queue());
      graph = TRY(machine_.end_capture(device, stream));
      return {};
    };
    Status prepared = prepare();
    meeting.arrive_and_wait();  // whatever came of it: the others wait here
    TRY(std::move(prepared));
    const auto once = [&]() -> Status {
      return use_graph ? machine_.launch_graph(graph, device, stream) : queue();
    };
    TRY(once());  // the ranks meet on the GPUs: they start the timed part together
    TRY(machine_.record_event(start, device, stream));
    for (int i = 0; i < rounds; ++i) TRY(once());
    TRY(machine_.record_event(stop, device, stream));
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(20'000));
    while (!TRY(machine_.query_stream(device, stream))) {
      if (deadline.passed()) {
        ranks_.abort();
        return Status::remote_error("rank {} did not end in 20 s", rank);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    time = TRY(machine_.elapsed_milliseconds(start, stop));
    return {};
  }

  gpu::Machine& machine_;
  GpuRanks& ranks_;
  std::vector<PreparedLaunch>& launches_;
};

std::string size_text(uint64_t bytes) {
  if (bytes >= uint64_t{1} << 30) return fmt::format("{} GiB", bytes >> 30);
  if (bytes >= uint64_t{1} << 20) return fmt::format("{} MiB", bytes >> 20);
  if (bytes >= uint64_t{1} << 10) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

class Sweep {
 public:
  Sweep(gpu::Machine& machine, const Options& options) : machine_(machine), options_(options) {}

  Status run() {
    for (const int gpus : options_.gpus) {
      if (gpus > machine_.device_count()) {
        fmt::print("{} GPUs: not here, there are {}\n", gpus, machine_.device_count());
        continue;
      }
      for (const std::string& algorithm : options_.algorithms) {
        for (const std::string& protocol : options_.protocols) {
          for (const uint32_t channels : options_.channels) {
            TRY(run_shape(gpus, algorithm, protocol == "LL" ? Protocol::LL : Protocol::Simple,
                          channels));
          }
        }
      }
    }
    print_best();
    return {};
  }

  nlohmann::json take_rows() { return std::move(rows_); }

 private:
  // Sizes at which this combination could be of use: the sweep is long enough without the others.
  bool is_sensible(const AllReduce& operation, uint64_t bytes) const {
    const bool is_ll = operation.protocol == Protocol::LL;
    if (is_ll && bytes > (operation.algorithm == "one_shot" ? 2u << 20 : 8u << 20)) return false;
    if (!is_ll && bytes < 64 << 10) return false;
    if (!is_ll && operation.algorithm == "one_shot" && bytes > 8 << 20) return false;
    const uint64_t per_channel = bytes / operation.channels;
    if (operation.channels > 1 && per_channel < 512) return false;
    return per_channel <= (is_ll ? 1u << 20 : 1u << 25);
  }

  Status run_shape(int gpus, const std::string& algorithm, Protocol protocol, uint32_t channels) {
    AllReduce operation{.algorithm = algorithm, .nranks = gpus, .protocol = protocol};
    operation.channels = channels;
    operation.min_channel_bytes = 16;
    const bool is_ll = protocol == Protocol::LL;
    operation.depth = is_ll ? options_.ll_depth : options_.simple_depth;
    operation.slot_bytes = is_ll ? options_.ll_slot : options_.simple_slot;
    operation.type = options_.type == "half"       ? executor::DataType::Float16
                     : options_.type == "bfloat16" ? executor::DataType::Bfloat16
                                                   : executor::DataType::Float32;
    std::vector<uint64_t> sizes;
    for (uint64_t bytes = options_.min_bytes; bytes <= options_.max_bytes; bytes *= options_.step) {
      if (is_sensible(operation, bytes)) sizes.push_back(bytes);
    }
    if (sizes.empty()) return {};
    Programs programs = TRY(compile_all(algorithm, gpus));
    GpuRanks ranks =
        TRY(GpuRanks::create(machine_, gpus, operation, std::move(programs), sizes.back()));
    TRY(fill(ranks, operation, sizes.back()));
    for (const uint64_t bytes : sizes) {
      operation.count = bytes / size_of(operation.type);
      for (const int threads : options_.threads) {
        operation.threads = threads;
        TRY(run_row(ranks, operation, bytes));
      }
    }
    return {};
  }

  // Not zeros: they would be faster than what people send.
  Status fill(GpuRanks& ranks, AllReduce operation, uint64_t bytes) {
    operation.count = std::min<uint64_t>(bytes, 1 << 20) / size_of(operation.type);
    for (int r = 0; r < ranks.nranks(); ++r) {
      const std::vector<std::byte> input = rough_input_of(operation, r);
      for (uint64_t at = 0; at < bytes; at += input.size()) {
        TRY(machine_.copy_async(ranks.input(r) + at, input.data(),
                                std::min<uint64_t>(input.size(), bytes - at), ranks.device(r),
                                ranks.stream(r)));
      }
      TRY(machine_.synchronize_stream(ranks.device(r), ranks.stream(r)));
    }
    return {};
  }

  Status run_row(GpuRanks& ranks, const AllReduce& operation, uint64_t bytes) {
    std::vector<PreparedLaunch> launches;
    for (int r = 0; r < ranks.nranks(); ++r) {
      launches.push_back(TRY(ranks.prepare(r, operation, ranks.input(r), ranks.output(r))));
    }
    Bench bench(machine_, ranks, launches);
    for (const std::string& mode : options_.modes) {
      const Timing timing = TRY(mode == "graph" ? bench.graph(options_.milliseconds)
                                                : bench.stream(options_.milliseconds));
      const double n = operation.nranks;
      const double bus = static_cast<double>(bytes) / timing.microseconds / 1000 * 2 * (n - 1) / n;
      fmt::print(
          "{} GPUs {:<14} {:<6} {:<6} {:>3} channels {:>3} threads {:>9} {:>10.2f} us {:>7.1f} "
          "GB/s\n",
          operation.nranks, operation.algorithm, name_of(operation.protocol), mode,
          operation.channels, operation.threads, size_text(bytes), timing.microseconds, bus);
      std::fflush(stdout);
      rows_.push_back({{"gpus", operation.nranks},
                       {"algorithm", operation.algorithm},
                       {"protocol", name_of(operation.protocol)},
                       {"mode", mode},
                       {"type", options_.type},
                       {"channels", operation.channels},
                       {"threads", operation.threads},
                       {"slot_bytes", operation.slot_bytes},
                       {"depth", operation.depth},
                       {"bytes", bytes},
                       {"microseconds", timing.microseconds},
                       {"bus_gb_per_s", bus}});
    }
    return {};
  }

  // The end of the output is what one sees first: the fastest row of every size.
  void print_best() {
    fmt::print("\nbest by graph or stream:\n");
    for (const int gpus : options_.gpus) {
      for (const std::string& mode : options_.modes) {
        for (uint64_t bytes = options_.min_bytes; bytes <= options_.max_bytes;
             bytes *= options_.step) {
          const nlohmann::json* best = nullptr;
          for (const nlohmann::json& row : rows_) {
            if (row["gpus"] != gpus || row["mode"] != mode || row["bytes"] != bytes) continue;
            if (best == nullptr || row["microseconds"] < (*best)["microseconds"]) best = &row;
          }
          if (best == nullptr) continue;
          fmt::print("{} GPUs {} {:>9}: {:>9.2f} us {:>6.1f} GB/s  {} {} {} channels\n", gpus, mode,
                     size_text(bytes), (*best)["microseconds"].get<double>(),
                     (*best)["bus_gb_per_s"].get<double>(), (*best)["algorithm"].get<std::string>(),
                     (*best)["protocol"].get<std::string>(), (*best)["channels"].get<int>());
        }
      }
    }
  }

  gpu::Machine& machine_;
  const Options& options_;
  nlohmann::json rows_ = nlohmann::json::array();
};

/// What one instruction costs: the slope of the time over programs of more and more instructions,
/// copies of 8 bytes within a GPU, and hops to the other GPU and back.
class Steps {
 public:
  explicit Steps(gpu::Machine& machine) : machine_(machine) {}

  Result<nlohmann::json> run() {
    nlohmann::json rows = nlohmann::json::array();
    for (const Protocol protocol : {Protocol::LL, Protocol::Simple}) {
      for (const bool hops : {false, true}) {
        if (hops && machine_.device_count() < 2) continue;
        const double few = TRY(time(protocol, hops, kFew));
        const double many = TRY(time(protocol, hops, kMany));
        const double slope = (many - few) / (kMany - kFew);
        const char* what = hops ? "hop to the other GPU" : "local copy";
        fmt::print(
            "one instruction, {:<6} {:<22} {:>7.3f} us ({} of them {:.2f} us, {} {:.2f} us)\n",
            name_of(protocol), what, slope, kFew, few, kMany, many);
        rows.push_back({{"protocol", name_of(protocol)},
                        {"instruction", what},
                        {"microseconds", slope},
                        {"launch_microseconds", few - slope * kFew}});
      }
    }
    return rows;
  }

 private:
  static constexpr int kFew = 4;
  static constexpr int kMany = 36;

  // The part of `rank` of `count` instructions: copies, or hops 0 -> 1 -> 0 -> ... in which each
  // rank makes every other one.
  static executor::Program program(int rank, bool hops, int count) {
    executor::Program program;
    program.rank = rank;
    program.nranks = 2;
    program.works = {{.nblocks = 1, .input_blocks = 1, .output_blocks = 1}};
    program.nchannels = 1;
    const auto add = [&](uint8_t receives, uint8_t sends, executor::Place source,
                         executor::Place target) {
      executor::CompactInstruction instruction{};
      instruction.send = 0;
      instruction.receive = 1;
      instruction.send_count = sends;
      instruction.receive_count = receives;
      instruction.source = source;
      instruction.target = target;
      program.instructions.push_back(instruction);
      if (sends > 0) ++program.ports[0].steps;
      if (receives > 0) ++program.ports[1].steps;
    };
    if (hops) {
      program.indices = {0, 1};
      program.ports = {{1 - rank, 0, 0, /*is_send=*/true, 0, 0},
                       {1 - rank, 0, 0, /*is_send=*/false, 0, 0}};
      for (int hop = rank; hop <= count; hop += 2) {
        const bool first = hop == 0;
        const bool last = hop == count;
        add(first ? 0 : 1, last ? 0 : 1, first ? executor::Place::Input : executor::Place::None,
            last ? executor::Place::Output : executor::Place::None);
      }
    } else {
      for (int i = 0; i < count; ++i) add(0, 0, executor::Place::Input, executor::Place::Output);
    }
    program.lanes = {{0, static_cast<uint16_t>(program.instructions.size()), 0, 1, 0}};
    return program;
  }

  Result<double> time(Protocol protocol, bool hops, int count) {
    AllReduce operation{.nranks = 2, .protocol = protocol, .count = 2};
    operation.depth = 64;
    Programs programs;
    for (int rank = 0; rank < 2; ++rank) {
      programs.push_back(std::make_shared<const executor::Program>(program(rank, hops, count)));
    }
    const int ngpus = std::min(machine_.device_count(), 2);
    GpuRanks ranks = TRY(GpuRanks::create(machine_, ngpus, operation, std::move(programs), 64));
    std::vector<PreparedLaunch> launches;
    for (int r = 0; r < 2; ++r) {
      launches.push_back(TRY(ranks.prepare(r, operation, ranks.input(r), ranks.output(r))));
    }
    const Timing timing = TRY(Bench(machine_, ranks, launches).graph(10));
    return timing.microseconds;
  }

  gpu::Machine& machine_;
};

Status bench(const Options& options) {
  gpu::Machine* machine = TRY(gpu::cuda::open());
  const int most = *std::max_element(options.gpus.begin(), options.gpus.end());
  for (int device = 0; device < std::min(most, machine->device_count()); ++device) {
    TRY(executor::cuda::load(device));
  }
  const gpu::DeviceInfo info = TRY(machine->device_info(0));
  nlohmann::json report{{"device", info.name}, {"driver", machine->driver_version()}};
  if (options.steps) {
    report["steps"] = TRY(Steps(*machine).run());
  }
  Sweep sweep(*machine, options);
  TRY(sweep.run());
  report["rows"] = sweep.take_rows();
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << report.dump(1) << '\n';
    if (!file) return Status::system_error("cannot write {}", options.json);
  }
  return {};
}

}  // namespace
}  // namespace niccolite::device_test

int main(int argc, char** argv) {
  niccolite::device_test::Options options;
  CLI::App app("Times the CUDA executor's all-reduces.");
  app.add_option("--gpus", options.gpus, "Numbers of GPUs")->delimiter(',');
  app.add_option("--algorithms", options.algorithms)->delimiter(',');
  app.add_option("--protocols", options.protocols, "LL, Simple")->delimiter(',');
  app.add_option("--channels", options.channels)->delimiter(',');
  app.add_option("--threads", options.threads, "Of a CTA; 0: the executor's choice")
      ->delimiter(',');
  app.add_option("--min", options.min_bytes, "Smallest message, bytes");
  app.add_option("--max", options.max_bytes, "Largest message, bytes");
  app.add_option("--step", options.step, "Factor between sizes");
  app.add_option("--modes", options.modes, "graph, stream")->delimiter(',');
  app.add_option("--type", options.type, "float, half, bfloat16");
  app.add_option("--ll-slot", options.ll_slot, "Bytes of memory of an LL slot");
  app.add_option("--ll-depth", options.ll_depth);
  app.add_option("--simple-slot", options.simple_slot);
  app.add_option("--simple-depth", options.simple_depth);
  app.add_option("--milliseconds", options.milliseconds, "Of measuring per repetition of a row");
  app.add_flag("--steps", options.steps, "Also time single instructions");
  app.add_option("--json", options.json, "File for the results");
  CLI11_PARSE(app, argc, argv);
  if (options.gpus.empty() || options.step < 2 || options.min_bytes < 4) {
    fmt::print("device_bench: give at least one number of GPUs, a step above 1, a minimum of 4\n");
    return 2;
  }
  const niccolite::Status status = niccolite::device_test::bench(options);
  if (status.is_ok()) return 0;
  fmt::print("device_bench: {}\n", status.message());
  return 1;
}
