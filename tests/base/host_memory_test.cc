// What a process may take of its machine, on pictures of machines.

#include "base/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace niccolite {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class HostMemoryTest : public testing::Test {
 protected:
  HostMemoryTest() {
    write("proc/meminfo",
          "MemTotal:       1048576 kB\nMemFree:         1024 kB\nMemAvailable:    819200 kB\n");
  }
  ~HostMemoryTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void expect(size_t limit, size_t available) {
    const HostMemory memory = measure_host_memory(root_);
    EXPECT_EQ(memory.limit, limit * kMiB);
    EXPECT_EQ(memory.available, available * kMiB);
  }
  // A group of version 2, in MiB.
  void group(const std::string& path, const std::string& limit, size_t usage, size_t droppable) {
    const std::string folder = "sys/fs/cgroup" + path + "/";
    write(folder + "memory.max", limit + "\n");
    write(folder + "memory.current", std::to_string(usage * kMiB) + "\n");
    write(folder + "memory.stat",
          "anon 5\ninactive_file " + std::to_string(droppable * kMiB) + "\nslab 3\n");
  }
  static std::string mib(size_t count) { return std::to_string(count * kMiB); }

 private:
  const std::filesystem::path root_ =
      std::filesystem::path(testing::TempDir()) / ("host-memory-" + std::to_string(getpid()));
};

TEST_F(HostMemoryTest, IsWhatTheMachineHasWithoutGroups) { expect(1024, 800); }

TEST_F(HostMemoryTest, IsLimitedByTheOwnGroupAndNotByOthers) {
  write("proc/self/cgroup", "0::/user/job\n");
  group("/user/job", mib(300), 100, 40);
  group("/user/other", mib(10), 10, 0);
  expect(300, 240);
}

TEST_F(HostMemoryTest, IsLimitedByTheGroupsAround) {
  write("proc/self/cgroup", "0::/user/job/step\n");
  group("/user/job/step", "max", 10, 0);
  group("/user/job", mib(500), 100, 0);
  group("/user", mib(600), 550, 0);
  expect(500, 50);
}

TEST_F(HostMemoryTest, IsThatOfTheContainerWhereThePathIsTheHosts) {
  write("proc/self/cgroup", "0::/host/containers/1234\n");
  group("", mib(200), 50, 10);
  expect(200, 160);
}

TEST_F(HostMemoryTest, ReadsVersionOneBesideTwo) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n1:name=systemd:/\n0::/\n");
  const std::string folder = "sys/fs/cgroup/memory/a/";
  write(folder + "b/memory.limit_in_bytes", "9223372036854771712\n");
  write(folder + "b/memory.usage_in_bytes", "0\n");
  write(folder + "memory.limit_in_bytes", mib(400) + "\n");
  write(folder + "memory.usage_in_bytes", mib(300) + "\n");
  write(folder + "memory.stat", "cache 7\ninactive_file 0\ntotal_inactive_file " + mib(100) + "\n");
  expect(400, 200);
}

TEST_F(HostMemoryTest, IsNothingInAGroupThatIsFull) {
  write("proc/self/cgroup", "0::/job\n");
  group("/job", mib(100), 120, 0);
  expect(100, 0);
}

}  // namespace
}  // namespace niccolite
