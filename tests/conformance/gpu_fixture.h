// One suite for every machine: what gpu/machine.h promises, checked by means of machine.h alone, so
// that device memory is never touched but by copies.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "gpu/machine.h"

namespace niccolite::gpu {

/// The machine of `kind`; CudaError with the reason when this host has none.
Result<Machine*> machine_of(Kind kind);

#define ASSERT_OK(...)                                                               \
  do {                                                                               \
    const auto niccolite_test_status = (__VA_ARGS__);                                \
    ASSERT_TRUE(niccolite_test_status.is_ok()) << message_of(niccolite_test_status); \
  } while (false)

inline std::string message_of(const Status& status) { return status.message(); }
template <typename T>
std::string message_of(const Result<T>& result) {
  return result.status().message();
}

/// The value of a Result that must be fine: ends the test's process else, because later lines need
/// it.
template <typename T>
T must(Result<T> result) {
  if (!result.is_ok()) {
    ADD_FAILURE() << result.status().message();
    std::abort();
  }
  return std::move(result).take();
}

/// Holds a stream from a host call until it is opened.
class Gate {
 public:
  static void pass(void* gate) { static_cast<Gate*>(gate)->wait(); }
  void open() {
    std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  /// Returns once the stream has come to the gate.
  void wait_for_arrival() {
    std::unique_lock lock(mutex_);
    while (!arrived_) changed_.wait(lock);
  }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    arrived_ = true;
    changed_.notify_all();
    while (!is_open_) changed_.wait(lock);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  bool arrived_ = false;
};

class Gpu : public testing::TestWithParam<Kind> {
 protected:
  static constexpr uint32_t kPoison = 0xa5a5a5a5;

  void SetUp() override {
    Result<Machine*> found = machine_of(GetParam());
    if (!found.is_ok()) {
      // Over the driver of virtual GPUs there is nothing to skip.
      ASSERT_EQ(std::getenv("NICCOLITE_TEST_NEEDS_CUDA"), nullptr) << found.status().message();
      GTEST_SKIP() << found.status().message();
    }
    machine = found.value();
  }

  static std::vector<uint32_t> pattern(uint32_t seed, size_t count) {
    std::vector<uint32_t> words(count);
    for (size_t i = 0; i < count; ++i) words[i] = seed * 0x01000193u + static_cast<uint32_t>(i) * 7;
    return words;
  }
  void write(void* target, const std::vector<uint32_t>& words, int device = 0) {
    Memory host = must(machine->allocate_host(words.size() * 4));
    std::copy(words.begin(), words.end(), static_cast<uint32_t*>(host.data()));
    Stream stream = must(machine->create_stream(device));
    EXPECT_TRUE(machine->copy_async(target, host.data(), words.size() * 4, device, stream.handle())
                    .is_ok());
    EXPECT_TRUE(machine->synchronize_stream(device, stream.handle()).is_ok());
  }
  std::vector<uint32_t> read(const void* source, size_t count, int device = 0) {
    Memory host = must(machine->allocate_host(count * 4));
    Stream stream = must(machine->create_stream(device));
    EXPECT_TRUE(
        machine->copy_async(host.data(), source, count * 4, device, stream.handle()).is_ok());
    EXPECT_TRUE(machine->synchronize_stream(device, stream.handle()).is_ok());
    const auto* words = static_cast<const uint32_t*>(host.data());
    return {words, words + count};
  }
  Memory allocate(size_t words, bool shareable = false, int device = 0) {
    return must(machine->allocate(device, words * 4, shareable));
  }

  Machine* machine = nullptr;
};

}  // namespace niccolite::gpu
