// Inbound: what a receiver tells its peer, and when. The peer is played by this thread.
#include "transport/net/inbound.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "base/wait.h"
#include "executor/protocol/call_tag.h"
#include "gpu/virtual/driver.h"

namespace niccolite::transport::net {
namespace {

using std::chrono::seconds;

constexpr Key kKey{.tag = 3, .protocol = executor::Protocol::Simple};
constexpr uint32_t kBytes = 64;  // of a chunk, which is one part

/// A receiver of one connection, whose kernel reads nothing, and its peer's streams.
class KeptBack : public testing::TestWithParam<uint32_t> {
 protected:
  static constexpr size_t kStreams = 2;
  static constexpr auto kPatience = std::chrono::milliseconds(100);

  void SetUp() override {
    ASSERT_TRUE(loop->share().is_ok());
    inbound.add(kKey, *end);
    const Socket listener =
        Socket::listen(Address::parse("127.0.0.1:1").take().with_port(0)).take();
    for (size_t stream = 0; stream < kStreams; ++stream) {
      peers[stream] = Socket::connect(listener.local_address().take()).take();
      std::optional<Socket> accepted;
      for (int error = 0; !accepted;) accepted = listener.accept(&error).take();
      await(peers[stream], POLLOUT);
      inbound.welcome({.socket = std::move(*accepted), .unsent = {}});
      send(stream, {.kind = FrameKind::Begin, .channel = static_cast<uint32_t>(stream)});
    }
    const auto has_credit = [&] {
      inbound.settle();
      return std::ranges::any_of(
          heard(), [](const Frame& frame) { return frame.kind == FrameKind::Credit; });
    };
    ASSERT_TRUE(serve_until(has_credit));
  }

  static void await(const Socket& socket, short event) {
    pollfd ready{.fd = socket.fd(), .events = event, .revents = 0};
    ASSERT_EQ(poll(&ready, 1, 30'000), 1);
  }
  void send(size_t stream, const Frame& frame) const {
    std::array<std::byte, kBytes> chunk{};
    const std::array<iovec, 2> pieces = {
        iovec{.iov_base = const_cast<Frame*>(&frame), .iov_len = sizeof frame},
        iovec{.iov_base = chunk.data(), .iov_len = frame.length}};
    ASSERT_EQ(peers[stream].send(pieces).take().bytes, sizeof frame + frame.length);
  }
  /// The next chunk, on one of the streams.
  void send_chunk(size_t stream, uint16_t flags = 0) {
    send(stream, {.kind = FrameKind::Part,
                  .protocol = static_cast<uint8_t>(kKey.protocol),
                  .tag = static_cast<uint16_t>(kKey.tag),
                  .step = sent++,
                  .bytes = kBytes,
                  .length = kBytes,
                  .flags = flags});
    const auto has_arrived = [&] {
      const uint64_t tail =
          std::atomic_ref(end->port().control[0].remote).load(std::memory_order_relaxed);
      return (tail & executor::call_tag::kStepMask) == sent;
    };
    ASSERT_TRUE(serve_until(has_arrived));
  }
  template <typename Condition>
  bool serve_until(Condition condition) {
    for (const Deadline deadline = Deadline::after(seconds(30)); !deadline.passed();) {
      loop->serve_shared();
      if (condition()) return true;
    }
    return false;
  }
  /// What has come to the peer since it last looked, by one stream.
  std::vector<Frame> heard_by(size_t stream) {
    std::vector<Frame> frames;
    for (Frame frame;
         peers[stream].receive(std::as_writable_bytes(std::span(&frame, 1))).take().bytes ==
         sizeof frame;)
      frames.push_back(frame);
    return frames;
  }
  std::vector<Frame> heard() {
    std::vector<Frame> frames = heard_by(0);
    for (size_t stream = 1; stream < kStreams; ++stream)
      std::ranges::copy(heard_by(stream), std::back_inserter(frames));
    return frames;
  }

  std::unique_ptr<wire::EventLoop> loop = wire::EventLoop::create().take();
  executor::relay::Bell bell{[](void*, uint64_t) {}, nullptr};
  std::unique_ptr<Incoming> end =
      Incoming::create(*gpu::virtual_::open(gpu::virtual_::kInterfaceVersion), kKey,
                       {.channels = 1, .depth = GetParam(), .slot_bytes = 4096}, bell)
          .take();
  Pulse pulse;
  std::vector<std::string> failures;
  Inbound inbound{*loop,
                  {.peer = "rank 1",
                   .fail = [this](Status why) { failures.push_back(why.message()); },
                   .patience = kPatience,
                   .pulse = &pulse,
                   .keeps_back = true}};
  std::array<Socket, kStreams> peers;
  uint64_t sent = 0;
};

// A slot is free when its parts are acknowledged, and slots are freed in their order: parts that
// came by several streams count together.
TEST_P(KeptBack, AreAcknowledgementsOfLessThanHalfTheFifoOverAllStreams) {
  const uint32_t most = std::min(GetParam() / 2, 4u);
  for (uint32_t chunk = 0; chunk + 1 < most; ++chunk) {
    send_chunk(chunk % kStreams);
    inbound.progress();
    inbound.tell_soon();
    EXPECT_TRUE(heard().empty()) << "chunk " << chunk;
  }
  send_chunk((most - 1) % kStreams);
  inbound.progress();
  EXPECT_TRUE(heard().empty()) << "kernels go on first";
  inbound.tell_soon();
  uint64_t acknowledged = 0;
  EXPECT_TRUE(serve_until([&] {
    for (const Frame& frame : heard())
      if (frame.kind == FrameKind::Acknowledge) acknowledged += frame.step;
    return acknowledged >= most;
  }));
  EXPECT_EQ(acknowledged, most);
  EXPECT_TRUE(failures.empty());
}

// What is due travels behind a part the other way, which costs no system call; where that may have
// been lost, all of it is told again.
TEST_P(KeptBack, IsWhatTravelsBehindParts) {
  std::vector<Frame> news;
  const auto give = [&] { inbound.give_news([&](const Frame& frame) { news.push_back(frame); }); };
  const uint32_t most = std::min(GetParam() / 2, 4u);
  for (uint32_t chunk = 0; chunk < most; ++chunk) {
    give();
    EXPECT_TRUE(news.empty()) << "chunk " << chunk;
    send_chunk(chunk % kStreams);
    inbound.progress();
  }
  give();
  std::array<uint64_t, kStreams> acknowledged{};
  for (const Frame& frame : news) {
    ASSERT_EQ(frame.kind, FrameKind::Acknowledge) << "nothing was read";
    EXPECT_EQ(frame.flags, kBehindPart);
    acknowledged.at(frame.channel) = frame.step;
  }
  EXPECT_EQ(acknowledged[0] + acknowledged[1], most);
  inbound.tell_soon();
  EXPECT_TRUE(heard().empty()) << "it has been told";

  inbound.tell_again();
  inbound.progress();
  for (size_t stream = 0; stream < kStreams; ++stream) {
    const std::vector<Frame> frames = heard_by(stream);
    const auto found = std::ranges::find(frames, FrameKind::Acknowledge, &Frame::kind);
    if (acknowledged[stream] == 0) {
      EXPECT_EQ(found, frames.end()) << stream;
    } else {
      ASSERT_NE(found, frames.end()) << stream;
      EXPECT_EQ(found->step, acknowledged[stream]);
      EXPECT_EQ(found->flags, 0);
    }
  }
}

// A kernel that sends from its user's buffer is done when the bytes have arrived.
TEST_P(KeptBack, IsNoAcknowledgementThatAKernelWaitsFor) {
  send_chunk(0, kAtOnce);
  inbound.progress();
  const std::vector<Frame> frames = heard();
  ASSERT_FALSE(frames.empty());
  EXPECT_EQ(frames.back().kind, FrameKind::Acknowledge);
  EXPECT_EQ(frames.back().step, 1u);
}

// What is asked by several streams may be read in one go. The sender takes a stream whose question
// stays without an answer for silent.
TEST_P(KeptBack, AreNotAnswersToQuestionsOnSeveralStreams) {
  for (size_t stream = 0; stream < kStreams; ++stream) send(stream, {.kind = FrameKind::Ask});
  loop->serve_shared();
  inbound.progress();
  inbound.settle();
  std::array<bool, kStreams> is_answered{};
  serve_until([&] {
    for (size_t stream = 0; stream < kStreams; ++stream)
      for (const Frame& frame : heard_by(stream))
        is_answered[stream] |= frame.kind == FrameKind::Acknowledge;
    return std::ranges::all_of(is_answered, std::identity());
  });
  EXPECT_TRUE(is_answered[0]);
  EXPECT_TRUE(is_answered[1]);
}

// The sender does without a stream that it cannot connect again (Outbound::give_up): so does the
// receiver. Without any it cannot.
TEST_P(KeptBack, IsNoFailureOfAStreamWhereAnotherCarries) {
  peers[0].close();
  const Deadline later = Deadline::after(5 * kPatience);
  const Deadline deadline = Deadline::after(seconds(30));
  bool is_alone = true;  // the other stream, with what it carries
  loop->set_poller([&]() -> wire::EventLoop::Clock::duration {
    loop->serve_shared();
    inbound.progress();
    if (later.passed() && std::exchange(is_alone, false)) {
      EXPECT_TRUE(failures.empty()) << failures[0];
      failures.clear();
      send_chunk(1);
      peers[1].close();
    }
    if ((!is_alone && !failures.empty()) || deadline.passed()) loop->stop();
    return std::chrono::milliseconds(5);
  });
  loop->run();
  EXPECT_FALSE(failures.empty());
}

// A peer that does not wait for a slow receiver resets its connections, and has ended all the same.
TEST_P(KeptBack, IsNoFailureOfStreamsThatHaveEnded) {
  for (size_t stream = 0; stream < kStreams; ++stream) send_chunk(stream, kAtOnce);
  for (size_t stream = 0; stream < kStreams; ++stream) {
    send(stream, {.kind = FrameKind::End});
    const linger none{.l_onoff = 1, .l_linger = 0};
    ASSERT_EQ(setsockopt(peers[stream].fd(), SOL_SOCKET, SO_LINGER, &none, sizeof none), 0);
    peers[stream].close();
  }
  inbound.progress();  // cannot tell that the chunks have arrived
  const Deadline later = Deadline::after(5 * kPatience);
  loop->set_poller([&]() -> wire::EventLoop::Clock::duration {
    loop->serve_shared();
    inbound.progress();
    if (later.passed()) loop->stop();
    return std::chrono::milliseconds(5);
  });
  loop->run();
  EXPECT_TRUE(failures.empty()) << failures[0];
}

INSTANTIATE_TEST_SUITE_P(Inbound, KeptBack, testing::Values(2u, 4u, 8u, 32u),
                         [](const auto& depth) {
                           return "OfAFifoOf" + std::to_string(depth.param) + "Slots";
                         });

}  // namespace
}  // namespace niccolite::transport::net
