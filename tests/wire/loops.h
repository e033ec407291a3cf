// A loop on a thread of its own, and raw peers of what lives on it, for tests of bootstrap's parts.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>

#include "base/authentication.h"
#include "base/socket.h"
#include "bootstrap/messages.h"
#include "wire/event_loop.h"
#include "wire/frames.h"

namespace niccolite::wire {

inline Address any_loopback_port() { return Address::parse("127.0.0.1:1").value().with_port(0); }

/// Runs from start() until stop(), which whoever has what lives on it calls before that ends.
class RunningLoop {
 public:
  RunningLoop() : loop_(EventLoop::create().take()) {}
  ~RunningLoop() { stop(); }

  EventLoop& operator*() { return *loop_; }
  void start() {
    thread_ = std::thread([this] { loop_->run(); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    loop_->stop();
    thread_.join();
  }
  /// Between callbacks of the loop, on which what was changed is seen at once.
  template <typename Use>
  void use(Use&& use) {
    loop_->borrow(use);
    loop_->post([] {});
  }
  /// Looks between callbacks, for at most 5 s.
  template <typename Condition>
  bool becomes(Condition condition) {
    for (int looks = 0; looks < 5000; ++looks) {
      bool is_true = false;
      loop_->borrow([&] { is_true = condition(); });
      if (is_true) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

 private:
  std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
};

/// One connection whose every byte the test sends itself; reads wait for at most 5 s.
class RawLink {
 public:
  /// `number`: its own, of the key of zeros.
  RawLink(Socket socket, uint64_t number)
      : socket_(std::move(socket)), handshake_({.key = {}, .number = number}) {}

  /// As the acceptor, up to the proof of the peer: it is let in, and not told so.
  void let_in() {
    const Bytes hello = read(authentication::kHelloBytes);
    ASSERT_EQ(hello.size(), authentication::kHelloBytes);
    write(handshake_.answer_hello(std::span(hello).first<authentication::kHelloBytes>()).take());
    const Bytes proof = read(authentication::kProofBytes);
    ASSERT_EQ(proof.size(), authentication::kProofBytes);
    ASSERT_TRUE(
        handshake_.check_proof(std::span(proof).first<authentication::kProofBytes>()).is_ok());
    begin_frames();
  }
  /// As the initiator, towards the end with number `to`, up to its confirmation.
  void get_in(uint64_t to) {
    const std::optional<Bytes> confirmation = ask_in(to);
    ASSERT_TRUE(confirmation && confirmation->empty());
  }
  /// The same; what comes instead of the confirmation.
  std::optional<Bytes> ask_in(uint64_t to) {
    write(handshake_.make_hello(to));
    const Bytes reply = read(authentication::kReplyBytes);
    if (reply.size() != authentication::kReplyBytes) return std::nullopt;
    write(handshake_.check_reply(std::span(reply).first<authentication::kReplyBytes>()).take());
    begin_frames();
    return hear();
  }
  void say(std::span<const std::byte> payload) {
    Bytes frame;
    sealer_->seal(payload, frame);
    write(frame);
  }
  /// The next frame; none: the peer has closed, or says nothing.
  std::optional<Bytes> hear() {
    while (true) {
      auto frame = opener_->next();
      if (!frame.is_ok()) return std::nullopt;
      if (frame->has_value()) return Bytes((*frame)->begin(), (*frame)->end());
      const Bytes more = read_some(64 << 10);
      if (more.empty()) return std::nullopt;
      opener_->feed(more);
    }
  }

 private:
  void begin_frames() {
    sealer_.emplace(handshake_.sending_key());
    opener_.emplace(handshake_.receiving_key(), kMaxFrame);
  }
  void write(std::span<const std::byte> bytes) {
    EXPECT_EQ(::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  Bytes read_some(size_t most) {
    pollfd ready{.fd = socket_.fd(), .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, 5000) <= 0) return {};
    Bytes bytes(most);
    const ssize_t got = ::recv(socket_.fd(), bytes.data(), most, 0);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  Bytes read(size_t count) {
    Bytes bytes;
    while (bytes.size() < count) {
      const Bytes more = read_some(count - bytes.size());
      if (more.empty()) break;
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    return bytes;
  }

  Socket socket_;
  authentication::Handshake handshake_;
  std::optional<FrameSealer> sealer_;
  std::optional<FrameOpener> opener_;
};

/// The next connection of `listener`, within 5 s.
inline Socket accept_one(const Socket& listener) {
  pollfd ready{.fd = listener.fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ready, 1, 5000), 1) << "nobody dials";
  int error = 0;
  std::optional<Socket> socket = listener.accept(&error).take();
  return socket ? std::move(*socket) : Socket();
}

inline Socket connect_to_listener(const Address& address) {
  Socket socket = Socket::connect(address).take();
  pollfd ready{.fd = socket.fd(), .events = POLLOUT, .revents = 0};
  EXPECT_EQ(poll(&ready, 1, 5000), 1);
  return socket;
}

}  // namespace niccolite::wire
