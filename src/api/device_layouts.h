// The struct ncclDevComm as headers of NCCL 2.28 to 2.32 lay it out: a kernel has the layout of the
// header that it was compiled with. Pure functions. Source: device-api reference, section 2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace niccolite::api {

/// The contents of a device communicator.
struct DeviceContents {
  unsigned version = 0;  // of the caller's header
  int rank = 0;
  int nranks = 1;
  int lsa_rank = 0;
  int lsa_ranks = 1;
  const void* window_table = nullptr;     // device memory
  const void* resource_window = nullptr;  // null: no resources
  const void* resource_base = nullptr;    // of the team's first rank
  uint32_t resource_stride_4g = 0;
  uint32_t resource_multicast_4k = 0;    // where the multicast addresses have the resources
  const void* multicast_base = nullptr;  // null: none
  uint32_t lsa_barrier_handle = 0;
  int lsa_barriers = 0;
  // Networking; headers before 2.30 have none.
  const void* gin_contexts = nullptr;  // null: none
  int gin_context_count = 0;
  int gin_signals = 0;
  int gin_counters = 0;
  const void* gin_signal_shadows = nullptr;
  uint32_t world_signal = 0;  // the first signal of barriers, and so on
  uint32_t rail_signal = 0;
  uint32_t dense_signal = 0;
  uint32_t hybrid_rail_signal = 0;
  uint32_t hybrid_barrier_handle = 0;
  int hybrid_barriers = 0;
  const uint32_t* abort_flag = nullptr;
};

/// NCCL's first header whose structs say their version; layouts of callers before are
/// `kUnversioned`.
inline constexpr unsigned kUnversioned = 0;

/// The bytes of the struct in a header of `version`, or kUnversioned.
size_t device_layout_bytes(unsigned version);
/// The bytes of a context's struct in a header of `version`; 0: one before 2.30.
size_t context_layout_bytes(unsigned version);
/// Writes exactly so many bytes.
void write_device_layout(const DeviceContents& contents, std::byte* answer);
/// The resource window in a struct of any of the layouts.
const void* resource_window_of(const std::byte* device);

}  // namespace niccolite::api
