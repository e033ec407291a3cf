// The chunks of puts that come from other machines may say anything.
#include "operations/one_sided.h"

#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "executor/protocol/put.h"
#include "gpu/virtual/driver.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::operations {
namespace {

using executor::kPutDataAt;
using executor::PutHeader;
using testing::Each;
using testing::HasSubstr;

constexpr size_t kBytes = 8192;

/// A rank with a symmetric window, and one that is not.
class LandedPuts : public testing::Test {
 protected:
  LandedPuts() {
    handle_ = windows_.add(memory_.data(), kBytes, 1).take();
    symmetric_ = windows_.find(handle_);
    plain_ = windows_.find(windows_.add(memory_.data(), kBytes, 0).take());
  }

  Status land(const PutHeader& header, size_t data, int from = 0) {
    Bytes chunk(kPutDataAt + data, std::byte{7});
    std::memcpy(chunk.data(), &header, sizeof header);
    return one_sided_.land(from, chunk);
  }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(memory_.data()), kBytes};
  }

  gpu::Machine& machine_ = *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion);
  gpu::Memory memory_ = machine_.allocate(0, kBytes, /*shareable=*/true).take();
  registry::Windows windows_{machine_, 0, nullptr, {}};
  registry::Windows::Handle handle_ = nullptr;
  std::shared_ptr<const registry::Window> symmetric_;
  std::shared_ptr<const registry::Window> plain_;
  executor::ControlWords control_{};
  OneSided one_sided_{
      {.machine = machine_,
       .control = &control_,
       .graphs = std::make_shared<GraphUses>(),
       .find_window = [this](uint64_t number) { return windows_.find_numbered(number); }}};
};

TEST_F(LandedPuts, StoresWhereTheHeaderSays) {
  ASSERT_TRUE(
      land({.window = symmetric_->number(), .offset = kBytes - 3, .bytes = 3, .is_last = 1}, 3)
          .is_ok());
  EXPECT_THAT(bytes().last(3), Each(std::byte{7}));
  EXPECT_THAT(bytes().first(kBytes - 3), Each(std::byte{0}));
}

TEST_F(LandedPuts, TakesASignalAloneWhateverItsWindow) {
  EXPECT_TRUE(land({.window = 99, .offset = UINT64_MAX, .bytes = 0, .is_last = 1}, 0).is_ok());
}

TEST_F(LandedPuts, RefusesAWindowThatIsGone) {
  const uint64_t number = symmetric_->number();
  const PutHeader header{.window = number, .offset = 0, .bytes = 8, .is_last = 1};
  ASSERT_TRUE(land(header, 8).is_ok());
  for (const auto& window : {symmetric_, plain_})
    EXPECT_EQ(windows_.find_numbered(window->number()), window);
  ASSERT_TRUE(windows_.remove(handle_).is_ok());
  EXPECT_THAT(land(header, 8).message(), HasSubstr("not registered here"));
  EXPECT_EQ(windows_.find_numbered(plain_->number()), plain_);
}

TEST_F(LandedPuts, RefusesAChunkWithoutAHeader) {
  for (size_t bytes = 0; bytes < kPutDataAt; ++bytes)
    EXPECT_EQ(one_sided_.land(0, Bytes(bytes)).code(), Code::RemoteError) << bytes;
}

TEST_F(LandedPuts, StoresNothingOfAChunkThatLies) {
  std::mt19937_64 random(11);
  const auto one_of = [&](std::initializer_list<uint64_t> values) {
    return values.begin()[random() % values.size()];
  };
  size_t refused = 0, taken = 0;
  for (int round = 0; round < 20'000; ++round) {
    const uint64_t data = one_of({0, 1, 8, 4096, kBytes, executor::kPutDataBytes});
    const PutHeader header{
        .window =
            one_of({symmetric_->number(), symmetric_->number(), plain_->number(), 2, random()}),
        .offset = one_of({0, 1, kBytes - 8, kBytes - 1, kBytes, kBytes + 1, UINT64_MAX,
                          UINT64_MAX - 7, uint64_t{1} << 63, random()}),
        .bytes = static_cast<uint32_t>(one_of({data, data, data, data + 1, data - 1, random()})),
        .is_last = static_cast<uint32_t>(one_of({0, 1, 1, 2, random()}))};
    const bool is_honest =
        header.bytes == data && header.is_last <= 1 &&
        (data == 0 || (header.window == symmetric_->number() && header.offset <= kBytes &&
                       data <= kBytes - header.offset));
    std::memset(memory_.data(), 0, kBytes);
    const Status landed = land(header, data);
    ASSERT_EQ(landed.is_ok(), is_honest) << landed.message();
    ASSERT_EQ(static_cast<size_t>(std::ranges::count(bytes(), std::byte{7})), is_honest ? data : 0);
    ++(is_honest ? taken : refused);
  }
  EXPECT_GT(taken, 100u);
  EXPECT_GT(refused, 100u);
}

}  // namespace
}  // namespace niccolite::operations
