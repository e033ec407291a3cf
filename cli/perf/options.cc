#include "cli/perf/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "cli/grammar/machines.h"
#include "cli/grammar/names.h"
#include "cli/grammar/numbers.h"

namespace niccolite::perf {
namespace {

// 1 KiB, 64 KiB and 4 MiB, of a run of all collectives.
constexpr size_t kFirstOfFew = 1 << 10, kLastOfFew = 4 << 20;
constexpr double kStepOfFew = 64;
constexpr int kMostElements = 4096;  // of --starts and --extra
constexpr int kMostCommunicators = 8;

template <typename Entry, typename Find>
Result<std::vector<const Entry*>> select(const std::string& list, std::span<const Entry> all,
                                         Find find, const char* flag) {
  std::vector<const Entry*> chosen;
  for (const std::string& name : grammar::split_list(list)) {
    if (name == "all") {
      for (const Entry& entry : all) chosen.push_back(&entry);
    } else if (const Entry* entry = find(name)) {
      chosen.push_back(entry);
    } else {
      std::vector<std::string> known;
      for (const Entry& each : all) known.emplace_back(each.name);
      known.emplace_back("all");
      return grammar::unknown_name(flag, name, known);
    }
  }
  return chosen;
}

constexpr std::pair<const char*, Allocator> kAllocators[] = {
    {"malloc", Allocator::Malloc},          {"nccl", Allocator::Nccl},   {"vmm", Allocator::Vmm},
    {"vmm-private", Allocator::VmmPrivate}, {"async", Allocator::Async}, {"pool", Allocator::Pool},
    {"managed", Allocator::Managed},        {"host", Allocator::Host}};

Result<Allocator> parse_allocator(const std::string& text) {
  for (const auto& [name, allocator] : kAllocators)
    if (text == name) return allocator;
  return grammar::unknown_name("--allocator", text, names_of_allocators());
}

constexpr std::pair<const char*, DeviceWay> kWays[] = {
    {"lsa", DeviceWay::LoadStore}, {"multimem", DeviceWay::Multicast}, {"gin", DeviceWay::Network}};

Result<DeviceWay> parse_way(const std::string& text) {
  std::vector<std::string> names;
  for (const auto& [name, way] : kWays) {
    if (text == name) return way;
    names.emplace_back(name);
  }
  return grammar::unknown_name("--device", text, names);
}

/// Refuses flags that kernels of --device cannot follow.
Status check_kernels(const Options& options) {
  if (!options.by_kernels()) return {};
  if (options.has_fresh_buffers() || options.first_calls > 0)
    return Status::invalid_argument(
        "--device: kernels use windows, which are registered once, before calls: not with "
        "--buffers new or --first");
  if (options.registration == Registration::Local)
    return Status::invalid_argument(
        "--device: buffers of kernels are windows, not --local_register 1");
  if (options.send_recv)
    return Status::invalid_argument("--device: kernels do not call ncclSend (--send-recv)");
  if (!options.algorithm.empty())
    return Status::invalid_argument("--device: kernels have no --algorithm to choose");
  return {};
}

/// Refuses a collective, with the types and operations, for which there is no kernel.
Status check_kernel(const Options& options, const Collective& collective) {
  if (!options.by_kernels()) return {};
  if (!collective.kernel)
    return Status::invalid_argument("--device: there is no kernel for {}", collective.name);
  if (!collective.reduces) return {};
  if (options.device_way == DeviceWay::Network)
    return Status::invalid_argument("--device gin: there is no kernel for {}, which reduces",
                                    collective.name);
  for (const Operation* operation : options.operations)
    if (operation->id != ncclSum || operation->scalar != Scalar::None)
      return Status::invalid_argument("--device: the kernel for {} knows sum, not {}",
                                      collective.name, operation->name);
  for (const ElementType* type : options.types)
    if (type->is_floating() && type->bytes == 1)
      return Status::invalid_argument("--device: the kernel for {} does not add {}",
                                      collective.name, type->name);
  return {};
}

constexpr int kMostPairs = 1024;

/// Pairs of buffers; 0 of "new".
Result<int> parse_buffers(const std::string& text) {
  if (text == "new") return 0;
  int pairs = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pairs);
  if (error != std::errc() || end != text.data() + text.size() || pairs < 1 || pairs > kMostPairs)
    return Status::invalid_argument("--buffers: \"{}\" is neither new nor a number from 1 to {}",
                                    text, kMostPairs);
  return pairs;
}

/// Refuses buffers that contradict other flags.
Status check_buffers(const Options& options) {
  if (options.has_fresh_buffers()) {
    if (options.graph_launches > 0)
      return Status::invalid_argument(
          "--buffers new allocates before each call, which --cudagraph cannot capture");
    if (options.aggregated > 1)
      return Status::invalid_argument(
          "--buffers new frees buffers of calls that have completed, and those of a group "
          "(--agg_iters) do so only together");
    if (options.memory)
      return Status::invalid_argument(
          "--memory looks at the device's free memory, which --buffers new changes all the time");
  } else if (options.buffer_pairs > options.iterations * options.aggregated) {
    return Status::invalid_argument(
        "--buffers: {} operations (--iters x --agg_iters) do not use {} pairs",
        options.iterations * options.aggregated, options.buffer_pairs);
  }
  if (options.registration != Registration::None &&
      (options.has_fresh_buffers() || options.first_calls > 0))
    return Status::invalid_argument(
        "--local_register registers buffers once, before calls: not with --buffers new or --first");
  return {};
}

Result<Average> parse_average(const std::string& text) {
  constexpr std::pair<const char*, Average> kNames[] = {
      {"0", Average::Rank0},   {"1", Average::Mean},      {"2", Average::Least},
      {"3", Average::Most},    {"rank0", Average::Rank0}, {"avg", Average::Mean},
      {"min", Average::Least}, {"max", Average::Most}};
  for (const auto& [name, average] : kNames)
    if (text == name) return average;
  return Status::invalid_argument(
      "--average: \"{}\" is none of 0 (rank 0), 1 (avg), 2 (min), 3 (max)", text);
}

Status at_least(int value, int least, const char* flag) {
  if (value >= least) return {};
  return Status::invalid_argument("{}: {} is less than {}", flag, value, least);
}

Result<std::vector<size_t>> parse_elements(const char* flag, const std::string& list) {
  const std::vector<int> numbers = TRY(grammar::parse_numbers(flag, list, 0, kMostElements));
  return std::vector<size_t>(numbers.begin(), numbers.end());
}

/// --ranks and --machines, as processes, threads and GPUs.
Status place_ranks(const RawOptions& raw, Options& options) {
  if (raw.ranks) {
    TRY(at_least(*raw.ranks, 1, "--ranks"));
    if (*raw.ranks % std::max(options.processes, 1) != 0)
      return Status::invalid_argument("--ranks: {} ranks cannot be shared evenly by {} processes",
                                      *raw.ranks, options.processes);
    options.threads = *raw.ranks / std::max(options.processes, 1);
    options.gpus = 1;
  }
  if (!raw.machines.empty()) {
    const std::vector<int> machines = TRY(grammar::parse_machines(raw.machines));
    options.processes = machines.back() + 1;
    options.threads = static_cast<int>(std::count(machines.begin(), machines.end(), 0));
    options.gpus = 1;
    options.apart = true;
    for (int machine = 0; machine < options.processes; ++machine)
      if (std::count(machines.begin(), machines.end(), machine) != options.threads)
        return Status::invalid_argument(
            "--machines: {} gives machines different numbers of ranks, which perf cannot start; "
            "write {}x{}",
            raw.machines, options.processes, options.threads);
  }
  return {};
}

/// "392" or "peer copy=392".
Status parse_peak(const std::string& text, Options& options) {
  const size_t equals = text.rfind('=');
  if (equals != std::string::npos) options.limit_name = text.substr(0, equals);
  const std::string digits = equals == std::string::npos ? text : text.substr(equals + 1);
  char* end = nullptr;
  options.limit_gbs = std::strtod(digits.c_str(), &end);
  if (!digits.empty() && *end == '\0' && options.limit_gbs > 0 && std::isfinite(options.limit_gbs))
    return {};
  return Status::invalid_argument("--peak: \"{}\" is no GB/s, such as 392 or \"peer copy=392\"",
                                  text);
}

/// Refuses a collective that cannot be measured with the other flags.
Status check_combination(const Options& options, const Collective& collective) {
  TRY(check_kernel(options, collective));
  if (!collective.has_in_place && !options.out_of_place)
    return Status::invalid_argument("--in-place: {} has no in-place form", collective.name);
  if (collective.needs_power_of_two && options.aggregated > 1)
    return Status::invalid_argument(
        "--agg_iters: the groups of {} depend on each other and cannot be joined", collective.name);
  return {};
}

}  // namespace

const char* name_of(DeviceWay way) {
  for (const auto& [name, each] : kWays)
    if (each == way) return name;
  return "none";
}

const char* name_of(Allocator allocator) {
  for (const auto& [name, each] : kAllocators)
    if (each == allocator) return name;
  return "";
}

std::vector<std::string> names_of_allocators() {
  std::vector<std::string> names;
  for (const auto& [name, allocator] : kAllocators) names.emplace_back(name);
  return names;
}

std::vector<size_t> sizes_of(const Options& options) {
  std::vector<size_t> sizes = options.sizes;
  if (!sizes.empty()) return sizes;
  size_t bytes = options.min_bytes;
  while (bytes <= options.max_bytes) {
    sizes.push_back(bytes);
    const double next = static_cast<double>(bytes) * options.step_factor;
    const size_t grown =
        options.step_bytes > 0 ? bytes + options.step_bytes : static_cast<size_t>(next);
    bytes = std::max(grown, bytes + 1);  // from 0, and with factors near 1, it must still grow
  }
  return sizes;
}

std::string describe_step(const Options& options) {
  if (!options.sizes.empty()) {
    std::string list;
    for (const size_t size : options.sizes)
      list += fmt::format("{}{}", list.empty() ? "" : ",", size);
    return list + "(sizes)";
  }
  if (options.step_bytes > 0) return fmt::format("{}(bytes)", options.step_bytes);
  return fmt::format("{}(factor)", options.step_factor);
}

Status keep_collectives(Options& options, const std::function<Status(const Collective&)>& check) {
  std::vector<const Collective*> kept;
  for (const Collective* each : options.collectives) {
    Status status = check(*each);
    if (status.is_ok())
      kept.push_back(each);
    else if (options.is_every_collective)
      options.skipped.emplace_back(status.message());
    else
      return status;
  }
  options.collectives = std::move(kept);
  return {};
}

Result<Options> finish(const RawOptions& raw) {
  Options options = raw.options;
  options.is_every_collective = raw.collective == "all";
  options.collectives = TRY(select(raw.collective, collectives(), find_collective, "collective"));
  if (options.is_every_collective && (raw.min_bytes + raw.max_bytes).empty()) {
    options.min_bytes = kFirstOfFew;
    options.max_bytes = kLastOfFew;
    options.step_factor = kStepOfFew;
  }
  if (raw.step_factor) options.step_factor = *raw.step_factor;
  if (!raw.min_bytes.empty())
    options.min_bytes = TRY(grammar::parse_size("--minbytes", raw.min_bytes));
  if (!raw.max_bytes.empty())
    options.max_bytes = TRY(grammar::parse_size("--maxbytes", raw.max_bytes));
  else
    options.max_bytes = std::max(options.max_bytes, options.min_bytes);
  if (!raw.step_bytes.empty())
    options.step_bytes = TRY(grammar::parse_size("--stepbytes", raw.step_bytes));
  if (!raw.sizes.empty()) {
    options.sizes = TRY(grammar::parse_sizes("--sizes", raw.sizes));
    const auto [least, most] = std::minmax_element(options.sizes.begin(), options.sizes.end());
    options.min_bytes = *least;
    options.max_bytes = *most;
  }
  if (options.min_bytes > options.max_bytes)
    return Status::invalid_argument("--minbytes {} is more than --maxbytes {}", options.min_bytes,
                                    options.max_bytes);
  if (options.step_bytes == 0 && !(options.step_factor > 1))
    return Status::invalid_argument(
        "--stepfactor: {} does not grow; give more than 1, or --stepbytes", options.step_factor);
  options.types = TRY(select(raw.type, element_types(), find_type, "--datatype"));
  options.operations = TRY(select(raw.operation, operations(), find_operation, "--op"));
  options.average = TRY(parse_average(raw.average));
  TRY(at_least(raw.threads.value_or(1), 1, "--nthreads"));
  TRY(at_least(raw.gpus.value_or(1), 1, "--ngpus"));
  TRY(at_least(options.processes, 1, "--processes"));
  if (options.processes > 1 || raw.threads || raw.gpus) {
    options.threads = raw.threads.value_or(1);
    options.gpus = raw.gpus.value_or(1);
  }
  TRY(place_ranks(raw, options));
  if (!raw.peak.empty()) TRY(parse_peak(raw.peak, options));
  if (options.host_threads > 0) {
    options.threads = options.host_threads;
    options.gpus = raw.gpus.value_or(1);
  }
  if (!options.hosts.empty() && options.processes > 1)
    return Status::invalid_argument(
        "--hosts starts one process on each host, --processes several on this one: name the "
        "threads of a host behind a colon (a:4)");
  if (options.is_placed()) options.processes = options.host_processes;
  TRY(at_least(options.iterations, 1, "--iters"));
  TRY(at_least(options.warmup_iterations, 0, "--warmup_iters"));
  TRY(at_least(options.aggregated, 1, "--agg_iters"));
  TRY(at_least(options.beside, 0, "--beside"));
  if (options.beside > 0 && options.aggregated > 1)
    return Status::invalid_argument(
        "--beside: a product runs beside one operation, not beside the group of --agg_iters");
  options.starts = TRY(parse_elements("--starts", raw.starts));
  options.extras = TRY(parse_elements("--extra", raw.extras));
  TRY(at_least(options.communicators, 1, "--communicators"));
  if (options.communicators > kMostCommunicators)
    return Status::invalid_argument("--communicators: {} is more than {}", options.communicators,
                                    kMostCommunicators);
  TRY(at_least(options.check_iterations, 0, "--check"));
  TRY(at_least(options.graph_launches, 0, "--cudagraph"));
  TRY(at_least(options.root, -1, "--root"));
  TRY(at_least(options.timeout_seconds, 0, "--timeout"));
  TRY(at_least(options.rounds, 0, "--rounds"));
  if (options.rounds == 0) options.rounds = options.other_library.empty() ? 1 : 5;
  if (raw.registration < 0 || raw.registration > 2)
    return Status::invalid_argument("--local_register: {} is not 0, 1 or 2", raw.registration);
  options.registration = static_cast<Registration>(raw.registration);
  options.allocator = TRY(parse_allocator(raw.allocator));
  options.buffer_pairs = TRY(parse_buffers(raw.buffers));
  TRY(at_least(options.first_calls, 0, "--first"));
  if (!raw.device.empty()) options.device_way = TRY(parse_way(raw.device));
  TRY(check_kernels(options));
  if (options.by_kernels()) options.registration = Registration::Window;
  TRY(check_buffers(options));
  if (raw.only_in_place && !raw.only_out_of_place) options.out_of_place = false;
  if (raw.only_out_of_place && !raw.only_in_place) options.in_place = false;
  if (options.graph_launches > 0 && options.blocking)
    return Status::invalid_argument(
        "--blocking waits inside an iteration, which --cudagraph cannot capture");
  if (options.graph_launches > 0 && options.report_cpu_time)
    return Status::invalid_argument(
        "--report_cputime: replays of --cudagraph make no calls to time");
  TRY(keep_collectives(options, [&](const Collective& collective) {
    return check_combination(options, collective);
  }));
  return options;
}

}  // namespace niccolite::perf
