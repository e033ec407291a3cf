#include "comm/rank_info.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/log.h"
#include "base/parameters.h"
#include "base/process.h"
#include "comm/version.h"
#include "planner/plugins/tuner.h"
#include "transport/descriptor_server.h"

namespace niccolite::comm {
namespace {

constexpr size_t kMostHost = 96;  // a boot id has 36, a reach of sockets at most 40, a name 64
constexpr size_t kMostBusId = 32;
constexpr size_t kMostGpu = 96;

const char* kind_name(gpu::Kind kind) { return kind == gpu::Kind::Cuda ? "real" : "virtual"; }

/// "their constants of the cost model": in what the builds of two ranks differ.
std::string difference(const planner::Fingerprint& a, const planner::Fingerprint& b) {
  std::string text;
  const auto add = [&](bool differs, const std::string& what) {
    if (differs) text += (text.empty() ? "" : ", ") + what;
  };
  add(a.build != b.build, fmt::format("the build ({:016x} and {:016x})", a.build, b.build));
  add(a.arithmetic != b.arithmetic, "the arithmetic of the cost model");
  add(a.limits != b.limits, "the limits of algorithms and connections");
  return text;
}

void warn_of_differences(std::span<const RankInfo> ranks) {
  std::vector<const std::vector<planner::Variable>*> variables;
  for (const RankInfo& info : ranks) variables.push_back(&info.variables);
  for (const std::string& line : planner::describe_differences(variables))
    LOG(Warn, Env, "{}", line);
}

Status check_builds(std::span<const RankInfo> ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].fingerprint == ranks[0].fingerprint) continue;
    const std::string what = difference(ranks[0].fingerprint, ranks[rank].fingerprint);
    if (what.empty() && ranks[rank].fingerprint.tuning == ranks[0].fingerprint.tuning)
      return Status::invalid_usage(
          "rank {} on host {} has other algorithms of files than rank 0 on host {}, and would wait "
          "for ranks that do something else. Give all ranks the same files in NICCOLITE_ALGORITHMS "
          "and by niccolite_register_algorithm, or none (NCCL_DEBUG=INFO lists what each has "
          "read)",
          rank, ranks[rank].host_name, ranks[0].host_name);
    if (what.empty())
      return Status::invalid_usage(
          "rank {} on host {} has other tuning files than rank 0 on host {}, and would choose "
          "different algorithms. Set NICCOLITE_TUNING to the same files on all ranks, or on none",
          rank, ranks[rank].host_name, ranks[0].host_name);
    const auto is_other = [&](const RankInfo& info) {
      return info.fingerprint != ranks[0].fingerprint;
    };
    const auto others = std::count_if(ranks.begin(), ranks.end(), is_other);
    return Status::invalid_usage(
        "rank {} on host {}{} has loaded another build of version {} than rank 0 on host {}: they "
        "differ in {}, and would choose different algorithms. Load the same libnccl.so.2 on all "
        "ranks",
        rank, ranks[rank].host_name, others > 1 ? fmt::format(" (one of {})", others) : "",
        ranks[rank].version, ranks[0].host_name, what);
  }
  return {};
}

/// One GPU of all machines, with its host: GPUs of two machines may have the same identifier.
using Gpu = std::pair<std::string, std::array<uint8_t, 16>>;
Gpu own_gpu(const RankInfo& info) { return {info.host, info.device_uuid}; }

}  // namespace

Result<planner::Settings> make_own_settings(gpu::Kind machine, int nranks,
                                            const planner::Limits& limits) {
  planner::Settings settings = TRY(planner::make_settings(machine, nranks, limits));
  settings.is_tuned = planner::Tuner::is_there();
  return settings;
}

bool asks_for_machine_graph() {
  return !parameters::topo_file().empty() || !parameters::topo_dump_file().empty();
}

Result<RankInfo> describe_this_rank(gpu::Devices& devices, int device, int rank,
                                    const planner::Settings& settings,
                                    const planner::Limits& limits) {
  const gpu::DeviceInfo gpu = TRY(devices.device_info(device));
  RankInfo info;
  info.version = kVersionCode;
  info.device = device;
  info.machine = devices.kind();
  std::array<char, kMostHost + 1> name{};
  gethostname(name.data(), name.size() - 1);
  info.host_name = name.data();
  info.host = parameters::host_id();
  if (info.host.empty())
    info.host = fmt::format("{} {}", boot_id().empty() ? info.host_name : boot_id(),
                            transport::reach_of_sockets());
  info.host = info.host.substr(0, kMostHost);
  info.device_uuid = gpu.uuid;
  info.bus_id = gpu.bus_id.substr(0, kMostBusId);
  info.gpu = gpu.name.substr(0, kMostGpu);
  info.places = devices.kind() == gpu::Kind::Virtual ? 0 : gpu.multiprocessors;
  info.may_share_gpu = parameters::multi_rank_gpu() != 0;
  info.asks_for_graph = asks_for_machine_graph();
  info.fingerprint = planner::fingerprint();
  if (rank == 0) info.settings = settings;
  info.variables = planner::variables_of_choices(limits);
  return info;
}

Bytes encode(const RankInfo& info) {
  Writer writer;
  writer.u32(info.version);
  writer.text(info.host_name);
  writer.u64(info.fingerprint.build);
  writer.u64(info.fingerprint.arithmetic);
  writer.u64(info.fingerprint.limits);
  writer.u64(info.fingerprint.tuning);
  writer.u64(info.fingerprint.algorithms);
  writer.i32(info.device);
  writer.u8(static_cast<uint8_t>(info.machine));
  writer.text(info.host);
  writer.raw(std::as_bytes(std::span(info.device_uuid)));
  writer.text(info.bus_id);
  writer.text(info.gpu);
  writer.i32(info.places);
  writer.u8(info.may_share_gpu ? 1 : 0);
  writer.u8(info.asks_for_graph ? 1 : 0);
  writer.u8(info.settings ? 1 : 0);
  if (info.settings) write(writer, *info.settings);
  writer.u32(static_cast<uint32_t>(info.variables.size()));
  for (const planner::Variable& variable : info.variables) {
    writer.text(variable.name);
    writer.text(variable.value);
  }
  return std::move(writer).take();
}

Result<RankInfo> decode(std::span<const std::byte> bytes, int rank, int nranks) {
  const std::string origin = fmt::format("rank {}", rank);
  Reader reader(bytes, origin);
  RankInfo info;
  info.version = reader.u32();
  if (info.version != kVersionCode)
    return Status::invalid_usage(
        "Mismatched NCCL version detected: rank {} runs a library of version code {}, this rank "
        "{}. Load the same libnccl.so.2 on all ranks",
        rank, info.version, kVersionCode);
  info.host_name = reader.text(kMostHost);
  info.fingerprint.build = reader.u64();
  info.fingerprint.arithmetic = reader.u64();
  info.fingerprint.limits = reader.u64();
  info.fingerprint.tuning = reader.u64();
  info.fingerprint.algorithms = reader.u64();
  // Another build may send other things from here on; check() refuses it.
  if (!reader.failed() && info.fingerprint != planner::fingerprint()) return info;
  info.device = reader.i32();
  const uint8_t machine = reader.u8();
  if (machine > static_cast<uint8_t>(gpu::Kind::Virtual)) reader.reject("an unknown kind of GPU");
  info.machine = static_cast<gpu::Kind>(machine);
  info.host = reader.text(kMostHost);
  const std::span<const std::byte> uuid = reader.raw(info.device_uuid.size());
  std::ranges::transform(uuid, info.device_uuid.begin(),
                         [](std::byte byte) { return std::to_integer<uint8_t>(byte); });
  info.bus_id = reader.text(kMostBusId);
  info.gpu = reader.text(kMostGpu);
  info.places = reader.i32();
  info.may_share_gpu = reader.u8() != 0;
  info.asks_for_graph = reader.u8() != 0;
  const bool has_settings = reader.u8() != 0;
  if (has_settings != (rank == 0)) reader.reject("settings of a rank that is not the first");
  if (has_settings) info.settings = planner::read_settings(reader, info.machine, nranks);
  const uint32_t variables = reader.count(planner::kMostVariables, 2 * sizeof(uint32_t));
  for (uint32_t i = 0; i < variables; ++i) {
    std::string name = reader.text(planner::kMostVariableName);
    std::string value = reader.text(planner::kMostVariableValue);
    info.variables.push_back({.name = std::move(name), .value = std::move(value)});
  }
  if (info.device < 0) reader.reject("a device without a number");
  if (info.places < 0) reader.reject("a GPU that runs nothing");
  TRY(reader.finish());
  return info;
}

Status check(std::span<const RankInfo> ranks) {
  TRY(check_builds(ranks));
  const RankInfo& first = ranks[0];
  std::map<Gpu, size_t> users;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankInfo& info = ranks[rank];
    if (info.machine != first.machine)
      return Status::invalid_usage(
          "rank {} on host {} uses {} GPUs, rank 0 on host {} {} ones: set NICCOLITE_DEVICES alike "
          "on all ranks",
          rank, info.host_name, kind_name(info.machine), first.host_name, kind_name(first.machine));
    const auto [other, is_first] = users.emplace(own_gpu(info), rank);
    if (!is_first && !first.may_share_gpu)
      return Status::invalid_usage(
          "Duplicate GPU detected : ranks {} and {} both use GPU {} (bus {}) of host {}. Give each "
          "rank its own device, or set NCCL_MULTI_RANK_GPU_ENABLE=1; ranks in containers with GPUs "
          "of their own need an NCCL_HOSTID for each container",
          other->second, rank, info.device, info.bus_id, info.host_name);
  }
  return {};
}

std::vector<int> machines_of(std::span<const RankInfo> ranks) {
  std::map<std::string, int> numbers;
  std::vector<int> machines;
  for (const RankInfo& info : ranks)
    machines.push_back(numbers.emplace(info.host, static_cast<int>(numbers.size())).first->second);
  return machines;
}

std::optional<int> most_ctas_of_sharers(std::span<const RankInfo> ranks) {
  std::map<Gpu, int> sharers;
  for (const RankInfo& info : ranks) ++sharers[own_gpu(info)];
  std::optional<int> most;
  for (const RankInfo& info : ranks) {
    const int count = sharers[own_gpu(info)];
    if (count == 1 || info.places == 0) continue;
    const int share = std::max(1, info.places / count);
    most = std::min(most.value_or(share), share);
  }
  return most;
}

std::string gpu_of(std::span<const RankInfo> ranks) {
  const auto is_same = [&](const RankInfo& info) { return info.gpu == ranks[0].gpu; };
  return std::ranges::all_of(ranks, is_same) ? ranks[0].gpu : "";
}

Result<std::vector<RankInfo>> exchange(const RankInfo& self, bootstrap::Member& member,
                                       const Deadline& deadline) {
  const bootstrap::Gathered blobs = TRY(member.all_gather(encode(self), deadline));
  const auto nranks = static_cast<int>(blobs.size());
  std::vector<RankInfo> ranks;
  for (int rank = 0; rank < nranks; ++rank) {
    RankInfo info = TRY(decode(blobs[rank], rank, nranks));
    ranks.push_back(std::move(info));
  }
  TRY(check(ranks));
  if (member.rank() == 0) warn_of_differences(ranks);
  return ranks;
}

}  // namespace niccolite::comm
