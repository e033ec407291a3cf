// RankInfo: what every rank tells the others when a communicator is made, and the checks on all of
// it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "bootstrap/member.h"
#include "planner/settings.h"

namespace niccolite::comm {

/// Travels between processes as bytes; `version` stands first so that other versions can be told by
/// their bytes.
struct RankInfo {
  uint32_t version = 0;  // NCCL version code of the library
  int32_t device = -1;   // ordinal in its process
  gpu::Kind machine = gpu::Kind::Virtual;
  std::array<char, 48>
      host{};  // boot id of the kernel: equal for processes of one machine, also across containers
  std::array<char, 64> host_name{};
  std::array<uint8_t, 16> device_uuid{};
  std::array<char, 32> bus_id{};
  planner::Settings settings;  // of rank 0: hold for all
};

Result<RankInfo> describe_this_rank(gpu::Machine& machine, int device,
                                    const planner::Settings& settings);

/// Decodes what the ranks sent, and refuses what cannot work, with both ranks and the remedy in the
/// message: different versions, virtual and real GPUs together, several machines, one GPU used
/// twice (unless allowed).
Result<std::vector<RankInfo>> decode_and_check(const bootstrap::Gathered& blobs,
                                               bool allow_shared_gpus);

}  // namespace niccolite::comm
