// Devices, memory, and sharing it between processes.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "conformance/gpu_fixture.h"

namespace niccolite::gpu {
namespace {

constexpr size_t kWords = 4099;  // no multiple of a page
constexpr int kChildFd = 100;

TEST_P(Gpu, DescribesEachDeviceDifferently) {
  std::set<std::array<uint8_t, 16>> uuids;
  std::set<std::string> bus_ids;
  ASSERT_GE(machine->device_count(), 1);
  EXPECT_GE(machine->driver_version(), 12000);
  for (int device = 0; device < machine->device_count(); ++device) {
    const DeviceInfo info = must(machine->device_info(device));
    EXPECT_TRUE(uuids.insert(info.uuid).second) << device;
    EXPECT_TRUE(bus_ids.insert(info.bus_id).second) << device;
    EXPECT_FALSE(info.name.empty());
    EXPECT_GT(info.multiprocessors, 0);
    EXPECT_GT(info.total_bytes, size_t{1} << 20);
  }
}

TEST_P(Gpu, RefusesDevicesThatDoNotExist) {
  for (const int device : {-1, machine->device_count()}) {
    EXPECT_EQ(machine->device_info(device).status().code(), Code::CudaError);
    EXPECT_EQ(machine->allocate(device, 16, false).status().code(), Code::CudaError);
    EXPECT_EQ(machine->create_stream(device).status().code(), Code::CudaError);
    EXPECT_EQ(machine->set_current_device(device).code(), Code::CudaError);
    EXPECT_FALSE(machine->can_access_peer(0, device));
  }
}

TEST_P(Gpu, ScopedDeviceRestoresThePreviousOne) {
  ASSERT_OK(machine->set_current_device(0));
  {
    ScopedDevice scoped(*machine, machine->device_count() - 1);
    EXPECT_EQ(must(machine->current_device()), machine->device_count() - 1);
  }
  EXPECT_EQ(must(machine->current_device()), 0);
}

TEST_P(Gpu, AllocationsAreZeroEvenWhereOthersWroteBefore) {
  for (const bool shareable : {false, true}) {
    for (const size_t words : {size_t{1}, size_t{63}, kWords, size_t{1} << 20}) {
      SCOPED_TRACE(testing::Message() << words << " words, shareable " << shareable);
      for (int round = 0; round < 2; ++round) {
        Memory memory = allocate(words, shareable);
        EXPECT_GE(memory.bytes(), words * 4);
        EXPECT_EQ(memory.device(), 0);
        EXPECT_EQ(read(memory.data(), words), std::vector<uint32_t>(words, 0));
        write(memory.data(), std::vector<uint32_t>(words, kPoison));
      }
    }
  }
}

TEST_P(Gpu, AllocationsDoNotOverlap) {
  std::vector<Memory> memories;
  for (uint32_t i = 0; i < 50; ++i) {
    memories.push_back(allocate(1 + i * 97, i % 5 == 0));
    write(memories.back().data(), pattern(i, 1 + i * 97));
  }
  for (uint32_t i = 0; i < 50; ++i)
    EXPECT_EQ(read(memories[i].data(), 1 + i * 97), pattern(i, 1 + i * 97)) << i;
}

TEST_P(Gpu, RefusesAllocationsThatCannotBe) {
  EXPECT_EQ(machine->allocate(0, 0, false).status().code(), Code::CudaError);
  for (const size_t bytes : {size_t{1} << 60, SIZE_MAX, SIZE_MAX - 4095}) {
    EXPECT_EQ(machine->allocate(0, bytes, false).status().code(), Code::CudaError) << bytes;
    EXPECT_EQ(machine->allocate(0, bytes, true).status().code(), Code::CudaError) << bytes;
  }
}

TEST_P(Gpu, PointerInfoFindsTheAllocationOfAnyPointerInIt) {
  const int last = machine->device_count() - 1;
  Memory device = must(machine->allocate(last, 5000, false));
  Memory host = must(machine->allocate_host(5000));
  auto* bytes = static_cast<char*>(device.data());
  for (const size_t offset : {size_t{0}, size_t{1}, size_t{4999}}) {
    const PointerInfo info = must(machine->pointer_info(bytes + offset));
    EXPECT_EQ(info.kind, PointerKind::Device);
    EXPECT_EQ(info.device, last);
    EXPECT_EQ(info.base, device.data());
    EXPECT_GE(info.bytes, 5000u);
  }
  EXPECT_EQ(must(machine->pointer_info(static_cast<char*>(host.data()) + 7)).kind,
            PointerKind::Host);
  int local = 0;
  EXPECT_EQ(must(machine->pointer_info(&local)).kind, PointerKind::Unknown);
  void* freed = device.data();
  device.reset();
  EXPECT_EQ(must(machine->pointer_info(freed)).kind, PointerKind::Unknown);
}

TEST_P(Gpu, HostMemoryIsZeroAndSharedWithDevices) {
  Memory host = must(machine->allocate_host(kWords * 4));
  EXPECT_EQ(host.device(), -1);
  auto* words = static_cast<uint32_t*>(host.data());
  for (size_t i = 0; i < kWords; ++i) ASSERT_EQ(words[i], 0u) << i;
  Stream stream = must(machine->create_stream(0));
  ASSERT_OK(machine->set_async(host.data(), 0x5a, kWords * 4, 0, stream.handle()));
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
  for (size_t i = 0; i < kWords; ++i) ASSERT_EQ(words[i], 0x5a5a5a5au) << i;
}

TEST_P(Gpu, PlainMemoryIsNotExported) {
  Memory memory = allocate(16, false);
  EXPECT_EQ(machine->export_memory(memory).status().code(), Code::InvalidUsage);
}

TEST_P(Gpu, GrantsAccessToShareableMemory) {
  Memory memory = allocate(16, true);
  for (int device = 0; device < machine->device_count(); ++device) {
    if (device != 0 && !machine->can_access_peer(device, 0)) continue;
    EXPECT_TRUE(machine->grant_access(memory, device).is_ok()) << device;
  }
}

TEST_P(Gpu, AnImportSeesTheSameBytes) {
  Memory memory = allocate(kWords, true);
  write(memory.data(), pattern(3, kWords));
  Memory import =
      must(machine->import_memory(0, must(machine->export_memory(memory)), memory.bytes()));
  EXPECT_EQ(read(import.data(), kWords), pattern(3, kWords));
  write(import.data(), pattern(4, kWords));
  EXPECT_EQ(read(memory.data(), kWords), pattern(4, kWords));
  memory.reset();  // the import keeps the bytes alive
  EXPECT_EQ(read(import.data(), kWords), pattern(4, kWords));
}

TEST_P(Gpu, SharedHostMemoryIsOneForTheHostTheGpuAndWhoeverImportsIt) {
  Memory memory = must(machine->allocate_shared_host(kWords * 4));
  EXPECT_EQ(memory.device(), -1);
  EXPECT_EQ(must(machine->pointer_info(memory.data())).kind, PointerKind::Host);
  auto* words = static_cast<uint32_t*>(memory.data());
  EXPECT_TRUE(std::all_of(words, words + kWords, [](uint32_t word) { return word == 0; }));
  Memory import = must(machine->import_host(must(machine->export_memory(memory)), memory.bytes()));
  ASSERT_NE(import.data(), memory.data());
  write(import.data(), pattern(3, kWords));  // by the device
  EXPECT_EQ(std::vector<uint32_t>(words, words + kWords), pattern(3, kWords));
  words[0] = 77;
  EXPECT_EQ(read(import.data(), 1), std::vector<uint32_t>{77});
  memory.reset();  // the import keeps the bytes alive
  EXPECT_EQ(read(import.data(), 1), std::vector<uint32_t>{77});
}

TEST_P(Gpu, RefusesToImportMoreHostMemoryThanWasExported) {
  Memory memory = must(machine->allocate_shared_host(16));
  EXPECT_FALSE(
      machine->import_host(must(machine->export_memory(memory)), memory.bytes() + 1).is_ok());
}

TEST_P(Gpu, SuspendedMemoryComesBackZeroedAtItsAddress) {
  Memory memory = allocate(kWords, true);
  Memory import =
      must(machine->import_memory(0, must(machine->export_memory(memory)), memory.bytes()));
  void* const address = memory.data();
  write(memory.data(), pattern(3, kWords));
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK(machine->suspend_memory(import));
    ASSERT_OK(machine->suspend_memory(memory));
    ASSERT_OK(machine->resume_memory(memory));
    ASSERT_OK(machine->resume_import(import, must(machine->export_memory(memory))));
    EXPECT_EQ(memory.data(), address);
    EXPECT_EQ(read(memory.data(), kWords), std::vector<uint32_t>(kWords, 0));
    write(import.data(), pattern(4, kWords));
    EXPECT_EQ(read(memory.data(), kWords), pattern(4, kWords));
  }
}

TEST_P(Gpu, SuspendedMemoryCanBeGivenBack) {
  Memory memory = allocate(kWords, true);
  Memory import =
      must(machine->import_memory(0, must(machine->export_memory(memory)), memory.bytes()));
  ASSERT_OK(machine->suspend_memory(import));
  ASSERT_OK(machine->suspend_memory(memory));
  import.reset();
  memory.reset();
  EXPECT_EQ(read(allocate(kWords, true).data(), kWords), std::vector<uint32_t>(kWords, 0));
}

TEST_P(Gpu, PlainMemoryIsNotSuspended) {
  Memory memory = allocate(16, false);
  EXPECT_EQ(machine->suspend_memory(memory).code(), Code::InvalidUsage);
}

TEST_P(Gpu, RefusesToImportMoreThanWasExported) {
  if (GetParam() == Kind::Cuda) GTEST_SKIP() << "the driver does not tell the size of an import";
  Memory memory = allocate(16, true);
  const Result<Memory> import =
      machine->import_memory(0, must(machine->export_memory(memory)), memory.bytes() + 1);
  EXPECT_EQ(import.status().code(), Code::CudaError);
}

TEST_P(Gpu, IdentitiesOfMemoryAreNeverUsedAgain) {
  std::set<uint64_t> ids;
  for (int round = 0; round < 8; ++round) {
    const Memory memory = must(machine->allocate_as_user(0, kWords * 4));
    const uint64_t id = must(machine->pointer_info(memory.data())).id;
    EXPECT_EQ(must(machine->pointer_info(static_cast<char*>(memory.data()) + 77)).id, id);
    EXPECT_TRUE(ids.insert(id).second) << round;
  }
}

TEST_P(Gpu, UploadsAtOnce) {
  Memory memory = allocate(kWords, false);
  const std::vector<uint32_t> words = pattern(8, kWords);
  ASSERT_OK(machine->upload(0, memory.data(), words.data(), kWords * 4));
  EXPECT_EQ(read(memory.data(), kWords), words);
}

TEST_P(Gpu, DownloadsAtOnce) {
  Memory memory = allocate(kWords, false);
  write(memory.data(), pattern(8, kWords));
  std::vector<uint32_t> words(kWords);
  ASSERT_OK(machine->download(0, words.data(), memory.data(), kWords * 4));
  EXPECT_EQ(words, pattern(8, kWords));
}

TEST_P(Gpu, MemoryIsMappedAgainWhereTheCallerWants) {
  const size_t unit = must(machine->mapping_granularity(0));
  Memory one = allocate(unit / 4, true);
  Memory two = must(machine->allocate(machine->device_count() - 1, 3 * unit, true));
  write(one.data(), pattern(1, kWords / 8));
  AddressRange range = must(machine->reserve_addresses(0, 8 * unit, unit));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(range.data) % unit, 0u);
  {
    // By any address in it.
    const Backing first = must(machine->backing_of(static_cast<char*>(one.data()) + unit / 2));
    const Backing second = must(machine->backing_of(two.data()));
    EXPECT_EQ(first.base, one.data());
    EXPECT_EQ(first.bytes, one.bytes());
    EXPECT_EQ(second.bytes, 3 * unit);
    ASSERT_OK(machine->map_physical(range, unit, {&first, 1}, {0}));
    ASSERT_OK(machine->map_physical(range, 5 * unit, {&second, 1}, {0}));
    EXPECT_EQ(machine->map_physical(range, 7 * unit, {&second, 1}, {0}).code(), Code::CudaError);
    EXPECT_EQ(machine->map_physical(range, unit, {&first, 1}, {0}).code(), Code::CudaError);
  }
  EXPECT_EQ(read(range.data + unit, kWords / 8), pattern(1, kWords / 8));
  write(range.data + 5 * unit, pattern(2, kWords / 8));
  EXPECT_EQ(read(two.data(), kWords / 8), pattern(2, kWords / 8));
  const PointerInfo info = must(machine->pointer_info(range.data + 5 * unit));
  EXPECT_EQ(info.kind, PointerKind::Device);
  one.reset();  // the mapping keeps the bytes alive
  EXPECT_EQ(read(range.data + unit, kWords / 8), pattern(1, kWords / 8));
  std::byte* const gone = range.data + unit;
  range = {};
  EXPECT_EQ(must(machine->pointer_info(gone)).kind, PointerKind::Unknown);
}

TEST_P(Gpu, GivesMemoryToNetworkAdapters) {
  const Memory memory = must(machine->allocate(0, 1 << 20, /*shareable=*/true));
  auto* const data = static_cast<std::byte*>(memory.data());
  Result<DmaBuffer> whole = machine->export_range(data, 1 << 20);
  if (!whole.is_ok()) GTEST_SKIP() << whole.status().message();
  EXPECT_TRUE(whole->descriptor.valid());
  EXPECT_EQ(whole->offset, 0u);
  // The descriptor has whole pages.
  const DmaBuffer part = must(machine->export_range(data + 100, 1000));
  EXPECT_EQ(part.offset, 100u);
  EXPECT_FALSE(machine->export_range(data, memory.bytes() + 1).is_ok());
  int of_host = 0;
  EXPECT_FALSE(machine->export_range(&of_host, sizeof of_host).is_ok());
  const NicWrites writes = must(machine->nic_writes(0));
  if (writes.can_be_flushed) ASSERT_OK(machine->flush_nic_writes(0));
  EXPECT_FALSE(machine->nic_writes(machine->device_count()).is_ok());
}

TEST_P(Gpu, PiecesAreMappedOneBehindTheOther) {
  const size_t unit = must(machine->mapping_granularity(0));
  const Memory one = must(machine->allocate(0, 2 * unit, /*shareable=*/true));
  const Memory two = must(machine->allocate(0, unit, /*shareable=*/true));
  const AddressRange range = must(machine->reserve_addresses(0, 4 * unit, unit));
  {
    std::vector<Backing> pieces;
    pieces.push_back(must(machine->backing_of(one.data())));
    pieces.push_back(must(machine->backing_of(two.data())));
    EXPECT_EQ(machine->map_physical(range, 2 * unit, pieces, {0}).code(), Code::CudaError);
  }
  // A mapping that could not be made as a whole goes with its range.
  const AddressRange again = must(machine->reserve_addresses(0, 4 * unit, unit));
  {
    std::vector<Backing> pieces;
    pieces.push_back(must(machine->backing_of(one.data())));
    pieces.push_back(must(machine->backing_of(two.data())));
    ASSERT_OK(machine->map_physical(again, unit, pieces, {0}));
  }
  write(again.data + unit, pattern(3, kWords / 8));
  write(again.data + 3 * unit, pattern(4, kWords / 8));
  EXPECT_EQ(read(one.data(), kWords / 8), pattern(3, kWords / 8));
  EXPECT_EQ(read(two.data(), kWords / 8), pattern(4, kWords / 8));
}

TEST_P(Gpu, PlainMemoryIsNotMappedAgain) {
  const Memory memory = must(machine->allocate_as_user(0, 4096));
  int local = 0;
  EXPECT_EQ(machine->backing_of(memory.data()).status().code(), Code::CudaError);
  EXPECT_EQ(machine->backing_of(&local).status().code(), Code::CudaError);
}

TEST_P(Gpu, KnowsWhetherMemoryIsStillMapped) {
  const size_t unit = must(machine->mapping_granularity(0));
  Memory memory = must(machine->allocate(0, 2 * unit, /*shareable=*/true));
  auto* const data = static_cast<char*>(memory.data());
  const Backing backing = must(machine->backing_of(data));
  EXPECT_TRUE(machine->is_mapped(backing, data));
  EXPECT_TRUE(machine->is_mapped(backing, data + unit + 5));
  const Memory other = must(machine->allocate(0, unit, /*shareable=*/true));
  EXPECT_FALSE(machine->is_mapped(backing, other.data()));
  memory.reset();
  EXPECT_FALSE(machine->is_mapped(backing, data));
  // Wherever new memory comes to lie.
  const Memory next = must(machine->allocate(0, 2 * unit, /*shareable=*/true));
  EXPECT_FALSE(machine->is_mapped(backing, data));
}

TEST_P(Gpu, AnExportIsMappedWhereTheCallerWants) {
  Memory memory = allocate(kWords, true);
  write(memory.data(), pattern(9, kWords));
  const size_t unit = must(machine->mapping_granularity(0));
  Backing original = must(machine->backing_of(memory.data()));
  Backing import = must(
      machine->import_physical(0, must(machine->export_physical(original.memory)), original.bytes));
  AddressRange range = must(machine->reserve_addresses(0, original.bytes + unit, unit));
  ASSERT_OK(machine->map_physical(range, unit, {&import, 1}, {0}));
  EXPECT_EQ(read(range.data + unit, kWords), pattern(9, kWords));
}

// Runs in the child that the next test starts.
TEST_P(Gpu, DISABLED_Importer) {
  const size_t bytes = std::strtoull(std::getenv("NICCOLITE_TEST_BYTES"), nullptr, 10);
  Memory import = must(machine->import_memory(0, Fd(kChildFd), bytes));
  ASSERT_EQ(read(import.data(), kWords), pattern(5, kWords));
  write(import.data(), pattern(6, kWords));
}

TEST_P(Gpu, AnotherProcessImportsByDescriptor) {
  Memory memory = allocate(kWords, true);
  write(memory.data(), pattern(5, kWords));
  const Fd fd = must(machine->export_memory(memory));

  const std::string filter = std::string("--gtest_filter=All/Gpu.DISABLED_Importer/") +
                             (GetParam() == Kind::Virtual ? "Virtual" : "Cuda");
  const std::string bytes = "NICCOLITE_TEST_BYTES=" + std::to_string(memory.bytes());
  std::vector<char*> environment{const_cast<char*>(bytes.c_str())};
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  char name[] = "/proc/self/exe";
  char disabled[] = "--gtest_also_run_disabled_tests";
  char* arguments[] = {name, const_cast<char*>(filter.c_str()), disabled, nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fd.get(), kChildFd);
  pid_t child = 0;
  ASSERT_EQ(posix_spawn(&child, name, &actions, nullptr, arguments, environment.data()), 0);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(read(memory.data(), kWords), pattern(6, kWords));
}

}  // namespace
}  // namespace niccolite::gpu
