// RootClient: a process' side of the rendezvous: finds the root, tells it of each rank that comes,
// and hears the answer. Thread safety: the loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bootstrap/messages.h"
#include "bootstrap/unique_id.h"
#include "wire/link.h"

namespace niccolite::bootstrap {

class RootClient final : private wire::Link::Owner {
 public:
  struct Events {
    /// Authenticated; `local` is this host's address that reaches the root. Time to send a Join per
    /// rank.
    std::function<void(const Address& local)> connected;
    std::function<void(std::string why)> trouble;  // one attempt failed; another follows
    std::function<void(messages::Assignment)> placed;
    std::function<void(messages::Refused)> refused;
    std::function<void(Status)> failed;  // no attempt is left, or the root has gone
    std::function<void()> over;          // finish() is done
  };
  RootClient(wire::EventLoop& loop, const UniqueId& id, uint64_t number, Events events);
  ~RootClient();

  /// Connects, trying again as NCCL_SOCKET_RETRY_CNT and NCCL_SOCKET_RETRY_SLEEP_MSEC say.
  void start(const Address& root);
  bool idle() const { return link_ == nullptr; }
  bool connected() const { return link_ != nullptr && link_->is_open(); }
  void send(const Bytes& message);
  /// Sends the last message, if the present attempt reaches the root. Later events at the root no
  /// longer matter.
  void finish(const Bytes& message);

 private:
  void attempt();
  void part();
  void attempt_failed(Status reason);
  void nobody_listens(Status reason);
  void unreachable(Status reason);
  bool has_untried_way() const { return attempts_ < static_cast<int64_t>(ways_.size()); }
  Status cannot_be_reached(const Status& reason) const;
  /// Describes the process of the root, and its ranks, for messages.
  std::string describe_host() const;
  void link_opened(wire::Link& link) override;
  void link_frame(wire::Link& link, std::span<const std::byte> payload) override;
  void link_ended(wire::Link& link, wire::Link::End end, Status reason) override;
  Status take(std::span<const std::byte> payload);
  void tell(const messages::Awaited& awaited) const;
  void look_at_host();

  wire::EventLoop& loop_;
  const UniqueId id_;
  const wire::Link::Options options_;
  Events events_;
  Address root_;               // as the attempt under way reaches it
  std::vector<Address> ways_;  // to it, one per attempt, in turn
  std::unique_ptr<wire::Link> link_;
  wire::EventLoop::Id retry_ = 0, looker_ = 0;
  int64_t attempts_ = 0;
  wire::EventLoop::Clock::time_point started_;
  messages::Host host_;  // without a host name until the root has told
  bool answered_ = false;
  bool finished_ = false;
  Bytes last_message_;
};

}  // namespace niccolite::bootstrap
