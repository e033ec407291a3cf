// Ends of connections to other machines, each alone: the proxy's part played by the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <set>
#include <vector>

#include "executor/host/ll_words.h"
#include "executor/host/port.h"
#include "executor/protocol/call_tag.h"
#include "gpu/virtual/driver.h"
#include "transport/net/incoming.h"
#include "transport/net/outgoing.h"

namespace niccolite::transport::net {
namespace {

using executor::FifoShape;
using executor::Protocol;
using executor::host::ll_clean;
using executor::host::ll_pack;
using executor::host::ll_unpack;

namespace ll = executor::ll;
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
    end->collect({.bytes = part_bytes}, [&](const Part& part) { frames.push_back(part.frame); });
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
        EXPECT_GE(&share.ll_note(channel, 0), whole.notes);
        EXPECT_LT(reinterpret_cast<std::byte*>(&share.ll_note(channel, 3)), whole.slots);
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

// However many slots there are.
TEST(SharesOfAnEnd, HavePlacesOfTheirOwnForNotes) {
  for (const uint32_t depth : {2u, 16u, 32u}) {
    const FifoShape shape{.channels = 3, .depth = depth, .slot_bytes = 256};
    const auto memory = EndMemory::allocate(machine(), shape, /*is_send=*/true).take();
    std::set<const uint64_t*> places;
    for (uint32_t channel = 0; channel < shape.channels; ++channel)
      for (uint64_t step = 0; step < depth; ++step) {
        const uint64_t* const place = &EndShare(memory).ll_note(channel, step);
        places.insert(place);
        EXPECT_GE(place, memory->port().notes);
        EXPECT_LT(reinterpret_cast<const std::byte*>(place), memory->port().slots);
        EXPECT_EQ(place, &EndShare(memory).ll_note(channel, step + depth));
      }
    EXPECT_EQ(places.size(), size_t{shape.channels} * depth);
  }
}

TEST(SharesOfAnEnd, AreSentByTheirProxiesAlone) {
  const auto memory = EndMemory::allocate(machine(), kShape, /*is_send=*/true).take();
  relay::Bell bell{[](void*, uint64_t) {}, nullptr};
  Outgoing second(kKey, EndShare(memory, 1, 2), bell);
  second.grant(0, 4);
  const auto collected = [&] {
    std::vector<Frame> frames;
    second.collect({.bytes = UINT32_MAX}, [&](const Part& part) { frames.push_back(part.frame); });
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
  std::vector<Frame> collect(Incoming::Credit which = Incoming::Credit::Half) {
    std::vector<Frame> frames;
    end->collect(which, [&](const Frame& frame) { frames.push_back(frame); });
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
  const std::vector<Frame> frames = collect(Incoming::Credit::All);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].step, 1u + kShape.depth);
}

// In the place of a kernel, whose credit it gives.
TEST_F(IncomingEnd, HandsItsChunksToASinkInOrder) {
  std::vector<uint32_t> taken;
  end->pour_into([&](int, std::span<const std::byte> chunk) {
    taken.push_back(static_cast<uint32_t>(chunk.size()));
    return true;
  });
  arrive({.kind = FrameKind::Part, .step = 1, .bytes = 8, .length = 8});
  EXPECT_TRUE(taken.empty());
  arrive({.kind = FrameKind::Part, .step = 0, .bytes = 7, .length = 7});
  EXPECT_EQ(taken, (std::vector<uint32_t>{7, 8}));
  EXPECT_EQ(tail(), 0u) << "no kernel is told";
  const std::vector<Frame> frames = collect();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].step, 2u + kShape.depth);
}

TEST_F(IncomingEnd, StandsStillOnceItsSinkHasRefused) {
  int asked = 0;
  end->pour_into([&](int, std::span<const std::byte>) { return ++asked < 2; });
  for (uint64_t step = 0; step < 4; ++step)
    arrive({.kind = FrameKind::Part, .step = step, .bytes = 8, .length = 8});
  EXPECT_EQ(asked, 2) << "nothing goes to it behind a refusal";
  const std::vector<Frame> frames = collect(Incoming::Credit::All);
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

// Connections by LL: both ends and what is between them, with kernels played by the test.
class Words : public testing::Test {
 protected:
  static constexpr Key kByWords{.tag = 3, .protocol = Protocol::LL};
  static constexpr FifoShape kSmall{.channels = 3, .depth = 4, .slot_bytes = 256};
  static constexpr uint32_t kMostBytes = kSmall.slot_bytes / 2;
  static constexpr uint32_t kChannel = 2;

  // As a kernel does: so many of the words of a chunk, and its note, or either alone.
  void note(uint64_t step, uint32_t bytes, uint16_t call) const {
    const auto slot = static_cast<uint32_t>(step % kSmall.depth);
    auto* const base = reinterpret_cast<std::byte*>(out->port().remote_control + kChannel);
    const std::atomic_ref word(
        *reinterpret_cast<uint64_t*>(base + relay::ll_note_offset(kSmall.channels, slot)));
    word.store(ll::pack(bytes, ll::flag_of(step, call)), std::memory_order_relaxed);
  }
  void store(uint64_t step, uint32_t bytes, uint16_t call) const {
    const std::vector<std::byte> data = chunk(step, bytes);
    std::byte* const slot = out->port().slots + kSmall.slot_offset(kChannel, step);
    ll_pack(slot, 0, bytes, ll::flag_of(step, call), data.data());
    if (ll::cleans(step, kSmall.depth))
      ll_clean(slot, bytes, kSmall.slot_bytes, ll::flag_of(step, call));
  }
  static std::vector<std::byte> chunk(uint64_t step, uint32_t bytes) {
    std::vector<std::byte> data(bytes);
    for (uint32_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(step * 7 + i);
    return data;
  }

  std::vector<Part> collect(uint32_t part_bytes = UINT32_MAX) const {
    std::vector<Part> parts;
    out->collect({.bytes = part_bytes}, [&](const Part& part) { parts.push_back(part); });
    return parts;
  }
  void grant() const {
    in->collect(Incoming::Credit::All,
                [&](const Frame& credit) { out->grant(credit.channel, credit.step); });
  }
  void carry(const Part& part) const {
    ASSERT_TRUE(in->accept(part.frame).is_ok());
    std::memcpy(in->place_of(part.frame), part.payload(), part.frame.length);
    in->arrived(part.frame);
    out->sent(part.frame);
  }
  const std::byte* arrived(uint64_t step) const {
    return in->port().slots + kSmall.slot_offset(kChannel, step);
  }
  // What the kernel finds there; nothing: some has not come.
  std::optional<std::vector<std::byte>> received(uint64_t step, uint32_t bytes,
                                                 uint16_t call) const {
    std::vector<std::byte> data(bytes);
    const bool is_all = ll_unpack(arrived(step), 0, bytes, ll::flag_of(step, call), data.data());
    return is_all ? std::optional(data) : std::nullopt;
  }
  void read(uint64_t steps) const {
    std::atomic_ref(in->port().remote_control[kChannel].remote)
        .store(steps, std::memory_order_release);
  }

  relay::Bell bell{[](void*, uint64_t) {}, nullptr};
  std::unique_ptr<Outgoing> out = Outgoing::create(machine(), kByWords, kSmall, bell).take();
  std::unique_ptr<Incoming> in = Incoming::create(machine(), kByWords, kSmall, bell).take();
};

TEST_F(Words, TravelOnceAllAreThereWhicheverCameFirst) {
  grant();
  note(0, 40, 5);
  EXPECT_TRUE(collect().empty());
  store(0, 8, 5);
  EXPECT_TRUE(collect().empty());
  store(0, 40, 5);
  store(1, 3, 6);  // whose note is late
  const std::vector<Part> first = collect(24);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].frame.call, 5);
  EXPECT_EQ(first[0].frame.bytes, 40u);
  EXPECT_TRUE(collect().empty());
  note(1, 3, 6);
  const std::vector<Part> second = collect();
  ASSERT_EQ(second.size(), 1u);

  carry(second[0]);
  carry(first[1]);
  EXPECT_FALSE(received(0, 40, 5));
  EXPECT_FALSE(received(1, 3, 6)) << "before the step ahead of it";
  carry(first[0]);
  EXPECT_EQ(received(0, 40, 5), chunk(0, 40));
  EXPECT_EQ(received(1, 3, 6), chunk(1, 3));
  EXPECT_EQ(in->port().control[kChannel].remote, 0u) << "there is no tail";
}

TEST_F(Words, OfAnotherCallAreSeenAsThat) {
  grant();
  store(0, 16, 5);
  note(0, 16, 5);
  carry(collect().at(0));
  EXPECT_FALSE(received(0, 16, 6));
  const uint32_t flag = executor::host::ll_flag(arrived(0), 0);
  EXPECT_TRUE(ll::is_mismatch(flag, ll::flag_of(0, 6)));
  EXPECT_EQ(ll::tag_in(flag), 5);
}

TEST_F(Words, AreSentAgainAsTheyWereUntilTheyAreAcknowledged) {
  grant();
  store(0, 100, 5);
  note(0, 100, 5);
  const Part part = collect().at(0);
  const std::vector<std::byte> data = chunk(0, 100);
  const auto sent = [&] { return std::vector(part.payload(), part.payload() + 100); };
  EXPECT_EQ(sent(), data);
  for (uint64_t step = 1; step < kSmall.depth; ++step) {
    store(step, kMostBytes, 5);
    note(step, kMostBytes, 5);
  }
  EXPECT_EQ(collect().size(), kSmall.depth - 1);
  EXPECT_EQ(sent(), data);
  EXPECT_EQ(out->port().control[kChannel].remote, 0u) << "and their slot is nobody else's";
}

TEST_F(Words, AreFlushedWhenAcknowledgedAndWhenTheyNeverBecameAChunk) {
  EXPECT_TRUE(out->is_flushed());
  grant();
  note(0, 0, 5);
  EXPECT_FALSE(out->is_flushed()) << "an empty chunk is a step, too";
  carry(collect().at(0));
  EXPECT_TRUE(out->is_flushed());
  note(1, 16, 5);
  store(1, 8, 5);  // and the kernel was aborted
  EXPECT_TRUE(collect().empty());
  EXPECT_TRUE(out->is_flushed());
  store(1, 16, 5);
  EXPECT_FALSE(out->is_flushed());
  carry(collect().at(0));
  EXPECT_TRUE(out->is_flushed());
}

TEST_F(Words, AskForTheCreditThatTheyNeed) {
  const auto asks = [&] {
    int asked = 0;
    out->ask_for_credit([&](const Frame& frame) { asked += frame.channel == kChannel ? 1 : 0; });
    return asked;
  };
  note(0, 0, 5);
  EXPECT_TRUE(collect().empty());
  EXPECT_TRUE(out->waits_for_credit());
  EXPECT_EQ(asks(), 0) << "of a receiver that has granted nothing yet, all is still to come";
  out->grant(kChannel, 1);
  EXPECT_FALSE(out->waits_for_credit());
  EXPECT_EQ(collect().size(), 1u);
  EXPECT_EQ(asks(), 0);
  note(1, 0, 5);
  EXPECT_TRUE(out->waits_for_credit());
  EXPECT_EQ(asks(), 1);
  EXPECT_EQ(asks(), 0);
}

// A kernel waits for no chunk that is empty, and has read it before it has come.
TEST_F(Words, AreGrantedAsTheyComeWhereTheKernelIsAhead) {
  grant();
  read(3 * kSmall.depth);
  const auto granted = [&] {
    uint64_t limit = 0;
    in->collect(Incoming::Credit::All, [&](const Frame& credit) {
      limit = credit.step;
      out->grant(credit.channel, credit.step);
    });
    return limit;
  };
  EXPECT_EQ(granted(), 0u) << "nothing new";
  for (uint64_t step = 0; step < 3 * kSmall.depth; ++step) {
    note(step, 0, 5);
    carry(collect().at(0));
    EXPECT_EQ(granted(), step + 1 + kSmall.depth);
  }
}

TEST_F(Words, OfChunksThatNoSlotHoldsAreRefused) {
  grant();
  const Frame good{.kind = FrameKind::Part,
                   .protocol = static_cast<uint8_t>(Protocol::LL),
                   .channel = kChannel,
                   .bytes = kMostBytes,
                   .length = kMostBytes};
  Frame bad = good;
  bad.bytes = bad.length = kMostBytes + 1;
  EXPECT_FALSE(in->accept(bad).is_ok());
  EXPECT_TRUE(in->accept(good).is_ok());
  note(0, UINT32_MAX, 5);
  store(0, kMostBytes, 5);
  EXPECT_EQ(collect().at(0).frame.bytes, kMostBytes) << "a kernel gone mad";
}

// Messages of a pair are works of one launch, a step of the connection each, and read in any order:
// whoever is read last must not find its slot written again.
TEST_F(Words, GiveNoCreditForSlotsThatWorksInTurnsHaveNotRead) {
  const auto head = [&] { return in->port().remote_control[kChannel].remote; };
  const auto begin = [&](executor::host::PortState& port, uint32_t first_step, bool is_followed) {
    port.begin(in->port(), kSmall, kChannel, /*is_send=*/false, /*steps=*/1, /*tag=*/5,
               {.first_step = first_step, .is_followed = is_followed});
  };
  executor::host::PortState first, second;
  begin(first, 0, true);
  begin(second, 1, false);
  second.received();
  EXPECT_EQ(head(), 0u);
  first.received();
  first.end();
  second.end();
  EXPECT_EQ(head(), 0u);
  int rings = 0;
  relay::Bell counting([](void* count, uint64_t) { ++*static_cast<int*>(count); }, &rings);
  executor::PortAddress address = in->port();
  address.bells.fill(&counting);
  counting.go_to_sleep();
  executor::host::PortState next;
  next.begin(address, kSmall, kChannel, /*is_send=*/false, /*steps=*/1, /*tag=*/5, {});
  EXPECT_EQ(head(), 2u);
  EXPECT_EQ(rings, 1) << "nobody else tells the proxy";
  counting.go_to_sleep();
  next.received();
  next.end();
  EXPECT_EQ(head(), 3u);
  EXPECT_EQ(rings, 2);
}

// Flags come round after 2^16 steps: what is left in a slot is then cleaned, at both ends.
TEST_F(Words, AreNeverTakenForThoseOf65536StepsAgo) {
  // Nearly all are short, and some empty.
  const auto bytes_of = [](uint64_t step) {
    return step % (1u << 16) < kSmall.depth ? kMostBytes : static_cast<uint32_t>(step % 5);
  };
  constexpr uint16_t kCall = 9;
  const auto is_any_taken = [&](uint64_t step) {
    const uint32_t flag = ll::flag_of(step, kCall);
    for (uint32_t byte = 0; byte < kMostBytes; byte += ll::kDataBytes)
      if (executor::host::ll_flag(arrived(step), byte) == flag) return true;
    return false;
  };
  for (uint64_t step = 0; step < (1u << 17) + 10; ++step) {
    grant();
    ASSERT_TRUE(collect().empty());
    const uint32_t bytes = bytes_of(step);
    ASSERT_FALSE(is_any_taken(step)) << "step " << step;
    note(step, bytes, kCall);
    if (bytes > 0) {
      ASSERT_TRUE(collect().empty()) << "step " << step;
    }
    store(step, bytes, kCall);
    const std::vector<Part> parts = collect();
    ASSERT_EQ(parts.size(), 1u);
    carry(parts[0]);
    ASSERT_EQ(received(step, bytes, kCall), chunk(step, bytes)) << "step " << step;
    read(step + 1);
  }
}

}  // namespace
}  // namespace niccolite::transport::net
