// Times the CUDA executor on the GPUs of this machine: collective x algorithm x protocol x channels
// x threads x size, in graph replay and by stream launches, a host thread per GPU. Prints a table,
// and JSON to a file. `device_bench --help` lists what can be selected; the defaults, all-reduces,
// fit into three minutes.
//
// Sizes and bandwidths are those of nccl-tests: bytes are of the larger buffer of a rank, for
// messages of what a rank sends; bandwidth is what a link carries when data takes the shortest way.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "executor/cuda/launch/kernels.h"
#include "gpu/cuda/open.h"
#include "planner/form.h"
#include "tests/device/gpu_ranks.h"
#include "tests/device/instruction_costs.h"
#include "tests/device/timing.h"

namespace niccolite::device_test {
namespace {

using executor::Protocol;
using executor::cuda::PreparedLaunch;
using schedule::Collective;

struct Options {
  std::vector<int> gpus{4, 2};
  std::vector<std::string> collectives{"all_reduce"};
  std::vector<std::string> algorithms;  // empty: all there are
  std::vector<std::string> protocols{"ll", "ll128", "simple"};
  std::vector<uint32_t> channels{1, 4, 8, 16, 32, 64};
  std::vector<int> threads{0};
  uint64_t min_bytes = 8;
  uint64_t max_bytes = uint64_t{1} << 30;
  uint32_t step = 4;  // factor from one size to the next
  std::vector<std::string> modes{"graph"};
  std::string type = "float";
  uint32_t ll_slot = 65536;
  uint32_t ll_depth = 8;
  uint32_t ll128_slot = 65536;
  uint32_t ll128_depth = 8;
  uint32_t simple_slot = 131072;
  uint32_t simple_depth = 4;
  double milliseconds = 15;  // of measuring per row
  bool steps = false;
  std::string json;
};

Result<Protocol> protocol_of(const std::string& name) {
  if (name == "ll") return Protocol::LL;
  if (name == "ll128") return Protocol::LL128;
  if (name == "simple") return Protocol::Simple;
  return Status::invalid_argument("no protocol {}: ll, ll128, simple", name);
}

std::string size_text(uint64_t bytes) {
  if (bytes >= uint64_t{1} << 30) return fmt::format("{} GiB", bytes >> 30);
  if (bytes >= uint64_t{1} << 20) return fmt::format("{} MiB", bytes >> 20);
  if (bytes >= uint64_t{1} << 10) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

Result<Collective> collective_of(const std::string& name) {
  for (int c = 0; c < schedule::kCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    if (name == schedule::name_of(collective)) return collective;
  }
  return Status::invalid_argument("no collective {}", name);
}

// What is called an algorithm of point_to_point: to the next rank, or to all others.
constexpr const char* kMessagePatterns[] = {"ring", "all"};

std::vector<algorithms::Envelope> messages_of(const std::string& pattern, int nranks) {
  std::vector<algorithms::Envelope> messages;
  for (int sender = 0; sender < nranks; ++sender) {
    for (int distance = 1; distance < (pattern == "ring" ? 2 : nranks); ++distance) {
      messages.push_back({sender, (sender + distance) % nranks});
    }
  }
  return messages;
}

// Operation::count for `bytes` as nccl-tests counts them.
uint64_t count_of(const Operation& operation, uint64_t bytes) {
  uint64_t parts =
      schedule::cuts_one_buffer(operation.collective) ? 1 : static_cast<uint64_t>(operation.nranks);
  if (operation.collective == Collective::PointToPoint) {
    parts = operation.messages.size() / static_cast<uint64_t>(operation.nranks);
  }
  return std::max<uint64_t>(bytes / size_of(operation.type) / parts, 1);
}

// Bytes that a link carries for each byte of the size.
double bus_factor(Collective collective, double n) {
  switch (collective) {
    case Collective::AllReduce:
      return 2 * (n - 1) / n;
    case Collective::AllGather:
    case Collective::ReduceScatter:
    case Collective::AllToAll:
    case Collective::Gather:
    case Collective::Scatter:
      return (n - 1) / n;
    case Collective::Reduce:
    case Collective::Broadcast:
    case Collective::PointToPoint:
      return 1;
  }
  return 1;
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
      for (const std::string& name : options_.collectives) {
        const Collective collective = TRY(collective_of(name));
        for (const std::string& algorithm : algorithms_of(collective)) {
          for (const std::string& text : options_.protocols) {
            const Protocol protocol = TRY(protocol_of(text));
            for (const uint32_t channels : options_.channels) {
              TRY(run_shape(gpus, collective, algorithm, protocol, channels));
            }
          }
        }
      }
    }
    print_best();
    return {};
  }

  nlohmann::json take_rows() { return std::move(rows_); }

 private:
  std::vector<std::string> algorithms_of(Collective collective) const {
    std::vector<std::string> names;
    const auto add = [&](const char* name) {
      const auto& wanted = options_.algorithms;
      if (wanted.empty() || std::ranges::find(wanted, name) != wanted.end()) names.push_back(name);
    };
    if (collective == Collective::PointToPoint) {
      for (const char* pattern : kMessagePatterns) add(pattern);
    }
    for (const planner::Form& algorithm : planner::forms()) {
      if (algorithm.collective == collective) add(algorithm.name.c_str());
    }
    return names;
  }

  // Sizes at which this combination could be of use: the sweep is long enough without the others.
  static bool is_sensible(const Operation& operation, uint64_t bytes) {
    const uint64_t per_channel = bytes / operation.channels;
    if (operation.channels > 1 && per_channel < 512) return false;
    if (operation.algorithm == "one_shot" && bytes > 8 << 20) return false;
    switch (operation.protocol) {
      case Protocol::LL:
        return bytes <= 8u << 20 && per_channel <= 1u << 20;
      case Protocol::LL128:
        return bytes >= 2u << 10 && bytes <= 128u << 20 && per_channel <= 4u << 20;
      case Protocol::Simple:
        return bytes >= 64u << 10 && per_channel <= 1u << 25;
    }
    return false;
  }

  Status run_shape(int gpus, Collective collective, const std::string& algorithm, Protocol protocol,
                   uint32_t channels) {
    Operation operation{
        .collective = collective, .algorithm = algorithm, .nranks = gpus, .protocol = protocol};
    operation.channels = channels;
    operation.min_channel_bytes = 16;
    operation.depth = protocol == Protocol::LL      ? options_.ll_depth
                      : protocol == Protocol::LL128 ? options_.ll128_depth
                                                    : options_.simple_depth;
    operation.slot_bytes = protocol == Protocol::LL      ? options_.ll_slot
                           : protocol == Protocol::LL128 ? options_.ll128_slot
                                                         : options_.simple_slot;
    operation.type = options_.type == "half"       ? executor::DataType::Float16
                     : options_.type == "bfloat16" ? executor::DataType::Bfloat16
                                                   : executor::DataType::Float32;
    if (!schedule::reduces(collective)) operation.type = executor::DataType::Uint8;
    if (collective == Collective::PointToPoint) operation.messages = messages_of(algorithm, gpus);
    std::vector<uint64_t> sizes;
    for (uint64_t bytes = options_.min_bytes; bytes <= options_.max_bytes; bytes *= options_.step) {
      if (is_sensible(operation, bytes)) sizes.push_back(bytes);
    }
    if (sizes.empty()) return {};
    // Rounding up to an element for every rank may exceed the smallest sizes.
    const uint64_t buffer_bytes = sizes.back() + 1024;
    operation.count = count_of(operation, sizes.back());
    Programs programs = TRY(compile_all(operation));
    GpuRanks ranks =
        TRY(GpuRanks::create(machine_, gpus, operation, std::move(programs), buffer_bytes));
    TRY(fill(ranks, buffer_bytes));
    for (const uint64_t bytes : sizes) {
      operation.count = count_of(operation, bytes);
      for (const int threads : options_.threads) {
        operation.threads = threads;
        TRY(run_row(ranks, operation, bytes));
      }
    }
    return {};
  }

  // Not zeros: they would be faster than what people send.
  Status fill(GpuRanks& ranks, uint64_t bytes) {
    const Operation pattern{.type = executor::DataType::Float32,
                            .count = std::min<uint64_t>(bytes, 1 << 20) / sizeof(float)};
    for (int r = 0; r < ranks.nranks(); ++r) {
      const std::vector<std::byte> input = rough_input_of(pattern, r);
      for (uint64_t at = 0; at < bytes; at += input.size()) {
        TRY(machine_.copy_async(ranks.input(r) + at, input.data(),
                                std::min<uint64_t>(input.size(), bytes - at), ranks.device(r),
                                ranks.stream(r)));
      }
      TRY(machine_.synchronize_stream(ranks.device(r), ranks.stream(r)));
    }
    return {};
  }

  Status run_row(GpuRanks& ranks, const Operation& operation, uint64_t bytes) {
    std::vector<PreparedLaunch> launches;
    for (int r = 0; r < ranks.nranks(); ++r) {
      launches.push_back(TRY(ranks.prepare(r, operation, ranks.input(r), ranks.output(r))));
    }
    Bench bench(machine_, ranks, launches);
    for (const std::string& mode : options_.modes) {
      const Timing timing = TRY(mode == "graph" ? bench.graph(options_.milliseconds)
                                                : bench.stream(options_.milliseconds));
      const double bus = static_cast<double>(bytes) / timing.microseconds / 1000 *
                         bus_factor(operation.collective, operation.nranks);
      fmt::print(
          "{} GPUs {:<14} {:<14} {:<6} {:<6} {:>3} channels {:>3} threads {:>9} {:>10.2f} us "
          "{:>7.1f} GB/s\n",
          operation.nranks, schedule::name_of(operation.collective), operation.algorithm,
          executor::name_of(operation.protocol), mode, operation.channels, operation.threads,
          size_text(bytes), timing.microseconds, bus);
      std::fflush(stdout);
      rows_.push_back({{"gpus", operation.nranks},
                       {"collective", schedule::name_of(operation.collective)},
                       {"algorithm", operation.algorithm},
                       {"protocol", executor::name_of(operation.protocol)},
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
      for (const std::string& collective : options_.collectives) {
        for (const std::string& mode : options_.modes) {
          for (uint64_t bytes = options_.min_bytes; bytes <= options_.max_bytes;
               bytes *= options_.step) {
            print_best(gpus, collective, mode, bytes);
          }
        }
      }
    }
  }

  void print_best(int gpus, const std::string& collective, const std::string& mode,
                  uint64_t bytes) {
    const nlohmann::json* best = nullptr;
    for (const nlohmann::json& row : rows_) {
      if (row["gpus"] != gpus || row["collective"] != collective || row["mode"] != mode ||
          row["bytes"] != bytes) {
        continue;
      }
      if (best == nullptr || row["microseconds"] < (*best)["microseconds"]) best = &row;
    }
    if (best == nullptr) return;
    fmt::print("{} GPUs {:<14} {} {:>9}: {:>9.2f} us {:>6.1f} GB/s  {} {} {} channels\n", gpus,
               collective, mode, size_text(bytes), (*best)["microseconds"].get<double>(),
               (*best)["bus_gb_per_s"].get<double>(), (*best)["algorithm"].get<std::string>(),
               (*best)["protocol"].get<std::string>(), (*best)["channels"].get<int>());
  }

  gpu::Machine& machine_;
  const Options& options_;
  nlohmann::json rows_ = nlohmann::json::array();
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
    report["steps"] = TRY(time_instructions(*machine));
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
  CLI::App app("Times the CUDA executor.");
  app.add_option("--gpus", options.gpus, "Numbers of GPUs")->delimiter(',');
  app.add_option("--collective", options.collectives,
                 "all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, gather, "
                 "scatter, point_to_point")
      ->delimiter(',');
  app.add_option("--algorithm", options.algorithms,
                 "As the registry names them; of point_to_point: ring, all. None: all there are")
      ->delimiter(',');
  app.add_option("--protocol", options.protocols, "ll, ll128, simple")->delimiter(',');
  app.add_option("--channels,--ctas", options.channels, "CTAs of a pattern channel")
      ->delimiter(',');
  app.add_option("--threads", options.threads, "Of a CTA; 0: the executor's choice")
      ->delimiter(',');
  app.add_option("--min", options.min_bytes, "Smallest message, bytes");
  app.add_option("--max", options.max_bytes, "Largest message, bytes");
  app.add_option("--step", options.step, "Factor between sizes");
  app.add_option("--modes", options.modes, "graph, stream")->delimiter(',');
  app.add_option("--type", options.type, "float, half, bfloat16");
  app.add_option("--ll-slot", options.ll_slot, "Bytes of memory of an LL slot");
  app.add_option("--ll-depth", options.ll_depth);
  app.add_option("--ll128-slot", options.ll128_slot);
  app.add_option("--ll128-depth", options.ll128_depth);
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
