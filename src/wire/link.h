// Link: one TCP connection to another process of the communicator or to its root: connects or is
// accepted, runs the handshake within a few seconds, then carries frames both ways. Lives on an
// EventLoop.
//
//   initiator   Connecting --> Handshaking --> Confirming --> Open --> Closed    (from every state)
//   acceptor                   Handshaking -----------------> Open --> Closed    (from every state)
// An acceptor that cannot keep the initiator says why in that first frame instead.
//
// Until it is Open nothing of the peer is used but the handshake, whose messages have fixed
// lengths. The acceptor's first frame is empty and confirms that it has let the initiator in: one
// that closes before that has dropped a stranger (an accept loop under attack drops its oldest),
// one that closes after it has ended. Thread safety: the loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "base/address.h"
#include "base/authentication.h"
#include "base/process.h"
#include "base/socket.h"
#include "wire/event_loop.h"
#include "wire/frames.h"

namespace niccolite::wire {

/// How the reason begins of an open link that has ended without a word of the peer's.
inline constexpr std::string_view kSilence = "nothing has come from it";

class Link {
 public:
  /// Why a link ended: the owner decides by this whether it tries again.
  enum class End {
    Absent,       // nobody on the host listens there
    Unreachable,  // no connection came about: timed out, no route
    Dropped,      // the peer closed before the handshake was over
    Refused,      // the peer is not the expected one
    Short,        // the peer is the right one, and has no descriptor for the link
    Ended,        // an open link: the peer closed it, its host died, or it broke the protocol
  };

  /// Hears of a link. A callback may close() the link but not destroy it: bury() does that safely.
  class Owner {
   public:
    virtual void link_opened(Link& link) = 0;
    virtual void link_frame(Link& link, std::span<const std::byte> payload) = 0;
    /// The last call; not after close() by the owner itself.
    virtual void link_ended(Link& link, End end, Status reason) = 0;

   protected:
    ~Owner() = default;
  };

  struct Options {
    authentication::Identity self;
    /// For an acceptor with several identities: returns the identity that a stranger asks for, in
    /// the place of `self`.
    std::function<authentication::Identity(uint64_t number)> identity_of;
    /// Tells why an acceptor cannot keep a peer that has proved who it is; empty: it can.
    std::function<std::string()> lacks{};
    size_t max_frame = kMaxFrame;
    Address from{};  // of this host, that it dials from; none: the system chooses
    EventLoop::Clock::duration patience =
        std::chrono::seconds(5);  // for connecting and handshake, each
  };

  static Result<std::unique_ptr<Link>> accepted(EventLoop& loop, Socket socket,
                                                const Options& options, Owner& owner);
  /// `number`: of the process that should answer; 0 for a root.
  static Result<std::unique_ptr<Link>> dial(EventLoop& loop, const Address& address,
                                            uint64_t number, const Options& options, Owner& owner,
                                            int* error_number = nullptr);
  ~Link() { close(); }
  /// Destroys `link` once its callback, if one runs, has returned.
  static void bury(EventLoop& loop, std::unique_ptr<Link> link);

  void set_owner(Owner& owner) { owner_ = &owner; }
  /// The link ends with the peer's process, too: another one may hold the peer's socket open,
  /// perhaps a child. Nothing changes where the process cannot be watched, or where the link leaves
  /// this network namespace: the peer's last frames may then arrive long after its end.
  void end_with(const ProcessId& process);
  /// Queues a frame; only while open.
  void send(std::span<const std::byte> payload);
  /// Stops or resumes delivering frames; bytes that arrive stay in the kernel.
  void pause();
  void resume();
  /// Sends the queued bytes, ends this side's stream and drops bytes that still arrive.
  /// link_ended() comes when the peer has closed.
  void finish();
  void close();
  /// Takes the socket of a link that has just opened, for bytes that are no frames, and the bytes
  /// that must be sent on it first. The link is closed. The dialing end may find that the peer has
  /// sent such bytes already, unless the peer waits for this end to begin.
  struct Stream {
    Socket socket;
    Bytes unsent;
  };
  Stream release();

  bool is_open() const { return state_ == State::Open; }
  /// Is it open for the peer perhaps, though not yet here?
  bool is_confirming() const { return state_ == State::Confirming; }
  bool is_finishing() const { return finishing_; }
  /// This end's number, as the peer asked for it.
  uint64_t number() const { return handshake_.number(); }
  uint64_t peer_number() const { return handshake_.peer_number(); }
  const Address& peer_address() const { return peer_; }
  Result<Address> local_address() const { return socket_.local_address(); }

 private:
  enum class State { Connecting, Handshaking, Confirming, Open, Closed };

  Link(EventLoop& loop, Socket socket, const Options& options, Owner& owner, bool initiator,
       State state);
  Status begin();
  void ready(uint32_t events);
  Status step(uint32_t events);
  Status finish_connect();
  Status read_handshake();
  Status answer_handshake();
  Status hear_last_words(Status broken);
  Status read_frames();
  Status deliver_frames();
  Status flush();
  void start_frames();
  void become(State state);
  void arm_patience();
  void watch_delivery();
  void look_at_delivery();
  bool stays_here() const;
  void await_last_words();
  void update_watch();
  Status describe_silence(const Status& reason) const;
  void end(Status reason);

  EventLoop& loop_;
  Socket socket_;
  const Options options_;
  Owner* owner_;
  const bool initiator_;
  State state_;
  bool paused_ = false;
  bool finishing_ = false;
  bool sending_ended_ = false;
  bool delivering_ = false;
  bool refused_ = false;  // the failure under way is one of the handshake's checks
  bool absent_ = false;   // the failure under way: nobody listens
  bool short_ = false;    // the failure under way: the peer cannot keep the link
  Address peer_;
  EventLoop::Id watch_ = 0;
  EventLoop::Id timer_ = 0;
  // State of the looks while some data are undelivered: the timer of the next look; at the last
  // look, the time of the last acknowledgement and the number of tries; whether the peer's host
  // seemed to be gone.
  EventLoop::Id look_ = 0;
  EventLoop::Clock::time_point acknowledged_;
  uint32_t tries_ = 0;
  bool is_silent_ = false;
  uint32_t watched_ = 0;
  // The end of the peer's process, and the timer until its last frames have come.
  Fd process_end_;
  EventLoop::Id end_watch_ = 0;
  EventLoop::Id last_words_ = 0;
  bool heard_ = false;  // since that timer was set
  authentication::Handshake handshake_;
  Bytes incoming_;  // of the handshake message under way
  Bytes outgoing_;
  size_t sent_ = 0;  // of outgoing_
  std::optional<FrameSealer> sealer_;
  std::optional<FrameOpener> opener_;
};

}  // namespace niccolite::wire
