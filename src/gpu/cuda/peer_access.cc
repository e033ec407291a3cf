// Access of devices to each other's memory. Memory of cudaMalloc is opened to peers at once, for
// ever; mappings of virtual memory management and memory pools are opened when a launch uses them.
#include <array>
#include <bit>

#include "base/log.h"
#include "gpu/cuda/machine.h"

namespace niccolite::gpu::cuda {
namespace {

/// Calls function(CuAccess) for each device of `guests`; false as soon as it returns false.
template <typename Function>
bool for_each_guest(uint64_t guests, Function&& function) {
  for (; guests != 0; guests &= guests - 1)
    if (!function(CuAccess{{kCuLocationDevice, std::countr_zero(guests)}, kCuAccessReadWrite}))
      return false;
  return true;
}

}  // namespace

bool CudaMachine::can_access_peer(int ordinal, int peer) {
  const Result<Device*> from = device(ordinal);
  const Result<Device*> to = device(peer);
  if (!from.is_ok() || !to.is_ok()) return false;
  if (ordinal == peer) return true;
  int can = 0;
  return driver_.cuDeviceCanAccessPeer(&can, from.value()->device, to.value()->device) ==
             kCuSuccess &&
         can != 0;
}

// Native atomics in both directions.
Result<bool> CudaMachine::has_atomics(int ordinal, int peer) {
  const CuDevice devices[] = {TRY(device(ordinal))->device, TRY(device(peer))->device};
  for (const bool back : {false, true}) {
    int can = 0;
    TRY(driver_.check(driver_.cuDeviceGetP2PAttribute(&can, kCuP2pNativeAtomicSupported,
                                                      devices[back], devices[!back]),
                      "cuDeviceGetP2PAttribute(native atomics, devices {} and {})", ordinal, peer));
    if (can == 0) return false;
  }
  return true;
}

// The driver does not name the links. Those over which it offers native atomics are NVLinks: PCIe
// has none between GPUs. (NVML would tell the links themselves, but need not be there.)
bool CudaMachine::keeps_lines_whole(int ordinal, int peer) { return shares_atomics(ordinal, peer); }

bool CudaMachine::shares_atomics(int ordinal, int peer) {
  if (ordinal == peer) return true;
  const Result<bool> has = has_atomics(ordinal, peer);
  if (!has.is_ok()) LOG(Info, P2p, "{}", has.status().message());
  return has.is_ok() && has.value();
}

bool CudaMachine::open_buffers(int ordinal, int peer) {
  if (ordinal == peer) return true;
  if (ordinal >= kMostGuests) return false;
  const auto open = [&]() -> Result<bool> {
    if (const bool has = TRY(has_atomics(ordinal, peer)); !has) return false;
    const CuContext context_of_peer = TRY(context(peer));
    const ScopedContext scoped = TRY(enter(ordinal));
    const ScopedRelaxedCapture relaxed(driver_);
    const CuResult result = driver_.cuCtxEnablePeerAccess(context_of_peer, 0);
    if (result != kCuPeerAccessAlreadyEnabled)
      TRY(driver_.check(result, "cuCtxEnablePeerAccess(device {} to device {})", ordinal, peer));
    // relaxed: who asks about memory of the peer has met this rank since.
    TRY(device(peer))->guests.fetch_or(uint64_t{1} << ordinal, std::memory_order_relaxed);
    return true;
  };
  Result<bool> opened = open();
  if (!opened.is_ok()) LOG(Info, P2p, "{}", opened.status().message());
  return opened.is_ok() && *opened;
}

// The driver refuses at every launch: the first refusal is logged.
void CudaMachine::note_closed(const char* what, int ordinal, CuResult result) {
  if (has_noted_closed_.exchange(true, std::memory_order_relaxed)) return;  // a number alone
  const Status why = driver_.check(result, "opening {} of device {} to its peers", what, ordinal);
  LOG(Info, Reg, "{}. Its data go through the connections' memory", why.message());
}

bool CudaMachine::open_mapping(int ordinal, std::span<std::byte> mapping, uint64_t guests) {
  return for_each_guest(guests, [&](const CuAccess& access) {
    const CuPointer address = as_pointer(mapping.data());
    unsigned long long flags = 0;
    if (driver_.cuMemGetAccess(&flags, &access.location, address) == kCuSuccess &&
        flags == kCuAccessReadWrite)
      return true;
    const ScopedRelaxedCapture relaxed(driver_);
    const CuResult set = driver_.cuMemSetAccess(address, mapping.size(), &access, 1);
    if (set != kCuSuccess) note_closed("a mapping", ordinal, set);
    return set == kCuSuccess;
  });
}

bool CudaMachine::open_pool(int ordinal, CuMemoryPool pool, uint64_t guests) {
  return for_each_guest(guests, [&](CuAccess access) {
    int flags = 0;
    if (driver_.cuMemPoolGetAccess(&flags, pool, &access.location) == kCuSuccess &&
        flags == kCuAccessReadWrite)
      return true;
    const ScopedRelaxedCapture relaxed(driver_);
    const CuResult set = driver_.cuMemPoolSetAccess(pool, &access, 1);
    if (set != kCuSuccess) note_closed("a memory pool", ordinal, set);
    return set == kCuSuccess;
  });
}

std::optional<std::span<const std::byte>> CudaMachine::open_around(int ordinal,
                                                                   const void* pointer) {
  CuContext owner = nullptr;
  unsigned type = 0;
  unsigned is_managed = 0;
  int found = -1;
  unsigned is_plain = 0;
  CuPointer base = 0;
  size_t bytes = 0;
  CuMemoryPool pool = nullptr;
  constexpr std::array kAttributes{
      kCuPointerContext,       kCuPointerMemoryType,         kCuPointerIsManaged,
      kCuPointerDeviceOrdinal, kCuPointerIsLegacyIpcCapable, kCuPointerRangeStart,
      kCuPointerRangeSize,     kCuPointerMemoryPool};
  std::array<void*, kAttributes.size()> values{&owner,    &type, &is_managed, &found,
                                               &is_plain, &base, &bytes,      &pool};
  const Result<CuContext> primary = context(ordinal);
  const bool is_of_device =
      primary.is_ok() &&
      driver_.cuPointerGetAttributes(static_cast<unsigned>(kAttributes.size()), kAttributes.data(),
                                     values.data(), as_pointer(pointer)) == kCuSuccess &&
      type == kCuMemoryTypeDevice && is_managed == 0 && found == ordinal;
  if (!is_of_device) return std::nullopt;
  const std::span allocation(static_cast<const std::byte*>(as_address(base)), bytes);
  // Peers have no access to memory of other contexts than the primary one.
  if (is_plain != 0) return owner == primary.value() ? std::optional(allocation) : std::nullopt;
  // relaxed: see open_buffers().
  const uint64_t guests =
      devices_[static_cast<size_t>(ordinal)]->guests.load(std::memory_order_relaxed);
  if (pool != nullptr)
    return open_pool(ordinal, pool, guests) ? std::optional(allocation) : std::nullopt;
  const Result<std::span<std::byte>> mapping = mapping_around(pointer);
  if (!mapping.is_ok() || !open_mapping(ordinal, mapping.value(), guests)) return std::nullopt;
  return std::span<const std::byte>(mapping.value());
}

bool CudaMachine::is_open(int ordinal, const void* pointer, size_t bytes) {
  return lies_in_pieces(pointer, bytes, [&](const std::byte* at) {
    return open_around(ordinal, at).value_or(std::span<const std::byte>());
  });
}

}  // namespace niccolite::gpu::cuda
