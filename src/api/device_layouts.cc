#include "api/device_layouts.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#pragma GCC visibility push(default)
#include "nccl_device.h"
#pragma GCC visibility pop

namespace niccolite::api {
namespace {

enum class Field : uint8_t {
  Magic,
  Version,
  Rank,
  Ranks,
  RanksReciprocal,
  LsaRank,
  LsaRanks,
  LsaRanksReciprocal,
  WindowTable,
  ResourceWindow,
  ResourceBase,
  ResourceStride,
  ResourceMulticast,
  MulticastBase,
  InlinedLsaRank,
  InlinedWorldRank,
  LsaBarrier,
  HybridWorldBarrier,
  RailBarrier,
  GinConnections,
  GinType,
  GinHandle,
  GinSignals,
  GinCounters,
  GinSignalShadows,
  GinContexts,
  GinStrongSignals,
  HybridLsaBarrier,
  HybridRailBarrier,
  WorldBarrier,
  GinConnectionStride,
  GinContextStride,
  CftRanks,
  CftMultimemRanks,
  UnicastEndpoint,
  MulticastEndpoint,
  AbortFlag,
};

// The layouts, by the first header that has it. All bytes that no row names are zero: ranks and
// reciprocals of teams of one.
constexpr unsigned kFirstVersions[] = {kUnversioned, 22905, 23000, 23100};
constexpr size_t kBytes[] = {200, 224, 240, 248};
constexpr size_t kLayouts = std::size(kBytes);
constexpr int kNone = -1;

struct Row {
  Field field;
  uint8_t bytes;
  int offsets[kLayouts];  // of 2.28.7 to 2.29.3, 2.29.5 to 2.29.7, 2.30, 2.31 and 2.32
};
constexpr Row kRows[] = {
    {Field::Magic, 4, {kNone, kNone, 0, 0}},
    {Field::Version, 4, {kNone, kNone, 4, 4}},
    {Field::Rank, 4, {0, 0, 8, 8}},
    {Field::Ranks, 4, {4, 4, 12, 12}},
    {Field::RanksReciprocal, 4, {8, 8, 16, 16}},
    {Field::LsaRank, 4, {12, 12, 20, 20}},
    {Field::LsaRanks, 4, {16, 16, 24, 24}},
    {Field::LsaRanksReciprocal, 4, {20, 20, 28, 28}},
    {Field::WindowTable, 8, {24, 24, 32, 32}},
    {Field::ResourceWindow, 8, {32, 32, 40, 40}},
    {Field::ResourceBase, 8, {48, 48, 56, 48}},
    {Field::ResourceStride, 4, {64, 64, 72, 56}},
    {Field::ResourceMulticast, 4, {68, 68, 76, 60}},
    {Field::MulticastBase, 8, {112, 112, 120, 72}},
    {Field::InlinedLsaRank, 4, {56, 56, kNone, kNone}},
    {Field::InlinedWorldRank, 4, {60, 60, kNone, kNone}},
    {Field::LsaBarrier, 8, {120, 120, 128, 80}},
    {Field::HybridWorldBarrier, 8, {kNone, kNone, 112, 64}},
    {Field::RailBarrier, 8, {kNone, kNone, 136, 88}},
    {Field::GinConnections, 1, {kNone, kNone, 144, 96}},
    {Field::GinType, 1, {kNone, kNone, 145, 98}},
    {Field::GinHandle, 8, {kNone, kNone, 152, 104}},
    {Field::GinSignals, 4, {kNone, kNone, 184, 136}},
    {Field::GinCounters, 4, {kNone, kNone, 188, 140}},
    {Field::GinSignalShadows, 8, {kNone, kNone, 192, 144}},
    {Field::GinContexts, 4, {kNone, kNone, 200, 152}},
    {Field::GinStrongSignals, 1, {kNone, kNone, 205, 164}},
    {Field::HybridLsaBarrier, 8, {kNone, kNone, 216, 176}},
    {Field::HybridRailBarrier, 8, {kNone, kNone, 224, 184}},
    {Field::WorldBarrier, 8, {kNone, kNone, 232, 192}},
    {Field::GinConnectionStride, 4, {kNone, kNone, kNone, 156}},
    {Field::GinContextStride, 4, {kNone, kNone, kNone, 160}},
    {Field::CftRanks, 4, {kNone, kNone, kNone, 208}},
    {Field::CftMultimemRanks, 4, {kNone, kNone, kNone, 216}},
    {Field::UnicastEndpoint, 4, {kNone, kNone, kNone, 224}},
    {Field::MulticastEndpoint, 4, {kNone, kNone, kNone, 228}},
    {Field::AbortFlag, 8, {kNone, 216, 208, 168}},
};

/// With which clients divide by `n`: floor((2^32 - 1) / n), and one more where n is a power of two.
uint32_t reciprocal(int n) {
  const auto divisor = static_cast<uint32_t>(n);
  return UINT32_MAX / divisor + (std::has_single_bit(divisor) ? 1 : 0);
}

uint64_t value_of(Field field, const DeviceContents& contents) {
  const auto number = [](int value) { return static_cast<uint64_t>(static_cast<uint32_t>(value)); };
  const auto address = [](const void* pointer) { return reinterpret_cast<uint64_t>(pointer); };
  switch (field) {
    case Field::Magic:
      return NCCL_API_MAGIC;
    case Field::Version:
      return contents.version;
    case Field::Rank:
    case Field::InlinedWorldRank:
      return number(contents.rank);
    case Field::Ranks:
      return number(contents.nranks);
    case Field::RanksReciprocal:
      return reciprocal(contents.nranks);
    case Field::LsaRank:
    case Field::InlinedLsaRank:
      return number(contents.lsa_rank);
    case Field::LsaRanks:
      return number(contents.lsa_ranks);
    case Field::LsaRanksReciprocal:
      return reciprocal(contents.lsa_ranks);
    case Field::WindowTable:
      return address(contents.window_table);
    case Field::ResourceWindow:
      return address(contents.resource_window);
    case Field::ResourceBase:
      return address(contents.resource_base);
    case Field::ResourceStride:
      return contents.resource_stride_4g;
    case Field::ResourceMulticast:
      return contents.resource_multicast_4k;
    case Field::MulticastBase:
      return address(contents.multicast_base);
    case Field::LsaBarrier:  // {handle, number of barriers}
      return contents.lsa_barrier_handle | number(contents.lsa_barriers) << 32;
    case Field::HybridLsaBarrier:
      return contents.hybrid_barrier_handle | number(contents.hybrid_barriers) << 32;
    case Field::HybridWorldBarrier:  // {first signal, unused}
      return contents.dense_signal;
    case Field::HybridRailBarrier:
      return contents.hybrid_rail_signal;
    case Field::RailBarrier:
      return contents.rail_signal;
    case Field::WorldBarrier:
      return contents.world_signal;
    case Field::GinConnections:
    case Field::GinStrongSignals:
      return contents.gin_contexts != nullptr ? 1 : 0;
    case Field::GinType:
      return contents.gin_contexts != nullptr ? NCCL_GIN_TYPE_PROXY : NCCL_GIN_TYPE_NONE;
    case Field::GinHandle:
      return address(contents.gin_contexts);
    case Field::GinSignals:
      return number(contents.gin_signals);
    case Field::GinCounters:
      return number(contents.gin_counters);
    case Field::GinSignalShadows:
      return address(contents.gin_signal_shadows);
    case Field::GinContexts:
      return number(contents.gin_context_count);
    case Field::GinConnectionStride:
    case Field::GinContextStride:
    case Field::CftRanks:
    case Field::CftMultimemRanks:
      return 1;
    case Field::UnicastEndpoint:
    case Field::MulticastEndpoint:
      return UINT32_MAX;
    case Field::AbortFlag:
      return address(contents.abort_flag);
  }
  return 0;
}

size_t layout_of(unsigned version) {
  const auto* const after =
      std::upper_bound(std::begin(kFirstVersions), std::end(kFirstVersions), version);
  return static_cast<size_t>(after - std::begin(kFirstVersions)) - 1;
}

}  // namespace

size_t device_layout_bytes(unsigned version) { return kBytes[layout_of(version)]; }

size_t context_layout_bytes(unsigned version) {
  if (version < 23000) return 0;
  if (version < 23005) return 48;
  return version < 23200 ? 72 : 80;
}

void write_device_layout(const DeviceContents& contents, std::byte* answer) {
  const size_t layout = layout_of(contents.version);
  std::memset(answer, 0, kBytes[layout]);
  for (const Row& row : kRows) {
    const int offset = row.offsets[layout];
    if (offset == kNone) continue;
    const uint64_t value = value_of(row.field, contents);  // little-endian, as GPUs are
    std::memcpy(answer + offset, &value, row.bytes);
  }
}

const void* resource_window_of(const std::byte* device) {
  uint32_t head[2];  // magic and version, in layouts that have them
  std::memcpy(head, device, sizeof head);
  const size_t layout = layout_of(head[0] == NCCL_API_MAGIC ? head[1] : kUnversioned);
  const auto* const row = std::find_if(std::begin(kRows), std::end(kRows), [](const Row& each) {
    return each.field == Field::ResourceWindow;
  });
  const void* window = nullptr;
  std::memcpy(&window, device + row->offsets[layout], sizeof window);
  return window;
}

}  // namespace niccolite::api
