// Outbound: all that one rank sends to one rank of another machine: the streams, which it dials,
// and the connections whose parts they carry. Any stream that has room takes the next part. A
// stream whose TCP connection breaks gets another one, and loses nothing (frame.h). Thread safety:
// the loop's thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/link.h"
#include "transport/net/outgoing.h"
#include "transport/net/stream.h"

namespace niccolite::transport::net {

class Outbound final : private bootstrap::Link::Owner, private Stream::Owner {
 public:
  struct Options {
    bootstrap::Link::Options link;
    uint64_t number = 0;  // the peer's, in the handshake
    std::string peer;     // "rank 3 (process 4711 on host a12)"
    int streams = 1;
    std::function<bool()> has_left;    // the peer: it has ended in order
    std::function<void(Status)> fail;  // the peer cannot be reached, or not again
  };
  Outbound(bootstrap::EventLoop& loop, Options options);
  ~Outbound();

  void add(const Key& key, Outgoing& end);
  /// The peer's proxy listens there. Dials once.
  void reach(const Address& address);

  /// Moves what can be moved; true when that was something.
  bool progress();
  /// Ends all streams when what is queued is sent.
  void finish();
  bool has_streams() const;

 private:
  struct Lane {  // a stream
    uint32_t number = 0;
    std::unique_ptr<bootstrap::Link> link;  // being dialed
    std::unique_ptr<Stream> connection;     // null: none for now
    uint64_t connections = 0;               // so far
    bool is_ready = false;   // the connection is the first, or the peer has said what it has
    bool has_ended = false;  // the peer has, in order
    int attempts = 0;        // to connect, in a row, that brought nothing
    bootstrap::EventLoop::Id retry = 0;
    uint64_t acknowledged = 0;        // parts that the peer has
    std::deque<Part> unacknowledged;  // those that follow; their slots stay as they are
  };

  void dial(Lane& lane);
  void retry(Lane& lane, const Status& why);
  void abandon_ends();
  Lane& lane_of(const bootstrap::Link& link);
  void link_opened(bootstrap::Link& link) override;
  void link_frame(bootstrap::Link&, std::span<const std::byte>) override {}
  void link_ended(bootstrap::Link& link, bootstrap::Link::End end, Status reason) override;
  Result<std::byte*> stream_frame(Stream& stream, const Frame& frame) override;
  void stream_arrived(Stream&, const Frame&) override {}
  void stream_ended(Stream& stream, Stream::End how, Status why) override;
  Status take_credit(const Frame& frame);
  Status take_acknowledgement(Lane& lane, uint64_t parts);

  bootstrap::EventLoop& loop_;
  const Options options_;
  Address address_;
  bool is_dialed_ = false;
  bool is_finishing_ = false;
  std::vector<Lane> lanes_;                     // never grows
  std::vector<std::unique_ptr<Stream>> ended_;  // until nobody is inside one
  std::map<Key, Outgoing*> ends_;
  // What the peer has granted, by connection and channel: of ends that are not yet known here, too.
  std::map<std::pair<Key, uint32_t>, uint64_t> limits_;
  std::deque<Part> waiting_;  // for a stream with room
  bool has_moved_ = false;
};

}  // namespace niccolite::transport::net
