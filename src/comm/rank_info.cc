#include "comm/rank_info.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <type_traits>

#include "comm/version.h"

namespace niccolite::comm {
namespace {

static_assert(std::is_trivially_copyable_v<RankInfo>);

template <size_t kSize>
void copy_text(std::array<char, kSize>& target, const std::string& text) {
  std::memcpy(target.data(), text.data(), std::min(text.size(), kSize - 1));
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace

Result<RankInfo> describe_this_rank(gpu::Machine& machine, int device,
                                    const planner::Settings& settings) {
  const gpu::DeviceInfo gpu = TRY(machine.device_info(device));
  RankInfo info;
  info.version = kVersionCode;
  info.device = device;
  info.machine = machine.kind();
  std::array<char, 64> name{};
  gethostname(name.data(), name.size() - 1);
  copy_text(info.host_name, name.data());
  const std::string boot = boot_id();
  copy_text(info.host, boot.empty() ? name.data() : boot);
  info.device_uuid = gpu.uuid;
  copy_text(info.bus_id, gpu.bus_id);
  info.settings = settings;
  return info;
}

Result<std::vector<RankInfo>> decode_and_check(const bootstrap::Gathered& blobs,
                                               bool allow_shared_gpus) {
  std::vector<RankInfo> ranks(blobs.size());
  std::map<std::pair<std::array<char, 48>, std::array<uint8_t, 16>>, size_t> users;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    RankInfo& info = ranks[rank];
    const std::span<const std::byte> blob = blobs[static_cast<int>(rank)];
    uint32_t version = 0;
    if (blob.size() >= sizeof version) std::memcpy(&version, blob.data(), sizeof version);
    if (version != kVersionCode || blob.size() != sizeof info)
      return Status::invalid_usage(
          "Mismatched NCCL version detected: rank {} runs a library of version code {}, this rank "
          "{}. Load the same "
          "libnccl.so.2 on all ranks",
          rank, version, kVersionCode);
    std::memcpy(static_cast<void*>(&info), blob.data(), sizeof info);
    info.host.back() = info.host_name.back() = info.bus_id.back() = '\0';

    const RankInfo& first = ranks[0];
    if (info.machine != first.machine)
      return Status::invalid_usage(
          "rank {} on host {} uses {} GPUs, rank 0 on host {} {} ones: set NICCOLITE_DEVICES alike "
          "on all ranks",
          rank, info.host_name.data(), info.machine == gpu::Kind::Cuda ? "real" : "virtual",
          first.host_name.data(), first.machine == gpu::Kind::Cuda ? "real" : "virtual");
    if (info.host != first.host)
      return Status::invalid_usage(
          "rank {} is on host {}, rank 0 on host {}: this version of Niccolite connects the GPUs "
          "of one machine only (it "
          "has no network transport yet)",
          rank, info.host_name.data(), first.host_name.data());
    const auto [other, is_first] = users.emplace(std::pair(info.host, info.device_uuid), rank);
    if (!is_first && !allow_shared_gpus)
      return Status::invalid_usage(
          "Duplicate GPU detected : ranks {} and {} both use GPU {} (bus {}) of host {}. Give each "
          "rank its own device, or "
          "set NCCL_MULTI_RANK_GPU_ENABLE=1",
          other->second, rank, info.device, info.bus_id.data(), info.host_name.data());
  }
  return ranks;
}

}  // namespace niccolite::comm
