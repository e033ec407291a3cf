// Outbound: all that one rank sends to one rank of another machine: the streams, which it dials,
// and the connections whose parts they carry. Streams are spread over the rails; the one with the
// least on its way takes the next part. A stream whose TCP connection breaks, or on which the peer
// is silent, gets another one, by the next path in turn, and loses nothing (frame.h). Thread
// safety: the loop's thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/net/outgoing.h"
#include "transport/net/pulse.h"
#include "transport/net/rails.h"
#include "transport/net/stream.h"
#include "wire/link.h"

namespace niccolite::transport::net {

class Outbound final : private wire::Link::Owner, private Stream::Owner {
 public:
  struct Options {
    wire::Link::Options link;
    uint64_t number = 0;  // the peer's, in the handshake
    std::string peer;     // "rank 3 (process 4711 on host a12)"
    int streams = 1;      // on each rail
    Rails rails;
    std::function<bool()> has_left;    // the peer: it has ended in order
    std::function<void(Status)> fail;  // the peer cannot be reached, or not again
    Pulse* pulse = nullptr;            // outlives it
    // `give_news` gives `queue` the credit and acknowledgements of this rank, which then travel
    // behind parts. `lose_news`: they may have been lost.
    std::function<void(const std::function<void(const Frame&)>& queue)> give_news{};
    std::function<void()> lose_news{};
  };
  Outbound(wire::EventLoop& loop, Options options);
  ~Outbound();

  void add(const Key& key, Outgoing& end);
  /// The peer's proxy listens there, on each of its rails. Dials once.
  void reach(std::span<const Address> addresses);

  /// Makes all possible progress; true if anything has moved.
  bool progress();
  /// Takes the peer's news of this rank's parts, which came behind a part of the peer.
  Status take_news(const Frame& frame);
  /// The peer will take nothing more, not even from ends that are added later.
  void abandon();
  /// Ends all streams when the queued parts are sent.
  void finish();
  bool has_streams() const;

 private:
  struct Flow {  // a stream
    uint32_t number = 0;
    size_t turn = 0;                     // of the paths: 0 is the stream's own
    std::unique_ptr<wire::Link> link;    // being dialed; beside a connection that is silent
    std::unique_ptr<Stream> connection;  // null: none for now
    size_t path = 0;                     // of the connection
    uint64_t connections = 0;            // so far
    bool is_ready = false;  // this is the first connection, or the peer has told which parts it has
    bool has_ended = false;  // the peer has ended the stream in order
    int attempts = 0;        // to connect, in a row, that brought nothing
    int unanswered = 0;      // attempts in a row that came to the peer's host, and no further
    /// Since when there has been no descriptor to connect with, here or there.
    std::optional<wire::EventLoop::Clock::time_point> short_since{};
    wire::EventLoop::Id retry = 0;
    uint64_t acknowledged = 0;  // parts that the peer has
    // parts that the peer may not have; their slots must not change
    std::deque<Part> unacknowledged;
    size_t on_way = 0;     // bytes of the unacknowledged parts
    uint64_t carried = 0;  // bytes, ever
    // since when the peer owes an answer to an Ask
    std::optional<Pulse::Clock::time_point> asked_since{};
    uint64_t heard = 0;         // frames of the peer's
    uint64_t heard_before = 0;  // at the last look
    uint32_t silences = 0;      // looks in a row that found nothing new
    uint32_t in_vain = 0;  // connections in a row that silence replaced: none brought a part soon
    uint32_t looks_away = 0;  // in a row that found it on another rail
    // Since when a connection is being dialed that somebody waits for. None: it is connected or
    // given up, or is dialed beside a live connection.
    std::optional<Pulse::Clock::time_point> dialing_since{};
    Pulse::Clock::time_point moved_at{};  // the last acknowledgement, or the first of those parts
  };

  size_t path_number(const Flow& flow) const;
  const Path& path(size_t number) const;
  void dial(Flow& flow);
  static void note_shortage(Flow& flow, bool is_short);
  void dial_failed(Flow& flow, const Status& why);
  void retry(Flow& flow, const Status& why);
  void give_up(Flow& flow, const Status& why);
  static bool has_room(const Flow& flow) {
    return flow.connection != nullptr && flow.is_ready && flow.connection->wants_more();
  }
  Flow* flow_for(const Part& part);
  uint32_t part_bytes() const;
  /// Returns a stream for a small part; null: none has room.
  Flow* any_flow();
  void hand_out();
  /// Looks after silence from now on, as long as there is something to wait for.
  void watch();
  void look();
  /// Do kernels have more to send than the peer has granted?
  bool is_hungry() const;
  uint64_t frames_heard() const;
  /// Kernels have just begun to wait for credit: asks for it if the peer is silent.
  void watch_hunger();
  static void was_silent(Flow& flow);
  static void has_brought_parts(Flow& flow);
  void try_own_rail(Flow& flow);
  void ask();
  void connection_lost();
  Flow& flow_of(const wire::Link& link);
  void link_opened(wire::Link& link) override;
  void link_frame(wire::Link&, std::span<const std::byte>) override {}
  void link_ended(wire::Link& link, wire::Link::End end, Status reason) override;
  Status stream_frame(Stream& stream, const Frame& frame) override;
  std::byte* stream_place(const Frame&) override { return nullptr; }  // it receives no parts
  void stream_arrived(Stream&, const Frame&) override {}
  void stream_ended(Stream& stream, Stream::End how, Status why) override;
  void give_pulse();
  Status take_credit(const Frame& frame);
  Status take_acknowledgement(Flow& flow, const Frame& frame);

  wire::EventLoop& loop_;
  const Options options_;
  Paths paths_;
  std::vector<std::string> tried_;  // by path: how the last attempt ended
  wire::EventLoop::Clock::time_point dialed_at_{};
  bool has_met_ = false;  // some connection came about, once
  bool is_dialed_ = false;
  bool is_finishing_ = false;
  bool is_abandoned_ = false;
  std::vector<Flow> flows_;                     // never grows
  std::vector<std::unique_ptr<Stream>> ended_;  // until nobody is inside one
  std::map<Key, Outgoing*> ends_;
  // The peer's credit by connection and channel, also for ends that are not yet known here.
  std::map<std::pair<Key, uint32_t>, uint64_t> limits_;
  std::deque<Part> waiting_;  // for a stream with room
  uint32_t last_ = 0;         // the stream that took the last part
  // The flow and the number of its connection that the pulse was told last; -1: none.
  std::pair<int64_t, uint64_t> told_{-1, 0};
  bool has_moved_ = false;
  bool has_sent_ = false;  // since the last look
  wire::EventLoop::Id watch_ = 0;
  uint32_t hungry_looks_ = 0;  // in a row at which kernels waited for credit
  wire::EventLoop::Id hunger_ = 0;
  bool has_asked_ = false;          // since something was sent
  bool keeps_credit_back_ = false;  // the peer sends credit only on request
};

}  // namespace niccolite::transport::net
