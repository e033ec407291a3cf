// One rendezvous, and guests that are links of the test: what each hears, in which order.
#include "bootstrap/rendezvous.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cerrno>

#include "idler.h"
#include "tests/wire/loops.h"
#include "wire/acceptor.h"

namespace niccolite::bootstrap {

using namespace wire;
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

class RendezvousOfTwo : public testing::Test {
 protected:
  RendezvousOfTwo() {
    EXPECT_TRUE(authentication::initialize().is_ok());
    wire::Link::Options options;
    options.self = {.key = {}, .number = 1};
    door_ = wire::Acceptor::create(
                *loop, Socket::listen(any_loopback_port()).take(), options,
                [this](std::unique_ptr<wire::Link> link) { rendezvous_->welcome(std::move(link)); })
                .take();
    rendezvous_.emplace(*loop, Rendezvous::Options{.address = door_->address(),
                                                   .waits_for_late = true,
                                                   .host = host,
                                                   .decided = [] {},
                                                   .over = [] {}});
    loop.start();
  }
  ~RendezvousOfTwo() override { loop.stop(); }

  std::unique_ptr<wire::RawLink> come() {
    auto guest =
        std::make_unique<wire::RawLink>(connect_to_listener(door_->address()), ++last_number_ + 1);
    guest->get_in(1);
    return guest;
  }
  static void join(wire::RawLink& guest, int32_t rank, const messages::Origin& origin,
                   uint64_t milliseconds = 20'000) {
    guest.say(messages::Join{.rank = rank,
                             .nranks = 2,
                             .milliseconds_left = milliseconds,
                             .session = any_loopback_port().with_port(1),
                             .number = 9,
                             .origin = origin}
                  .encode());
  }
  /// The types of what the guest hears, up to `last`.
  static std::vector<MessageType> hear(wire::RawLink& guest, MessageType last) {
    std::vector<MessageType> heard;
    while (heard.empty() || heard.back() != last) {
      const std::optional<Bytes> frame = guest.hear();
      if (!frame || frame->empty()) break;
      heard.push_back(static_cast<MessageType>(frame->front()));
    }
    return heard;
  }
  /// The next message of that kind; those before it are dropped.
  template <typename Message>
  static std::optional<Message> await(wire::RawLink& guest, MessageType type) {
    while (const std::optional<Bytes> frame = guest.hear()) {
      Reader reader(*frame, "the root");
      if (static_cast<MessageType>(reader.u8()) != type) continue;
      return Message::decode(reader).take();
    }
    return std::nullopt;
  }

  wire::RunningLoop loop;
  const messages::Origin host = messages::Origin::of_this_process();

  void exhaust(const Status& why) {
    loop.use([&] { rendezvous_->exhausted(why); });
  }

 private:
  std::unique_ptr<wire::Acceptor> door_;
  std::optional<Rendezvous> rendezvous_;
  uint64_t last_number_ = 1;
};

// Rank 1 cannot come in, and the process of the root may end as soon as it hears.
TEST_F(RendezvousOfTwo, TellsAllWhenDescriptorsAreShortTheRootsProcessLast) {
  const Idler other;
  const auto zero = come();
  join(*zero, 0, host);
  hear(*zero, MessageType::Host);
  exhaust(Status::from_errno(EMFILE, "cannot accept a connection"));
  const auto one = come();
  join(*one, 1, other.origin);
  for (wire::RawLink* const guest : {one.get(), zero.get()}) {
    const auto refused = await<messages::Refused>(*guest, MessageType::Refused);
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->code, Code::SystemError);
    EXPECT_THAT(refused->text, HasSubstr("lets no more ranks in: cannot accept a connection: Too "
                                         "many open files"));
  }
}

// The descriptor that is kept lets in one at a time, also when it is the last.
TEST(AcceptorShortOfDescriptors, SaysSoAndLetsOneInAfterwards) {
  EXPECT_TRUE(authentication::initialize().is_ok());
  wire::RunningLoop loop;
  wire::Link::Options options;
  options.self = {.key = {}, .number = 1};
  bool is_exhausted = false;
  std::unique_ptr<wire::Link> guest;
  auto door = wire::Acceptor::create(
                  *loop, Socket::listen(any_loopback_port()).take(), options,
                  [&](std::unique_ptr<wire::Link> link) { guest = std::move(link); },
                  [&](const Status& why) {
                    EXPECT_THAT(why.message(), HasSubstr("Too many open files"));
                    is_exhausted = true;
                  })
                  .take();
  door->keep(Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)));
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  Socket socket = Socket::connect(door->address()).take();
  const rlimit none{.rlim_cur = static_cast<rlim_t>(socket.fd()) + 1, .rlim_max = before.rlim_max};
  std::vector<Fd> holes;  // below the limit
  for (int fd = open("/dev/null", O_RDONLY); fd >= 0; fd = open("/dev/null", O_RDONLY)) {
    holes.emplace_back(fd);
    if (static_cast<rlim_t>(fd) > none.rlim_cur) break;
  }
  setrlimit(RLIMIT_NOFILE, &none);
  loop.start();
  EXPECT_TRUE(loop.becomes([&] { return is_exhausted; }));
  wire::RawLink link(std::move(socket), 2);
  link.get_in(1);
  EXPECT_TRUE(loop.becomes([&] { return guest != nullptr; }));
  setrlimit(RLIMIT_NOFILE, &before);
  loop.stop();
}

// Whoever comes last learns, too, at whose process to look when nothing happens.
TEST_F(RendezvousOfTwo, TellsTheLastWhoHasTheRoot) {
  const Idler other;
  const auto zero = come(), one = come();
  join(*zero, 0, host);
  hear(*zero, MessageType::Host);  // it has come
  join(*one, 1, other.origin);
  EXPECT_THAT(hear(*one, MessageType::Assignment),
              ElementsAre(MessageType::Host, MessageType::Assignment));
}

TEST_F(RendezvousOfTwo, TellsTheOthersWhoHasTheRootWhenThatComesLast) {
  const Idler other;
  const auto zero = come(), one = come();
  join(*zero, 0, other.origin);
  hear(*zero, MessageType::Host);
  join(*one, 1, host);
  EXPECT_THAT(hear(*zero, MessageType::Assignment),
              ElementsAre(MessageType::Host, MessageType::Assignment));
}

// A launcher may make the id for ranks of other processes.
TEST_F(RendezvousOfTwo, TellsAtOnceOfTheProcessOfTheRootWithoutRanks) {
  const Idler other;
  const auto zero = come();
  join(*zero, 0, other.origin);
  const auto told = await<messages::Host>(*zero, MessageType::Host);
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->origin, host);
  EXPECT_THAT(told->ranks, ElementsAre());
}

// The socket of this process stands for one that a child of the dead process holds.
TEST_F(RendezvousOfTwo, TellsOfAProcessThatHasEndedThoughItsConnectionHasNot) {
  const Idler first;
  Idler second;
  const auto zero = come(), one = come();
  join(*zero, 0, first.origin);
  join(*one, 1, second.origin);
  hear(*one, MessageType::Assignment);
  second.end();
  const auto refused = await<messages::Refused>(*zero, MessageType::Refused);
  ASSERT_TRUE(refused.has_value()) << "nobody says why";
  EXPECT_EQ(refused->peer, 1);
  EXPECT_THAT(refused->text, HasSubstr("ended unexpectedly during initialization"));
}

TEST_F(RendezvousOfTwo, TellsOfEachThatIsStoppedOneAfterTheOther) {
  const Idler first, second;
  const auto zero = come(), one = come();
  join(*zero, 0, first.origin);
  join(*one, 1, second.origin);
  hear(*one, MessageType::Assignment);
  first.stop();
  auto awaited = await<messages::Awaited>(*one, MessageType::Awaited);
  ASSERT_TRUE(awaited.has_value());
  EXPECT_THAT(awaited->ranks, ElementsAre(0));
  second.stop();
  awaited = await<messages::Awaited>(*one, MessageType::Awaited);
  ASSERT_TRUE(awaited.has_value());
  EXPECT_THAT(awaited->ranks, ElementsAre(1));
}

// All have come, and one never says that it is ready.
TEST_F(RendezvousOfTwo, NamesWhoIsStoppedWhenTheDeadlinePasses) {
  const Idler first, second;
  second.stop();
  const auto zero = come(), one = come();
  join(*zero, 0, first.origin, 300);
  join(*one, 1, second.origin);
  const auto refused = await<messages::Refused>(*zero, MessageType::Refused);
  ASSERT_TRUE(refused.has_value()) << "nobody says why";
  EXPECT_EQ(refused->peer, 1);
  EXPECT_THAT(refused->text, HasSubstr("rank 1 (process"));
  EXPECT_THAT(refused->text, HasSubstr("stopped"));
}

TEST_F(RendezvousOfTwo, NamesWhoIsNotReadyWhenTheDeadlinePasses) {
  const Idler first, second;
  const auto zero = come(), one = come();
  join(*zero, 0, first.origin, 300);
  join(*one, 1, second.origin);
  hear(*zero, MessageType::Assignment);
  zero->say(messages::encode_type(MessageType::Ready));
  const auto refused = await<messages::Refused>(*one, MessageType::Refused);
  ASSERT_TRUE(refused.has_value()) << "nobody says why";
  EXPECT_EQ(refused->peer, 1);
  EXPECT_THAT(refused->text, HasSubstr("but rank 1 could not exchange"));
}

}  // namespace
}  // namespace niccolite::bootstrap
