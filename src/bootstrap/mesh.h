// Mesh: the links of one process to the other processes of its communicator, made when they are
// needed. Between neighbors (see neighbors_of) the lower one dials as soon as it knows its place;
// between other processes, the first one with a message dials. If both dial at once there are two
// links: each side keeps sending on the one it had first, so that messages stay in order.
//
// A process that leaves says Goodbye on every link. A process whose link ends without it is lost.
// Thread safety: the loop's thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "bootstrap/messages.h"
#include "wire/acceptor.h"
#include "wire/link.h"

namespace niccolite::bootstrap {

class Mesh final : private wire::Link::Owner {
 public:
  using Frame = std::shared_ptr<const Bytes>;

  class Events {
   public:
    // a new link: the owner sends all that the process must know
    virtual void mesh_linked(uint32_t process) = 0;
    virtual void mesh_frame(uint32_t process, std::span<const std::byte> payload) = 0;
    virtual void mesh_departed(uint32_t process) = 0;  // it said Goodbye on all its links
    virtual void mesh_lost(uint32_t process, Status reason) = 0;
    virtual void mesh_unreachable(uint32_t process, Status reason) = 0;
    /// This process and others cannot reach each other, because there are no descriptors.
    virtual void mesh_exhausted(const Status& why) = 0;
    virtual void mesh_over() = 0;  // the end of farewell()

   protected:
    ~Events() = default;
  };

  Mesh(wire::EventLoop& loop, const authentication::Identity& self, Events& events);
  ~Mesh();

  /// Listens on a free port of `interface`.
  Status listen(const Address& interface);
  const Address& address() const { return acceptor_->address(); }

  /// Sets this process' place; its neighbors are dialed or expected.
  void place(const messages::Assignment& place);
  /// Makes a process known by address and number, and activates links that the process has made
  /// already.
  void introduce(uint32_t process, const Address& address, uint64_t number);
  /// Links to `process` end with it: see Link::end_with().
  void identify(uint32_t process, const ProcessId& id);

  /// Sends to `process`, dialing if need be. Frames to a process that has gone are dropped.
  void send(uint32_t process, Frame frame);
  /// Sends to `process` if there is a link.
  void tell(uint32_t process, const Frame& frame);
  /// Sends to every process to which there is a link.
  void broadcast(const Frame& frame);
  /// Dials `process` if there is no link: to learn whether it is still there.
  void probe(uint32_t process);
  const std::vector<uint32_t>& neighbors() const { return neighbors_; }

  /// Sends the queued messages, also to processes without a link, says Goodbye on every link and
  /// closes, within `answer` whether or not the peer has answered. mesh_over() follows within
  /// `patience`.
  void farewell(wire::EventLoop::Clock::duration patience, wire::EventLoop::Clock::duration answer);
  /// After farewell(): returns the processes whose links have not ended. leave_behind() ends the
  /// links of one process.
  std::vector<uint32_t> linked() const;
  void leave_behind(uint32_t process);

 private:
  struct Peer {
    Address address;
    uint64_t number = 0;
    ProcessId id;  // once it has been identified
    bool known = false;
    bool dials_us = false;  // a neighbor that will come
    bool gone = false;
    bool unreachable = false;  // gone as far as we know
    int attempts = 0;
    std::optional<wire::EventLoop::Clock::time_point> short_since;  // lacks a resource since
    wire::Link* dialing = nullptr;
    wire::EventLoop::Id retry = 0;
    wire::Link* sending = nullptr;  // where our frames go
    int links = 0;                  // open, Goodbye not yet heard
    std::deque<Frame> waiting;      // until there is a link
  };
  struct Held {
    std::unique_ptr<wire::Link> link;
    int64_t process = -1;  // -1: not introduced yet
    bool said_goodbye = false;
  };

  void link_opened(wire::Link& link) override;
  void link_frame(wire::Link& link, std::span<const std::byte> payload) override;
  void link_ended(wire::Link& link, wire::Link::End end, Status reason) override;

  void welcome(std::unique_ptr<wire::Link> link);
  void attach(wire::Link& link, uint32_t process);
  void dial(uint32_t process);
  void dial_failed(uint32_t process, wire::Link::End end, Status reason);
  void shortage(uint32_t process, const Status& reason);
  void give_up(uint32_t process, Status why);
  void heard_goodbye(Held& held);
  void part(wire::Link& link);
  void drop(wire::Link& link);
  void await_answers(wire::EventLoop::Clock::duration answer);
  void finish_if_over();
  bool has_waiting() const;

  wire::EventLoop& loop_;
  const wire::Link::Options options_;
  Events& events_;
  std::unique_ptr<wire::Acceptor> acceptor_;
  std::vector<Peer> peers_;  // by process
  std::vector<uint32_t> neighbors_;
  std::map<uint64_t, uint32_t> process_of_;  // by number
  std::map<wire::Link*, Held> links_;
  bool leaving_ = false;
  bool over_ = false;
  wire::EventLoop::Id patience_ = 0;
  wire::EventLoop::Id answers_ = 0;
};

}  // namespace niccolite::bootstrap
