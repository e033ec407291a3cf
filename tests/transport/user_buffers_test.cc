// Buffers of users that the network's device reads and writes itself: which it knows, and for how
// long; and the ends of connections that offer places there. The network is played by the test.
#include "transport/net/user_buffers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "executor/protocol/call_tag.h"
#include "executor/protocol/relay.h"
#include "gpu/virtual/driver.h"
#include "transport/net/incoming.h"
#include "transport/net/outgoing.h"
#include "wire/event_loop.h"

namespace niccolite::transport::net {
namespace {

using executor::FifoShape;
using executor::Protocol;

namespace relay = executor::relay;
namespace tag = executor::call_tag;

gpu::Machine& machine() { return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion); }

/// Memory that the network knows, as long as it does.
class Known final : public DirectMemory {
 public:
  Known(void* data, size_t bytes, int& count) : count_(count) {
    data_ = static_cast<std::byte*>(data);
    bytes_ = bytes;
    ++count_;
  }
  ~Known() override { --count_; }

 private:
  int& count_;
};

class Registry final : public Network {
 public:
  Result<std::shared_ptr<DirectMemory>> register_direct(void* data, size_t bytes,
                                                        bool is_send) override {
    ++asked;
    if (refuses) return Status::system_error("too much");
    return std::shared_ptr<DirectMemory>(
        std::make_shared<Known>(data, bytes, is_send ? sends : receives));
  }
  Result<void*> listen(Handle&, const std::string&) override { return none(); }
  Result<void*> connect(void*, Handle&) override { return none(); }
  Result<void*> accept(void*) override { return none(); }
  Result<void*> register_memory(void*, void*, size_t) override { return none(); }
  void deregister_memory(void*, void*) override {}
  Result<void*> send(void*, void*, size_t, int, void*, void*) override { return none(); }
  Result<void*> receive(void*, void*, size_t, int, void*) override { return none(); }
  Result<bool> test(void*) override { return false; }
  void close_send(void*) override {}
  void close_receive(void*) override {}
  void close_listener(void*) override {}

  int sends = 0;     // memory that it knows
  int receives = 0;  // the same
  int asked = 0;
  bool refuses = false;

 private:
  static Result<void*> none() { return static_cast<void*>(nullptr); }
};

constexpr size_t kBytes = 64 << 10;

class UserBuffersTest : public testing::Test {
 protected:
  std::byte* at(size_t offset) const { return static_cast<std::byte*>(memory.data()) + offset; }
  void add(size_t offset, size_t bytes) {
    registered.insert({at(offset), bytes});
    buffers.add(at(offset), bytes);
  }
  void remove(size_t offset, size_t bytes) {
    registered.erase({at(offset), bytes});
    buffers.remove_ended();
  }

  gpu::Memory memory = machine().allocate(0, kBytes, /*shareable=*/true).take();
  std::set<std::pair<const void*, size_t>> registered;
  std::shared_ptr<Registry> network = std::make_shared<Registry>();
  UserBuffers buffers{{.network = network,
                       .allocations = machine(),
                       .is_registered = [this](const void* begin, size_t bytes) {
                         return registered.contains({begin, bytes});
                       }}};
};

TEST_F(UserBuffersTest, AreKnownFromTheFirstUseOfEachDirectionOn) {
  EXPECT_FALSE(buffers.has_any());
  add(4096, 8192);
  EXPECT_TRUE(buffers.has_any());
  EXPECT_TRUE(buffers.reaches(at(4096), 8192, /*is_send=*/true));
  EXPECT_EQ(network->asked, 0);
  const auto known = buffers.find(at(5000), 100, /*is_send=*/true);
  ASSERT_NE(known, nullptr);
  EXPECT_EQ(known->data(), at(4096));
  EXPECT_EQ(known->bytes(), 8192u);
  EXPECT_EQ(buffers.find(at(4096), 8192, /*is_send=*/true), known);
  EXPECT_EQ(network->sends, 1);
  EXPECT_EQ(network->receives, 0);  // whose key a peer would get
  EXPECT_NE(buffers.find(at(4096), 1, /*is_send=*/false), known);
  EXPECT_EQ(network->receives, 1);
  EXPECT_EQ(network->asked, 2);
}

TEST_F(UserBuffersTest, ReachNothingElse) {
  add(4096, 8192);
  for (const auto& [offset, bytes] : std::vector<std::pair<size_t, size_t>>{
           {4095, 1}, {4095, 100}, {4096, 8193}, {12'287, 2}, {12'288, 1}}) {
    EXPECT_FALSE(buffers.reaches(at(offset), bytes, /*is_send=*/true)) << offset;
    EXPECT_EQ(buffers.find(at(offset), bytes, /*is_send=*/false), nullptr) << offset;
  }
  EXPECT_FALSE(buffers.reaches(at(5000), UINT64_MAX, /*is_send=*/true));
  EXPECT_EQ(network->asked, 0);
}

TEST_F(UserBuffersTest, AreForgottenWhenTheirRegistrationEndsAndNothingIsOnItsWay) {
  add(0, 4096);
  add(0, 8192);
  auto on_its_way = buffers.find(at(0), 8192, /*is_send=*/true);
  EXPECT_NE(buffers.find(at(0), 100, /*is_send=*/false), nullptr);
  remove(0, 8192);
  EXPECT_EQ(network->sends, 1);
  on_its_way.reset();
  EXPECT_EQ(network->sends, 0);
  EXPECT_TRUE(buffers.reaches(at(0), 4096, /*is_send=*/true));
  EXPECT_FALSE(buffers.reaches(at(0), 8192, /*is_send=*/true));
  remove(0, 4096);
  EXPECT_FALSE(buffers.has_any());
  EXPECT_EQ(network->sends + network->receives, 0);
}

TEST_F(UserBuffersTest, AreNotTakenForMemoryThatCameLater) {
  std::byte* const before = at(0);
  add(0, kBytes);
  EXPECT_NE(buffers.find(at(0), kBytes, /*is_send=*/true), nullptr);
  memory.reset();
  EXPECT_FALSE(buffers.reaches(before, 100, /*is_send=*/true));
  for (int i = 0; i < 8; ++i) {  // until one has the addresses
    memory = machine().allocate(0, kBytes, /*shareable=*/true).take();
    if (at(0) == before) break;
  }
  EXPECT_FALSE(buffers.reaches(before, 100, /*is_send=*/true));
  EXPECT_EQ(buffers.find(before, 100, /*is_send=*/true), nullptr);
  buffers.remove_ended();
  EXPECT_EQ(network->sends, 0);
}

TEST_F(UserBuffersTest, ThatAreRefusedAreNotAskedForAgain) {
  add(0, 4096);
  network->refuses = true;
  EXPECT_EQ(buffers.find(at(0), 100, /*is_send=*/true), nullptr);
  EXPECT_EQ(buffers.find(at(0), 100, /*is_send=*/true), nullptr);
  EXPECT_EQ(network->asked, 1);
  EXPECT_FALSE(buffers.reaches(at(0), 100, /*is_send=*/true));
  EXPECT_TRUE(buffers.reaches(at(0), 100, /*is_send=*/false));
}

// Real GPUs are used in this way, since a proxy must not call their driver.
class AheadOfKernels : public UserBuffersTest {
 protected:
  void add(size_t offset, size_t bytes) {
    registered.insert({at(offset), bytes});
    ahead.add(at(offset), bytes);
  }
  UserBuffers ahead{{.network = network,
                     .allocations = machine(),
                     .is_registered =
                         [this](const void* begin, size_t bytes) {
                           return registered.contains({begin, bytes});
                         },
                     .registers_ahead = true}};
};

TEST_F(AheadOfKernels, BuffersAreRegisteredWhenAKernelIsQueued) {
  add(4096, 8192);
  EXPECT_EQ(ahead.find(at(4096), 8192, /*is_send=*/true), nullptr);
  EXPECT_EQ(network->asked, 0);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(ahead.reaches(at(5000), 100, /*is_send=*/true));
  EXPECT_EQ(network->asked, 1);
  EXPECT_NE(ahead.find(at(4096), 8192, /*is_send=*/true), nullptr);
  EXPECT_EQ(ahead.find(at(4096), 8192, /*is_send=*/false), nullptr);
  EXPECT_FALSE(ahead.reaches(at(4000), 100, /*is_send=*/true));
  registered.clear();
  ahead.remove_ended();
  EXPECT_EQ(network->sends, 0);
  EXPECT_FALSE(ahead.has_any());
}

TEST_F(AheadOfKernels, BuffersThatAreRefusedAreNotAskedForAgain) {
  add(0, 4096);
  network->refuses = true;
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(ahead.reaches(at(0), 100, /*is_send=*/true));
  EXPECT_EQ(network->asked, 1);
  EXPECT_EQ(ahead.find(at(0), 100, /*is_send=*/true), nullptr);
}

// Two registrations have the same addresses. The memory of one was freed, and is not used.
TEST_F(AheadOfKernels, MemoryThatWasFreedIsNotUsedAnyMore) {
  const std::byte* const before = at(0);
  add(0, kBytes);
  EXPECT_TRUE(ahead.reaches(at(0), kBytes, /*is_send=*/true));
  const auto old = ahead.find(at(0), 100, /*is_send=*/true);
  memory.reset();
  for (int i = 0; i < 8; ++i) {  // until one has the addresses
    memory = machine().allocate(0, kBytes, /*shareable=*/true).take();
    if (at(0) == before) break;
  }
  EXPECT_FALSE(ahead.reaches(before, 100, /*is_send=*/true));
  EXPECT_EQ(ahead.find(before, 100, /*is_send=*/true), nullptr);
  if (at(0) != before) return;
  add(0, kBytes);
  EXPECT_TRUE(ahead.reaches(at(0), 100, /*is_send=*/true));
  EXPECT_NE(ahead.find(at(0), 100, /*is_send=*/true), old);
}

// ---- ends

constexpr Key kKey{.tag = 3, .protocol = Protocol::Simple};
constexpr FifoShape kShape{.channels = 1, .depth = 4, .slot_bytes = 4096};

class Slots final : public DirectMemory {
 public:
  Slots() : own_(machine().allocate(0, kShape.slots_bytes(), /*shareable=*/true).take()) {
    data_ = static_cast<std::byte*>(own_.data());
    bytes_ = kShape.slots_bytes();
  }
  Status store(std::byte* to, const void* from, size_t bytes) const override {
    ++copies;
    return DirectMemory::store(to, from, bytes);
  }
  Status load(void* to, const std::byte* from, size_t bytes) const override {
    ++copies;
    return DirectMemory::load(to, from, bytes);
  }

  static inline int copies = 0;  // that a GPU would make

 private:
  gpu::Memory own_;
};

class EndsOfUserBuffers : public UserBuffersTest {
 protected:
  EndsOfUserBuffers() { add(0, kBytes); }
  EndShare share(bool is_send) {
    return EndShare(
        EndMemory::allocate(machine(), kShape, is_send, std::make_shared<Slots>()).take());
  }
  UserMemoryOptions options() { return {.loop = loop.get(), .buffers = &buffers}; }

  const std::unique_ptr<wire::EventLoop> loop = wire::EventLoop::create().take();
  relay::Bell bell{[](void*, uint64_t) {}, nullptr};
};

class ReceivingEnd : public EndsOfUserBuffers {
 protected:
  ReceivingEnd() {
    end.collect(Incoming::Credit::All, [](const Frame&) {});
  }
  // As a kernel does.
  void place(uint64_t step, size_t offset, uint32_t bytes, uint16_t call) {
    relay::Place& place = end.places()[step % kShape.depth];
    place.note = relay::note_of(bytes, call);
    std::atomic_ref(place.address).store(reinterpret_cast<uint64_t>(at(offset)));
  }
  std::vector<Frame> offers(bool writes_directly = true) {
    std::vector<Frame> frames;
    end.collect_offers(writes_directly, [&](const Frame& frame) { frames.push_back(frame); });
    return frames;
  }
  static Frame part(uint64_t step, uint32_t bytes, uint16_t call, uint16_t flags) {
    return {.kind = FrameKind::Part,
            .tag = 3,
            .step = step,
            .bytes = bytes,
            .length = bytes,
            .call = call,
            .flags = flags};
  }
  bool has_landed(uint64_t step) { return end.places()[step % kShape.depth].is_landed != 0; }

  Incoming end{kKey, share(/*is_send=*/false), bell, options()};
};

TEST_F(ReceivingEnd, OffersPlacesAndTakesChunksThere) {
  place(1, 1000, 500, 7);
  EXPECT_TRUE(offers(/*writes_directly=*/false).empty());
  const std::vector<Frame> made = offers();
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0].kind, FrameKind::Place);
  EXPECT_EQ(made[0].step, 1u);
  EXPECT_EQ(made[0].bytes, 500u);
  EXPECT_EQ(made[0].call, 7);
  ASSERT_NE(end.place_offered(made[0]), nullptr);
  EXPECT_EQ(end.place_offered(made[0])->address, at(1000));
  EXPECT_TRUE(offers().empty());
  const Frame came = part(1, 500, 7, kIsThere | kInPlace);
  ASSERT_TRUE(end.accept(came).is_ok());
  end.arrived(came);
  EXPECT_TRUE(has_landed(1));
  const Frame first = part(0, 20, 7, kIsThere);
  ASSERT_TRUE(end.accept(first).is_ok());
  end.arrived(first);
  EXPECT_FALSE(has_landed(0));
  EXPECT_EQ(tag::steps_in(end.port().control[0].remote, 0), 2u);
  EXPECT_EQ(end.place_offered(made[0]), nullptr);  // it is over
  EXPECT_TRUE(end.let_go(0));
}

TEST_F(ReceivingEnd, RefusesWhatSaysToBeInAPlaceAndIsNot) {
  EXPECT_FALSE(end.accept(part(0, 500, 7, kIsThere | kInPlace)).is_ok());
  place(0, 1000, 500, 7);
  EXPECT_FALSE(end.accept(part(0, 500, 7, kIsThere | kInPlace)).is_ok());  // not offered yet
  ASSERT_EQ(offers().size(), 1u);
  EXPECT_FALSE(end.accept(part(0, 499, 7, kIsThere | kInPlace)).is_ok());
  EXPECT_FALSE(end.accept(part(0, 500, 8, kIsThere | kInPlace)).is_ok());
  EXPECT_FALSE(end.accept(part(1, 500, 7, kIsThere | kInPlace)).is_ok());
  Frame half = part(0, 500, 7, kIsThere | kInPlace);
  half.length = 250;
  ASSERT_TRUE(end.accept(half).is_ok());
  end.arrived(half);
  half.offset = 250;
  half.flags = kIsThere;  // the other half in the slot
  EXPECT_FALSE(end.accept(half).is_ok());
}

// A chunk that was on its way before the offer came.
TEST_F(ReceivingEnd, FindsAChunkInItsSlotWhateverItHasOffered) {
  place(0, 1000, 500, 7);
  ASSERT_EQ(offers().size(), 1u);
  place(1, 2000, 500, 7);  // and not offered
  for (const uint64_t step : {0, 1}) {
    const Frame came = part(step, 500, 7, kIsThere);
    ASSERT_TRUE(end.accept(came).is_ok());
    EXPECT_EQ(end.place_of(came), end.port().slots + kShape.slot_offset(0, step));
    end.arrived(came);
    EXPECT_FALSE(has_landed(step));
  }
  EXPECT_TRUE(end.let_go(0));
}

TEST_F(ReceivingEnd, OffersNothingThatIsNotRegistered) {
  remove(0, kBytes);
  place(0, 1000, 500, 7);
  EXPECT_TRUE(offers().empty());
  EXPECT_TRUE(end.let_go(0));
}

TEST_F(ReceivingEnd, LetsGoWhenItsPlacesAreWithdrawn) {
  int hurries = 0;
  end.when_leaving([&](std::chrono::steady_clock::time_point) { ++hurries; });
  place(0, 1000, 500, 7);
  place(1, 2000, 500, 7);
  ASSERT_EQ(offers().size(), 2u);
  place(2, 3000, 500, 7);  // not offered yet
  end.withdrawn(0);        // nobody has asked for it
  EXPECT_FALSE(end.let_go(0));
  EXPECT_EQ(hurries, 1);
  const std::vector<Frame> asked = offers();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].kind, FrameKind::Withdraw);
  EXPECT_FALSE(end.let_go(0));
  EXPECT_TRUE(offers().empty());
  // The chunks on their way come first.
  const Frame came = part(0, 500, 7, kIsThere | kInPlace);
  ASSERT_TRUE(end.accept(came).is_ok());
  end.arrived(came);
  EXPECT_FALSE(end.let_go(0));
  end.withdrawn(0);
  EXPECT_TRUE(end.let_go(0));
  EXPECT_FALSE(end.accept(part(1, 500, 7, kIsThere | kInPlace)).is_ok());
  EXPECT_EQ(network->receives, 1);  // its registration goes on
}

TEST_F(ReceivingEnd, LetsGoWhenThePeerHasEndedOrIsCutOff) {
  place(0, 1000, 500, 7);
  ASSERT_EQ(offers().size(), 1u);
  EXPECT_FALSE(end.let_go(0));
  end.peer_has_ended();
  EXPECT_TRUE(end.let_go(0));
  Incoming other{kKey, share(/*is_send=*/false), bell, options()};
  other.collect(Incoming::Credit::All, [](const Frame&) {});
  other.places()[0] = {.address = reinterpret_cast<uint64_t>(at(0)), .note = relay::note_of(9, 1)};
  other.collect_offers(/*writes_directly=*/true, [](const Frame&) {});
  EXPECT_FALSE(other.let_go(0));
  other.cut();
  EXPECT_TRUE(other.let_go(0));
}

// As a kernel of a GPU does, which cannot call.
void ask_to_let_go(const ProxyEnd& end, const executor::PortAddress& port, uint64_t step) {
  EXPECT_NE(end.places(), nullptr);
  std::atomic_ref(port.remote_control[0].detached).store(step, std::memory_order_release);
}
uint64_t answer(const executor::PortAddress& port) {
  return std::atomic_ref(port.control[0].detached).load(std::memory_order_acquire);
}

TEST_F(ReceivingEnd, LetsGoForKernelsThatAsk) {
  place(0, 1000, 500, 7);
  ASSERT_EQ(offers().size(), 1u);
  end.let_go_for_kernels();
  EXPECT_EQ(answer(end.port()), 0u);
  ask_to_let_go(end, end.port(), 5);
  end.let_go_for_kernels();
  EXPECT_EQ(answer(end.port()), 0u);
  ASSERT_EQ(offers().size(), 1u);  // is withdrawn
  end.withdrawn(0);
  end.let_go_for_kernels();
  EXPECT_EQ(answer(end.port()), 5u);
  EXPECT_EQ(end.places()[0].address, 0u);
}

class SendingEnd : public EndsOfUserBuffers {
 protected:
  SendingEnd() { end.grant(0, kShape.depth); }
  // As a kernel does.
  void publish(uint32_t bytes, uint16_t call, std::optional<size_t> offset) {
    uint64_t note = relay::note_of(bytes, call);
    if (offset) {
      note |= relay::kInUserMemory;
      end.places()[step % kShape.depth].address = reinterpret_cast<uint64_t>(at(*offset));
    }
    end.port().notes[step % kShape.depth] = note;
    ++step;
    std::atomic_ref(end.port().remote_control[0].remote)
        .store(tag::tail(step, call), std::memory_order_release);
  }
  std::vector<Part> collect() {
    std::vector<Part> parts;
    end.collect({.bytes = UINT32_MAX}, [&](const Part& part) { parts.push_back(part); });
    return parts;
  }
  static Frame offered(uint64_t step, uint32_t bytes, uint16_t call) {
    return {.kind = FrameKind::Place, .tag = 3, .step = step, .bytes = bytes, .call = call};
  }

  Outgoing end{kKey, share(/*is_send=*/true), bell, options()};
  uint64_t step = 0;
};

TEST_F(SendingEnd, ReadsChunksWhereTheyAre) {
  publish(500, 1, 1000);
  publish(500, 1, std::nullopt);
  const std::vector<Part> parts = collect();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].payload(), at(1000));
  ASSERT_NE(end.memory_of(parts[0].frame), nullptr);
  EXPECT_EQ(end.memory_of(parts[0].frame)->data(), at(0));
  EXPECT_TRUE(end.is_of_user(parts[0].frame));
  EXPECT_EQ(end.memory_of(parts[1].frame), end.direct());
  EXPECT_FALSE(end.is_of_user(parts[1].frame));
  EXPECT_EQ(network->sends, 1);
  remove(0, kBytes);
  EXPECT_EQ(network->sends, 1);  // as long as the chunk may have to be sent again
  end.sent(parts[0].frame);
  EXPECT_EQ(network->sends, 0);
}

TEST_F(SendingEnd, WritesToThePlaceThatWasOfferedForTheChunk) {
  const Offer place{.memory = {std::byte{1}}, .offset = 40};
  end.offer(offered(0, 500, 1), place);
  end.offer(offered(1, 500, 1), place);
  end.offer(offered(2, 500, 1), place);
  for (const uint32_t bytes : {500, 400, 500}) publish(bytes, 1, 1000);
  const std::vector<Part> parts = collect();
  ASSERT_EQ(parts.size(), 3u);
  ASSERT_NE(end.offer_for(parts[0].frame), nullptr);
  EXPECT_EQ(end.offer_for(parts[0].frame)->offset, 40u);
  EXPECT_EQ(end.offer_for(parts[1].frame), nullptr);  // of another length
  EXPECT_NE(end.offer_for(parts[2].frame), nullptr);
  end.offer(offered(1, 400, 1), place);  // too late
  EXPECT_EQ(end.offer_for(parts[1].frame), nullptr);
  end.offer(offered(3, 500, 1), place);
  end.forget_offers(0);
  publish(500, 1, 1000);
  EXPECT_EQ(end.offer_for(collect().at(0).frame), nullptr);
  // Nonsense of a peer.
  end.offer({.kind = FrameKind::Place, .channel = 9}, place);
  end.offer(offered(UINT64_MAX, 500, 1), place);
  end.forget_offers(9);
}

// The registration ended after the kernel was queued, as in a graph.
TEST_F(SendingEnd, HasTheGpuCopyWhatTheNetworkDoesNotKnow) {
  remove(0, kBytes);
  publish(500, 1, 1000);
  const std::vector<Part> parts = collect();
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(end.memory_of(parts[0].frame), nullptr);
  std::vector<std::byte> copy(500);
  const int before = Slots::copies;
  ASSERT_TRUE(end.load(parts[0].frame, copy.data()).is_ok());
  EXPECT_EQ(Slots::copies, before + 1);
  EXPECT_EQ(std::memcmp(copy.data(), at(1000), 500), 0);
}

TEST_F(SendingEnd, LetsGoForKernelsThatAskOrOfWhomNobodyTakesMore) {
  for (const bool is_abandoned : {false, true}) {
    Outgoing own{kKey, share(/*is_send=*/true), bell, options()};
    own.grant(0, kShape.depth);
    own.places()[0].address = reinterpret_cast<uint64_t>(at(1000));
    own.port().notes[0] = relay::note_of(500, 1) | relay::kInUserMemory;
    std::atomic_ref(own.port().remote_control[0].remote)
        .store(tag::tail(1, 1), std::memory_order_release);
    std::vector<Part> parts;
    own.collect({.bytes = UINT32_MAX}, [&](const Part& part) { parts.push_back(part); });
    ASSERT_EQ(parts.size(), 1u);
    own.reads(parts[0].frame);
    if (is_abandoned)
      own.abandon();
    else
      ask_to_let_go(own, own.port(), 1);
    const int before = Slots::copies;
    own.let_go_for_kernels();
    EXPECT_EQ(answer(own.port()), 0u);
    EXPECT_EQ(Slots::copies, before + 1);  // to the slot
    own.has_read(parts[0].frame);
    own.let_go_for_kernels();
    EXPECT_EQ(answer(own.port()), is_abandoned ? relay::kAbandoned : 1u);
    EXPECT_EQ(parts[0].payload(), own.port().slots);
  }
}

TEST_F(SendingEnd, LetsGoWhenNothingIsReadAnyMore) {
  end.when_leaving([](std::chrono::steady_clock::time_point) {});
  publish(500, 1, 1000);
  publish(500, 1, 2000);
  const std::vector<Part> parts = collect();
  ASSERT_EQ(parts.size(), 2u);
  end.reads(parts[0].frame);
  publish(500, 1, 3000);
  EXPECT_FALSE(end.let_go(0));
  // Chunks that are not on their way yet go from their slots.
  EXPECT_EQ(parts[1].payload(), end.port().slots + kShape.slot_offset(0, 1));
  EXPECT_EQ(end.memory_of(parts[1].frame), end.direct());
  EXPECT_EQ(collect().at(0).payload(), end.port().slots + kShape.slot_offset(0, 2));
  EXPECT_FALSE(end.let_go(0));
  end.has_read(parts[0].frame);
  EXPECT_TRUE(end.let_go(0));
}

}  // namespace
}  // namespace niccolite::transport::net
