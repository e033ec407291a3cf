// Connections to other machines: both ends in this process, with kernels played by threads.
#include "transport/net/proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "executor/host/port.h"
#include "gpu/virtual/driver.h"

namespace niccolite::transport::net {
namespace {

using executor::FifoShape;
using executor::Protocol;
using executor::host::Arrived;
using executor::host::PortState;
using std::chrono::seconds;
using testing::HasSubstr;

namespace relay = executor::relay;
namespace tag = executor::call_tag;

constexpr Key kKey{.tag = 3, .protocol = Protocol::Simple};
constexpr FifoShape kShape{.channels = 2, .depth = 4, .slot_bytes = 4096};

gpu::Machine& machine() { return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion); }

// ---- one end alone

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
    ASSERT_TRUE(end->place(part).is_ok());
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
    return !end->place(bad).is_ok();
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

// ---- two proxies

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
  executor::PortAddress open(int rank, int peer, bool is_send, const FifoShape& shape = kShape) {
    return proxies[static_cast<size_t>(rank)]
        ->open({.peer = peer, .key = kKey, .is_send = is_send}, shape)
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
  int wrong = 0;

  // Chunks of all lengths, empty ones too.
  size_t bytes_of(uint64_t step) const { return (step * 1237 + channel) % (shape.slot_bytes + 1); }
  std::byte content(uint64_t step) const { return static_cast<std::byte>(step * 31 + channel); }

  void send() const {
    for (const uint16_t call : kCalls) {
      PortState port;
      port.begin(address, shape, channel, /*is_send=*/true, steps, call, {});
      for (uint64_t step = 0; step < steps; ++step) {
        while (!port.has_credit()) std::this_thread::yield();
        const size_t bytes = bytes_of(step);
        std::memset(port.slot(), std::to_integer<int>(content(step)), bytes);
        port.sent(Protocol::Simple, bytes);
      }
      port.end();
    }
  }
  void receive() {
    for (const uint16_t call : kCalls) {
      PortState port;
      port.begin(address, shape, channel, /*is_send=*/false, steps, call, {});
      for (uint64_t step = 0; step < steps; ++step) {
        while (port.arrival().state == Arrived::No) std::this_thread::yield();
        if (port.arrival().state == Arrived::Foreign) ++wrong;
        const size_t bytes = bytes_of(step);
        for (size_t i = 0; i < bytes; ++i)
          if (port.slot()[i] != content(step)) ++wrong;
        port.received();
      }
      port.end();
    }
  }
};

// Both ways, over all channels at once.
void exchange(Ends& ends, const FifoShape& shape = kShape, uint64_t steps = 300) {
  std::vector<Kernel> senders, receivers;
  for (int rank = 0; rank < 2; ++rank) {
    const auto out = ends.open(rank, 1 - rank, true, shape);
    const auto in = ends.open(rank, 1 - rank, false, shape);
    ends.proxies[static_cast<size_t>(rank)]->reach(
        1 - rank, ends.proxies[static_cast<size_t>(1 - rank)]->addresses());
    for (uint32_t channel = 0; channel < shape.channels; ++channel) {
      senders.push_back({.address = out, .shape = shape, .steps = steps, .channel = channel});
      receivers.push_back({.address = in, .shape = shape, .steps = steps, .channel = channel});
    }
  }
  std::vector<std::thread> threads;
  for (const Kernel& kernel : senders) threads.emplace_back([&] { kernel.send(); });
  for (Kernel& kernel : receivers) threads.emplace_back([&] { kernel.receive(); });
  for (std::thread& thread : threads) thread.join();
  for (const Kernel& kernel : receivers) EXPECT_EQ(kernel.wrong, 0);
}

TEST(Proxies, CarryAllChunksInOrderOverOneStreamAndSeveral) {
  for (const int streams : {1, 5})
    for (const bool has_two_threads : {false, true}) {
      Ends ends(streams, seconds(30), has_two_threads);
      exchange(ends);
      EXPECT_THAT(ends.failures, testing::IsEmpty());
    }
}

TEST(Proxies, CarryPartsOfAChunkOverSeveralStreams) {
  Ends ends(3);
  exchange(ends, {.channels = 2, .depth = 4, .slot_bytes = 200 << 10}, 40);
  EXPECT_THAT(ends.failures, testing::IsEmpty());
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
  struct Liar final : bootstrap::Link::Owner {
    void link_opened(bootstrap::Link& link) override {
      stream = link.release();
      EXPECT_TRUE(stream.socket.send(bytes).is_ok());
      // Not closed: what the peer has sent, unread, would reset the connection.
      EXPECT_EQ(shutdown(stream.socket.fd(), SHUT_WR), 0);
    }
    void link_frame(bootstrap::Link&, std::span<const std::byte>) override {}
    void link_ended(bootstrap::Link&, bootstrap::Link::End, Status) override { ADD_FAILURE(); }
    std::span<const std::byte> bytes;
    bootstrap::Link::Stream stream;
  } liar;
  liar.bytes = bytes;
  const auto loop = bootstrap::EventLoop::create().take();
  const bootstrap::Link::Options options{
      .self = {.key = ends.members[0]->secret("proxy"), .number = 1}, .identity_of = {}};
  const auto link =
      bootstrap::Link::dial(*loop, ends.proxies[1]->addresses()[0], 2, options, liar).take();
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
            bootstrap::Acceptor::create(
                *loop_, Socket::listen(loopback("127.0.0.1").address).take(),
                {.self = {.key = ends.members[1]->secret("proxy"), .number = 2}, .identity_of = {}},
                [this](std::unique_ptr<bootstrap::Link> link) {
                  streams_.push_back(link->release());
                  const bootstrap::Link::Stream& stream = streams_.back();
                  EXPECT_TRUE(stream.socket.send(stream.unsent).is_ok());
                  bootstrap::Link::bury(*loop_, std::move(link));
                })
                .take()),
        thread_([this] { loop_->run(); }) {}
  ~SilentPeer() {
    loop_->stop();
    thread_.join();
  }
  Address address() const { return acceptor_->address(); }

 private:
  std::vector<bootstrap::Link::Stream> streams_;  // of the thread
  std::unique_ptr<bootstrap::EventLoop> loop_ = bootstrap::EventLoop::create().take();
  std::unique_ptr<bootstrap::Acceptor> acceptor_;
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
