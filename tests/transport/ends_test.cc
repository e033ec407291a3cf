// Ends of connections to other machines, each alone: the proxy's part played by the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "executor/protocol/call_tag.h"
#include "gpu/virtual/driver.h"
#include "transport/net/incoming.h"
#include "transport/net/outgoing.h"

namespace niccolite::transport::net {
namespace {

using executor::FifoShape;
using executor::Protocol;

namespace relay = executor::relay;
namespace tag = executor::call_tag;

constexpr Key kKey{.tag = 3, .protocol = Protocol::Simple};
constexpr FifoShape kShape{.channels = 2, .depth = 4, .slot_bytes = 4096};

gpu::Machine& machine() { return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion); }

class OutgoingEnd : public testing::Test {
 protected:
  // As a kernel does: a chunk of so many bytes on channel 0.
  void publish(uint32_t bytes, uint16_t call) {
    end->port().notes[step % kShape.depth] = relay::note_of(bytes, call);
    ++step;
    std::atomic_ref(end->port().remote_control[0].remote)
        .store(tag::tail(step, call), std::memory_order_release);
  }
  std::vector<Frame> collect(uint32_t part_bytes = UINT32_MAX) {
    std::vector<Frame> frames;
    end->collect(part_bytes, [&](const Part& part) { frames.push_back(part.frame); });
    return frames;
  }
  uint64_t freed() const { return end->port().control[0].remote; }

  relay::Bell bell{[](void*, uint64_t) {}, nullptr};
  std::unique_ptr<Outgoing> end = Outgoing::create(machine(), kKey, kShape, bell).take();
  uint64_t step = 0;
};

TEST_F(OutgoingEnd, SendsWhatIsPublishedAndGranted) {
  publish(10, 1);
  publish(0, 2);
  EXPECT_TRUE(collect().empty());
  end->grant(0, 1);
  std::vector<Frame> frames = collect();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].bytes, 10u);
  EXPECT_EQ(frames[0].call, 1);  // though the tail is the second call's
  end->grant(0, 4);
  frames = collect();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].step, 1u);
  EXPECT_EQ(frames[0].length, 0u);
  EXPECT_EQ(frames[0].call, 2);
  EXPECT_TRUE(collect().empty());
}

// The kernel sees one end of five channels; each proxy numbers those that it has.
TEST(SharesOfAnEnd, AreItsChannelsInTurn) {
  constexpr FifoShape kFive{.channels = 5, .depth = 4, .slot_bytes = 4096};
  const auto memory = EndMemory::allocate(machine(), kFive, /*is_send=*/true).take();
  const executor::PortAddress whole = memory->port();
  EXPECT_EQ(EndShare(memory).shape(), kFive);
  std::vector<int> taken(kFive.channels);
  for (const uint32_t proxies : {1u, 2u, 4u}) {
    uint32_t channels = 0;
    for (uint32_t proxy = 0; proxy < proxies; ++proxy) {
      const EndShare share(memory, proxy, proxies);
      channels += share.shape().channels;
      for (uint32_t channel = 0; channel < share.shape().channels; ++channel) {
        const uint32_t of_end = share.channel_of_end(channel);
        EXPECT_EQ(of_end % proxies, proxy);
        EXPECT_EQ(&share.own(channel), whole.control + of_end);
        EXPECT_EQ(&share.far(channel), whole.remote_control + of_end);
        EXPECT_EQ(&share.note(channel, 3), whole.notes + of_end * kFive.depth + 3);
        EXPECT_EQ(share.slot(channel, 6), whole.slots + kFive.slot_offset(of_end, 6));
        ++taken[of_end];
      }
    }
    EXPECT_EQ(channels, kFive.channels);
  }
  EXPECT_THAT(taken, testing::Each(3));
  EXPECT_EQ(
      EndShare(EndMemory::allocate(machine(), {1, 4, 4096}, false).take(), 1, 2).shape().channels,
      0u);
}

TEST(SharesOfAnEnd, AreSentByTheirProxiesAlone) {
  const auto memory = EndMemory::allocate(machine(), kShape, /*is_send=*/true).take();
  relay::Bell bell{[](void*, uint64_t) {}, nullptr};
  Outgoing second(kKey, EndShare(memory, 1, 2), bell);
  second.grant(0, 4);
  const auto collected = [&] {
    std::vector<Frame> frames;
    second.collect(UINT32_MAX, [&](const Part& part) { frames.push_back(part.frame); });
    return frames;
  };
  const auto publish = [&](uint32_t channel, uint32_t bytes) {
    memory->port().notes[channel * kShape.depth] = relay::note_of(bytes, 1);
    std::atomic_ref(memory->port().remote_control[channel].remote)
        .store(tag::tail(1, 1), std::memory_order_release);
  };
  publish(0, 10);
  EXPECT_TRUE(collected().empty());
  publish(1, 20);
  const std::vector<Frame> frames = collected();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].channel, 0u);  // of those that it has
  EXPECT_EQ(frames[0].bytes, 20u);
  second.sent(frames[0]);
  EXPECT_EQ(memory->port().control[1].remote, 1u);
  EXPECT_EQ(memory->port().control[0].remote, 0u);
}

TEST_F(OutgoingEnd, AsksOnceForTheCreditThatItNeeds) {
  const auto asked = [&] {
    std::vector<Frame> frames;
    end->ask_for_credit([&](const Frame& frame) { frames.push_back(frame); });
    return frames;
  };
  end->grant(0, 1);
  publish(10, 1);
  collect();
  EXPECT_TRUE(asked().empty());
  publish(10, 1);
  collect();
  const std::vector<Frame> frames = asked();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].kind, FrameKind::Want);
  EXPECT_EQ(frames[0].step, 1u);
  EXPECT_TRUE(asked().empty());
  end->grant(0, 2);
  collect();
  publish(10, 1);
  EXPECT_EQ(asked().size(), 1u);
  EXPECT_TRUE(asked().empty());
  end->ask_again();  // the connection broke that carried it
  EXPECT_EQ(asked().size(), 1u);
}

TEST_F(OutgoingEnd, FreesSlotsInOrderWhenAllPartsAreSent) {
  end->grant(0, 4);
  publish(3000, 1);
  publish(100, 1);
  const std::vector<Frame> frames = collect(1024);
  ASSERT_EQ(frames.size(), 4u);
  EXPECT_EQ(frames[2].offset + frames[2].length, 3000u);
  end->sent(frames[3]);
  end->sent(frames[1]);
  end->sent(frames[0]);
  EXPECT_EQ(freed(), 0u);
  EXPECT_FALSE(end->is_flushed());
  end->sent(frames[2]);
  EXPECT_EQ(freed(), 2u);
  EXPECT_TRUE(end->is_flushed());
}

class IncomingEnd : public testing::Test {
 protected:
  IncomingEnd() { collect(); }
  std::vector<Frame> collect(bool all = false) {
    std::vector<Frame> frames;
    end->collect(all, [&](const Frame& frame) { frames.push_back(frame); });
    return frames;
  }
  void arrive(const Frame& part) {
    ASSERT_TRUE(end->accept(part).is_ok());
    end->arrived(part);
  }
  uint64_t tail() const { return end->port().control[0].remote; }
  // As a kernel does, of the first steps of channel 0, which arrive before if they have not.
  void read(uint64_t steps) {
    for (uint64_t step = tag::steps_in(tail(), 0); step < steps; ++step)
      arrive({.kind = FrameKind::Part, .step = step, .bytes = 1, .length = 1});
    std::atomic_ref(end->port().remote_control[0].remote).store(steps, std::memory_order_release);
  }

  relay::Bell bell{[](void*, uint64_t) {}, nullptr};
  std::unique_ptr<Incoming> end = Incoming::create(machine(), kKey, kShape, bell).take();
};

TEST_F(IncomingEnd, PublishesStepsInOrderWithTheirOwnCalls) {
  const Frame first{.kind = FrameKind::Part, .step = 0, .bytes = 8, .length = 8, .call = 1};
  Frame front{.kind = FrameKind::Part, .step = 1, .bytes = 8, .length = 4, .call = 2};
  Frame back = front;
  back.offset = 4;
  arrive(back);
  arrive(front);
  EXPECT_EQ(tail(), 0u);
  arrive(first);
  EXPECT_EQ(tail(), tag::tail(2, 2));
}

TEST_F(IncomingEnd, GrantsHalfAFifoThatHasBeenRead) {
  EXPECT_TRUE(collect().empty());
  read(1);
  EXPECT_TRUE(collect().empty());
  read(2);
  const std::vector<Frame> frames = collect();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].step, 2u + kShape.depth);
}

TEST_F(IncomingEnd, GrantsASlotThatIsAskedFor) {
  read(1);
  end->want(0);
  const std::vector<Frame> frames = collect();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].step, 1u + kShape.depth);
  read(2);
  EXPECT_TRUE(collect().empty());
}

TEST_F(IncomingEnd, GrantsEachSlotWhenAllIsTold) {
  read(1);
  const std::vector<Frame> frames = collect(/*all=*/true);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].step, 1u + kShape.depth);
}

TEST_F(IncomingEnd, RefusesWhatHasNoPlace) {
  const Frame good{.kind = FrameKind::Part, .step = 1, .bytes = 100, .length = 50, .call = 1};
  const auto is_refused = [&](auto change) {
    Frame bad = good;
    change(bad);
    return !end->accept(bad).is_ok();
  };
  EXPECT_TRUE(is_refused([](Frame& f) { f.channel = kShape.channels; }));
  EXPECT_TRUE(is_refused([](Frame& f) { f.step = kShape.depth; }));  // not granted
  EXPECT_TRUE(is_refused([](Frame& f) { f.bytes = kShape.slot_bytes + 1; }));
  EXPECT_TRUE(is_refused([](Frame& f) { f.length = 101; }));
  EXPECT_TRUE(is_refused([](Frame& f) { f.offset = 51; }));
  EXPECT_TRUE(is_refused([](Frame& f) { f.offset = UINT32_MAX; }));
  arrive(good);
  EXPECT_TRUE(is_refused([](Frame& f) { f.bytes = 99; }));
  EXPECT_TRUE(is_refused([](Frame& f) { f.call = 2; }));
  EXPECT_TRUE(is_refused([](Frame& f) { f.length = 51; }));  // more than is missing
  arrive({.kind = FrameKind::Part, .step = 0});
  EXPECT_TRUE(is_refused([](Frame& f) { f.step = 0; }));  // published
}

}  // namespace
}  // namespace niccolite::transport::net
