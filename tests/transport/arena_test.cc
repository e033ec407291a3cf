#include "transport/arena.h"

#include <gmock/gmock.h>

#include <cstring>

#include "gpu/virtual/driver.h"
#include "transport/descriptor_server.h"

namespace niccolite::transport {
namespace {

using std::chrono::seconds;

gpu::Machine& machine() { return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion); }

TEST(Arena, CarvesAlignedZeroedPiecesThatDoNotOverlap) {
  Arena arena(machine(), 0, 1 << 16);
  std::vector<std::pair<std::byte*, size_t>> pieces;
  for (size_t bytes :
       {size_t{1}, size_t{255}, size_t{257}, size_t{40'000}, size_t{30'000}, size_t{200'000}}) {
    const Span span = arena.allocate(bytes).take();
    EXPECT_EQ(span.offset % 256, 0u);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(span.data()[i], std::byte{0});
    std::memset(span.data(), static_cast<int>(pieces.size() + 1), bytes);
    pieces.emplace_back(span.data(), bytes);
  }
  for (size_t p = 0; p < pieces.size(); ++p)
    for (size_t i = 0; i < pieces[p].second; ++i) ASSERT_EQ(pieces[p].first[i], std::byte(p + 1));
  EXPECT_GE(arena.allocated_bytes(), 270'000u);
}

TEST(Arena, TakesWhatWasReservedFromOneChunk) {
  Arena arena(machine(), 0, 1 << 16);
  const std::vector<size_t> sizes{40'000, 100, 60'000, 1};
  size_t bytes = 0;
  for (const size_t size : sizes) bytes += Arena::rounded(size);
  ASSERT_TRUE(arena.reserve(bytes).is_ok());
  const size_t reserved = arena.allocated_bytes();
  const Span first = arena.allocate(sizes[0]).take();
  for (size_t i = 1; i < sizes.size(); ++i)
    EXPECT_EQ(arena.allocate(sizes[i]).value().chunk, first.chunk);
  EXPECT_EQ(arena.allocated_bytes(), reserved);
}

TEST(Chunk, IsFoundByItsTokenForAsLongAsSomebodyHoldsIt) {
  Token token;
  {
    const auto chunk = Chunk::create(machine(), 1, 4096).take();
    token = chunk->token();
    EXPECT_EQ(Chunk::find(token), chunk);
  }
  EXPECT_EQ(Chunk::find(token), nullptr);
}

TEST(DescriptorServer, HandsOutMemoryByTokenOnly) {
  const auto chunk = Chunk::create(machine(), 0, 4096).take();
  const auto server = DescriptorServer::instance().take();
  EXPECT_EQ(DescriptorServer::instance().value(), server);
  std::memset(chunk->data(), 0x5a, 4096);

  Fd descriptor =
      fetch_descriptor(server->address(), chunk->token(), Deadline::after(seconds(20))).take();
  const gpu::Memory mapped =
      machine().import_memory(2, std::move(descriptor), chunk->bytes()).take();
  EXPECT_NE(mapped.data(), chunk->data());
  EXPECT_EQ(static_cast<std::byte*>(mapped.data())[4095], std::byte{0x5a});

  Token wrong = chunk->token();
  wrong[0] ^= 1;
  const auto refused = fetch_descriptor(server->address(), wrong, Deadline::after(seconds(20)));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), testing::HasSubstr("no longer has the memory"));
}

TEST(DescriptorServer, ThatIsGoneIsNamedWithARemedy) {
  const auto refused = fetch_descriptor("@niccolite-nobody", Token{}, Deadline::after(seconds(20)));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), testing::HasSubstr("NCCL_IPC_USE_ABSTRACT_SOCKET"));
}

}  // namespace
}  // namespace niccolite::transport
