// Outbound: how a sender replaces connections, and what becomes of ends whose peer has left. The
// peer is played by this thread.
#include "transport/net/outbound.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/wait.h"
#include "executor/host/port.h"
#include "gpu/virtual/driver.h"

namespace niccolite::transport::net {
namespace {

using executor::host::PortState;
using std::chrono::milliseconds;
using std::chrono::seconds;
using wire::EventLoop;
using wire::Link;

constexpr executor::FifoShape kShape{.channels = 1, .depth = 4, .slot_bytes = 128 << 10};

Key key(int tag) { return {.tag = tag, .protocol = executor::Protocol::Simple}; }

Address here() { return Address::parse("127.0.0.1:1").take().with_port(0); }

/// Rank 1's end of the streams, on the sender's loop.
class Peer final : private Link::Owner {
 public:
  explicit Peer(EventLoop& loop) : loop_(loop) {}
  ~Peer() {
    for (std::unique_ptr<Link>& link : links_) Link::bury(loop_, std::move(link));
  }
  Address address() const { return listener_.local_address().take(); }

  /// Lets the next one in that wants to connect, or accepts it and says nothing.
  void accept(bool lets_in = true) {
    int error = 0;
    std::optional<Socket> accepted = listener_.accept(&error).take();
    if (!accepted) return;
    ++accepted_;
    if (lets_in)
      links_.push_back(Link::accepted(loop_, std::move(*accepted),
                                      {.self = {.key = {}, .number = 2}, .identity_of = {}}, *this)
                           .take());
    else
      strangers_.push_back(std::move(*accepted));
  }
  int accepted() const { return accepted_; }
  /// Connections that it has let in, in their order.
  const std::vector<Socket>& connections() const { return connections_; }
  void say(size_t connection, const Frame& frame) const {
    EXPECT_TRUE(connections_[connection].send(std::as_bytes(std::span(&frame, 1))).is_ok());
  }
  void close(size_t connection) { connections_[connection].close(); }
  void close_listener() { listener_.close(); }
  /// Has the sender given up one that it was not let in by?
  bool has_been_dropped(size_t stranger) const {
    std::array<std::byte, 256> hello;
    for (;;) {
      const Transfer got = strangers_[stranger].receive(hello).take();
      if (got.bytes == 0) return !got.open;
    }
  }

 private:
  void link_opened(Link& link) override {
    Link::Stream stream = link.release();
    EXPECT_TRUE(stream.socket.send(stream.unsent).is_ok());
    connections_.push_back(std::move(stream.socket));
  }
  void link_frame(Link&, std::span<const std::byte>) override {}
  void link_ended(Link&, Link::End, Status) override {}

  EventLoop& loop_;
  Socket listener_ = Socket::listen(here()).take();
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Socket> connections_;
  std::vector<Socket> strangers_;
  int accepted_ = 0;
};

/// A sender of one connection to such a peer, and the thread of both.
class Sender {
 public:
  explicit Sender(
      milliseconds patience = seconds(5),
      const std::vector<Interface>& rails = {{.name = "", .address = here(), .netmask = {}}},
      const std::vector<Address>& others = {})  // that are said to be the peer's
      : outbound_(
            *loop_,
            {.link = {.self = {.key = {}, .number = 1}, .identity_of = {}, .patience = patience},
             .number = 2,
             .peer = "rank 1",
             .rails = {.interfaces = rails},
             .has_left = [] { return false; },
             .fail = [this](Status why) { failures.push_back(why.message()); },
             .pulse = &pulse,
             .give_news =
                 [this](const auto& queue) {
                   if (has_news.exchange(false)) queue(kNews);
                 },
             .lose_news = [this] { ++losses; }}) {
    outbound_.add(key(1), *end_);
    loop_->set_poller([this]() -> EventLoop::Clock::duration {
      while (outbound_.progress()) continue;
      return milliseconds(5);
    });
    std::vector<Address> addresses{peer.address()};
    std::ranges::copy(others, std::back_inserter(addresses));
    loop_->post([this, addresses] { outbound_.reach(addresses); });
    thread_ = std::thread([this] { loop_->run(); });
  }
  ~Sender() {
    loop_->stop();
    thread_.join();
  }
  /// One step.
  void send(size_t bytes) {
    PortState port;
    port.begin(end_->port(), kShape, 0, /*is_send=*/true, 1, 7, {});
    port.sent(executor::Protocol::Simple, bytes);
    port.end();
  }
  bool is_flushed() const { return end_->is_flushed(); }
  /// What has come behind a part of the peer's, on the thread.
  Status take_news(const Frame& frame) {
    Status status;
    loop_->borrow([&] { status = outbound_.take_news(frame); });
    return status;
  }
  void say_credit(size_t connection) const {
    peer.say(connection, {.kind = FrameKind::Credit,
                          .protocol = static_cast<uint8_t>(key(1).protocol),
                          .tag = 1,
                          .step = kShape.depth});
  }
  /// The peer lets its first connection in.
  bool meets_peer() {
    return wait_until([this] {
      peer.accept();
      return peer.connections().size() == 1;
    });
  }
  /// Calls `look`, which may use all that the thread does, until it says yes.
  bool wait_until(const std::function<bool()>& look, milliseconds most = seconds(60)) {
    for (const Deadline end = Deadline::after(most); !end.passed();) {
      bool is_met = false;
      loop_->borrow([&] { is_met = look(); });
      if (is_met) return true;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }

 private:
  std::unique_ptr<EventLoop> loop_ = EventLoop::create().take();

 public:
  static constexpr Frame kNews{.kind = FrameKind::Acknowledge, .step = 5, .flags = kBehindPart};
  Pulse pulse;
  std::vector<std::string> failures;
  std::atomic<bool> has_news{false};  // of the other direction
  std::atomic<int> losses{0};
  Peer peer{*loop_};

 private:
  executor::relay::Bell bell_{[](void*, uint64_t) {}, nullptr};
  std::unique_ptr<Outgoing> end_ =
      Outgoing::create(*gpu::virtual_::open(gpu::virtual_::kInterfaceVersion), key(1), kShape,
                       bell_)
          .take();
  Outbound outbound_;
  std::thread thread_;
};

// The peer was held up for as long as a handshake waits, and goes on by the connection that it has.
TEST(Outbound, TellsOfNoConnectionUnderWayAfterOneBesideAnotherHasFailed) {
  Sender sender(milliseconds(200));
  ASSERT_TRUE(sender.meets_peer());
  sender.say_credit(0);
  sender.send(8);
  // Silent, it is tried beside that connection, in vain.
  ASSERT_TRUE(sender.wait_until([&] {
    sender.peer.accept(/*lets_in=*/false);
    return sender.peer.accepted() == 2;
  }));
  ASSERT_TRUE(sender.wait_until([&] { return sender.peer.has_been_dropped(0); }));
  sender.peer.say(0, {.kind = FrameKind::Acknowledge, .step = 1});
  ASSERT_TRUE(sender.wait_until([&] { return sender.is_flushed(); }));
  const auto is_told = [&] { return sender.pulse.traffic(1).unacknowledged.has_value(); };
  EXPECT_TRUE(sender.wait_until([&] { return !is_told(); }, seconds(2)));
}

// What the peer says behind its parts is true however late it comes: it frees slots, and is neither
// a contradiction after what has overtaken it, nor the answer to a Begin.
TEST(Outbound, TakesWhatTravelsBehindParts) {
  Sender sender;
  ASSERT_TRUE(sender.meets_peer());
  EXPECT_TRUE(sender
                  .take_news({.kind = FrameKind::Credit,
                              .protocol = static_cast<uint8_t>(key(1).protocol),
                              .tag = 1,
                              .step = kShape.depth})
                  .is_ok());
  const auto acknowledge = [](uint64_t parts, uint32_t stream = 0) {
    return Frame{
        .kind = FrameKind::Acknowledge, .channel = stream, .step = parts, .flags = kBehindPart};
  };
  const auto take = [&](const Frame& frame) { return sender.take_news(frame); };
  sender.send(8);
  ASSERT_TRUE(sender.wait_until([&] {
    std::array<std::byte, 3 * sizeof(Frame)> bytes;
    return recv(sender.peer.connections()[0].fd(), bytes.data(), bytes.size(),
                MSG_DONTWAIT | MSG_PEEK) == ssize_t{2 * sizeof(Frame) + 8};
  }));
  EXPECT_FALSE(take(acknowledge(2)).is_ok());
  EXPECT_FALSE(take(acknowledge(1, /*stream=*/1)).is_ok());
  EXPECT_TRUE(take(acknowledge(1)).is_ok());
  EXPECT_TRUE(sender.wait_until([&] { return sender.is_flushed(); }));
  EXPECT_TRUE(take(acknowledge(0)).is_ok());

  // The connection breaks. What comes by another stream then does not begin the next one.
  EXPECT_TRUE(sender.wait_until([&] {
    if (sender.losses == 0) sender.peer.close(0);
    sender.peer.accept();
    return sender.peer.connections().size() == 2;
  }));
  EXPECT_EQ(sender.losses, 1);
  sender.has_news = true;
  sender.send(8);
  EXPECT_TRUE(take(acknowledge(1)).is_ok());
  std::array<std::byte, 4 * sizeof(Frame)> bytes;
  const auto received = [&] {
    return recv(sender.peer.connections()[1].fd(), bytes.data(), bytes.size(),
                MSG_DONTWAIT | MSG_PEEK);
  };
  EXPECT_FALSE(
      sender.wait_until([&] { return received() > ssize_t{sizeof(Frame)}; }, milliseconds(100)));
  sender.peer.say(1, {.kind = FrameKind::Acknowledge, .step = 1});
  // The part, and behind it what this rank has to say.
  EXPECT_TRUE(sender.wait_until([&] { return received() == ssize_t{3 * sizeof(Frame) + 8}; }));
  Frame last;
  std::memcpy(&last, bytes.data() + 2 * sizeof(Frame) + 8, sizeof last);
  EXPECT_EQ(last.kind, FrameKind::Acknowledge);
  EXPECT_EQ(last.step, Sender::kNews.step);
  EXPECT_TRUE(sender.failures.empty()) << sender.failures[0];
}

// A part takes longer than the silence after which another connection is tried: on which it begins
// again.
TEST(Outbound, CarriesAPartOverASlowNetwork) {
  constexpr size_t kBytes = 100 << 10;
  constexpr double kBytesPerSecond = 20 << 10;
  Sender sender;
  size_t connections = 0;
  EventLoop::Clock::time_point since;  // of the last
  size_t taken = 0;
  std::vector<std::byte> bytes(kBytes);
  sender.send(kBytes);
  EXPECT_TRUE(sender.wait_until([&] {
    sender.peer.accept();
    const size_t now = sender.peer.connections().size();
    if (now == 0) return false;
    const size_t last = now - 1;
    if (std::exchange(connections, now) < now) {
      since = EventLoop::Clock::now();
      taken = 0;
      // The answer to the Begin of one that replaces another, too.
      if (last > 0) sender.peer.say(last, {.kind = FrameKind::Acknowledge, .step = 0});
      sender.say_credit(last);
    }
    const std::chrono::duration<double> time = EventLoop::Clock::now() - since;
    const auto due = static_cast<size_t>(time.count() * kBytesPerSecond);
    const ssize_t got = recv(sender.peer.connections()[last].fd(), bytes.data(),
                             std::min(due - taken, bytes.size()), MSG_DONTWAIT);
    taken += static_cast<size_t>(std::max<ssize_t>(got, 0));
    if (got > 0 && taken >= 2 * sizeof(Frame) + kBytes)
      sender.peer.say(last, {.kind = FrameKind::Acknowledge, .step = 1});
    return sender.is_flushed();
  }));
  EXPECT_TRUE(sender.failures.empty()) << sender.failures[0];
}

// Run by the next test in a process of its own, where few attempts are made.
TEST(Outbound, DISABLED_ComesBackToAPeerThatWasStopped) {
  constexpr int kAttempts = 5;
  Sender sender(milliseconds(200));
  ASSERT_TRUE(sender.meets_peer());
  sender.say_credit(0);
  sender.send(8);
  ASSERT_TRUE(sender.wait_until([&] { return sender.pulse.traffic(1).parts == 1; }));
  sender.wait_until([&] {
    sender.peer.close(0);
    return true;
  });
  EXPECT_TRUE(sender.wait_until(
      [&] {
        sender.peer.accept(/*lets_in=*/false);
        return sender.peer.accepted() > kAttempts;
      },
      seconds(20)));
  EXPECT_TRUE(sender.wait_until(
      [&] {
        sender.peer.accept();
        return sender.peer.connections().size() == 2;
      },
      seconds(20)));
  if (!HasFailure()) sender.peer.say(1, {.kind = FrameKind::Acknowledge, .step = 1});
  EXPECT_TRUE(sender.wait_until([&] { return sender.is_flushed(); }, seconds(20)));
  EXPECT_TRUE(sender.failures.empty()) << sender.failures[0];
}

// In a debugger for longer than data may be in the system's hands: its host accepts connections for
// it.
TEST(Outbound, TriesAPeerThatIsStoppedForAsLongAsThatTakes) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = "NCCL_SOCKET_RETRY_CNT=1 NCCL_SOCKET_RETRY_SLEEP_MSEC=1 '" + self +
                              "' --gtest_also_run_disabled_tests --gtest_brief=1 "
                              "--gtest_filter=Outbound.DISABLED_ComesBackToAPeerThatWasStopped";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

// Run by the next test: two rails, of which one leads nowhere, and the other soon neither.
TEST(Outbound, DISABLED_GivesAStreamUp) {
  Address nobody;
  {
    const Socket listener = Socket::listen(here()).take();
    nobody = listener.local_address().take();
  }
  const Address also_here = Address::parse("127.0.0.2:1").take().with_port(0);
  Sender sender(seconds(5),
                {{.name = "a", .address = here(), .netmask = {}},
                 {.name = "b", .address = also_here, .netmask = {}}},
                {nobody});
  ASSERT_TRUE(sender.wait_until([&] {
    if (sender.peer.accepted() == 0) sender.peer.accept();
    return sender.peer.connections().size() == 1;
  }));
  sender.wait_until([&] {
    sender.peer.close_listener();
    return true;
  });
  // The reader of the log closes the pipe once it has found the line.
  pollfd reader{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  EXPECT_EQ(poll(&reader, 1, 30'000), 1);
}

TEST(Outbound, NamesThePathOfTheFailureThatItTells) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET NCCL_SOCKET_RETRY_CNT=1 "
      "NCCL_SOCKET_RETRY_SLEEP_MSEC=1 '" +
      self +
      "' --gtest_also_run_disabled_tests --gtest_filter=Outbound.DISABLED_GivesAStreamUp 2>&1 | "
      "grep -qE 'one stream less .* to (127[0-9.]* port [0-9]*): cannot connect to \\1:'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

// An operation may connect to a rank that is about to leave, after its proxy was found to be gone.
TEST(Outbound, AbandonsEndsThatComeAfterThePeerHasLeft) {
  auto loop = wire::EventLoop::create().take();
  executor::relay::Bell bell{[](void*, uint64_t) {}, nullptr};
  gpu::Machine& machine = *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion);
  const auto early = Outgoing::create(machine, key(1), kShape, bell).take();
  const auto late = Outgoing::create(machine, key(2), kShape, bell).take();
  Address nobody;
  {
    const Socket listener = Socket::listen(here()).take();
    nobody = listener.local_address().take();
  }

  Pulse pulse;
  std::vector<std::string> failures;
  Outbound outbound(*loop,
                    {.link = {},
                     .number = 1,
                     .peer = "rank 1",
                     .rails = {.interfaces = {{.name = "", .address = here(), .netmask = {}}}},
                     .has_left = [] { return true; },
                     .fail = [&](Status why) { failures.push_back(why.message()); },
                     .pulse = &pulse});
  outbound.add(key(1), *early);
  outbound.reach(std::vector{nobody});
  const Deadline end = Deadline::after(seconds(30));
  loop->set_poller([&]() -> wire::EventLoop::Clock::duration {
    if (early->is_abandoned() || end.passed()) loop->stop();
    return std::chrono::milliseconds(5);
  });
  loop->run();
  ASSERT_TRUE(early->is_abandoned());
  outbound.add(key(2), *late);
  EXPECT_TRUE(late->is_abandoned());
  EXPECT_TRUE(failures.empty()) << failures[0];
}

}  // namespace
}  // namespace niccolite::transport::net
