// NetworkConnector: connects ranks that share no memory. Each end has a FIFO of its own in its
// host's memory, and the two ranks' proxies carry slots from one to the other (net/proxy.h,
// relay.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/thread_annotations.h"
#include "transport/carrier.h"
#include "transport/connector.h"
#include "transport/net/proxy.h"
#include "transport/put_sink.h"

namespace niccolite::transport {

class NetworkConnector final : public Connector {
 public:
  /// `machine` and `member` outlive it. `fail` hears on a thread of its own of peers that cannot be
  /// reached any more.
  NetworkConnector(gpu::Machine& machine, const bootstrap::Member& member,
                   std::function<void(Status)> fail, Carrier carrier,
                   const std::shared_ptr<Observer>& observer, PutSinks sinks = {})
      : machine_(machine),
        member_(member),
        fail_(std::move(fail)),
        carrier_(std::move(carrier)),
        observer_(observer),
        sinks_(std::move(sinks)) {}

  ~NetworkConnector() override;

  Kind kind() const override { return Kind::Network; }
  std::string name() const override;
  std::vector<std::string> devices(std::span<const ShapedEnd> ends) const override EXCLUDES(mutex_);
  /// It always can.
  std::string objection(const Pair& /*pair*/) const override { return {}; }

  Status reserve(std::span<const ShapedEnd> ends) override;
  Status ask(int peer, ConnectRequest& request) override;
  Status answer(int asker, std::span<const ShapedEnd> ends, const ConnectRequest& request,
                ConnectReply& reply) override;
  Status adopt(int peer, std::span<const ShapedEnd> ends, const ConnectReply& reply,
               const Deadline& deadline) override;
  Status hand_over(int peer, bool same_process, std::span<const ShapedEnd> ends,
                   ConnectReply& reply) override;
  std::optional<executor::PortAddress> port(const End& end) const override;
  bool await_flush(const Deadline& deadline) const override EXCLUDES(mutex_);
  void set_farewell(Farewell farewell) override EXCLUDES(mutex_);
  void close() override EXCLUDES(mutex_);
  std::optional<NetworkState> network_state() const override EXCLUDES(mutex_);
  size_t lasting_bytes() const override;

 private:
  using Proxies = std::vector<net::Proxy*>;

  Result<net::Rails> find_rails() const;
  int streams_per_rail() const REQUIRES(mutex_);
  /// All of this rank, started when they are first needed. They live as long as the connector.
  Result<Proxies> proxies() EXCLUDES(mutex_);
  /// Returns the proxies that carry data to and from a peer with `of_peer` proxies.
  Result<Proxies> proxies_with(size_t of_peer) EXCLUDES(mutex_);
  Proxies started() const EXCLUDES(mutex_);
  Result<executor::PortAddress> open(const Proxies& proxies, const ShapedEnd& shaped)
      EXCLUDES(mutex_);
  /// The slots of an end in memory of the GPU; null: they lie in host memory.
  std::shared_ptr<net::DirectMemory> allocate_direct(const ShapedEnd& shaped) const;
  /// Tells the peer where this rank listens for it.
  template <typename Message>
  Status describe(int peer, Message& message);
  /// The peer listens where its message says.
  template <typename Message>
  Status reach(int peer, const Message& message, std::span<const ShapedEnd> ends);

  gpu::Machine& machine_;
  const bootstrap::Member& member_;
  const std::function<void(Status)> fail_;
  const Carrier carrier_;
  const std::shared_ptr<Observer> observer_;  // may be null
  const PutSinks sinks_;
  std::map<End, executor::PortAddress> ports_;  // adopt() and port()
  mutable std::mutex mutex_;
  net::Rails rails_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<net::Proxy>> proxies_ GUARDED_BY(mutex_);
  std::map<End, std::shared_ptr<const net::EndMemory>> memories_ GUARDED_BY(mutex_);  // of open()
};

}  // namespace niccolite::transport
