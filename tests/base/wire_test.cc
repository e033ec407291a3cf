#include "base/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace niccolite {
namespace {

using testing::HasSubstr;

TEST(Wire, ReadsWhatWasWritten) {
  Writer writer;
  writer.u8(0xab);
  writer.u16(0x1234);
  writer.u32(0xdeadbeef);
  writer.u64(0x0123456789abcdef);
  writer.i32(-5);
  writer.text("host");
  writer.blob({});
  Reader reader(writer.bytes(), "rank 3");
  EXPECT_EQ(reader.u8(), 0xab);
  EXPECT_EQ(reader.u16(), 0x1234);
  EXPECT_EQ(reader.u32(), 0xdeadbeef);
  EXPECT_EQ(reader.u64(), 0x0123456789abcdefu);
  EXPECT_EQ(reader.i32(), -5);
  EXPECT_EQ(reader.text(100), "host");
  EXPECT_TRUE(reader.blob(0).empty());
  EXPECT_TRUE(reader.finish().is_ok());
}

TEST(Wire, IsLittleEndian) {
  Writer writer;
  writer.u32(0x01020304);
  EXPECT_EQ(writer.bytes(), (Bytes{std::byte{4}, std::byte{3}, std::byte{2}, std::byte{1}}));
}

TEST(Reader, FailsOnceAndForAllBehindTheEnd) {
  Writer writer;
  writer.u16(7);
  Reader reader(writer.bytes(), "rank 3");
  EXPECT_EQ(reader.u32(), 0u);
  EXPECT_EQ(reader.u16(), 0u) << "the bytes are there, but the message is wrong already";
  const Status status = reader.finish();
  EXPECT_EQ(status.code(), Code::RemoteError);
  EXPECT_THAT(status.message(), HasSubstr("from rank 3: 4 bytes expected at offset 0, 2 left"));
}

TEST(Reader, RefusesFieldsAboveTheirBound) {
  Writer writer;
  writer.text("too long");
  Reader reader(writer.bytes(), "rank 3");
  EXPECT_EQ(reader.text(7), "");
  EXPECT_THAT(reader.finish().message(), HasSubstr("8 bytes, at most 7"));
}

TEST(Reader, RefusesCountsThatCannotFit) {
  Writer writer;
  writer.u32(3);
  writer.u64(0);
  Reader reader(writer.bytes(), "rank 3");
  EXPECT_EQ(reader.count(10, 4), 0u);
  EXPECT_FALSE(reader.finish().is_ok());
}

TEST(Reader, RefusesBytesLeftOver) {
  Writer writer;
  writer.u32(3);
  Reader reader(writer.bytes(), "rank 3");
  reader.u16();
  EXPECT_THAT(reader.finish().message(), HasSubstr("2 bytes too many"));
}

}  // namespace
}  // namespace niccolite
