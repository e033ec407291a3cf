// Messenger: all traffic between this rank and a rank of another machine by a Network: one of the
// network's connections in each direction. A message is its length and frames with their bytes, one
// after the other; a network need not tell the length of a message that came. An end is a length
// alone. A received message lies in a message buffer first, because a receive must be posted before
// the slot is known. Every frame has a place when it comes (frame.h), so a message never waits in
// its buffer. Where both networks' devices reach memory of the GPUs, the bytes of a part go to the
// receiver's slot themselves, ahead of the message. The receiver has said before its first credit
// where its slots are. Registered buffers of users need no slots (executor/protocol/user_memory.h):
//
//   sender                                      receiver
//   reads a chunk from the user's buffer
//                                      <----    Place: where the kernel wants the chunk of a step;
//                                               the key of a buffer that the user has registered
//   writes the chunk there, if it is
//     not on its way to the slot       ---->    Part, kIsThere and kInPlace
//                                      <----    Withdraw: the channel's places are wanted back
//   Withdrawn, behind all parts that
//     go to such a place               ---->    nothing comes there any more
//
// An operation that gives up waits for that, and until nothing of its own buffers is on its way. A
// peer that does not answer in time, or a connection that has failed, is cut off: the network's
// device then reads and writes nothing any more. Thread safety: handle() from any thread, meet()
// from one thread at a time, all else on the proxy's thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "transport/net/incoming.h"
#include "transport/net/network.h"
#include "transport/net/outgoing.h"
#include "transport/net/pulse.h"

namespace niccolite::transport::net {

class Messenger {
 public:
  struct Options {
    std::shared_ptr<Network> network;
    std::string peer;  // "rank 3 (process 4711 on host a12)"
    int own_rank = 0;  // of both ends, as tags of messages
    int peer_rank = 0;
    Observer* observer = nullptr;    // outlives the messenger; may be null
    std::function<bool()> has_left;  // the peer: it has ended in order
    std::function<void(Status)> fail;
    Pulse* pulse = nullptr;  // outlives it
  };
  static Result<std::unique_ptr<Messenger>> create(Options options);
  ~Messenger();
  Messenger(const Messenger&) = delete;

  /// Returns the handle to which the peer connects.
  const Network::Handle& handle() const { return own_; }

  void add(const Key& key, Outgoing& end);
  void add(const Key& key, Incoming& end);
  /// Takes the peer's handle, before this rank answers the peer. Only the first one counts.
  Status meet(const Network::Handle& peer);
  /// Connects to the peer, once. `peer_has_met`: the handle came with the peer's answer.
  void reach(const Network::Handle& peer, bool peer_has_met);
  /// Makes all possible progress; true if anything has moved.
  bool progress();
  /// Sends an end to the peer, after all queued frames.
  void finish() { is_finishing_ = true; }
  /// True when both ends have sent and received their ends, or never will.
  bool has_finished() const;

 private:
  struct Message {
    std::span<std::byte> bytes;
    void* request = nullptr;  // under way
    size_t used = 0;          // with its length
    size_t staged = 0;        // bytes at its end: of direct writes
    std::vector<Part> parts;  // in it
    std::vector<DirectWrite> writes;
    size_t direct_bytes() const;
  };
  /// The slots of a peer's end, in memory of its GPU. A frame's payload.
  struct Slots {
    DirectName name{};
    executor::FifoShape shape{};
  };
  static_assert(std::has_unique_object_representations_v<Slots>);
  static_assert(std::has_unique_object_representations_v<Offer>);
  /// All messages of one direction: a ring in one piece of memory, which is registered once, for as
  /// long as the connection lasts. Data of operations are copied to and from the ring, so that no
  /// operation registers anything.
  struct Box {
    std::vector<std::byte> bytes;
    void* memory = nullptr;  // as registered
    std::vector<Message> messages;
  };

  explicit Messenger(Options options) : options_(std::move(options)) {}
  size_t message_bytes() const;
  bool peer_ends() const { return ends_received_ > 0; }
  bool move();
  Result<bool> advance();
  Result<bool> make_connections();
  Result<bool> send_messages();
  Result<bool> complete_sends();
  Result<bool> receive_messages();
  Status prepare(void* connection, Box& box);
  Result<bool> post(Message& message);
  Status take(const Message& message);
  Result<size_t> take_frame(const Frame& frame, std::span<const std::byte> rest);
  void collect();
  void* handle_of(const Message& message) const;
  Status fill(Message& message);
  static size_t payload_of(const Part& part);
  Status write_payload(const Part& part, std::byte* to);
  Result<bool> add_direct(Message& message, Part& part, const Offer& to, uint16_t flags);
  bool has_direct_slots(const Key& key, const Outgoing& end) const;
  std::optional<Offer> slot_of(const Part& part) const;
  Status take_slots(const Frame& frame, std::span<const std::byte> rest);
  Result<size_t> take_news_of_places(const Frame& frame, std::span<const std::byte> rest);
  template <typename End>
  void attend(End& end);
  void hurry(Pulse::Clock::time_point since);
  void cut();
  void give_pulse();
  void abandon();

  const Options options_;
  Network::Handle own_{};
  bool has_met_ = false;
  std::optional<Network::Handle> peer_;
  bool peer_has_met_ = false;  // and the network has not been told
  void* listener_ = nullptr;
  bool is_listening_ = false;
  void* sending_ = nullptr;
  void* receiving_ = nullptr;
  Box outbox_;  // sent messages are under way from first_sent_ on
  Box inbox_;   // all posted, the oldest at next_received_
  size_t first_sent_ = 0;
  size_t sends_ = 0;  // under way
  size_t next_received_ = 0;
  size_t ends_sent_ = 0;
  size_t receives_ = 0;       // posted
  size_t ends_received_ = 0;  // all that follows the first one
  bool has_failed_ = false;
  bool is_cut_ = false;
  bool is_flushed_ = false;  // Network::flush_direct(), for the message that is taken
  bool is_finishing_ = false;
  std::deque<Part> waiting_;
  std::map<Key, Outgoing*> outgoing_;
  std::map<Key, Incoming*> incoming_;
  std::map<Key, Slots> peer_slots_;
  std::map<std::pair<Key, uint32_t>, uint64_t> limits_;  // granted, of ends not yet known, too
};

}  // namespace niccolite::transport::net
