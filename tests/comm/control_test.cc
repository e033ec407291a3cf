#include "comm/control.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace niccolite::comm {
namespace {

using executor::Command;

/// Gives host memory alone. `left`: how many allocations it still grants.
class HostMemory final : public gpu::Allocations {
 public:
  /// Lives for ever, as the pages that Control takes from it do.
  static HostMemory& make(int left) { return *new HostMemory(left); }

  Result<gpu::Memory> allocate_host(size_t bytes) override {
    if (left == 0) return Status::cuda_error("no host memory");
    --left;
    void* data = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return gpu::Memory(this, data, data, bytes, -1);
  }

  Result<gpu::DeviceMemory> device_memory(int) override { return refused(); }
  Result<gpu::Memory> allocate(int, size_t, bool) override { return refused(); }
  Result<gpu::Memory> allocate_as_user(int, size_t) override { return refused(); }
  Result<gpu::PointerInfo> pointer_info(const void*) override { return refused(); }
  Status upload(int, void*, const void*, size_t) override { return refused(); }
  Status download(int, void*, const void*, size_t) override { return refused(); }

  int left;

 protected:
  Status release_memory(void* handle) override {
    std::free(handle);
    return {};
  }

 private:
  explicit HostMemory(int of) : left(of) {}
  static Status refused() { return Status::internal("host memory alone"); }
};

uint32_t word_of(const Control& control) { return control.words()->abort; }

TEST(Control, CommunicatorsShareAPage) {
  HostMemory& memory = HostMemory::make(/*left=*/1);
  Control first, second;
  EXPECT_EQ(first.words(), nullptr);
  ASSERT_TRUE(first.allocate(memory).is_ok());
  ASSERT_TRUE(second.allocate(memory).is_ok()) << "a page of its own is not granted";
  EXPECT_NE(first.words(), second.words());
}

TEST(Control, AWordIsUsedAgainAndIsClean) {
  HostMemory& memory = HostMemory::make(/*left=*/1);
  Control control;
  ASSERT_TRUE(control.allocate(memory).is_ok());
  const executor::ControlWords* const words = control.words();
  control.tell(Command::End);
  control.release();
  EXPECT_EQ(control.words(), nullptr);
  control.tell(Command::Leave);  // nobody
  Control next;
  ASSERT_TRUE(next.allocate(memory).is_ok());
  EXPECT_EQ(next.words(), words);
  EXPECT_EQ(word_of(next), static_cast<uint32_t>(Command::GoOn));
}

TEST(Control, NothingIsToldAfterEnd) {
  Control control;
  ASSERT_TRUE(control.allocate(HostMemory::make(/*left=*/1)).is_ok());
  control.tell(Command::Leave);
  EXPECT_EQ(word_of(control), static_cast<uint32_t>(Command::Leave));
  control.tell(Command::End);
  control.tell(Command::Leave);
  EXPECT_EQ(word_of(control), static_cast<uint32_t>(Command::End));
}

TEST(Control, TheMachinesErrorIsTheCallers) {
  Control control;
  EXPECT_EQ(control.allocate(HostMemory::make(/*left=*/0)).code(), Code::CudaError);
  EXPECT_EQ(control.words(), nullptr);
}

}  // namespace
}  // namespace niccolite::comm
