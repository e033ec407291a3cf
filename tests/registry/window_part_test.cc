// What ranks tell each other of a window, and where its copies go.
#include "registry/window_part.h"

#include <gtest/gtest.h>

#include "registry/window_record.h"

namespace niccolite::registry {
namespace {

constexpr uint64_t kUnit = 2 << 20;
constexpr uint64_t kStrideUnit = uint64_t{1} << 32;

WindowPart part_of(uint64_t bytes, uint64_t offset, std::vector<uint64_t> pieces) {
  WindowPart part;
  part.number = 7;
  part.name = {1, 2, 3};
  part.address = "@somewhere";
  part.flags = 3;
  part.device = 5;
  part.bytes = bytes;
  part.offset = offset;
  part.granularity = kUnit;
  for (const uint64_t piece : pieces) part.pieces.push_back({{9, 8}, piece});
  return part;
}

template <typename... Parts>
std::vector<WindowPart> list(Parts... parts) {
  std::vector<WindowPart> all;
  (all.push_back(std::move(parts)), ...);
  return all;
}

TEST(WindowPart, ComesBackFromTheWireAsItWas) {
  const WindowPart sent = part_of(3 * kUnit, 4096, {2 * kUnit, 2 * kUnit});
  Result<WindowPart> got = WindowPart::decode(sent.encode(), "rank 1");
  ASSERT_TRUE(got.is_ok()) << got.status().message();
  EXPECT_EQ(got->number, 7u);
  EXPECT_EQ(got->name, sent.name);
  EXPECT_EQ(got->address, "@somewhere");
  EXPECT_EQ(got->flags, 3);
  EXPECT_EQ(got->device, 5);
  EXPECT_EQ(got->bytes, 3 * kUnit);
  EXPECT_EQ(got->offset, 4096u);
  EXPECT_EQ(got->mapped_bytes(), 4 * kUnit);
  EXPECT_EQ(got->pieces[1].token, sent.pieces[1].token);
}

TEST(WindowPart, AProblemIsToldWithItsCode) {
  WindowPart sent;
  sent.problem = Status::cuda_error("rank 1 of 2: no memory");
  Result<WindowPart> got = WindowPart::decode(sent.encode(), "rank 1");
  ASSERT_TRUE(got.is_ok()) << got.status().message();
  EXPECT_EQ(got->problem.code(), Code::CudaError);
  EXPECT_EQ(got->problem.message(), "rank 1 of 2: no memory");
}

TEST(WindowPart, RefusesWhatIsNoWindow) {
  const Bytes whole = part_of(kUnit, 0, {kUnit}).encode();
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(WindowPart::decode(std::span(whole).first(length), "rank 1").is_ok()) << length;
  for (const WindowPart& part :
       list(part_of(kUnit + 1, 0, {kUnit}), part_of(kUnit, 4096, {kUnit}), part_of(kUnit, 0, {}),
            part_of(0, 0, {kUnit}), part_of(kUnit, ~uint64_t{0}, {kUnit}),
            part_of(kUnit, 0, {~uint64_t{0}, kUnit + 1}))) {
    const Result<WindowPart> got = WindowPart::decode(part.encode(), "rank 1");
    ASSERT_FALSE(got.is_ok());
    EXPECT_NE(got.status().message().find("rank 1"), std::string::npos);
  }
}

TEST(FlatLayout, CopiesAreEqualDistancesApart) {
  const std::vector<WindowPart> parts =
      list(part_of(kUnit, 0, {kUnit}), part_of(kUnit, 0, {4 * kUnit}),
           part_of(3 * kUnit, 0, {kUnit, 2 * kUnit}));
  const FlatLayout layout = lay_out(parts);
  EXPECT_TRUE(layout.is_uniform);
  EXPECT_EQ(layout.stride, kStrideUnit);
  EXPECT_EQ(layout.starts, (std::vector<uint64_t>{0, kStrideUnit, 2 * kStrideUnit}));
  EXPECT_EQ(layout.bytes(), 3 * kStrideUnit);
}

// A window may begin anywhere in its memory, which is mapped as a whole.
TEST(FlatLayout, OffsetsThatDifferByWholeUnitsAreEvenedOut) {
  const std::vector<WindowPart> parts =
      list(part_of(kUnit, 4096, {4 * kUnit}), part_of(kUnit, 4096 + 2 * kUnit, {4 * kUnit}));
  const FlatLayout layout = lay_out(parts);
  EXPECT_TRUE(layout.is_uniform);
  EXPECT_EQ(layout.starts[1] - layout.starts[0], layout.stride);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(layout.pieces[rank] % kUnit, 0u);
    EXPECT_EQ(layout.starts[rank], layout.pieces[rank] + parts[rank].offset);
    EXPECT_GE(layout.pieces[rank], rank * layout.stride);
    EXPECT_LE(layout.pieces[rank] + parts[rank].mapped_bytes(), (rank + 1) * layout.stride);
  }
}

TEST(FlatLayout, OtherOffsetsCannotBe) {
  const std::vector<WindowPart> parts =
      list(part_of(kUnit, 4096, {4 * kUnit}), part_of(kUnit, 8192, {4 * kUnit}));
  const FlatLayout layout = lay_out(parts);
  EXPECT_FALSE(layout.is_uniform);
  EXPECT_EQ(layout.starts[0], 4096u);
  EXPECT_EQ(layout.starts[1], layout.stride + 8192);
}

TEST(FlatLayout, TheStrideHoldsTheLargest) {
  const std::vector<WindowPart> parts =
      list(part_of(kUnit, 0, {kUnit}), part_of(kUnit, 0, {kStrideUnit, kStrideUnit, kUnit}));
  EXPECT_EQ(lay_out(parts).stride, 3 * kStrideUnit);
}

}  // namespace
}  // namespace niccolite::registry
