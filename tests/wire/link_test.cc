// One link by itself: what a peer has said is heard, however its connection ends.
#include "wire/link.h"

#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/parameters.h"
#include "tests/bootstrap/idler.h"
#include "tests/wire/loops.h"

namespace niccolite::wire {

using bootstrap::Idler;
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// Two ends of a link on one loop, which runs on a thread of its own.
class Ends final : public Link::Owner {
 public:
  Ends() {
    listener_ = Socket::listen(Address::parse("127.0.0.1:1").value().with_port(0)).take();
    EXPECT_TRUE((*loop_).watch(listener_.fd(), EPOLLIN, [this](uint32_t) { accept(); }).is_ok());
    dialer = Link::dial(*loop_, listener_.local_address().take(), 2, options_of(1), *this).take();
    loop_.start();
  }
  ~Ends() { loop_.stop(); }

  void link_opened(Link&) override { ++open; }
  void link_frame(Link&, std::span<const std::byte> payload) override {
    heard.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
  }
  void link_ended(Link&, Link::End, Status) override { ++ended; }

  template <typename Use>
  void use(Use&& use) {
    loop_.use(use);
  }
  template <typename Condition>
  bool becomes(Condition condition) {
    return loop_.becomes(condition);
  }

  RunningLoop loop_;
  Socket listener_;
  std::unique_ptr<Link> dialer, acceptor;
  int open = 0, ended = 0;
  std::vector<std::string> heard;

 private:
  static Link::Options options_of(uint64_t number) {
    Link::Options options;
    options.self = {authentication::Secret{}, number};
    return options;
  }
  void accept() {
    int error = 0;
    Result<std::optional<Socket>> waiting = listener_.accept(&error);
    if (waiting.is_ok() && waiting.value())
      acceptor = Link::accepted(*loop_, std::move(*waiting.value()), options_of(2), *this).take();
  }
};

TEST(Link, HearsTheLastWordsOfWhoCloses) {
  Ends ends;
  ASSERT_TRUE(ends.becomes([&] { return ends.open == 2; }));
  // Each says something that the other does not read.
  ends.use([&] {
    ends.dialer->pause();
    ends.acceptor->pause();
    ends.dialer->send(bytes_of("farewell"));
    ends.acceptor->send(bytes_of("a question"));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // or all of it passes at once
  ends.use([&] {
    ASSERT_TRUE(ends.heard.empty());
    ends.dialer->close();  // answered for by a reset
    ends.acceptor->send(bytes_of("another question"));
    ends.acceptor->resume();
  });
  EXPECT_TRUE(ends.becomes([&] { return ends.ended == 1; }));
  ends.use([&] { EXPECT_EQ(ends.heard, std::vector<std::string>{"farewell"}); });
}

// Another process may hold the socket of one that has ended: here the test does.
TEST(Link, EndsWithTheProcessOfThePeerOnceItsLastWordsAreHeard) {
  Ends ends;
  ASSERT_TRUE(ends.becomes([&] { return ends.open == 2; }));
  Idler peer;
  ends.use([&] {
    ends.acceptor->end_with(peer.origin.process);
    ends.acceptor->pause();
    ends.dialer->send(bytes_of("farewell"));
  });
  peer.end();
  std::this_thread::sleep_for(
      std::chrono::milliseconds(120));  // more than one turn of its patience
  ends.use([&] {
    EXPECT_EQ(ends.ended, 0) << "the link has not read everything";
    ends.acceptor->resume();
  });
  EXPECT_TRUE(ends.becomes([&] { return ends.ended > 0; }));
  ends.use([&] { EXPECT_EQ(ends.heard, std::vector<std::string>{"farewell"}); });
}

TEST(Link, EndsAtOnceWithAProcessThatHasEndedBefore) {
  Ends ends;
  ASSERT_TRUE(ends.becomes([&] { return ends.open == 2; }));
  Idler peer;
  peer.end();
  ends.use([&] { ends.acceptor->end_with(peer.origin.process); });
  EXPECT_TRUE(ends.becomes([&] { return ends.ended > 0; }));
}

int user_timeout(int fd) {
  int timeout = -1;
  socklen_t length = sizeof timeout;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, &length), 0);
  return timeout;
}

// The data path, which takes it over, looks for silence less closely than a link does.
TEST(Link, HandsOnASocketThatTheSystemEndsWhenItIsSilent) {
  Ends ends;
  ASSERT_TRUE(ends.becomes([&] { return ends.open == 2; }));
  ends.use([&] {
    const Link::Stream stream = ends.dialer->release();
    EXPECT_EQ(user_timeout(stream.socket.fd()), parameters::net_timeout() * 1000);
  });
}

}  // namespace
}  // namespace niccolite::wire
