// Connections to other machines: both ends in this process, with kernels played by threads.
#include "transport/net/proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "executor/host/packed_slot.h"
#include "executor/host/port.h"
#include "gpu/virtual/driver.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::transport::net {
namespace {

using executor::FifoShape;
using executor::Protocol;
using executor::host::Arrived;
using executor::host::PackedSlot;
using executor::host::PortState;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr Key kKey{.tag = 3, .protocol = Protocol::Simple};
constexpr FifoShape kShape{.channels = 2, .depth = 4, .slot_bytes = 4096};

gpu::Machine& machine() { return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion); }

struct Ends {
  explicit Ends(int streams = 1, std::chrono::milliseconds patience = seconds(30),
                bool has_two_threads = false, const Rails& rails = {}) {
    const bootstrap::UniqueId id = bootstrap::create_unique_id().take();
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank, streams, patience, has_two_threads] {
        members[rank] = bootstrap::Member::join({.id = id,
                                                 .nranks = 2,
                                                 .rank = static_cast<int>(rank),
                                                 .deadline = Deadline::after(seconds(30))})
                            .take();
        proxies[rank] = Proxy::start({.machine = machine(),
                                      .member = *members[rank],
                                      .fail =
                                          [this](Status why) {
                                            std::lock_guard lock(mutex);
                                            failures.push_back(why.message());
                                          },
                                      .streams = streams,
                                      .rails = rails,
                                      .patience = patience,
                                      .has_two_threads = has_two_threads})
                            .take();
      });
    for (std::thread& thread : threads) thread.join();
  }
  executor::PortAddress open(int rank, int peer, bool is_send, const FifoShape& shape = kShape,
                             Protocol protocol = kKey.protocol) {
    return proxies[static_cast<size_t>(rank)]
        ->open({.peer = peer, .key = {.tag = kKey.tag, .protocol = protocol}, .is_send = is_send},
               EndShare(EndMemory::allocate(machine(), shape, is_send).take()))
        .take();
  }

  std::array<std::unique_ptr<bootstrap::Member>, 2> members;
  std::mutex mutex;
  std::vector<std::string> failures;
  std::array<std::unique_ptr<Proxy>, 2> proxies;
};

constexpr uint16_t kCalls[] = {7, 8};

// One operation after the other, on one channel of one end.
struct Kernel {
  executor::PortAddress address;
  FifoShape shape;
  uint64_t steps = 0;  // of an operation
  uint32_t channel = 0;
  Protocol protocol = Protocol::Simple;
  int wrong = 0;

  // Chunks of all lengths, empty ones too.
  size_t bytes_of(uint64_t step) const {
    return (step * 1237 + channel) % (executor::data_bytes(protocol, shape.slot_bytes) + 1);
  }
  std::byte content(uint64_t step) const { return static_cast<std::byte>(step * 31 + channel); }

  void send() const {
    for (const uint16_t call : kCalls) {
      PortState port;
      port.begin(address, shape, channel, /*is_send=*/true, steps, call, {});
      for (uint64_t step = 0; step < steps; ++step) {
        while (!port.has_credit()) std::this_thread::yield();
        const size_t bytes = bytes_of(step);
        if (protocol == Protocol::LL) {
          const std::vector<std::byte> data(bytes, content(step));
          PackedSlot(protocol, port).pack(0, bytes, data.data());
        } else {
          std::memset(port.slot(), std::to_integer<int>(content(step)), bytes);
        }
        port.sent(protocol, bytes);
      }
      port.end();
    }
  }
  void receive_words(PortState& port, size_t bytes, std::byte expected) {
    std::vector<std::byte> data(bytes);
    const PackedSlot slot(protocol, port);
    while (bytes > 0 && !slot.unpack(0, bytes, data.data())) {
      if (slot.arrival(0, bytes).state == Arrived::Foreign) ++wrong;
      std::this_thread::yield();
    }
    for (const std::byte byte : data)
      if (byte != expected) ++wrong;
    port.received();
  }
  void receive() {
    for (const uint16_t call : kCalls) {
      PortState port;
      port.begin(address, shape, channel, /*is_send=*/false, steps, call, {});
      for (uint64_t step = 0; step < steps; ++step) {
        const size_t bytes = bytes_of(step);
        if (protocol == Protocol::LL) {
          receive_words(port, bytes, content(step));
          continue;
        }
        while (port.arrival().state == Arrived::No) std::this_thread::yield();
        if (port.arrival().state == Arrived::Foreign) ++wrong;
        for (size_t i = 0; i < bytes; ++i)
          if (port.slot()[i] != content(step)) ++wrong;
        port.received();
      }
      port.end();
    }
  }
};

// Both ways, over all channels at once.
void exchange(Ends& ends, const FifoShape& shape = kShape, uint64_t steps = 300,
              Protocol protocol = Protocol::Simple) {
  std::vector<Kernel> senders, receivers;
  for (int rank = 0; rank < 2; ++rank) {
    const auto out = ends.open(rank, 1 - rank, true, shape, protocol);
    const auto in = ends.open(rank, 1 - rank, false, shape, protocol);
    ends.proxies[static_cast<size_t>(rank)]->reach(
        1 - rank, ends.proxies[static_cast<size_t>(1 - rank)]->addresses());
    for (uint32_t channel = 0; channel < shape.channels; ++channel) {
      Kernel kernel{
          .address = out, .shape = shape, .steps = steps, .channel = channel, .protocol = protocol};
      senders.push_back(kernel);
      kernel.address = in;
      receivers.push_back(kernel);
    }
  }
  std::vector<std::thread> threads;
  for (const Kernel& kernel : senders) threads.emplace_back([&] { kernel.send(); });
  for (Kernel& kernel : receivers) threads.emplace_back([&] { kernel.receive(); });
  for (std::thread& thread : threads) thread.join();
  for (const Kernel& kernel : receivers) EXPECT_EQ(kernel.wrong, 0);
}

TEST(Proxies, CarryAllChunksInOrderOverOneStreamAndSeveral) {
  for (const Protocol protocol : {Protocol::Simple, Protocol::LL})
    for (const int streams : {1, 5})
      for (const bool has_two_threads : {false, true}) {
        Ends ends(streams, seconds(30), has_two_threads);
        exchange(ends, kShape, 300, protocol);
        EXPECT_THAT(ends.failures, testing::IsEmpty());
      }
}

// An operation is by LL or by Simple, and the next one by the other: each has connections and
// counters of its own.
TEST(Proxies, CarryWordsAndSlotsSideBySide) {
  Ends ends(2);
  std::thread words([&] { exchange(ends, kShape, 100, Protocol::LL); });
  exchange(ends, kShape, 100);
  words.join();
  EXPECT_THAT(ends.failures, testing::IsEmpty());
}

// Holds the worker that waits for sockets, as a debugger would, or the lack of a core.
class HeldWorker final : public gpu::virtual_::Kernel, private gpu::EventSource {
 public:
  HeldWorker() : fd_(eventfd(0, EFD_CLOEXEC)) {
    EXPECT_TRUE(gpus().attach(*this).is_ok());
    // Not owned by the launch: it outlives it.
    EXPECT_TRUE(
        gpus()
            .launch(0, stream_.handle(), std::shared_ptr<Kernel>(std::shared_ptr<void>(), this))
            .is_ok());
    is_held_.wait(false);
  }
  ~HeldWorker() {
    is_over_ = true;
    is_over_.notify_all();
    EXPECT_TRUE(gpus().synchronize_stream(0, stream_.handle()).is_ok());
    gpus().detach(*this);
  }

 private:
  struct Task final : gpu::virtual_::Task {
    explicit Task(HeldWorker& of) : held(of) {}
    gpu::virtual_::Progress step() override {
      if (!held.is_served_) return gpu::virtual_::Progress::WouldBlock;
      held.is_held_ = true;
      held.is_held_.notify_all();
      held.is_over_.wait(false);
      return gpu::virtual_::Progress::Done;
    }
    bool is_woken() const override { return true; }
    HeldWorker& held;
  };
  static gpu::virtual_::VirtualMachine& gpus() {
    return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion);
  }
  std::unique_ptr<gpu::virtual_::Task> start() override { return std::make_unique<Task>(*this); }
  int descriptor() const override { return fd_.get(); }
  void before_wait() override {}
  bool serve(std::span<const epoll_event>) override { return true; }
  void begin_serving() override { is_served_ = true; }
  void end_serving() override { is_served_ = false; }

  Fd fd_;
  gpu::Stream stream_ = gpus().create_stream(0).take();
  std::atomic<bool> is_served_{false};
  std::atomic<bool> is_held_{false};
  std::atomic<bool> is_over_{false};
};

TEST(Proxies, CarryAllWhereTheWorkerThatWaitsForThemIsHeld) {
  Ends ends;
  const HeldWorker held;
  exchange(ends, kShape, 20);
  EXPECT_THAT(ends.failures, testing::IsEmpty());
}

TEST(Proxies, CarryChunksOfOneAndSeveralPartsOverSeveralStreams) {
  for (const uint32_t slot_bytes : {200u << 10, 1u << 20}) {
    Ends ends(3);
    exchange(ends, {.channels = 2, .depth = 4, .slot_bytes = slot_bytes}, 40);
    EXPECT_THAT(ends.failures, testing::IsEmpty());
  }
}

Interface loopback(const std::string& host) {
  return {.name = "lo", .address = Address::parse(host + ":1").take().with_port(0), .netmask = {}};
}

TEST(Proxies, CarryPartsOfAChunkOverSeveralRails) {
  const Rails rails{.interfaces = {loopback("127.0.0.1"), loopback("127.0.0.2")}, .preferred = 1};
  Ends ends(2, seconds(30), false, rails);
  EXPECT_EQ(ends.proxies[0]->addresses().size(), 2u);
  EXPECT_EQ(ends.proxies[0]->addresses()[1].host(), "127.0.0.2");
  exchange(ends, {.channels = 2, .depth = 4, .slot_bytes = 200 << 10}, 40);
  EXPECT_THAT(ends.failures, testing::IsEmpty());
}

// Nobody is at the address of one rail: what it had to carry goes by the other.
TEST(Proxies, DoWithoutARailThatLeadsNowhere) {
  const Rails rails{.interfaces = {loopback("127.0.0.1"), loopback("127.0.0.2")}};
  Ends ends(1, seconds(30), false, rails);
  for (size_t rank = 0; rank < 2; ++rank) {
    std::vector<Address> addresses = ends.proxies[1 - rank]->addresses();
    addresses[1] = Socket::listen(loopback("127.0.0.3").address).take().local_address().take();
    ends.proxies[rank]->reach(static_cast<int>(1 - rank), addresses);  // closed by now
  }
  exchange(ends);  // whose reach() comes too late
  EXPECT_THAT(ends.failures, testing::IsEmpty());
}

TEST(Proxies, SayWhatTheyTriedInVain) {
  Ends ends;
  ends.open(0, 1, true);
  ends.proxies[0]->reach(1, {Address::parse("[::1]:9").take()});
  const Deadline deadline = Deadline::after(seconds(30));
  const auto failures = [&] {
    std::lock_guard lock(ends.mutex);
    return ends.failures;
  };
  while (failures().empty() && !deadline.passed()) std::this_thread::yield();
  ASSERT_FALSE(failures().empty());
  EXPECT_THAT(failures()[0], HasSubstr("rank 1 (process"));
  EXPECT_THAT(failures()[0], HasSubstr("listens at ::1"));
  EXPECT_THAT(failures()[0], HasSubstr("NCCL_SOCKET_FAMILY"));
}

// Bootstrap tells of a peer that has gone, so that the failure to reach it is nobody's; nor is what
// was to be sent to it any more.
TEST(Proxies, KeepNothingForAPeerThatCannotBeReachedAndHasLeft) {
  Ends ends;
  const auto out = ends.open(0, 1, /*is_send=*/true);
  PortState port;
  port.begin(out, kShape, 0, /*is_send=*/true, /*steps=*/1, kCalls[0], {});
  ASSERT_TRUE(port.has_credit());
  port.sent(Protocol::Simple, 1);
  port.end();
  EXPECT_FALSE(ends.proxies[0]->is_flushed());
  ends.proxies[1].reset();
  ends.members[1].reset();
  const Address of_another_family = Address::parse("[::1]:1").take();
  ends.proxies[0]->reach(1, std::vector{of_another_family});
  const Deadline end = Deadline::after(seconds(30));
  while (!ends.proxies[0]->is_flushed() && !end.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(ends.proxies[0]->is_flushed());
  std::lock_guard lock(ends.mutex);
  EXPECT_TRUE(ends.failures.empty()) << ends.failures[0];
}

TEST(Proxies, TakeNothingFromStrangers) {
  Ends ends;
  std::vector<Socket> strangers;
  const Bytes garbage(200, std::byte{0x5a});
  for (int i = 0; i < 6; ++i) {
    strangers.push_back(Socket::connect(ends.proxies[1]->addresses()[0]).take());
    pollfd event{strangers.back().fd(), POLLOUT, 0};
    ASSERT_EQ(poll(&event, 1, 10'000), 1);
    if (i % 3 == 1) {
      ASSERT_TRUE(strangers.back().send(garbage).is_ok());
    }
    if (i % 3 == 2) strangers.back().close();  // others stay silent
  }
  exchange(ends);
  EXPECT_THAT(ends.failures, testing::IsEmpty());
}

// What `ends` hear of rank 0, which knows the secret, sends `bytes` on a stream and leaves.
std::string failure_after(Ends& ends, std::span<const std::byte> bytes) {
  struct Liar final : wire::Link::Owner {
    void link_opened(wire::Link& link) override {
      stream = link.release();
      EXPECT_TRUE(stream.socket.send(bytes).is_ok());
      // Not closed: what the peer has sent, unread, would reset the connection.
      EXPECT_EQ(shutdown(stream.socket.fd(), SHUT_WR), 0);
    }
    void link_frame(wire::Link&, std::span<const std::byte>) override {}
    void link_ended(wire::Link&, wire::Link::End, Status) override { ADD_FAILURE(); }
    std::span<const std::byte> bytes;
    wire::Link::Stream stream;
  } liar;
  liar.bytes = bytes;
  const auto loop = wire::EventLoop::create().take();
  const wire::Link::Options options{.self = {.key = ends.members[0]->secret("proxy"), .number = 1},
                                    .identity_of = {}};
  const auto link =
      wire::Link::dial(*loop, ends.proxies[1]->addresses()[0], 2, options, liar).take();
  std::thread thread([&] { loop->run(); });
  const auto has_failed = [&] {
    std::lock_guard lock(ends.mutex);
    return !ends.failures.empty();
  };
  const Deadline deadline = Deadline::after(seconds(30));
  while (!has_failed() && !deadline.passed()) std::this_thread::yield();
  loop->stop();
  thread.join();
  return has_failed() ? ends.failures[0] : "";
}

// Rank 1's end of a link that has lost it: it takes what comes, and answers nothing.
class SilentPeer {
 public:
  explicit SilentPeer(const Ends& ends)
      : acceptor_(
            wire::Acceptor::create(
                *loop_, Socket::listen(loopback("127.0.0.1").address).take(),
                {.self = {.key = ends.members[1]->secret("proxy"), .number = 2}, .identity_of = {}},
                [this](std::unique_ptr<wire::Link> link) {
                  std::lock_guard lock(mutex_);
                  streams_.push_back(link->release());
                  const wire::Link::Stream& stream = streams_.back();
                  EXPECT_TRUE(stream.socket.send(stream.unsent).is_ok());
                  wire::Link::bury(*loop_, std::move(link));
                })
                .take()),
        thread_([this] { loop_->run(); }) {}
  ~SilentPeer() {
    loop_->stop();
    thread_.join();
  }
  Address address() const { return acceptor_->address(); }
  /// But for this, on its first stream.
  void say(const Frame& frame) {
    std::lock_guard lock(mutex_);
    EXPECT_TRUE(streams_[0].socket.send(std::as_bytes(std::span(&frame, 1))).is_ok());
  }
  /// Bytes that have come since it was last asked, by stream.
  std::vector<size_t> take() {
    std::lock_guard lock(mutex_);
    std::vector<size_t> taken;
    std::vector<std::byte> bytes(64 << 10);
    for (const wire::Link::Stream& stream : streams_) {
      taken.push_back(0);
      for (ssize_t got = 1; got > 0; taken.back() += static_cast<size_t>(std::max<ssize_t>(got, 0)))
        got = recv(stream.socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    }
    return taken;
  }

 private:
  std::mutex mutex_;
  std::vector<wire::Link::Stream> streams_ GUARDED_BY(mutex_);
  std::unique_ptr<wire::EventLoop> loop_ = wire::EventLoop::create().take();
  std::unique_ptr<wire::Acceptor> acceptor_;
  std::thread thread_;
};

// The first credit is lost: nothing is ever on its way that could go unacknowledged.
TEST(Proxies, TellOfALinkThatAnswersNothingBeforeAnythingIsSent) {
  Ends ends;
  const SilentPeer silent(ends);
  const executor::PortAddress out = ends.open(0, 1, true);
  ends.proxies[0]->reach(1, {silent.address()});
  PortState port;
  port.begin(out, kShape, 0, /*is_send=*/true, 1, kCalls[0], {});
  port.sent(Protocol::Simple, 8);
  const auto traffic = [&]() -> std::optional<Traffic> {
    const NetworkState state = ends.proxies[0]->state();
    const Traffic* const found = state.find(1);
    return found == nullptr ? std::nullopt : std::optional(*found);
  };
  const auto is_told = [&] {
    const std::optional<Traffic> told = traffic();
    return told && !told->from.empty() && told->unacknowledged > std::chrono::milliseconds(300);
  };
  const Deadline deadline = Deadline::after(seconds(30));
  while (!is_told() && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_TRUE(is_told());
  EXPECT_TRUE(traffic()->is_under_way);
  EXPECT_EQ(traffic()->parts, 0u);
}

// Each part on a stream of its own costs system calls at both ends.
TEST(Proxies, KeepTheTwoPartsOfAChunkOnOneStreamOfARail) {
  constexpr size_t kStreams = 3;
  constexpr FifoShape kOneChunk{.channels = 1, .depth = 4, .slot_bytes = 512 << 10};
  const Frame credit{.kind = FrameKind::Credit,
                     .protocol = static_cast<uint8_t>(kKey.protocol),
                     .tag = static_cast<uint16_t>(kKey.tag),
                     .step = kOneChunk.depth};
  Ends ends(kStreams);
  SilentPeer peer(ends);
  const executor::PortAddress out = ends.open(0, 1, true, kOneChunk);
  ends.proxies[0]->reach(1, {peer.address()});
  std::vector<size_t> bytes(kStreams);
  const auto wait_for = [&](size_t all) {
    std::ranges::fill(bytes, 0);
    const Deadline deadline = Deadline::after(seconds(30));
    while (std::accumulate(bytes.begin(), bytes.end(), size_t{0}) < all && !deadline.passed()) {
      const std::vector<size_t> taken = peer.take();
      for (size_t i = 0; i < taken.size(); ++i) bytes[i] += taken[i];
      std::this_thread::yield();
    }
  };
  wait_for(kStreams * sizeof(Frame));  // all of them have begun
  ASSERT_THAT(bytes, testing::Each(sizeof(Frame)));
  peer.say(credit);
  PortState port;
  port.begin(out, kOneChunk, 0, /*is_send=*/true, 1, kCalls[0], {});
  port.sent(Protocol::Simple, kOneChunk.slot_bytes);
  wait_for(kOneChunk.slot_bytes);
  // Others may have been asked for credit.
  EXPECT_EQ(std::ranges::count_if(bytes, [](size_t of) { return of > 8 * sizeof(Frame); }), 1);
}

TEST(Proxies, NameAPeerThatSendsNonsense) {
  Ends ends;
  ends.open(1, 0, false);
  const Frame frames[] = {{}, {.kind = FrameKind::Part, .tag = 9, .bytes = 10, .length = 10}};
  const std::string failure = failure_after(ends, std::as_bytes(std::span(frames)));
  EXPECT_THAT(failure, HasSubstr("the connection from rank 0"));
  EXPECT_THAT(failure, HasSubstr("tag 9"));
}

TEST(Proxies, NameAPeerWhoseConnectionBreaksAndIsNotReplaced) {
  Ends ends(1, std::chrono::milliseconds(100));
  ends.open(1, 0, false);
  const Frame frames[2];
  const std::string failure =
      failure_after(ends, std::as_bytes(std::span(frames)).first(sizeof(Frame) + 1));
  EXPECT_THAT(failure, HasSubstr("the connection from rank 0"));
  EXPECT_THAT(failure, HasSubstr("in the middle"));
  EXPECT_THAT(failure, HasSubstr("not replaced within 0.1 s"));
}

}  // namespace
}  // namespace niccolite::transport::net
