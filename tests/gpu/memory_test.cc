#include "gpu/virtual/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace niccolite::gpu::virtual_ {
namespace {

constexpr size_t kPerDevice = size_t{64} << 20;

MemoryProperties make(MemoryMap& map, size_t bytes, int device = 0, bool shareable = false) {
  MemoryProperties made;
  EXPECT_EQ(map.allocate(device, bytes, PointerKind::Device, shareable, &made), Error::None);
  return made;
}

TEST(MemoryMap, CountsWhatEachDeviceUses) {
  MemoryMap map(2, kPerDevice);
  const MemoryProperties a = make(map, 1000, 1);
  const MemoryProperties b = make(map, kPerDevice - 1000, 1);
  MemoryProperties made;
  EXPECT_EQ(map.allocate(1, 1, PointerKind::Device, false, &made), Error::MemoryAllocation);
  size_t free = 0;
  size_t total = 0;
  map.usage(1, &free, &total);
  EXPECT_EQ(free, 0u);
  EXPECT_EQ(total, kPerDevice);
  map.usage(0, &free, &total);
  EXPECT_EQ(free, kPerDevice);
  EXPECT_EQ(map.release(a.base), Error::None);
  EXPECT_EQ(map.release(b.base), Error::None);
  map.usage(1, &free, &total);
  EXPECT_EQ(free, kPerDevice);
  EXPECT_EQ(map.live(), 0u);
}

// What a machine has left, as a map sees it that promises memory and touches some of it.
TEST(MemoryMap, PromisesNoMoreThanTheHostHas) {
  constexpr size_t kMiB = size_t{1} << 20;
  HostMemory host{.limit = 320 * kMiB, .available = 210 * kMiB};  // 10 MiB stay in reserve
  MemoryMap map(1000, 64 * kMiB, [&host] { return host; });
  size_t free = 0;
  size_t total = 0;
  map.usage(7, &free, &total);
  EXPECT_EQ(free, 64 * kMiB);
  make(map, 60 * kMiB, 0);
  const MemoryProperties shared = make(map, 60 * kMiB, 1, /*shareable=*/true);
  make(map, 60 * kMiB, 2);
  map.usage(7, &free, &total);
  EXPECT_EQ(free, 20 * kMiB);
  EXPECT_EQ(total, 64 * kMiB);
  MemoryProperties made;
  for (const bool shareable : {false, true})
    EXPECT_EQ(map.allocate(3, 21 * kMiB, PointerKind::Device, shareable, &made),
              Error::MemoryAllocation);
  EXPECT_EQ(map.allocate(-1, 21 * kMiB, PointerKind::Host, false, &made), Error::MemoryAllocation);
  // What is touched is taken from the host and no longer owed by it.
  std::memset(shared.base, 1, shared.bytes);
  host.available -= 60 * kMiB;
  map.usage(7, &free, &total);
  EXPECT_EQ(free, 20 * kMiB);
  // Others take the rest.
  host.available -= 20 * kMiB;
  map.usage(7, &free, &total);
  EXPECT_EQ(free, 0u);
  EXPECT_EQ(map.allocate(3, 8 * kMiB, PointerKind::Device, false, &made), Error::MemoryAllocation);
  host.available += 60 * kMiB;
  EXPECT_EQ(map.release(shared.base), Error::None);
  make(map, 60 * kMiB, 3);
}

TEST(MemoryMap, PromisesNoMoreThanTheHostHasInSmallParts) {
  constexpr size_t kMiB = size_t{1} << 20;
  MemoryMap map(1, 64 * kMiB, [] { return HostMemory{16 * kMiB, 16 * kMiB}; });
  MemoryProperties made;
  size_t promised = 0;
  while (map.allocate(0, 100'000, PointerKind::Device, false, &made) == Error::None)
    promised += 100'000;
  EXPECT_LE(promised, 16 * kMiB);
  EXPECT_GE(promised, 15 * kMiB);
}

TEST(MemoryMap, ReleasesOnlyWhatBeginsThere) {
  MemoryMap map(1, kPerDevice);
  const MemoryProperties a = make(map, 1000);
  EXPECT_EQ(map.release(a.base + 1), Error::InvalidValue);
  EXPECT_EQ(map.release(nullptr), Error::InvalidValue);
  EXPECT_EQ(map.release(a.base), Error::None);
  EXPECT_EQ(map.release(a.base), Error::InvalidValue);
}

TEST(MemoryMap, ChecksRangesAgainstTheirAllocation) {
  MemoryMap map(1, kPerDevice);
  const MemoryProperties a = make(map, 1000);
  bool pageable = true;
  EXPECT_EQ(map.check_range(a.base, 1000, &pageable), Error::None);
  EXPECT_FALSE(pageable);
  EXPECT_EQ(map.check_range(a.base + 999, 1, &pageable), Error::None);
  EXPECT_EQ(map.check_range(a.base, 1001, &pageable), Error::InvalidValue);
  EXPECT_EQ(map.check_range(a.base + 999, 2, &pageable), Error::InvalidValue);
  EXPECT_EQ(map.check_range(a.base, SIZE_MAX, &pageable), Error::InvalidValue);
  EXPECT_EQ(map.check_range(nullptr, 1, &pageable), Error::InvalidValue);
  int local = 0;
  EXPECT_EQ(map.check_range(&local, 4, &pageable), Error::None);
  EXPECT_TRUE(pageable);
}

TEST(MemoryMap, RecognisesFreedPointers) {
  for (const size_t bytes : {size_t{100}, size_t{1} << 20}) {
    MemoryMap map(1, kPerDevice);
    const MemoryProperties a = make(map, bytes);
    ASSERT_EQ(map.release(a.base), Error::None);
    bool pageable = false;
    EXPECT_EQ(map.check_range(a.base, 1, &pageable), Error::InvalidValue) << bytes;
  }
}

TEST(MemoryMap, RegistersHostMemoryOnce) {
  MemoryMap map(1, kPerDevice);
  std::vector<char> host(10000);
  const MemoryProperties carved = make(map, 100);
  EXPECT_EQ(map.register_host(host.data() + 100, 1000), Error::None);
  EXPECT_EQ(map.register_host(host.data() + 1099, 10), Error::HostMemoryAlreadyRegistered);
  EXPECT_EQ(map.register_host(host.data(), 101), Error::HostMemoryAlreadyRegistered);
  EXPECT_EQ(map.register_host(host.data(), 100), Error::None);
  EXPECT_EQ(map.register_host(host.data() + 5000, 0), Error::InvalidValue);
  EXPECT_EQ(map.register_host(carved.base, 10), Error::InvalidValue);
  MemoryProperties found;
  ASSERT_TRUE(map.find(host.data() + 1099, &found));
  EXPECT_EQ(found.kind, PointerKind::Host);
  EXPECT_FALSE(map.find(host.data() + 1100, &found));
  EXPECT_EQ(map.release(host.data() + 100), Error::None);
  EXPECT_EQ(map.release(host.data()), Error::None);
}

// The program has unmapped memory without ending its registration, and the system gives the
// addresses again.
TEST(MemoryMap, ForgetsRegistrationsOfMemoryThatIsNoMore) {
  constexpr size_t kBytes = 16 << 10;
  MemoryMap map(1, kPerDevice);
  void* const host =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(host, MAP_FAILED);
  auto* const begin = static_cast<std::byte*>(host);
  for (const size_t at : {size_t{0}, kBytes / 2})
    ASSERT_EQ(map.register_host(begin + at, kBytes / 4), Error::None);
  ASSERT_EQ(munmap(host, kBytes), 0);
  const MemoryProperties made = make(map, kBytes, 0, /*shareable=*/true);
  ASSERT_EQ(made.base, begin) << "the system has other addresses for it";
  for (const size_t at : {size_t{0}, kBytes / 2}) {
    MemoryProperties found;
    ASSERT_TRUE(map.find(begin + at, &found));
    EXPECT_EQ(found.origin, MemoryOrigin::Shareable);
    EXPECT_EQ(found.bytes, kBytes);
  }
  EXPECT_EQ(map.release(made.base), Error::None);
  EXPECT_EQ(map.live(), 0u);
  size_t free = 0;
  size_t total = 0;
  map.usage(0, &free, &total);
  EXPECT_EQ(free, kPerDevice);
}

TEST(MemoryMap, NamesMemoryForOthers) {
  MemoryMap map(1, kPerDevice);
  for (const bool shareable : {false, true}) {
    make(map, 777);
    const MemoryProperties a = make(map, 5001, 0, shareable);
    std::memset(a.base, 0x3c, 5001);
    RemoteName name{};
    ASSERT_EQ(map.name_for_others(a.base + 17, &name), Error::None);
    MemoryProperties import;
    ASSERT_EQ(map.import_named(0, name, &import), Error::None) << shareable;
    EXPECT_NE(import.base, a.base);
    EXPECT_EQ(std::memcmp(import.base, a.base, 5001), 0);
    std::memset(import.base, 0x4d, 5001);
    EXPECT_EQ(a.base[5000], std::byte{0x4d});
    EXPECT_EQ(map.name_for_others(import.base, &name), Error::InvalidValue);
    EXPECT_EQ(map.release(import.base), Error::None);
  }
}

TEST(MemoryMap, RefusesNamesOfOtherFiles) {
  MemoryMap map(1, kPerDevice);
  const MemoryProperties a = make(map, 100);
  RemoteName name{};
  ASSERT_EQ(map.name_for_others(a.base, &name), Error::None);
  MemoryProperties import;
  RemoteName other = name;
  ++other.inode;
  EXPECT_EQ(map.import_named(0, other, &import), Error::InvalidValue);
  other = name;
  other.fd = 999999;
  EXPECT_EQ(map.import_named(0, other, &import), Error::InvalidValue);
  other = name;
  other.offset = Arena::kSegmentBytes;
  EXPECT_EQ(map.import_named(0, other, &import), Error::InvalidValue);
  other = name;
  other.bytes = SIZE_MAX;
  EXPECT_EQ(map.import_named(0, other, &import), Error::InvalidValue);
}

}  // namespace
}  // namespace niccolite::gpu::virtual_
