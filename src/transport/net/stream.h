// Stream: one authenticated TCP connection between two proxies, carrying frames both ways. Bytes of
// parts go from slot to socket and from socket to slot without a copy of ours; small frames share
// system calls. Thread safety: the loop's thread.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>

#include "transport/net/outgoing.h"
#include "wire/link.h"

namespace niccolite::transport::net {

/// The most streams from one rank to another.
inline constexpr int kMostStreams = 64;

class Stream {
 public:
  enum class End {
    Finished,  // the peer has ended its side between two frames
    Broken,    // the connection has
    Refused,   // the owner did not take a frame
  };
  /// Hears of a stream. No callback may destroy it, but drop() it may.
  class Owner {
   public:
    /// A frame.
    virtual Status stream_frame(Stream& stream, const Frame& frame) = 0;
    /// Returns the place for the bytes of the part that is being received, if it is still wanted.
    virtual std::byte* stream_place(const Frame& part) = 0;
    /// The bytes of the frame are there.
    virtual void stream_arrived(Stream& stream, const Frame& frame) = 0;
    /// The last call; not after drop().
    virtual void stream_ended(Stream& stream, End how, Status why) = 0;

   protected:
    ~Owner() = default;
  };

  static Result<std::unique_ptr<Stream>> create(wire::EventLoop& loop, wire::Link::Stream from,
                                                Owner& owner);
  ~Stream() { drop(); }
  Stream(const Stream&) = delete;

  /// Told when bytes come, in ticks of EventLoop::Clock; outlives the stream.
  void set_pulse(std::atomic<wire::EventLoop::Clock::rep>& heard) { heard_ = &heard; }
  Result<Address> local_address() const { return socket_.local_address(); }
  /// The owner's name for it; -1: none yet.
  int label() const { return label_; }
  void set_label(int label) { label_ = label; }

  /// Queues a frame and its payload, which stays as it is until the peer has acknowledged it.
  void send(const Part& part);
  /// Hands queued bytes to the kernel, as many as it takes. A failure ends the stream when all that
  /// had come before has been received: a peer that leaves says so last.
  void flush();
  /// True if so few bytes are on their way that the stream should get more.
  bool wants_more() const {
    return can_send() && queue_.size() < 16 && queued_bytes_ < kMostQueued;
  }
  /// Ends this side once all is sent; stream_ended() comes when the peer has ended its own.
  void finish();
  bool is_open() const { return watch_ != 0; }
  /// Ends it at once, without another call to the owner.
  void drop();

 private:
  static constexpr size_t kMostQueued = 512 << 10;
  static constexpr size_t kStaged = 4 << 10;

  Stream(wire::EventLoop& loop, wire::Link::Stream from, Owner& owner)
      : loop_(loop),
        socket_(std::move(from.socket)),
        preface_(std::move(from.unsent)),
        owner_(owner) {}
  bool can_send() const { return is_open() && send_failure_.is_ok(); }
  void ready(uint32_t events);
  void push();
  Status try_push();
  void stop_sending(Status why);
  void advance(size_t bytes);
  Status receive();
  Status take_staged();
  /// Returns the place of the next byte of the part that is coming.
  std::byte* target() const { return owner_.stream_place(frame_) + (frame_.length - missing_); }
  void update_watch(bool is_blocked);
  void end(End how, Status why);

  wire::EventLoop& loop_;
  Socket socket_;
  Bytes preface_;  // the end of the handshake, before all frames
  Owner& owner_;
  wire::EventLoop::Id watch_ = 0;
  int label_ = -1;
  std::atomic<wire::EventLoop::Clock::rep>* heard_ = nullptr;
  bool is_refused_ = false;  // the failure under way is the owner's
  Status send_failure_;
  bool is_blocked_ = false;  // the kernel takes no more for now
  bool is_finishing_ = false;
  bool has_finished_ = false;

  std::deque<Part> queue_;
  size_t sent_ = 0;  // of the first of queue_ with its header, or of the preface
  size_t queued_bytes_ = 0;

  Frame frame_;         // whose bytes are coming
  size_t missing_ = 0;  // of them
  size_t staged_ = 0;   // bytes in stage_: the beginning of a header
  std::array<std::byte, kStaged> stage_;
};

}  // namespace niccolite::transport::net
