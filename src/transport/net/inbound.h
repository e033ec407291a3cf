// Inbound: all that one rank receives from one rank of another machine. A stream whose TCP
// connection breaks waits for the one with which the peer replaces it (frame.h). Thread safety: the
// loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/net/incoming.h"
#include "transport/net/pulse.h"
#include "transport/net/stream.h"

namespace niccolite::transport::net {

class Inbound final : private Stream::Owner {
 public:
  struct Options {
    std::string peer;  // "rank 3 (process 4711 on host a12)"
    std::function<void(Status)> fail;
    wire::EventLoop::Clock::duration patience;  // with a peer that should connect again
    Pulse* pulse = nullptr;                     // outlives it
    // Keeps back credit and acknowledgements for which the peer does not wait until tell_soon().
    // While the peer has enough credit, it keeps back the rest until settle().
    bool keeps_back = false;
    // Takes the peer's credit and acknowledgements that came behind a part, about this rank's
    // sends.
    std::function<Status(const Frame&)> take_news{};
  };
  Inbound(wire::EventLoop& loop, Options options);
  ~Inbound();

  void add(const Key& key, Incoming& end);
  /// The peer has proved who it is.
  void welcome(wire::Link::Stream from);
  /// Makes all possible progress; true if anything has moved.
  bool progress();
  /// Tells the peer the credit and acknowledgements for which it may wait soon.
  void tell_soon();
  /// Gives the same news as frames to `queue`, for a stream that this rank sends on.
  void give_news(const std::function<void(const Frame&)>& queue);
  /// News that give_news() gave may not have arrived: all of it is told again.
  void tell_again();
  /// Tells the peer all news that both functions above have kept back.
  void settle();
  /// Tells the peer that nothing more will be read.
  void finish();

 private:
  struct Flow {                          // a stream
    std::unique_ptr<Stream> connection;  // null: it broke, and is awaited again
    uint64_t number = 0;                 // of the connection
    uint64_t received = 0;               // parts that are whole
    uint64_t acknowledged = 0;           // parts whose acknowledgement was sent
    uint64_t unacknowledged_bytes = 0;
    bool is_awaited = false;  // a kernel of the peer waits for an acknowledgement
    bool is_told = true;      // false: the peer may not know the last acknowledgement
    bool has_ended = false;   // the peer has, in order
    wire::EventLoop::Id awaited = 0;
  };

  Status stream_frame(Stream& stream, const Frame& frame) override;
  std::byte* stream_place(const Frame& part) override {
    return ends_.at(key_of(part))->place_of(part);
  }
  void stream_arrived(Stream& stream, const Frame& frame) override;
  void stream_ended(Stream& stream, Stream::End how, Status why) override;
  void not_replaced(const std::string& reason);
  Status begin(Stream& stream, const Frame& frame);
  Status accept(Flow& flow, const Frame& frame);
  void count(Flow& flow, const Frame& frame);
  struct Due {
    Incoming::Credit credit;
    uint64_t least_parts;  // for which acknowledgements are sent without credit
  };
  bool tell(Due due);
  uint64_t kept_back() const;
  bool collect_credit(Incoming::Credit which, const std::function<void(const Frame&)>& queue);
  static Frame acknowledgement(Flow& flow);
  static void acknowledge(Flow& flow);
  std::unique_ptr<Stream> take_unnamed(const Stream& stream);

  wire::EventLoop& loop_;
  const Options options_;
  std::map<int, Flow> flows_;
  std::vector<std::unique_ptr<Stream>> unnamed_;  // whose Begin has not come
  std::vector<std::unique_ptr<Stream>> ended_;    // until nobody is inside one
  std::map<Key, Incoming*> ends_;
  int heard_last_ = -1;  // a stream
  bool has_moved_ = false;
  int idle_ = 0;  // looks in a row at which nothing moved; not counted where things are kept back
  uint64_t most_unacknowledged_;  // parts, of all streams together
};

}  // namespace niccolite::transport::net
