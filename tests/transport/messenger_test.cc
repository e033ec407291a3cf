// Messenger: how two of them end. The plug-in is played by memory of this process.
#include "transport/net/messenger.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "executor/protocol/call_tag.h"
#include "gpu/virtual/driver.h"
#include "tests/transport/hidden_memory.h"
#include "transport/net/proxy.h"

namespace niccolite::transport::net {
namespace {

/// As a plug-in whose messages need a receive, and that counts connections which are closed, or
/// whose memory is given back, while requests of theirs are open: real ones refuse that.
class Memory final : public Network {
 public:
  explicit Memory(size_t most_receives) : most_receives_(most_receives) {
    name_ = "Memory";
    properties_ = {.device = "memory", .speed = 1, .most_bytes = 4096};
  }
  int closed() const { return closed_; }  // connections and listeners
  int closed_early() const { return closed_early_; }
  int flushes() const { return flushes_; }

  Result<void*> listen(Handle& handle, const std::string&) override {
    Wire* const wire = wires_.emplace_back(std::make_unique<Wire>()).get();
    std::memcpy(handle.data(), &wire, sizeof wire);
    return static_cast<void*>(wire);
  }
  Result<void*> connect(void*, Handle& handle) override {
    Wire* wire = nullptr;
    std::memcpy(&wire, handle.data(), sizeof wire);
    wire->is_connected = true;
    return end(*wire, /*is_send=*/true);
  }
  Result<void*> accept(void* listener) override {
    auto& wire = *static_cast<Wire*>(listener);
    return wire.is_connected ? end(wire, /*is_send=*/false) : static_cast<void*>(nullptr);
  }
  Result<void*> register_memory(void*, void* data, size_t) override { return data; }
  void deregister_memory(void* connection, void*) override { look_at(connection); }
  Result<void*> send(void* connection, void* data, size_t bytes, int, void*, void*) override {
    TRY(check_peer(connection));
    return post(connection, data, bytes, SIZE_MAX);
  }
  Result<void*> receive(void* connection, void* data, size_t bytes, int, void*) override {
    return post(connection, data, bytes, most_receives_);
  }
  Result<bool> test(void* request) override {
    auto& of = *static_cast<Request*>(request);
    match(*of.end->wire);
    if (!of.is_done) {
      TRY(check_peer(of.end));
      return false;
    }
    std::erase_if(of.end->requests, [&](const auto& own) { return own.get() == &of; });
    return true;
  }
  Status flush_direct() override {
    ++flushes_;
    return {};
  }
  void close_send(void* connection) override { close(connection); }
  void close_receive(void* connection) override { close(connection); }
  void close_listener(void*) override { ++closed_; }

 private:
  struct End;
  struct Request {
    End* end;
    void* data;
    size_t bytes;
    bool is_done = false;
  };
  struct Wire {
    bool is_connected = false;
    std::array<std::unique_ptr<End>, 2> ends;    // the receiver's, the sender's
    std::vector<std::unique_ptr<End>> replaced;  // which their owners still close
  };
  struct End {
    Wire* wire;
    std::vector<std::unique_ptr<Request>> requests;  // that have not been found done, in order
    bool is_closed = false;
  };

  static void* end(Wire& wire, bool is_send) {
    std::unique_ptr<End>& made = wire.ends[is_send ? 1 : 0];
    if (made != nullptr) wire.replaced.push_back(std::move(made));
    made = std::make_unique<End>(End{.wire = &wire, .requests = {}});
    return made.get();
  }
  static Result<void*> post(void* connection, void* data, size_t bytes, size_t most) {
    auto& of = *static_cast<End*>(connection);
    if (of.requests.size() >= most) return static_cast<void*>(nullptr);
    of.requests.push_back(
        std::make_unique<Request>(Request{.end = &of, .data = data, .bytes = bytes}));
    return static_cast<void*>(of.requests.back().get());
  }
  static void match(const Wire& wire) {
    if (wire.ends[0] == nullptr || wire.ends[1] == nullptr) return;
    const auto next = [](const End& end) {
      const auto found = std::ranges::find(end.requests, false, &Request::is_done);
      return found == end.requests.end() ? nullptr : found->get();
    };
    for (;;) {
      Request* const to = next(*wire.ends[0]);
      Request* const from = next(*wire.ends[1]);
      if (to == nullptr || from == nullptr) return;
      std::memcpy(to->data, from->data, from->bytes);
      to->bytes = from->bytes;
      to->is_done = from->is_done = true;
    }
  }
  // The connection breaks when one end is closed. Messages sent before still arrive.
  static Status check_peer(void* connection) {
    const Wire& wire = *static_cast<End*>(connection)->wire;
    const bool is_broken = std::ranges::any_of(
        wire.ends, [](const auto& end) { return end != nullptr && end->is_closed; });
    return is_broken ? Status::system_error("the other end is closed") : Status();
  }
  void look_at(void* connection) {
    if (!static_cast<End*>(connection)->requests.empty()) ++closed_early_;
  }

  void close(void* connection) {
    look_at(connection);
    static_cast<End*>(connection)->is_closed = true;
    ++closed_;
  }

  const size_t most_receives_;
  std::vector<std::unique_ptr<Wire>> wires_;
  int closed_ = 0;
  int closed_early_ = 0;
  int flushes_ = 0;
};

struct Pair {
  explicit Pair(size_t most_receives) : network(std::make_shared<Memory>(most_receives)) {
    for (size_t i = 0; i < 2; ++i)
      ranks[i] = Messenger::create({.network = network,
                                    .peer = "the other",
                                    .own_rank = static_cast<int>(i),
                                    .peer_rank = static_cast<int>(1 - i),
                                    .has_left = [this] { return has_left; },
                                    .fail = [this](Status why) { failure = why.message(); },
                                    .pulse = &pulses[i]})
                     .take();
    for (size_t i = 0; i < 2; ++i) ranks[i]->reach(ranks[1 - i]->handle(), /*peer_has_met=*/true);
    while (ranks[0]->progress() || ranks[1]->progress()) continue;
  }
  /// What a proxy's thread does until it ends; false: it would wait for its linger to be over.
  bool run(size_t rank) {
    for (int look = 0; look < 100 && !ranks[rank]->has_finished(); ++look)
      for (const std::unique_ptr<Messenger>& each : ranks)
        if (each != nullptr) each->progress();
    return ranks[rank]->has_finished();
  }

  std::shared_ptr<Memory> network;
  std::array<Pulse, 2> pulses;
  bool has_left = false;
  std::string failure;
  std::array<std::unique_ptr<Messenger>, 2> ranks;
};

// Ranks that end together have left the bootstrap before their proxies end.
TEST(Messengers, CloseNothingThatIsOpenWhereAllEndAtOnce) {
  for (const size_t most_receives : {8u, 3u}) {
    Pair pair(most_receives);
    pair.has_left = true;
    for (size_t i = 0; i < 2; ++i) pair.ranks[i]->finish();
    EXPECT_TRUE(pair.run(0));
    EXPECT_TRUE(pair.run(1));
    for (size_t i = 0; i < 2; ++i) pair.ranks[i].reset();
    EXPECT_EQ(pair.network->closed_early(), 0) << most_receives << " receives";
    EXPECT_EQ(pair.failure, "");
  }
}

TEST(Messengers, CloseNothingThatIsOpenWhereOneEndsFirst) {
  Pair pair(8);
  pair.ranks[0]->finish();
  EXPECT_TRUE(pair.run(0));
  pair.has_left = true;
  pair.ranks[0].reset();
  pair.ranks[1]->finish();
  EXPECT_TRUE(pair.run(1));
  pair.ranks[1].reset();
  EXPECT_EQ(pair.network->closed_early(), 0);
  EXPECT_EQ(pair.failure, "");
}

// A program's child ends what it has inherited. What plug-ins have is its parent's, too.
TEST(Messengers, AreLeftAloneInAChildOfTheProcess) {
  const auto member =
      bootstrap::Member::join({.id = bootstrap::create_unique_id().take(),
                               .nranks = 1,
                               .rank = 0,
                               .deadline = Deadline::after(std::chrono::seconds(30))})
          .take();
  auto network = std::make_shared<Memory>(8);
  auto proxy = Proxy::start({.machine = *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion),
                             .member = *member,
                             .fail = [](const Status&) {},
                             .network = network})
                   .take();
  ASSERT_TRUE(proxy->listen_for(0).is_ok());
  const pid_t child = fork();
  if (child == 0) {
    proxy.reset();
    _exit(network->closed());
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  proxy->set_farewell(Farewell::Hurried);
  proxy.reset();
  EXPECT_EQ(network->closed(), 1);
}

// A rank that is slow answers when the peer has waited for long enough, and has closed.
TEST(Messengers, CallNoPeerBrokenThatHasEnded) {
  Pair pair(8);
  pair.ranks[0]->finish();
  while (pair.ranks[0]->progress()) continue;
  EXPECT_FALSE(pair.ranks[0]->has_finished());
  pair.ranks[0].reset();
  while (pair.ranks[1]->progress()) continue;
  EXPECT_EQ(pair.failure, "");
  EXPECT_TRUE(pair.ranks[1]->has_finished());
}

// Nobody will connect any more.
TEST(Messengers, DoNotWaitForConnectionsOfWhoHasLeft) {
  auto network = std::make_shared<Memory>(8);
  Pulse pulse;
  const auto alone = Messenger::create({.network = network,
                                        .peer = "the other",
                                        .has_left = [] { return true; },
                                        .fail = [](const Status&) {},
                                        .pulse = &pulse})
                         .take();
  alone->finish();
  alone->progress();
  EXPECT_TRUE(alone->has_finished());
}

// ---- slots in memory of GPUs

constexpr Key kKey{.tag = 3, .protocol = executor::Protocol::Simple};
constexpr executor::FifoShape kShape{.channels = 1, .depth = 4, .slot_bytes = 8192};

/// An end with slots that cores do not reach.
template <typename End>
struct HiddenEnd {
  explicit HiddenEnd(bool is_send)
      : slots(std::make_shared<Hidden>(kShape.slots_bytes())),
        end(kKey,
            EndShare(EndMemory::allocate(*gpu::virtual_::open(gpu::virtual_::kInterfaceVersion),
                                         kShape, is_send, slots)
                         .take()),
            bell) {}

  executor::relay::Bell bell{[](void*, uint64_t) {}, nullptr};
  std::shared_ptr<Hidden> slots;
  End end;
};

// The network's device writes to no slots, as after a trial that has failed.
TEST(Messengers, CopySlotsOfGpusByTheGpus) {
  Pair pair(8);
  HiddenEnd<Outgoing> from(/*is_send=*/true);
  HiddenEnd<Incoming> to(/*is_send=*/false);
  pair.ranks[0]->add(kKey, from.end);
  pair.ranks[1]->add(kKey, to.end);
  constexpr uint32_t kChunk = 6000;  // more than a message
  for (uint32_t i = 0; i < kChunk; ++i) from.slots->content[i] = static_cast<std::byte>(i * 3);
  // As a kernel does.
  const executor::PortAddress port = from.end.port();
  port.notes[0] = executor::relay::note_of(kChunk, /*tag=*/7);
  std::atomic_ref(port.remote_control[0].remote)
      .store(executor::call_tag::tail(1, 7), std::memory_order_release);
  while (pair.ranks[0]->progress() || pair.ranks[1]->progress()) continue;
  EXPECT_EQ(pair.failure, "");
  EXPECT_EQ(executor::call_tag::steps_in(to.end.port().control[0].remote, 0), 1u);
  EXPECT_TRUE(std::equal(from.slots->content.begin(), from.slots->content.begin() + kChunk,
                         to.slots->content.begin()));
  EXPECT_EQ(pair.network->flushes(), 0);
}

// A kernel may still read data of a rank that has ended and closed.
TEST(Messengers, GiveNoCreditBehindTheirEnds) {
  Pair pair(8);
  HiddenEnd<Outgoing> from(/*is_send=*/true);
  HiddenEnd<Incoming> to(/*is_send=*/false);
  pair.ranks[0]->add(kKey, from.end);
  pair.ranks[1]->add(kKey, to.end);
  const executor::PortAddress port = from.end.port();
  port.notes[0] = executor::relay::note_of(/*bytes=*/8, /*tag=*/7);
  std::atomic_ref(port.remote_control[0].remote)
      .store(executor::call_tag::tail(1, 7), std::memory_order_release);
  while (pair.ranks[0]->progress() || pair.ranks[1]->progress()) continue;
  pair.ranks[0]->finish();
  EXPECT_TRUE(pair.run(0));
  EXPECT_TRUE(pair.ranks[1]->has_finished());
  std::atomic_ref(to.end.port().remote_control[0].remote).store(1, std::memory_order_release);
  EXPECT_FALSE(pair.ranks[1]->progress());
  EXPECT_EQ(pair.failure, "");
}

// Once for a message, before the kernel hears of its chunks.
TEST(Messengers, FlushWhatPeersHaveWrittenToSlotsOfGpus) {
  Pair pair(8);
  HiddenEnd<Incoming> to(/*is_send=*/false);
  pair.ranks[1]->add(kKey, to.end);
  while (pair.ranks[0]->progress() || pair.ranks[1]->progress()) continue;
  std::array<std::byte, sizeof(uint64_t) + 2 * sizeof(Frame)> message{};
  const uint64_t length = message.size();
  std::memcpy(message.data(), &length, sizeof length);
  for (const uint64_t step : {0, 1}) {
    const Frame part{.kind = FrameKind::Part,
                     .protocol = static_cast<uint8_t>(kKey.protocol),
                     .tag = static_cast<uint16_t>(kKey.tag),
                     .step = step,
                     .bytes = 8,
                     .length = 8,
                     .flags = kIsThere};
    std::memcpy(message.data() + sizeof length + step * sizeof part, &part, sizeof part);
  }
  Network::Handle handle = pair.ranks[1]->handle();
  void* const sender = pair.network->connect(nullptr, handle).take();
  ASSERT_TRUE(pair.network->send(sender, message.data(), length, 0, nullptr, nullptr).is_ok());
  while (pair.ranks[1]->progress()) continue;
  EXPECT_EQ(pair.failure, "");
  EXPECT_EQ(pair.network->flushes(), 1);
  EXPECT_EQ(executor::call_tag::steps_in(to.end.port().control[0].remote, 0), 2u);
}

// Slots of a GPU that no honest peer describes, and bytes for slots that it cannot reach.
TEST(Messengers, RefuseWhatIsWrongAboutSlotsOfGpus) {
  const Frame part{.kind = FrameKind::Part, .bytes = 8, .length = 8, .flags = kIsThere};
  const struct {
    Frame frame;
    const char* told;
  } cases[] = {
      {{.kind = FrameKind::Slots, .length = 8}, "it describes its slots in 8 bytes, 8 of which"},
      {{.kind = FrameKind::Slots, .length = 36}, "it describes its slots in 36 bytes, 8 of which"},
      {part, "it writes to slots that it does not reach (tag 0)"},
  };
  for (const auto& each : cases) {
    Pair pair(8);
    executor::relay::Bell bell{[](void*, uint64_t) {}, nullptr};
    const Key key = key_of(each.frame);
    const auto in = Incoming::create(*gpu::virtual_::open(gpu::virtual_::kInterfaceVersion), key,
                                     {.channels = 1, .depth = 2, .slot_bytes = 4096}, bell)
                        .take();
    pair.ranks[1]->add(key, *in);
    std::array<std::byte, sizeof(uint64_t) + sizeof(Frame) + 8> message{};
    const uint64_t length = message.size();
    std::memcpy(message.data(), &length, sizeof length);
    std::memcpy(message.data() + sizeof length, &each.frame, sizeof each.frame);
    Network::Handle handle = pair.ranks[1]->handle();
    void* const sender = pair.network->connect(nullptr, handle).take();
    ASSERT_TRUE(pair.network->send(sender, message.data(), length, 0, nullptr, nullptr).is_ok());
    while (pair.ranks[1]->progress()) continue;
    EXPECT_NE(pair.failure.find(each.told), std::string::npos) << pair.failure;
  }
}

}  // namespace
}  // namespace niccolite::transport::net
