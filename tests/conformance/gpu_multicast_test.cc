// Multicast teams (gpu/multicast.h). On real GPUs nothing here runs: a machine that is on loan may
// have no fabric manager, and a team that cannot be made may hang the driver.
#include "conformance/gpu_fixture.h"
#include "gpu/multicast.h"

namespace niccolite::gpu {
namespace {

class GpuMulticast : public Gpu {
 protected:
  static constexpr int kDevices = 3;

  void SetUp() override {
    Gpu::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (must(machine->device_info(0)).name != "Virtual GPU")
      GTEST_SKIP() << "multicast is tried on virtual GPUs alone";
    ASSERT_GE(machine->device_count(), kDevices);
    ASSERT_TRUE(multicast().has_multicast(0));
    unit = must(multicast().granularity(kDevices));
  }
  Multicast& multicast() { return machine->multicast(); }
  MulticastTeam team(size_t bytes) {
    MulticastTeam made = must(multicast().create(kDevices, bytes));
    for (int device = 0; device < kDevices; ++device)
      EXPECT_TRUE(multicast().join(made, device).is_ok());
    return made;
  }
  Memory memory_of(int device, size_t bytes) {
    return must(machine->allocate(device, bytes, /*shareable=*/true));
  }
  uint8_t byte_at(const std::byte* address, int device) {
    uint8_t byte = 0;
    const Stream stream = must(machine->create_stream(device));
    EXPECT_TRUE(machine->copy_async(&byte, address, 1, device, stream.handle()).is_ok());
    EXPECT_TRUE(machine->synchronize_stream(device, stream.handle()).is_ok());
    return byte;
  }
  void fill(std::byte* address, uint8_t value, size_t bytes, int device) {
    const Stream stream = must(machine->create_stream(device));
    EXPECT_TRUE(machine->set_async(address, value, bytes, device, stream.handle()).is_ok());
    EXPECT_TRUE(machine->synchronize_stream(device, stream.handle()).is_ok());
  }
  static std::byte* data(const Memory& memory) { return static_cast<std::byte*>(memory.data()); }

  size_t unit = 0;
};

TEST_P(GpuMulticast, StoresReachTheMemoryOfAllGpus) {
  const MulticastTeam made = team(2 * unit);
  std::vector<Memory> memory;
  for (int device = 0; device < kDevices; ++device) {
    memory.push_back(memory_of(device, 3 * unit));
    // The last unit of the memory stays outside; the range begins with the second.
    ASSERT_OK(multicast().bind(made, device, 0, data(memory.back()) + unit, unit));
    ASSERT_OK(multicast().bind(made, device, unit, data(memory.back()), unit));
  }
  const MulticastMapping range = must(multicast().map(made, 1));
  fill(range.data() + 16, 7, unit, 1);
  for (int device = 0; device < kDevices; ++device) {
    const std::byte* const own = data(memory[static_cast<size_t>(device)]);
    EXPECT_EQ(byte_at(own + unit + 15, device), 0);
    EXPECT_EQ(byte_at(own + unit + 16, device), 7);
    EXPECT_EQ(byte_at(own + 2 * unit - 1, device), 7);
    EXPECT_EQ(byte_at(own, device), 7) << "beyond the border of the two pieces";
    EXPECT_EQ(byte_at(own + 15, device), 7);
    EXPECT_EQ(byte_at(own + 16, device), 0);
    EXPECT_EQ(byte_at(own + 2 * unit, device), 0);
  }
}

TEST_P(GpuMulticast, ATeamIsImportedByDescriptor) {
  const MulticastTeam made = must(multicast().create(2, unit));
  const MulticastTeam other =
      must(multicast().import_team(must(multicast().export_team(made)), unit));
  ASSERT_OK(multicast().join(made, 0));
  ASSERT_OK(multicast().join(other, 1));
  const Memory memory[] = {memory_of(0, unit), memory_of(1, unit)};
  ASSERT_OK(multicast().bind(made, 0, 0, memory[0].data(), unit));
  ASSERT_OK(multicast().bind(other, 1, 0, memory[1].data(), unit));
  const MulticastMapping one = must(multicast().map(made, 0));
  const MulticastMapping two = must(multicast().map(other, 1));
  fill(one.data(), 3, 8, 0);
  fill(two.data() + 8, 4, 8, 1);
  for (int device = 0; device < 2; ++device) {
    EXPECT_EQ(byte_at(data(memory[device]) + 7, device), 3);
    EXPECT_EQ(byte_at(data(memory[device]) + 8, device), 4);
  }
}

TEST_P(GpuMulticast, BindingsEndAndComeAgain) {
  const MulticastTeam made = team(unit);
  std::vector<Memory> first, second;
  for (int device = 0; device < kDevices; ++device) {
    first.push_back(memory_of(device, unit));
    second.push_back(memory_of(device, unit));
    ASSERT_OK(multicast().bind(made, device, 0, first.back().data(), unit));
  }
  const MulticastMapping range = must(multicast().map(made, 0));
  fill(range.data(), 1, unit, 0);
  for (int device = 0; device < kDevices; ++device) {
    const auto index = static_cast<size_t>(device);
    ASSERT_OK(multicast().unbind(made, device, 0, unit));
    ASSERT_OK(multicast().bind(made, device, 0, second[index].data(), unit));
  }
  fill(range.data(), 2, unit, 0);
  for (int device = 0; device < kDevices; ++device) {
    const auto index = static_cast<size_t>(device);
    EXPECT_EQ(byte_at(data(first[index]), device), 1);
    EXPECT_EQ(byte_at(data(second[index]), device), 2);
  }
}

TEST_P(GpuMulticast, ErrorsNameTheDevice) {
  const MulticastTeam made = team(unit);
  const Memory memory = memory_of(0, unit), other = memory_of(1, unit);
  const auto says_device = [](const Status& status, int device) {
    return !status.is_ok() && status.message().find(std::to_string(device)) != std::string::npos;
  };
  EXPECT_TRUE(says_device(multicast().join(made, 0), 0)) << "twice";
  EXPECT_TRUE(says_device(multicast().join(made, 3), 3)) << "the team is complete";
  EXPECT_TRUE(says_device(multicast().join(made, 1000), 1000));
  EXPECT_TRUE(says_device(multicast().bind(made, 0, unit, memory.data(), unit), 0));
  EXPECT_TRUE(says_device(multicast().bind(made, 0, 0, memory.data(), 2 * unit), 0));
  EXPECT_TRUE(says_device(multicast().unbind(made, 0, 0, unit), 0)) << "nothing is bound";
  ASSERT_OK(multicast().bind(made, 0, 0, memory.data(), unit));
  EXPECT_TRUE(says_device(multicast().bind(made, 0, 0, memory.data(), unit), 0)) << "twice";
  EXPECT_FALSE(multicast().create(kDevices, unit + 1).is_ok());
  EXPECT_FALSE(multicast().create(0, unit).is_ok());
  EXPECT_FALSE(multicast().has_multicast(-1));
}

INSTANTIATE_TEST_SUITE_P(All, GpuMulticast, testing::Values(Kind::Virtual, Kind::Cuda),
                         [](const auto& instance) {
                           return std::string(instance.param == Kind::Virtual ? "Virtual" : "Cuda");
                         });

}  // namespace
}  // namespace niccolite::gpu
