// Endpoint: one rank's ends of connections to its peers, made when a program first needs them.
//
// A connection is named by (sender, receiver, tag, protocol). Programs that use the same name share
// it: its counters persist, and the operations of a communicator run one after the other. Thread
// safety: connect() by one thread at a time; reserve() and answer() from any thread at any time.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/wait.h"
#include "bootstrap/member.h"
#include "executor/program.h"
#include "executor/protocol/fifo.h"
#include "gpu/machine.h"
#include "transport/descriptor_server.h"
#include "transport/imports.h"
#include "transport/messages.h"
#include "transport/net/proxy.h"
#include "transport/pool.h"

namespace niccolite::transport {

/// By protocol; equal on all ranks.
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

  /// By peer, as both ends know it.
  struct Reach {
    std::vector<bool> out;           // this rank's kernels can access buffers of the peer's user
    std::vector<bool> in;            // the peer's kernels those of this rank's user
    bool is_whole = false;           // every rank's kernels those of all others' users
    std::vector<bool> windows{};     // both those of the other's user that lie in windows
    bool has_whole_windows = false;  // every rank's kernels those of all others
    std::vector<bool> is_remote{};   // the peer is on another machine; empty: none is
  };

  /// `machine` and `member` outlive the endpoint; `ask` is used in connect() only. `fail` hears on
  /// a thread of the endpoint's of peers on other machines that cannot be reached any more.
  /// `network` carries to those; null: sockets do.
  Endpoint(gpu::Machine& machine, int device, const bootstrap::Member& member, const Shapes& shapes,
           Reach reach, Ask ask, std::function<void(Status)> fail = {},
           std::shared_ptr<net::Network> network = {});
  ~Endpoint();

  /// Makes this rank's ends for `program`, all at once. connect() does so too; a process that
  /// connects several ranks one after the other reserves for all first, or else their ends would be
  /// made one by one as their peers ask for them, each with memory of its own.
  Status reserve(const executor::Program& program, executor::Protocol protocol);

  /// Addresses for every port of `program`, in port order. Connects what is not yet connected,
  /// which may wait for peers' processes until `deadline`, but not for their calls.
  Result<std::vector<executor::PortAddress>> connect(const executor::Program& program,
                                                     executor::Protocol protocol,
                                                     const Deadline& deadline);

  /// A peer connects: makes this rank's half of each connection and tells where it is.
  Result<Bytes> answer(int from, std::span<const std::byte> request);

  /// From now on connections serve offers of memory in windows (executor/protocol/offer.h), too:
  /// all ranks between the same operations. What connect() gave before does not know it.
  void open_windows() { are_windows_open_ = true; }

  /// Waits until all that this rank's kernels have sent to other machines is the network's, or
  /// never will be since the peer has left; false at the deadline.
  bool await_flush(const Deadline& deadline) const EXCLUDES(mutex_);

  /// Device memory of this rank's own ends.
  size_t allocated_bytes() const EXCLUDES(mutex_);

  /// Gives the memory of all connections back, in two steps that every rank has taken before any
  /// takes the next: lets go of the peers' memory, then of this rank's. No operation may be under
  /// way or begin. All ends stay where they are.
  Status suspend_peers();
  Status suspend_own() EXCLUDES(mutex_);
  /// Brings it back in the opposite order, all connections as if they had just been made.
  Status resume_own() EXCLUDES(mutex_);
  Status resume_peers(const Deadline& deadline);

 private:
  enum class Role : uint8_t { Sender, Receiver };
  struct Name {
    int peer;
    int tag;
    executor::Protocol protocol;
    Role role;  // of this rank
    friend auto operator<=>(const Name&, const Name&) = default;
  };
  struct Unconnected {
    int peer;
    std::vector<Name> names;
  };
  struct LocalEnd {  // this rank's memory of a connection
    Span control;
    std::optional<Span> slots;  // at the receiver
  };
  struct RemoteEnd {  // the peer's memory of a connection, mapped here
    std::byte* control = nullptr;
    std::byte* slots = nullptr;  // of a receiving peer
  };
  struct RemoteChunk {  // one of the two keeps it mapped
    std::shared_ptr<Chunk> shared;
    std::shared_ptr<Import> imported;
    std::byte* data() const { return shared ? shared->data() : imported->data(); }
    size_t bytes() const { return shared ? shared->bytes() : imported->bytes(); }
  };

  const executor::FifoShape& shape_of(const Name& name) const;
  static std::vector<Name> names_of(const executor::Program& program,
                                    executor::Protocol protocol);  // by port
  /// In the order of the names; makes what is missing, all at once.
  Result<std::vector<LocalEnd>> local_ends(std::span<const Name> names) EXCLUDES(mutex_);
  Status connect_peers(std::span<const Unconnected> peers, const Deadline& deadline);
  Result<Bytes> request_for(const Unconnected& of);
  /// Maps the peer's half of the connections, as its reply tells.
  Status adopt(const Unconnected& of, std::span<const std::byte> reply, const Deadline& deadline);
  Result<const RemoteChunk*> remote_chunk(int peer, const Token& token, size_t bytes,
                                          const std::string& address, const Deadline& deadline);

  bool is_remote(int peer) const {
    return !reach_.is_remote.empty() && reach_.is_remote[static_cast<size_t>(peer)];
  }
  /// Started when it is first needed.
  Result<net::Proxy*> proxy() EXCLUDES(mutex_);
  Result<executor::PortAddress> open_relay(net::Proxy& proxy, const Name& name);
  Status adopt_relays(const Unconnected& of, const ConnectReply& reply);
  Result<Bytes> answer_remote(int asker, std::span<const Name> names,
                              const ConnectRequest& request);
  /// Tells the peer where this rank listens for it.
  template <typename Message>
  Status describe_proxy(int peer, Message& message);
  /// The peer listens where its message says.
  template <typename Message>
  Status reach_proxy(int peer, const Message& message, bool sends);

  /// Can kernels at that end of the connection use buffers of the other's user? See PortAddress.
  bool reaches_user(const Name& name, Role end) const;

  gpu::Machine& machine_;
  const int device_;
  const bootstrap::Member& member_;
  const Shapes shapes_;
  const Reach reach_;
  const Ask ask_;
  const std::function<void(Status)> fail_;
  const std::shared_ptr<net::Network> network_;
  std::map<Token, RemoteChunk> remote_chunks_;    // connect() only
  std::map<Name, RemoteEnd> remote_ends_;         // connect() only
  std::map<Name, executor::PortAddress> relays_;  // to other machines; connect() only
  bool peers_are_suspended_ = false;
  bool are_windows_open_ = false;  // connect() only
  std::shared_ptr<DescriptorServer> server_
      GUARDED_BY(mutex_);  // from the first request of another process
  mutable std::mutex mutex_;
  Share share_ GUARDED_BY(mutex_);
  std::map<Name, LocalEnd> local_ends_ GUARDED_BY(mutex_);
  std::unique_ptr<net::Proxy> proxy_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::transport
