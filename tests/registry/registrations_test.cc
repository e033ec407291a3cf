// Registrations by themselves, on memory of virtual GPUs.
#include "registry/registrations.h"
#include "gpu/machine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace niccolite::registry {
namespace {

constexpr size_t kPage = 4096;

class RegistrationsTest : public testing::Test {
 protected:
  RegistrationsTest() : machine_(*gpu::machine().take()), registrations_(machine_) {}

  gpu::Memory allocate(size_t bytes, bool shareable = false) {
    return machine_.allocate(0, bytes, shareable).take();
  }
  Registrations::Handle add(const void* pointer, size_t bytes) {
    Result<Registrations::Handle> handle = registrations_.add(pointer, bytes);
    EXPECT_TRUE(handle.is_ok()) << handle.status().message();
    return handle.is_ok() ? handle.value() : nullptr;
  }
  void remove(Registrations::Handle handle) {
    const Status status = registrations_.remove(handle);
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
  static std::byte* at(const gpu::Memory& memory, size_t offset) {
    return static_cast<std::byte*>(memory.data()) + offset;
  }

  gpu::Machine& machine_;
  Registrations registrations_;
};

TEST_F(RegistrationsTest, EveryKindOfMemoryThatTheDriverKnowsHasAHandle) {
  const gpu::Memory plain = allocate(3 * kPage);
  const gpu::Memory shareable = allocate(3 * kPage, true);
  const gpu::Memory host = machine_.allocate_host(3 * kPage).take();
  for (const gpu::Memory* memory : {&plain, &shareable, &host}) {
    EXPECT_NE(add(memory->data(), memory->bytes()), nullptr);
    EXPECT_TRUE(registrations_.covers(at(*memory, 17), kPage));
    EXPECT_TRUE(registrations_.covers(memory->data(), memory->bytes()));
    EXPECT_FALSE(registrations_.covers(memory->data(), memory->bytes() + 1));
  }
  EXPECT_EQ(registrations_.size(), 3u);
}

TEST_F(RegistrationsTest, TouchWhatTheirPagesReachInto) {
  const gpu::Memory memory = allocate(4 * kPage);
  const auto handle = add(at(memory, kPage + 5), 10);
  EXPECT_FALSE(registrations_.touches(at(memory, 0), kPage));
  EXPECT_TRUE(registrations_.touches(at(memory, 0), kPage + 1));
  EXPECT_TRUE(registrations_.touches(at(memory, 0), 4 * kPage));
  EXPECT_TRUE(registrations_.touches(at(memory, 2 * kPage - 1), 1));
  EXPECT_FALSE(registrations_.touches(at(memory, 2 * kPage), kPage));
  remove(handle);
  EXPECT_FALSE(registrations_.touches(at(memory, 0), 4 * kPage));
}

TEST_F(RegistrationsTest, UnknownMemoryAndEmptyRangesHaveNone) {
  int local = 0;
  const gpu::Memory memory = allocate(kPage);
  EXPECT_EQ(add(&local, sizeof local), nullptr);
  EXPECT_EQ(add(memory.data(), 0), nullptr);
  EXPECT_EQ(add(nullptr, kPage), nullptr);
  EXPECT_EQ(registrations_.size(), 0u);
  EXPECT_FALSE(registrations_.covers(&local, sizeof local));
}

TEST_F(RegistrationsTest, ARangeInsideAnotherCountsOnIt) {
  const gpu::Memory memory = allocate(8 * kPage);
  const Registrations::Handle whole = add(memory.data(), 8 * kPage);
  EXPECT_EQ(add(at(memory, kPage), 2 * kPage), whole);
  EXPECT_EQ(add(at(memory, 7 * kPage), kPage), whole);
  remove(whole);
  remove(whole);
  EXPECT_TRUE(registrations_.covers(at(memory, 5), kPage));
  remove(whole);
  EXPECT_FALSE(registrations_.covers(at(memory, 5), kPage));
  EXPECT_EQ(registrations_.remove(whole).code(), Code::InvalidUsage);
}

TEST_F(RegistrationsTest, ALargerRangeIsAnother) {
  const gpu::Memory memory = allocate(8 * kPage);
  const Registrations::Handle part = add(at(memory, kPage), kPage);
  const Registrations::Handle whole = add(memory.data(), 8 * kPage);
  const Registrations::Handle again = add(at(memory, kPage), 4 * kPage);
  EXPECT_NE(part, whole);
  EXPECT_NE(part, again);
  remove(part);
  EXPECT_TRUE(registrations_.covers(at(memory, kPage), 4 * kPage));
  remove(whole);
  remove(again);
  EXPECT_EQ(registrations_.size(), 0u);
}

// An allocator that frees and allocates gives the same addresses again.
TEST_F(RegistrationsTest, FreedAndReusedAddressesAreNotCovered) {
  const gpu::Memory neighbour = allocate(kPage);  // else the addresses rest for a while
  gpu::Memory memory = allocate(16 * kPage);
  void* const address = memory.data();
  const Registrations::Handle old = add(address, 16 * kPage);
  memory.reset();
  EXPECT_FALSE(registrations_.covers(address, kPage));
  memory = allocate(16 * kPage);
  ASSERT_EQ(memory.data(), address);
  EXPECT_FALSE(registrations_.covers(address, kPage));
  const Registrations::Handle fresh = add(address, 16 * kPage);
  EXPECT_NE(fresh, old);
  EXPECT_TRUE(registrations_.covers(address, kPage));
  remove(old);
  EXPECT_TRUE(registrations_.covers(address, kPage));
}

TEST_F(RegistrationsTest, HandlesOfOthersAreRefused) {
  Registrations other(machine_);
  const gpu::Memory memory = allocate(kPage);
  const Registrations::Handle handle = add(memory.data(), kPage);
  EXPECT_EQ(other.remove(handle).code(), Code::InvalidUsage);
  EXPECT_EQ(registrations_.remove(&other).code(), Code::InvalidUsage);
  remove(handle);
}

TEST_F(RegistrationsTest, ThreadsRegisterAndDeregisterAtOnce) {
  const gpu::Memory memory = allocate(64 * kPage);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 500; ++i) {
        const void* const range = at(memory, (i * 7 + t) % 60 * kPage);
        remove(add(range, (1 + i % 4) * kPage));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registrations_.size(), 0u);
}

}  // namespace
}  // namespace niccolite::registry
