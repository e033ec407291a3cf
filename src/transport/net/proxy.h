// Proxy: a thread of a rank that carries the slots of its connections to ranks of other machines,
// by TCP. If the rank has several proxies, each carries its share of the channels (end_memory.h).
// The kernels of this rank write and read FIFOs in host memory. The thread is driven by the FIFOs'
// counters and by the sockets alone, so an operation needs no call of the host, also in a graph
// (docs/design/network.md).
//
//   Outgoing, Incoming   one end of one connection: FIFO and counters
//   Outbound, Inbound    all ends to, or from, one peer, and the streams that carry them
//   Stream               one TCP connection
//
// One thread (engine.h) carries both directions; for GPUs two threads do, as long as the process
// has cores to spare.
//
// A peer must know the group's secret to pass the handshake of a stream (wire/link.h). Thread
// safety: any thread; open() and reach() do not wait.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "base/thread_annotations.h"
#include "bootstrap/member.h"
#include "transport/farewell.h"
#include "transport/net/engine.h"
#include "transport/net/inbound.h"
#include "transport/net/messenger.h"
#include "transport/net/network.h"
#include "transport/net/outbound.h"
#include "transport/net/pulse.h"
#include "transport/net/rails.h"
#include "transport/observer.h"
#include "transport/put_sink.h"
#include "wire/acceptor.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::transport::net {

class Proxy {
 public:
  struct Options {
    gpu::Machine& machine;
    const bootstrap::Member& member;     // outlives the proxy
    std::function<void(Status)> fail;    // of a peer, which the status names; on the proxy's thread
    int streams = 1;                     // to each peer on each rail; at most kMostStreams in all
    Rails rails{};                       // none: the interface that the bootstrap uses
    std::shared_ptr<Network> network{};  // instead of streams
    // How long a peer may take to replace a connection that broke; zero: as long as it tries
    // (NCCL_SOCKET_RETRY_CNT, NCCL_SOCKET_RETRY_SLEEP_MSEC).
    std::chrono::milliseconds patience{};
    bool has_two_threads = false;  // one for each direction; plug-ins always have one
    // On virtual GPUs the proxy's thread sends a chunk with more bytes, the kernel's thread a
    // smaller one.
    uint64_t most_by_kernels = UINT64_MAX;
    uint64_t direct_bytes = 1;                    // also on virtual GPUs: UserMemory::least_bytes()
    std::shared_ptr<UserBuffers> user_buffers{};  // of the network; null: there are none
    Observer* observer = nullptr;                 // outlives the proxy
    PutSinks sinks{};  // of the chunks that come with kPutTag and kGinTag
  };
  static Result<std::unique_ptr<Proxy>> start(Options options);
  /// Ends the streams, as the farewell says. No kernel uses the ports any more.
  ~Proxy();
  /// Begins that, which the end then waits for: the proxies of a rank end together.
  void leave();
  void set_farewell(Farewell farewell) {
    farewell_.store(farewell, std::memory_order_relaxed);  // before the end, which posts
  }

  /// Returns the addresses at which peers reach it: on each rail, by device number.
  const std::vector<Address>& addresses() const { return addresses_; }

  struct Name {
    int peer = 0;
    Key key;
    bool is_send = false;
    friend auto operator<=>(const Name&, const Name&) = default;
  };
  /// Takes its share of this rank's end of a connection. Returns the end as if this proxy had all
  /// of it, with an equal result for every call.
  Result<executor::PortAddress> open(const Name& name, EndShare share) EXCLUDES(mutex_);
  /// The peer's proxy listens at these addresses, so that data can be sent to it.
  void reach(int peer, const std::vector<Address>& addresses);
  /// Returns where the network listens for that peer, with an equal result for every call.
  Result<Network::Handle> listen_for(int peer) EXCLUDES(mutex_);
  /// The peer's network listens there. `is_answer`: the peer has reached this rank before.
  Status reach(int peer, const Network::Handle& handle, bool is_answer) EXCLUDES(mutex_);
  /// Is all that kernels have published with the proxies of the peers?
  bool is_flushed() const EXCLUDES(mutex_);
  /// How its threads and the ways to its peers do. Does not wait for the threads.
  NetworkState state() EXCLUDES(mutex_) EXCLUDES(pulses_mutex_);

 private:
  explicit Proxy(Options options);
  Status listen();
  Pulse& pulse(int peer) EXCLUDES(pulses_mutex_);
  Engine& receiver() { return receiving_ == nullptr ? *sending_ : *receiving_; }
  void welcome(std::unique_ptr<wire::Link> link);
  void warn_of_shortage(const Status& why);
  Outbound& outbound(int peer);
  Inbound& inbound(int peer);
  // Functions by which a peer's two directions carry each other's news (frame.h).
  using Queue = std::function<void(const Frame&)>;
  bool news_travel_behind_parts() const;
  std::function<void(const Queue&)> give_news_of(int peer);
  std::function<void()> lose_news_of(int peer);
  std::function<Status(const Frame&)> take_news_of(int peer);
  Result<Messenger*> messenger(int peer) REQUIRES(mutex_);
  template <typename End>
  Status attach(const Name& name, End* end) REQUIRES(mutex_);
  bool has_finished() const;
  bool send();
  bool receive();
  void tell_soon();
  void settle();
  /// On the thread of `from`.
  void report(Engine& from, int peer, Status why);
  void finish(bool is_orderly);

  const Options options_;
  const Rails rails_;
  const pid_t process_;
  const wire::Link::Options link_;
  std::mutex pulses_mutex_;
  // Pulses by peer; they are never moved, because other objects point to them.
  std::map<int, std::unique_ptr<Pulse>> pulses_ GUARDED_BY(pulses_mutex_);
  std::unique_ptr<Engine> sending_;    // and receiving, if there is no other; and plug-ins'
  std::unique_ptr<Engine> receiving_;  // may be null
  std::vector<Address> addresses_;
  std::atomic<Farewell> farewell_{Farewell::Acknowledged};
  bool has_left_ = false;                // leave() was called
  std::atomic<bool> is_leaving_{false};  // nobody cares for failures any more

  mutable std::mutex mutex_;
  // All ends that were opened; they are never moved.
  std::map<Name, std::unique_ptr<Outgoing>> outgoing_ GUARDED_BY(mutex_);
  std::map<Name, std::unique_ptr<Incoming>> incoming_ GUARDED_BY(mutex_);

  // Messengers by peer; they are never moved.
  std::map<int, std::unique_ptr<Messenger>> made_messengers_ GUARDED_BY(mutex_);
  // Why connections have broken, by peer.
  std::map<int, std::string> causes_ GUARDED_BY(mutex_);
  // Peers of failures that wait for better news. Their data are lost for no fault of the ranks, so
  // nobody may judge the ranks by their waits meanwhile, and the end of the communicator waits for
  // the failure.
  std::set<int> broken_ GUARDED_BY(mutex_);

  // The sender's thread.
  std::map<int, Messenger*> messengers_;               // messengers that were made
  std::map<int, std::unique_ptr<Outbound>> outbound_;  // by peer
  bool is_finishing_ = false;

  // The receiver's.
  std::vector<std::unique_ptr<wire::Acceptor>> acceptors_;  // by rail
  std::map<int, std::unique_ptr<Inbound>> inbound_;
  bool told_shortage_ = false;  // of descriptors
};

}  // namespace niccolite::transport::net
