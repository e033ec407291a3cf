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
  for (const std::vector<size_t>& sizes : std::vector<std::vector<size_t>>{
           {1}, {255, 40'000, 257}, {}, {30'000, 200'000, 1}, {20'000, 64'000}}) {
    const std::vector<Span> spans = arena.allocate(sizes).take();
    ASSERT_EQ(spans.size(), sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(spans[i].offset % 256, 0u);
      ASSERT_LE(spans[i].offset + sizes[i], spans[i].chunk->bytes());
      for (size_t b = 0; b < sizes[i]; ++b) ASSERT_EQ(spans[i].data()[b], std::byte{0});
      std::memset(spans[i].data(), static_cast<int>(pieces.size() + 1), sizes[i]);
      pieces.emplace_back(spans[i].data(), sizes[i]);
    }
  }
  for (size_t p = 0; p < pieces.size(); ++p)
    for (size_t i = 0; i < pieces[p].second; ++i) ASSERT_EQ(pieces[p].first[i], std::byte(p + 1));
  EXPECT_GE(arena.allocated_bytes(), 354'514u);
}

TEST(Arena, HasWhatIsAllocatedTogetherInOneChunk) {
  Arena arena(machine(), 0, 1 << 16);
  const std::vector<Span> spans =
      arena.allocate(std::vector<size_t>{40'000, 100, 90'000, 1}).take();
  for (const Span& span : spans) EXPECT_EQ(span.chunk, spans[0].chunk);
  EXPECT_EQ(arena.allocated_bytes(), spans[0].chunk->bytes());
}

// Where memory is mapped in large units, control blocks beside slots of whole units would cost one
// more.
TEST(Arena, FillsEarlierChunksWithWhatHasRoomThere) {
  Arena arena(machine(), 0, 1 << 16);
  const Span first = arena.allocate(std::vector<size_t>{50'000}).take()[0];
  const std::vector<Span> spans =
      arena.allocate(std::vector<size_t>{256, 1 << 16, 2'000, 13'000}).take();
  EXPECT_EQ(arena.allocated_bytes(), 2u << 16);
  EXPECT_NE(spans[1].chunk, first.chunk);
  for (const size_t i : {0, 2, 3}) EXPECT_EQ(spans[i].chunk, first.chunk);
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
