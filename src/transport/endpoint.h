// Endpoint: one rank's ends of connections to its peers, made when a program first needs them.
//
// A connection is named by (sender, receiver, tag, protocol). Programs that use the same name share
// it: its counters persist, and the operations of a communicator run one after the other. How two
// ranks are connected is their connector's matter (connector.h), the first that can serve them.
// Thread safety: connect() by one thread at a time; reserve() and answer() from any thread at any
// time.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "base/wait.h"
#include "bootstrap/member.h"
#include "executor/program.h"
#include "executor/protocol/fifo.h"
#include "transport/carrier.h"
#include "transport/connector.h"
#include "transport/observer.h"
#include "transport/put_sink.h"
#include "transport/reach.h"
#include "transport/team.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::transport {

namespace net {
class Reducer;
}

/// Shapes of FIFOs by protocol; equal on all ranks.
struct Shapes {
  std::array<executor::FifoShape, executor::kProtocols> shared{};
  std::array<executor::FifoShape, executor::kProtocols> of_messages{};  // schedule::kMessageTag
};

class Endpoint {
 public:
  /// Has the endpoints of peers answer() a request each, all at once. In the order of the queries;
  /// ends with the first failure.
  using Ask = std::function<std::vector<Result<Bytes>>(std::span<const bootstrap::Query> queries,
                                                       const Deadline& deadline)>;

  /// `machine` and `member` outlive the endpoint; `ask` is used in connect() only. `fail` hears on
  /// a thread of the endpoint's of peers on other machines that cannot be reached any more.
  /// `observer` may be null, and `team`, where there is none; `sinks` are, where no puts come from
  /// other machines.
  Endpoint(gpu::Machine& machine, int device, const bootstrap::Member& member, const Shapes& shapes,
           Reach reach, Ask ask, std::function<void(Status)> fail = {}, Carrier carrier = {},
           std::shared_ptr<Observer> observer = {}, std::unique_ptr<Team> team = {},
           PutSinks sinks = {});
  ~Endpoint();

  /// Sets this rank's place in the network's reductions (schedule::Through), before the first
  /// program that needs it.
  void set_reducer(std::shared_ptr<net::Reducer> reducer);

  /// Makes this rank's ends for `program`, all at once. connect() does so, too. But a process that
  /// connects several ranks one after the other must reserve for all ranks first. Otherwise peers'
  /// requests would have the ends made one by one, each with memory of its own.
  Status reserve(const executor::Program& program, executor::Protocol protocol);

  /// Returns the addresses for every port of `program`, in port order. Makes the missing
  /// connections. That may wait for peers' processes until `deadline`, but does not wait for their
  /// calls.
  Result<std::vector<executor::PortAddress>> connect(const executor::Program& program,
                                                     executor::Protocol protocol,
                                                     const Deadline& deadline);

  /// The sending end of the connection that carries puts to this rank of another machine. As
  /// connect().
  Result<executor::PortAddress> connect_for_puts(int peer, const Deadline& deadline) {
    return connect_to_sink(peer, kPutTag, deadline);
  }
  /// As connect_for_puts(), for what kernels ask the network for.
  Result<executor::PortAddress> connect_for_gin(int peer, const Deadline& deadline) {
    return connect_to_sink(peer, kGinTag, deadline);
  }

  /// A peer connects: makes this rank's half of each connection, and returns its place.
  Result<Bytes> answer(int from, std::span<const std::byte> request);

  /// This rank is about to leave, and nothing connects any more. Returns a message for each peer
  /// that may still connect to this rank: a peer that keep()s the message needs no answer
  /// (docs/design/connections.md).
  struct Legacy {
    int peer;
    Bytes message;
  };
  Result<std::vector<Legacy>> hand_over();
  /// A peer is about to leave. Fetches the ends that it hands over within a moment, or refuses. Any
  /// thread.
  Status keep(int from, std::span<const std::byte> message);

  /// From now on connections serve advertisements of memory in windows
  /// (executor/protocol/advertisement.h), too. All ranks call it between the same operations.
  /// Addresses that connect() returned before lack the advertisements.
  void open_windows() { are_windows_open_ = true; }

  /// This rank's end of its multicast team, for communicators of the same ranks; null: there is
  /// none.
  std::shared_ptr<TeamRange> team_range() const;

  /// Waits until all that this rank's kernels have sent to other machines is the network's, or
  /// never will be since the peer has left; false at the deadline.
  bool await_flush(const Deadline& deadline) const;
  /// Called before the end; the last call counts.
  void set_farewell(Farewell farewell);
  /// Ends the streams to other machines after an abort or a failure, as the destructor does. The
  /// memory of all connections stays.
  void close();

  /// How the ways to ranks of other machines do; none: none is connected. Any thread.
  std::optional<NetworkState> network_state() const;

  /// Device memory of this rank's own ends.
  size_t allocated_bytes() const;
  /// That which stays while connections are suspended.
  size_t lasting_bytes() const;

  /// Gives the memory of all connections back, in two steps that every rank has taken before any
  /// takes the next: lets go of the peers' memory, then of this rank's. No operation may be under
  /// way or begin. All ends stay where they are.
  Status suspend_peers();
  Status suspend_own();
  /// Brings it back in the opposite order, all connections as if they had just been made.
  Status resume_own();
  Status resume_peers(const Deadline& deadline);

 private:
  struct Unconnected {
    int peer;
    std::vector<ShapedEnd> ends;
  };

  Result<executor::PortAddress> connect_to_sink(int peer, int tag, const Deadline& deadline);
  executor::FifoShape shape_of(const End& end) const;
  std::vector<ShapedEnd> ends_of(const executor::Program& program,
                                 executor::Protocol protocol) const;  // by port
  Result<executor::PortAddress> reducer_port(const ShapedEnd& shaped) const;
  Connector& connector_to(int peer) const { return *by_peer_[static_cast<size_t>(peer)]; }
  /// Makes the missing ones of these ends of this rank.
  Status reserve(std::span<const ShapedEnd> ends);
  Status connect_peers(std::span<const Unconnected> peers, const Deadline& deadline);
  /// Connects with the ends that the peer has handed over; false: it has handed over none.
  Result<bool> adopt_kept(const Unconnected& of, const Deadline& deadline);
  void note_adopted(const Unconnected& of, const ConnectReply& reply);
  Result<Bytes> request_for(const Unconnected& of);
  /// The peer has made its half of the connections, as its reply tells.
  Status adopt(const Unconnected& of, std::span<const std::byte> reply, const Deadline& deadline);
  void log_connection(const Unconnected& of) const;

  /// Can kernels at that end of the connection (the sending one, or the other) use buffers of the
  /// other's user? See PortAddress.
  bool reaches_user(const End& end, bool at_sender) const;

  gpu::Machine& machine_;
  const int device_;
  const bootstrap::Member& member_;
  const std::shared_ptr<Observer> observer_;
  const Shapes shapes_;
  const Reach reach_;
  const std::unique_ptr<Team> team_;
  const bool takes_puts_;
  const bool is_virtual_;
  const Ask ask_;
  std::vector<Pair> pairs_;                             // by peer
  std::vector<std::unique_ptr<Connector>> connectors_;  // in the order in which they are asked
  std::vector<Connector*> by_peer_;
  std::shared_ptr<net::Reducer> reducer_;  // null: there is none
  bool are_windows_open_ = false;          // connect() only
  std::mutex ends_mutex_;
  std::set<End> adopted_ GUARDED_BY(ends_mutex_);
  // Made here, and their peers may not have adopted theirs.
  std::set<End> awaited_ GUARDED_BY(ends_mutex_);
  // Answers that leaving peers have handed over, each as a reply of one item.
  std::map<End, ConnectReply> kept_ GUARDED_BY(ends_mutex_);
};

}  // namespace niccolite::transport
