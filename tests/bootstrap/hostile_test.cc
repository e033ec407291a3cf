// Strangers at the ports of a live rendezvous: garbage, silence, crowds, replays. They never get in
// and never delay.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <random>

#include "child.h"
#include "ranks.h"

namespace niccolite::bootstrap {
namespace {

Fd connect_to(const Address& address) {
  sockaddr_storage storage;
  const socklen_t length = address.to_sockaddr(&storage);
  Fd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0)
    return Fd();
  return fd;
}

void put(const Fd& fd, std::span<const std::byte> bytes) {
  (void)!::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// One stranger of one of several kinds. Some stay connected: they are returned.
Fd attack(const Address& address, std::mt19937& random) {
  Fd fd = connect_to(address);
  if (!fd.valid()) return fd;
  authentication::Identity wrong{.key = {}, .number = 5};
  Bytes hello = authentication::Handshake(wrong).make_hello(0);
  Bytes noise(random() % 300 + 1);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
  switch (random() % 7) {
    case 0:
      return Fd();  // a port scan
    case 1:
      put(fd, noise);
      return Fd();  // noise and gone
    case 2:
      put(fd, noise);
      return fd;  // noise and wait
    case 3:
      return fd;  // silence
    case 4:
      put(fd, std::span(hello).first(random() % 56));
      return fd;  // half a hello
    case 5:
      put(fd, hello);
      put(fd, noise);
      return fd;  // a hello without the secret, then a wrong proof
    default:
      hello[random() % hello.size()] ^= std::byte{1};
      put(fd, hello);
      return fd;
  }
}

TEST(Strangers, AtTheRootDisturbNobody) {
  std::mt19937 random(7);
  for (int round = 0; round < 3; ++round) {
    const UniqueId id = loopback_id();
    std::vector<Fd> open;
    std::atomic<bool> done{false};
    for (int i = 0; i < 50; ++i) open.push_back(attack(id.root(), random));
    std::thread crowd([&] {
      for (int i = 0; i < 300 && !done.load(std::memory_order_relaxed); ++i)
        open.push_back(attack(id.root(), random));
    });
    auto members = join_all(id, 8);
    on_threads(first_ranks(8), [&](int rank) {
      EXPECT_TRUE(members[static_cast<size_t>(rank)]->barrier(soon()).is_ok());
    });
    done.store(
        true,
        std::memory_order_relaxed);  // only ends the loop early; `open` is read after the join
    crowd.join();
  }
}

TEST(Strangers, AtEverySessionDisturbNobody) {
  // The ports of the sessions are in no public place; a scan finds them, so the test looks them up
  // in the kernel's list.
  const UniqueId id = loopback_id();
  std::vector<Child> children;
  for (int rank = 0; rank < 3; ++rank)
    children.emplace_back(ChildOptions{
        .scenario = "repeat", .id = id, .nranks = 3, .ranks = {rank}, .argument = 200});
  for (Child& child : children) ASSERT_FALSE(child.line().empty());
  std::mt19937 random(8);
  std::vector<Fd> open;
  for (Child& child : children) {
    std::string line = child.line();
    while (!line.empty() && !line.starts_with("listens ")) line = child.line();
    ASSERT_TRUE(line.starts_with("listens ")) << line;
    const auto address = Address::parse(line.substr(8));
    ASSERT_TRUE(address.is_ok()) << line;
    for (int i = 0; i < 100; ++i) open.push_back(attack(address.value(), random));
  }
  for (Child& child : children) {
    const auto lines = child.rest();
    EXPECT_EQ(child.wait(), 0) << testing::PrintToString(lines);
  }
}

TEST(Strangers, BeyondTheBoundAreDroppedOldestFirst) {
  const UniqueId id = loopback_id();
  std::vector<Fd> open;
  for (int i = 0; i < 700; ++i) {
    open.push_back(connect_to(id.root()));
    if (!open.back().valid()) GTEST_SKIP() << "not enough descriptors (ulimit -n)";
  }
  // The root takes them in turn: once the last has been taken, the first are gone.
  char byte;
  EXPECT_EQ(recv(open.front().get(), &byte, 1, 0), 0);
  EXPECT_EQ(join_all(id, 4).size(), 4u);
}

TEST(Strangers, LearnNothingFromTheRoot) {
  const UniqueId id = loopback_id();
  const Fd fd = connect_to(id.root());
  put(fd, to_bytes("GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything else too\r\n\r\n"));
  char bytes[100];
  EXPECT_LE(recv(fd.get(), bytes, sizeof bytes, 0), 0);
}

TEST(Handshakes, CannotBeReplayed) {
  // A recorded exchange between two who know the secret, played to the acceptor again, fails at the
  // new nonce.
  const authentication::Identity self{.key = {}, .number = 1}, other{.key = {}, .number = 2};
  ASSERT_TRUE(authentication::initialize().is_ok());
  authentication::Handshake initiator(self), acceptor(other), second(other);
  const Bytes hello = initiator.make_hello(2);
  const Bytes reply =
      acceptor.answer_hello(std::span(hello).first<authentication::kHelloBytes>()).value();
  const Bytes proof =
      initiator.check_reply(std::span(reply).first<authentication::kReplyBytes>()).value();
  EXPECT_TRUE(acceptor.check_proof(std::span(proof).first<authentication::kProofBytes>()).is_ok());
  EXPECT_EQ(initiator.sending_key(), acceptor.receiving_key());
  EXPECT_EQ(initiator.receiving_key(), acceptor.sending_key());
  EXPECT_NE(initiator.sending_key(), initiator.receiving_key());
  ASSERT_TRUE(second.answer_hello(std::span(hello).first<authentication::kHelloBytes>()).is_ok());
  EXPECT_FALSE(second.check_proof(std::span(proof).first<authentication::kProofBytes>()).is_ok());
}

TEST(Handshakes, AreNotReflectedOrRedirected) {
  ASSERT_TRUE(authentication::initialize().is_ok());
  const authentication::Identity one{.key = {}, .number = 1}, two{.key = {}, .number = 2};
  authentication::Handshake initiator(one), wrong_target(one);
  const Bytes hello = initiator.make_hello(2);
  EXPECT_FALSE(
      wrong_target.answer_hello(std::span(hello).first<authentication::kHelloBytes>()).is_ok());
  // The acceptor's own proof, sent back to it, is not the initiator's.
  authentication::Handshake acceptor(two);
  const Bytes reply =
      acceptor.answer_hello(std::span(hello).first<authentication::kHelloBytes>()).value();
  EXPECT_FALSE(acceptor.check_proof(std::span(reply).last<authentication::kProofBytes>()).is_ok());
}

TEST(Handshakes, NameAnotherVersion) {
  ASSERT_TRUE(authentication::initialize().is_ok());
  authentication::Handshake initiator({.key = {}, .number = 1}), acceptor({.key = {}, .number = 2});
  Bytes hello = initiator.make_hello(2);
  hello[7] = std::byte{9};
  const auto answer = acceptor.answer_hello(std::span(hello).first<authentication::kHelloBytes>());
  EXPECT_THAT(answer.status().message(), testing::HasSubstr("version 9"));
}

}  // namespace
}  // namespace niccolite::bootstrap
