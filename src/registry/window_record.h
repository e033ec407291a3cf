// WindowRecord: the struct in device memory to which an ncclWindow_t points. Kernels compiled with
// NVIDIA's headers read it (docs/design/memory.md). Fields were only ever appended, so one
// record serves the headers of 2.28 to 2.32. Source: device-api reference, section 3.
//
//   address of byte `offset` of LSA rank r's copy:  flat_base + r * stride_4g * 4 GiB + offset
#pragma once

#include <cstddef>
#include <cstdint>

namespace niccolite::registry {

/// A window without multicast addresses.
inline constexpr uint32_t kNoMulticast = UINT32_MAX;

struct WindowRecord {
  uint64_t bytes = 0;              // the library's own: of the team's smallest copy, for checks
  std::byte* flat_base = nullptr;  // of the team's first rank; null: the ranks' copies are not at
                                   // equal distances
  int32_t lsa_rank = 0;            // this rank's number in its load-store team
  int32_t world_rank = 0;          // this rank
  uint32_t stride_4g = 0;          // between copies, in units of 4 GiB
  uint32_t multicast_offset_4k = kNoMulticast;  // from WindowMulticast::base() on
  uint32_t gin_offset_4k = 0;                   // of the window in what `gin_windows` name: none
  uint32_t flags = 0;                           // NCCL_WIN_...
  void* gin_windows[4] = {};
  void* gin_segments = nullptr;
  int32_t segments = 1;
  int32_t cft_rank = 0;
  uint32_t cft_endpoint = 0;
};
static_assert(sizeof(WindowRecord) == 96);
static_assert(offsetof(WindowRecord, flat_base) == 8 && offsetof(WindowRecord, lsa_rank) == 16 &&
              offsetof(WindowRecord, world_rank) == 20 && offsetof(WindowRecord, stride_4g) == 24 &&
              offsetof(WindowRecord, multicast_offset_4k) == 28 &&
              offsetof(WindowRecord, gin_offset_4k) == 32 && offsetof(WindowRecord, flags) == 36 &&
              offsetof(WindowRecord, gin_windows) == 40 &&
              offsetof(WindowRecord, gin_segments) == 72 &&
              offsetof(WindowRecord, segments) == 80 && offsetof(WindowRecord, cft_rank) == 84 &&
              offsetof(WindowRecord, cft_endpoint) == 88);

/// A page of the list of windows that ncclFindWindow searches. A window of null is an empty place.
struct WindowTablePage {
  struct Entry {
    const void* base = nullptr;  // as the user registered it
    uint64_t bytes = 0;
    const void* window = nullptr;
  };
  Entry entries[32];
  const void* next = nullptr;
};
static_assert(sizeof(WindowTablePage) == 776 && offsetof(WindowTablePage, next) == 768);

}  // namespace niccolite::registry
