#include "transport/pool.h"

#include <gmock/gmock.h>

#include <cstring>
#include <set>

#include "gpu/virtual/driver.h"

namespace niccolite::transport {
namespace {

gpu::Machine& machine() { return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion); }

TEST(Pool, CarvesAlignedZeroedPiecesThatDoNotOverlap) {
  Share share(std::make_shared<Pool>(machine(), 0, 1 << 16));
  std::vector<std::pair<std::byte*, size_t>> pieces;
  for (const std::vector<size_t>& sizes : std::vector<std::vector<size_t>>{
           {1}, {255, 40'000, 257}, {}, {30'000, 200'000, 1}, {20'000, 64'000}}) {
    const std::vector<Span> spans = share.allocate(sizes).take();
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
  EXPECT_GE(share.bytes(), 354'514u);
}

TEST(Pool, HasWhatIsAllocatedTogetherInOneChunk) {
  Share share(std::make_shared<Pool>(machine(), 0, 1 << 16));
  const std::vector<Span> spans =
      share.allocate(std::vector<size_t>{40'000, 100, 90'000, 1}).take();
  for (const Span& span : spans) EXPECT_EQ(span.chunk, spans[0].chunk);
  EXPECT_EQ(share.bytes(), spans[0].chunk->bytes());
}

// Where memory is mapped in large units, control blocks beside slots of whole units would cost one
// more.
TEST(Pool, FillsEarlierChunksWithWhatHasRoomThere) {
  Share share(std::make_shared<Pool>(machine(), 0, 1 << 16));
  const Span first = share.allocate(std::vector<size_t>{50'000}).take()[0];
  const std::vector<Span> spans =
      share.allocate(std::vector<size_t>{256, 1 << 16, 2'000, 13'000}).take();
  EXPECT_EQ(share.bytes(), 2u << 16);
  EXPECT_NE(spans[1].chunk, first.chunk);
  for (const size_t i : {0, 2, 3}) EXPECT_EQ(spans[i].chunk, first.chunk);
}

TEST(Pool, LetsSmallPiecesOfSeveralSharesHaveOneChunk) {
  const auto pool = std::make_shared<Pool>(machine(), 0, 1 << 16);
  Share one(pool), other(pool);
  const Span first = one.allocate(std::vector<size_t>{1'000}).take()[0];
  const Span second = other.allocate(std::vector<size_t>{3'000}).take()[0];
  EXPECT_EQ(first.chunk, second.chunk);
  // The chunk is divided among those who have carved from it: 1,024 to 3,072 bytes.
  EXPECT_EQ(one.bytes(), (1u << 16) / 4);
  EXPECT_EQ(other.bytes(), (1u << 16) / 4 * 3);
}

// What an aborted peer may still store to must not become somebody else's.
TEST(Pool, CarvesNothingTwice) {
  const auto pool = std::make_shared<Pool>(machine(), 0, 1 << 16);
  Share stays(pool);
  const Span kept = stays.allocate(std::vector<size_t>{256}).take()[0];
  std::set<std::byte*> seen{kept.data()};
  for (int round = 0; round < 20; ++round) {
    Share leaves(pool);
    const Span span = leaves.allocate(std::vector<size_t>{256}).take()[0];
    EXPECT_EQ(span.chunk, kept.chunk);
    EXPECT_TRUE(seen.insert(span.data()).second) << round;
  }
}

TEST(Pool, GivesAChunkBackWithItsLastPiece) {
  const auto pool = std::make_shared<Pool>(machine(), 0, 1 << 16);
  Token token;
  {
    Share one(pool);
    std::vector<Span> spans = one.allocate(std::vector<size_t>{256}).take();
    token = spans[0].chunk->token();
    {
      Share other(pool);
      EXPECT_EQ(other.allocate(std::vector<size_t>{256}).take()[0].chunk->token(), token);
    }
    EXPECT_NE(Chunk::find(token), nullptr);
  }
  EXPECT_EQ(Chunk::find(token), nullptr);
}

TEST(Share, ComesBackZeroedWhereItWas) {
  const auto pool = std::make_shared<Pool>(machine(), 0, 1 << 16);
  Share share(pool);
  const std::vector<Span> spans = share.allocate(std::vector<size_t>{1'000, 100'000}).take();
  for (const Span& span : spans) std::memset(span.data(), 7, 1'000);
  std::byte* const place = spans[0].data();
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(share.suspend().is_ok());
    EXPECT_EQ(spans[0].chunk->export_descriptor().status().code(), Code::InvalidUsage);
    ASSERT_TRUE(share.resume().is_ok());
    EXPECT_TRUE(spans[0].chunk->export_descriptor().is_ok());
    EXPECT_EQ(spans[0].data(), place);
    for (const Span& span : spans)
      for (size_t b = 0; b < 1'000; ++b) ASSERT_EQ(span.data()[b], std::byte{0});
    for (const Span& span : spans) std::memset(span.data(), 7, 1'000);
  }
}

TEST(Share, LeavesWhatOthersUseInTheSameChunk) {
  const auto pool = std::make_shared<Pool>(machine(), 0, 1 << 16);
  Share goes(pool), stays(pool);
  const Span gone = goes.allocate(std::vector<size_t>{500}).take()[0];
  const Span kept = stays.allocate(std::vector<size_t>{500}).take()[0];
  ASSERT_EQ(gone.chunk, kept.chunk);
  std::memset(gone.data(), 7, 500);
  std::memset(kept.data(), 8, 500);
  ASSERT_TRUE(goes.suspend().is_ok());
  EXPECT_EQ(kept.data()[499], std::byte{8});
  EXPECT_TRUE(kept.chunk->export_descriptor().is_ok());
  ASSERT_TRUE(goes.resume().is_ok());
  EXPECT_EQ(gone.data()[499], std::byte{0});
  EXPECT_EQ(kept.data()[499], std::byte{8});
}

TEST(Share, ThatComesToASuspendedChunkGetsOneOfItsOwn) {
  const auto pool = std::make_shared<Pool>(machine(), 0, 1 << 16);
  Share sleeps(pool), comes(pool);
  const Span first = sleeps.allocate(std::vector<size_t>{500}).take()[0];
  ASSERT_TRUE(sleeps.suspend().is_ok());
  const Span second = comes.allocate(std::vector<size_t>{500}).take()[0];
  EXPECT_NE(second.chunk, first.chunk);
  std::memset(second.data(), 8, 500);
  ASSERT_TRUE(sleeps.resume().is_ok());
  EXPECT_EQ(second.data()[499], std::byte{8});
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

// The descriptor that it holds is of the memory that it has now.
TEST(Chunk, HoldsADescriptorOfItsMemory) {
  const auto pool = std::make_shared<Pool>(machine(), 0, 1 << 16);
  Share share(pool);
  const Span span = share.allocate(std::vector<size_t>{500}).take()[0];
  Chunk& chunk = *span.chunk;
  ASSERT_TRUE(chunk.hold_descriptor().is_ok());
  for (int round = 0; round < 2; ++round) {
    const auto seen =
        machine().import_memory(1, chunk.export_descriptor().take(), chunk.bytes()).take();
    span.data()[round] = std::byte{9};
    EXPECT_EQ(static_cast<std::byte*>(seen.data())[span.offset + static_cast<size_t>(round)],
              std::byte{9})
        << round;
    ASSERT_TRUE(share.suspend().is_ok());
    EXPECT_EQ(chunk.export_descriptor().status().code(), Code::InvalidUsage);
    ASSERT_TRUE(share.resume().is_ok());
  }
}

}  // namespace
}  // namespace niccolite::transport
