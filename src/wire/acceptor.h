// Acceptor: a listening socket whose connections must authenticate themselves before their owner
// hears of them. Strangers (port scans, garbage, silence) cost a bounded number of descriptors for
// a bounded time and delay nobody: every step is non-blocking, each handshake has a few seconds,
// and when too many are under way the oldest is dropped. Legitimate processes that are dropped in
// such a crowd dial again. Thread safety: the loop's thread.
#pragma once

#include <functional>
#include <list>
#include <memory>

#include "wire/link.h"

namespace niccolite::wire {

class Acceptor final : private Link::Owner {
 public:
  /// `welcome` gets each authenticated link and must set its owner. `exhausted` is called again and
  /// again while connections cannot be accepted for seconds because there are no descriptors.
  static Result<std::unique_ptr<Acceptor>> create(
      EventLoop& loop, Socket listener, const Link::Options& options,
      std::function<void(std::unique_ptr<Link>)> welcome,
      std::function<void(const Status&)> exhausted = {});
  ~Acceptor();

  const Address& address() const { return address_; }
  /// Keeps a descriptor. A peer that comes while there is no other one hears by it why it is not
  /// let in (Link::End::Short).
  void turn_away_when_short();
  /// Keeps a descriptor, of whatever, until `exhausted` is called, by which others can hear of
  /// that.
  void keep(Fd reserve) { reserve_ = std::move(reserve); }

 private:
  Acceptor(EventLoop& loop, Socket listener, const Link::Options& options,
           std::function<void(std::unique_ptr<Link>)> welcome,
           std::function<void(const Status&)> exhausted);
  void accept_waiting();
  void note_shortage(const Status& why);
  bool has_reserve();
  void link_opened(Link& link) override;
  void link_frame(Link&, std::span<const std::byte>) override {}  // only open links have frames
  void link_ended(Link& link, Link::End end, Status reason) override;
  std::unique_ptr<Link> take(Link& link);
  void log_refusal(const Address& peer, const Status& reason);

  EventLoop& loop_;
  Socket listener_;
  Fd reserve_;  // a descriptor for the news of `exhausted`, or for a peer that is turned away
  Link::Options options_;
  std::function<void(std::unique_ptr<Link>)> welcome_;
  std::function<void(const Status&)> exhausted_;
  Address address_;
  EventLoop::Id watch_ = 0;
  EventLoop::Id rest_ = 0;                      // timer: no descriptors were left
  std::list<std::unique_ptr<Link>> strangers_;  // oldest first
  int refusals_ = 0;
  EventLoop::Clock::time_point short_since_{}, short_until_{};  // of descriptors
};

}  // namespace niccolite::wire
