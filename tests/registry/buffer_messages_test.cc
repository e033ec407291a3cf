#include "registry/buffer_messages.h"

#include <gmock/gmock.h>

namespace niccolite::registry {
namespace {

using testing::HasSubstr;

MapRequest of_pieces() {
  MapRequest request{
      .number = 7, .bytes = 5 << 20, .name = {}, .pool = {}, .address = "@here", .pieces = {}};
  request.pieces.push_back({.token = {}, .bytes = 2 << 20});
  request.pieces.push_back({.token = {}, .bytes = 3 << 20});
  request.pieces[1].token[0] = 9;
  return request;
}

MapRequest of_malloc() {
  return {.number = 8,
          .bytes = 100,
          .name = gpu::AllocationName{},
          .pool = {},
          .address = {},
          .pieces = {}};
}

MapRequest of_pool() {
  MapRequest request = of_malloc();
  request.pool.emplace();
  request.pool->back() = 6;
  request.address = "@here";
  return request;
}

TEST(BufferMessages, ComeBackAsTheyWere) {
  const MapRequest pieces = of_pieces();
  const auto got = MapRequest::decode(pieces.encode(), "a peer").take();
  EXPECT_EQ(got.number, pieces.number);
  EXPECT_EQ(got.bytes, pieces.bytes);
  EXPECT_FALSE(got.name);
  EXPECT_EQ(got.address, pieces.address);
  ASSERT_EQ(got.pieces.size(), 2u);
  EXPECT_EQ(got.pieces[1].token, pieces.pieces[1].token);
  EXPECT_EQ(got.pieces[1].bytes, pieces.pieces[1].bytes);

  MapRequest named = of_malloc();
  named.name->back() = std::byte{5};
  EXPECT_EQ(MapRequest::decode(named.encode(), "a peer").take().name, named.name);
  EXPECT_FALSE(MapRequest::decode(named.encode(), "a peer").take().pool);
  const auto of_a_pool = MapRequest::decode(of_pool().encode(), "a peer").take();
  EXPECT_EQ(of_a_pool.name, of_pool().name);
  EXPECT_EQ(of_a_pool.pool, of_pool().pool);
  EXPECT_EQ(of_a_pool.address, "@here");
  const MapAnswer answer{.number = 8, .base = 0x7000'0000'0000};
  EXPECT_EQ(MapAnswer::decode(answer.encode(), "a peer").take().base, answer.base);
  EXPECT_EQ(decode_unmap(encode_unmap(9), "a peer").take(), 9u);
}

TEST(BufferMessages, OfOtherLengthsAreRefused) {
  for (const Bytes& whole : {of_pieces().encode(), of_malloc().encode(), of_pool().encode()}) {
    for (size_t bytes = 0; bytes < whole.size(); ++bytes)
      EXPECT_FALSE(MapRequest::decode(std::span(whole).first(bytes), "a peer").is_ok()) << bytes;
    Bytes longer = whole;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(MapRequest::decode(longer, "a peer").is_ok());
  }
  EXPECT_FALSE(MapAnswer::decode({}, "a peer").is_ok());
  EXPECT_FALSE(decode_unmap({}, "a peer").is_ok());
}

TEST(BufferMessages, OfMemoryThatCannotBeAreRefused) {
  MapRequest request = of_pieces();
  request.pieces[0].bytes += 1;
  const auto uneven = MapRequest::decode(request.encode(), "rank 3");
  ASSERT_FALSE(uneven.is_ok());
  EXPECT_THAT(uneven.status().message(), HasSubstr("rank 3"));
  request = of_pieces();
  request.bytes = 0;
  EXPECT_FALSE(MapRequest::decode(request.encode(), "a peer").is_ok());
  request = of_pieces();
  request.pieces.resize(MapRequest::kMostPieces + 1, request.pieces[0]);
  EXPECT_FALSE(MapRequest::decode(request.encode(), "a peer").is_ok());
}

}  // namespace
}  // namespace niccolite::registry
