// Exports of one rank of three, whose peers are played by the test: what becomes of memory that not
// all of them map.
#include "registry/buffer_exports.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "gpu/virtual/driver_calls.h"
#include "gpu/virtual/tasks.h"
#include "gpu/virtual/virtual_memory.h"
#include "registry/buffer_imports.h"
#include "registry/buffer_messages.h"

namespace niccolite::registry {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kBytes = 1 << 20;
constexpr int kNobody = -1;

class BufferExportsTest : public testing::Test {
 protected:
  using Reach = BufferExports::Reach;
  using Message = BufferExports::Message;
  using Use = BufferExports::Use;
  using Found = std::shared_ptr<const BufferExport>;

  ~BufferExportsTest() override { exports_->close(); }

  Found find(Use use = Use::Plain) {
    return exports_->find(memory_.data(), kBytes, use, Deadline::after(seconds(30)));
  }
  /// As a program that uses its buffer again, by which alone peers are asked to map it.
  Found find_again() {
    EXPECT_EQ(find(), nullptr);
    return find();
  }
  /// The numbers of which that peer was told.
  std::vector<uint64_t> told(int peer, Message message) {
    std::lock_guard lock(mutex_);
    std::vector<uint64_t> numbers;
    for (const Told& one : told_)
      if (one.peer == peer && one.message == message) numbers.push_back(one.number);
    return numbers;
  }
  void answer(int peer, uint64_t number, bool maps) {
    const uint64_t base = maps ? reinterpret_cast<uint64_t>(memory_.data()) + 4096 : 0;
    const Status noted =
        exports_->note_mapped(peer, MapAnswer{.number = number, .base = base}.encode());
    EXPECT_TRUE(noted.is_ok()) << noted.message();
  }
  template <typename Condition>
  static bool becomes(Condition condition) {
    for (const Deadline end = Deadline::after(seconds(30)); !condition();) {
      if (end.passed()) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  struct Told {
    int peer;
    Message message;
    uint64_t number;
    Bytes bytes;
  };
  gpu::Machine& machine_ = *gpu::machine().take();
  gpu::Memory memory_ = machine_.allocate(0, kBytes, /*shareable=*/false).take();
  Registrations registrations_{machine_};
  Abort abort_;
  std::atomic<int> left_{kNobody};          // has_left()
  std::atomic<int> out_of_reach_{kNobody};  // of tell()
  std::atomic<int> marks_{0};
  std::mutex mutex_;
  std::vector<Told> told_;
  std::shared_ptr<BufferExports> exports_ = std::make_shared<BufferExports>(
      machine_,
      BufferExports::Options{
          .reach = {Reach::SameAddress, Reach::Mapping, Reach::Mapping},
          .tell =
              [this](int peer, Message message, std::span<const std::byte> bytes) {
                if (peer == out_of_reach_) return false;
                Result<uint64_t> number = MapRequest::number_in(bytes, "this rank");
                std::lock_guard lock(mutex_);
                told_.push_back({.peer = peer,
                                 .message = message,
                                 .number = number.value(),
                                 .bytes = {bytes.begin(), bytes.end()}});
                return true;
              },
          .has_left = [this](int peer) { return peer == left_; },
          .mark = [this]() -> Result<std::shared_ptr<gpu::Event>> {
            ++marks_;
            return std::make_shared<gpu::Event>(TRY(machine_.create_event(0, /*timing=*/false)));
          },
          .registrations = &registrations_,
          .most_kept = size_t{64} << 20,
          .abort = &abort_});
};

TEST_F(BufferExportsTest, DoNotWaitForAPeerThatCannotBeTold) {
  out_of_reach_ = 2;
  EXPECT_EQ(find_again(), nullptr);  // is asked for meanwhile
  // More than once where this thread is slow: rank 2, which has not left, is asked again then.
  EXPECT_TRUE(becomes([&] {
    answer(1, told(1, Message::Map).back(), true);
    return find() != nullptr;
  }));
}

// Peers map nothing that a program allocates anew for each call.
TEST_F(BufferExportsTest, AreMadeWhenMemoryIsUsedAgain) {
  EXPECT_EQ(find(), nullptr);
  EXPECT_TRUE(told(1, Message::Map).empty());
  EXPECT_EQ(find(), nullptr);
  EXPECT_EQ(told(1, Message::Map).size(), 1u);
  for (int round = 0; round < 100; ++round) {
    const gpu::Memory other = machine_.allocate(0, kBytes, /*shareable=*/false).take();
    EXPECT_EQ(exports_->find(other.data(), kBytes, Use::Plain, Deadline::after(seconds(30))),
              nullptr);
  }
  EXPECT_EQ(told(1, Message::Map).size(), 1u);
}

TEST_F(BufferExportsTest, HaveANumberWhilePeersAreAsked) {
  EXPECT_EQ(exports_->number_of(memory_.data(), kBytes), 0u);
  EXPECT_EQ(find_again(), nullptr);
  const uint64_t number = exports_->number_of(memory_.data(), kBytes);
  EXPECT_EQ(number, told(1, Message::Map).at(0));
  EXPECT_EQ(find(), nullptr);
  EXPECT_EQ(exports_->number_of(memory_.data(), kBytes), number);
  EXPECT_EQ(exports_->number_of(&left_, sizeof left_), 0u);  // memory of the host
}

TEST_F(BufferExportsTest, DoNotWaitForAPeerThatLeavesBeforeItAnswers) {
  EXPECT_EQ(find_again(), nullptr);
  const uint64_t number = told(1, Message::Map).at(0);
  answer(1, number, true);
  EXPECT_EQ(find(), nullptr);
  left_ = 2;
  exports_->sweep();
  const Found found = find();
  ASSERT_NE(found, nullptr);
  const uint64_t* const shifts = found->shifts();
  answer(2, number, true);  // was on its way
  EXPECT_EQ(found->shifts(), shifts);
}

TEST_F(BufferExportsTest, OfRegisteredMemoryDoNotWaitForAPeerThatHasLeft) {
  EXPECT_EQ(find_again(), nullptr);
  answer(1, told(1, Message::Map).at(0), true);
  left_ = 2;
  ASSERT_TRUE(registrations_.add(memory_.data(), kBytes).is_ok());
  EXPECT_NE(find(), nullptr);
}

TEST_F(BufferExportsTest, AreNotToBeHadWhereNobodyCanBeTold) {
  out_of_reach_ = 1;
  left_ = 2;
  ASSERT_TRUE(registrations_.add(memory_.data(), kBytes).is_ok());
  EXPECT_EQ(find_again(), nullptr);
  EXPECT_TRUE(becomes([&] {  // not awaited any more, and after a while asked for anew
    find();
    return told(2, Message::Map).size() > 1;
  }));
}

// Of several peers one could not map the memory: it is asked again, and the others' mapping is used
// meanwhile, and by who holds it for longer.
TEST_F(BufferExportsTest, AreAskedForAgainWhereOneOfSeveralPeersCouldNotMapThem) {
  EXPECT_EQ(find_again(), nullptr);
  uint64_t number = 0;
  Found held;
  ASSERT_TRUE(becomes([&] {  // at once, unless this thread is slow
    number = told(2, Message::Map).back();
    answer(1, number, true);
    answer(2, number, false);
    held = find();
    return held != nullptr;
  }));
  EXPECT_TRUE(held->is_mapped_by(1));
  EXPECT_FALSE(held->is_mapped_by(2));
  EXPECT_FALSE(held->is_mapped_by_all());

  ASSERT_TRUE(becomes([&] {
    find();
    return told(2, Message::Map).back() != number;
  }));
  const uint64_t again = told(2, Message::Map).back();
  for (const int peer : {1, 2}) answer(peer, again, true);
  const Found found = find();
  ASSERT_NE(found, nullptr);
  EXPECT_NE(found->shifts(), held->shifts());
  EXPECT_TRUE(found->is_mapped_by_all());
  exports_->sweep();
  const auto is_ended = [&] {
    const std::vector<uint64_t> ended = told(1, Message::Unmap);
    return std::ranges::find(ended, number) != ended.end();
  };
  EXPECT_FALSE(is_ended());
  held.reset();
  EXPECT_TRUE(becomes(is_ended));
}

// What some have mapped is to be had at once when it is registered anew.
TEST_F(BufferExportsTest, ThatSomePeersMappedAreAskedForWhereTheyEndedBefore) {
  Result<Registrations::Handle> handle = registrations_.add(memory_.data(), kBytes);
  ASSERT_TRUE(handle.is_ok());
  std::thread peers([&] {
    for (size_t round = 0; round < 2; ++round) {
      ASSERT_TRUE(becomes([&] { return told(2, Message::Map).size() > round; }));
      answer(1, told(1, Message::Map)[round], true);
      answer(2, told(2, Message::Map)[round], false);
    }
  });
  EXPECT_NE(find(), nullptr);
  ASSERT_TRUE(registrations_.remove(*handle).is_ok());
  exports_->end_unregistered();
  EXPECT_TRUE(registrations_.add(memory_.data(), kBytes).is_ok());
  EXPECT_NE(find(), nullptr);
  peers.join();
}

TEST_F(BufferExportsTest, AreNotAskedForAgainWhereTheOneThatCouldNotMapThemHasLeft) {
  EXPECT_EQ(find_again(), nullptr);
  const uint64_t number = told(2, Message::Map).at(0);
  left_ = 2;
  answer(1, number, true);
  exports_->sweep();
  const Found found = find();
  ASSERT_NE(found, nullptr);
  EXPECT_FALSE(found->is_mapped_by(2));
  EXPECT_TRUE(found->is_mapped_by_all());
}

/// Mappings side by side, as an allocator makes them for a segment that grows.
class MappedExportsTest : public BufferExportsTest {
 protected:
  static constexpr size_t kPiece = gpu::virtual_::kAllocationGranularity;
  static constexpr size_t kPieces = 3;
  gpu::virtual_::VirtualMemory& memory() {
    return static_cast<gpu::virtual_::VirtualMachine&>(machine_).driver_calls().virtual_memory();
  }
  MappedExportsTest() {
    void* base = nullptr;
    EXPECT_EQ(memory().reserve(kPieces * kPiece, kPiece, nullptr, &base), Error::None);
    base_ = static_cast<std::byte*>(base);
    for (size_t piece = 0; piece < kPieces; ++piece) map(piece);
  }
  ~MappedExportsTest() override {
    for (size_t piece = 0; piece < kPieces; ++piece) (void)memory().unmap(at(piece), kPiece);
    (void)memory().free_reservation(base_, kPieces * kPiece);
  }
  using Error = gpu::virtual_::Error;
  std::byte* at(size_t piece) { return base_ + piece * kPiece; }
  void map(size_t piece) {
    gpu::virtual_::AllocationHandle handle = 0;
    ASSERT_EQ(memory().create({.device = 0, .is_exportable = true}, kPiece, &handle), Error::None);
    ASSERT_EQ(memory().map(at(piece), kPiece, 0, handle), Error::None);
    ASSERT_EQ(memory().set_access(at(piece), kPiece, {{0, gpu::virtual_::Access::ReadWrite}}),
              Error::None);
    ASSERT_EQ(memory().release(handle), Error::None);
  }
  /// A buffer that lies in two pieces, from the middle of `piece` on.
  Found find_across(size_t piece) {
    return exports_->find(at(piece) + kPiece / 2, kPiece, Use::Plain, Deadline::after(seconds(30)));
  }
  /// The same, once all peers have mapped it.
  Found share_across(size_t piece) {
    EXPECT_EQ(find_across(piece), nullptr);
    EXPECT_EQ(find_across(piece), nullptr);
    const uint64_t number = told(1, Message::Map).back();
    for (const int peer : {1, 2}) answer(peer, number, true);
    return find_across(piece);
  }
  std::byte* base_ = nullptr;
};

// Tensors of a segment share pieces, and are used in turn.
TEST_F(MappedExportsTest, MayOverlap) {
  const Found first = share_across(0);
  const Found second = share_across(1);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  for (int round = 0; round < 10; ++round) {
    EXPECT_EQ(find_across(0), first);
    EXPECT_EQ(find_across(1), second);
  }
  EXPECT_EQ(told(1, Message::Map).size(), 2u);
}

// A new tensor may begin in a piece that an older tensor has left: peers do not map it yet.
TEST_F(MappedExportsTest, WaitUntilEachPieceIsUsedAgain) {
  EXPECT_EQ(find_across(0), nullptr);
  EXPECT_EQ(find_across(1), nullptr);
  EXPECT_TRUE(told(1, Message::Map).empty());
  EXPECT_EQ(find_across(1), nullptr);
  EXPECT_EQ(told(1, Message::Map).size(), 1u);
}

// A granule is removed while operations use the granules before it.
TEST_F(MappedExportsTest, WaitForOperationsWhereAPieceIsGone) {
  const Found kept = share_across(0);
  share_across(1);
  ASSERT_EQ(memory().unmap(at(2), kPiece), Error::None);
  EXPECT_EQ(find_across(0), kept);
  EXPECT_TRUE(becomes([&] { return told(1, Message::Unmap).size() == 1; }));
  EXPECT_EQ(marks_, 1);

  map(2);  // other memory at the same addresses
  EXPECT_NE(share_across(1), nullptr);
  EXPECT_EQ(told(1, Message::Map).size(), 3u);
}

TEST_F(MappedExportsTest, DoNotWaitWhereAllPiecesAreGone) {
  share_across(0);
  for (const size_t piece : {0, 1}) ASSERT_EQ(memory().unmap(at(piece), kPiece), Error::None);
  EXPECT_TRUE(becomes([&] { return told(1, Message::Unmap).size() == 1; }));
  EXPECT_EQ(marks_, 0);
}

/// Memory of pools, whose requests an importing rank really maps.
class PooledExportsTest : public BufferExportsTest {
 protected:
  static gpu::virtual_::DriverCalls& calls() {
    return static_cast<gpu::virtual_::VirtualMachine&>(*gpu::machine().take()).driver_calls();
  }
  static std::shared_ptr<const gpu::virtual_::MemoryPool> pool(bool is_exportable) {
    return std::make_shared<const gpu::virtual_::MemoryPool>(
        gpu::virtual_::MemoryPool{.device = 0, .is_exportable = is_exportable});
  }
  static std::byte* allocate(const std::shared_ptr<const gpu::virtual_::MemoryPool>& from) {
    void* memory = nullptr;
    EXPECT_EQ(calls().allocate_in_order(0, nullptr, from, kBytes, &memory),
              gpu::virtual_::Error::None);
    return static_cast<std::byte*>(memory);
  }
  void free(std::byte* memory) {
    EXPECT_EQ(calls().free_in_order(0, nullptr, memory), gpu::virtual_::Error::None);
    EXPECT_TRUE(machine_.synchronize_stream(0, nullptr).is_ok());
  }
  /// The request that peers get when this memory is used again, if they get one.
  std::optional<MapRequest> request_for(const std::byte* memory) {
    const size_t before = requests().size();
    for (int use = 0; use < 2; ++use)
      EXPECT_EQ(exports_->find(memory, kBytes, Use::Plain, Deadline::after(seconds(30))), nullptr);
    const std::vector<Bytes> after = requests();
    if (after.size() == before) return std::nullopt;
    return MapRequest::decode(after.back(), "this rank").take();
  }
  /// Told to one peer.
  std::vector<Bytes> requests() {
    std::lock_guard lock(mutex_);
    std::vector<Bytes> found;
    for (const Told& one : told_)
      if (one.peer == 1 && one.message == Message::Map) found.push_back(one.bytes);
    return found;
  }
};

TEST_F(PooledExportsTest, NameTheirPoolWhichIsImportedOnce) {
  const auto exportable = pool(true);
  std::byte* const first = allocate(exportable);
  std::byte* const second = allocate(exportable);
  const std::optional<MapRequest> of_first = request_for(first);
  const std::optional<MapRequest> of_second = request_for(second);
  ASSERT_TRUE(of_first && of_second);
  ASSERT_TRUE(of_first->pool);
  EXPECT_EQ(of_first->pool, of_second->pool);

  *second = std::byte{7};
  std::vector<MapAnswer> answers;
  BufferImports imports(machine_, machine_, 0,
                        [&](int /*peer*/, const MapAnswer& answer) { answers.push_back(answer); });
  for (const MapRequest& request : {*of_first, *of_second}) {
    const Status mapped = imports.map(1, request.encode());
    ASSERT_TRUE(mapped.is_ok()) << mapped.message();
    ASSERT_NE(answers.back().base, 0u);
  }
  EXPECT_EQ(*reinterpret_cast<std::byte*>(answers.back().base), std::byte{7});
  free(first);
  free(second);
}

// Another pool may have the identity of one that was destroyed.
TEST_F(PooledExportsTest, NameAnotherPoolOnceAllMemoryIsFreed) {
  const auto exportable = pool(true);
  std::byte* memory = allocate(exportable);
  const std::optional<MapRequest> before = request_for(memory);
  free(memory);
  memory = allocate(exportable);
  const std::optional<MapRequest> after = request_for(memory);
  ASSERT_TRUE(before && after);
  EXPECT_NE(before->pool, after->pool);
  free(memory);
}

TEST_F(PooledExportsTest, LeaveMemoryThatItsPoolDoesNotExport) {
  std::byte* const memory = allocate(pool(false));
  EXPECT_FALSE(request_for(memory));
  free(memory);
}

TEST(BufferImports, AnswerARequestOfWhichTheyUnderstandTheNumberAlone) {
  std::vector<MapAnswer> answers;
  gpu::Machine& machine = *gpu::machine().take();
  BufferImports imports(machine, machine, 0,
                        [&](int /*peer*/, const MapAnswer& answer) { answers.push_back(answer); });
  MapRequest request{
      .number = 8, .bytes = kBytes, .name = {}, .pool = {}, .address = "@", .pieces = {}};
  request.pieces.push_back({.token = {}, .bytes = kBytes + 1});
  ASSERT_TRUE(imports.map(1, request.encode()).is_ok());
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers.front().number, 8u);
  EXPECT_EQ(answers.front().base, 0u);
  EXPECT_FALSE(imports.map(1, {}).is_ok());
  imports.close();
  EXPECT_TRUE(imports.map(1, request.encode()).is_ok());
  EXPECT_EQ(answers.size(), 1u);
}

}  // namespace
}  // namespace niccolite::registry
